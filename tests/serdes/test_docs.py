"""The examples of docs/serdes.md run with the mock cluster and a registry in memory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import aiokprod.serdes
from aiokprod.serdes import Registry
from aiokprod.testing.mock_cluster import MockCluster
from tests.serdes.memory_registry import MemoryRegistry

PAGE = (Path(__file__).parents[2] / "docs" / "serdes.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example_runs(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = MemoryRegistry()
    monkeypatch.setattr(
        aiokprod.serdes,
        "Registry",
        lambda url, **options: Registry(url, transport=server, **options),
    )
    with MockCluster() as cluster:
        program = EXAMPLES[number].replace("localhost:9092", cluster.bootstrap_servers)
        names: dict[str, Any] = {}
        exec(compile(program, "docs/serdes.md", "exec"), names)
    if "register=True" in program:
        assert server.requests == ["POST /subjects/users-value/versions"]
        assert capsys.readouterr().out.split()[1] == "0"


def test_page_names_every_public_name_or_it_is_a_type() -> None:
    types = {
        "Framing", "RegisteredSchema", "RegistryAuth", "RegistryRequest", "RegistryResponse",
        "RegistryTransport", "SchemaReference", "SubjectName", "topic_name",
    }  # fmt: skip
    missing = {name for name in aiokprod.serdes.__all__ if name not in PAGE}
    assert missing <= types
