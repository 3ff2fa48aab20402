"""The README is correct: its example runs, and the names in it are public."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

import aiokprod
from aiokprod import Outcome
from aiokprod.testing.mock_cluster import MockCluster

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_readme_names_are_public() -> None:
    errors = set(re.findall(r"`(\w+(?:Error|Timeout|Topic|Rejected|TooLarge|Block|Full))`", README))
    assert errors <= set(aiokprod.__all__)
    assert set(re.findall(r"`Outcome\.(\w+)`", README)) == {outcome.name for outcome in Outcome}


def test_readme_calls_are_methods_of_the_producer() -> None:
    section = README.split("## Five ways to send")[1].split("\n## ")[0]
    called = set(re.findall(r"`(?:await )?(\w+)\(", section))
    assert called == {
        "send", "submit", "try_submit", "send_many", "send_table", "flush", "close"
    }  # fmt: skip
    assert all(hasattr(aiokprod.Producer, name) for name in called)


def test_readme_ten_lines_run(capsys: pytest.CaptureFixture[str]) -> None:
    example = README.split("## Ten lines")[1].split("```python")[1].split("```")[0]
    with MockCluster() as cluster:
        program = example.replace("localhost:9092", cluster.bootstrap_servers)
        exec(compile(program, "README.md", "exec"), {"asyncio": asyncio})
    partition, offset = map(int, capsys.readouterr().out.split())
    assert 0 <= partition < 4
    assert offset == 0
