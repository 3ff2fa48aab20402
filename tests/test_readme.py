"""The README is true: its example runs, its settings and defaults are those of the code."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import re
from pathlib import Path

import pytest

import aiokprod
from aiokprod import Outcome, ProducerConfig
from aiokprod.testing.mock_cluster import MockCluster

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
IN_WORDS = {"required", "generated", "on", "none"}


def configuration() -> dict[str, str]:
    """Setting → default, as the table has them."""
    table = README.split("## Configuration")[1].split("\nBehaviour is")[0]
    found: dict[str, str] = {}
    for line in table.splitlines():
        if line.startswith("| `"):
            names, defaults = line.split("|")[1:3]
            keys = re.findall(r"`(\w+)`", names)
            values = [value.strip() for value in defaults.split(",")]
            found |= dict(zip(keys, values, strict=True))
    return found


def test_readme_configuration_table_has_every_setting() -> None:
    assert set(configuration()) == {field.name for field in dataclasses.fields(ProducerConfig)}


def test_readme_configuration_table_defaults_true() -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(ProducerConfig)}
    for name, told in configuration().items():
        if told not in IN_WORDS:
            assert ast.literal_eval(told.strip("`")) == defaults[name], name


def test_readme_names_are_public() -> None:
    errors = set(re.findall(r"`(\w+(?:Error|Timeout|Topic|Rejected|TooLarge|Block|Full))`", README))
    ours = errors - {"UnknownTopicOrPartitionError", "BufferError", "TimeoutError"}
    assert ours <= set(aiokprod.__all__)
    assert set(re.findall(r"`Outcome\.(\w+)`", README)) == {outcome.name for outcome in Outcome}


def test_readme_ten_lines_run(capsys: pytest.CaptureFixture[str]) -> None:
    example = README.split("## Ten lines")[1].split("```python")[1].split("```")[0]
    with MockCluster() as cluster:
        program = example.replace("localhost:9092", cluster.bootstrap_servers)
        exec(compile(program, "README.md", "exec"), {"asyncio": asyncio})
    partition, offset = map(int, capsys.readouterr().out.split())
    assert 0 <= partition < 4
    assert offset == 0
