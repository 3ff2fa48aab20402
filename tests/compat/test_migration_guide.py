"""The examples of docs/migration/aiokafka.md run with a FakeCluster over TCP."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import aiokprod.compat.aiokafka as compat
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.fake_cluster.tcp import serve_tcp

PAGE = Path(__file__).parents[2] / "docs" / "migration" / "aiokafka.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
PRINTED = ("orders 0 0\n", "", "Outcome.NOT_SENT\n", "[1, 2]\n")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    compat.uninstall()


def test_every_example_has_its_output() -> None:
    assert len(EXAMPLES) == len(PRINTED)


@pytest.mark.parametrize("number", range(len(PRINTED)))
@pytest.mark.filterwarnings("ignore:imported aiokafka's AIOKafkaProducer:RuntimeWarning")
def test_examples_run(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(compile(EXAMPLES[number], PAGE.name, "exec"), names)

    async def run() -> None:
        async with serve_tcp(FakeCluster(default_partitions=1)) as servers:
            await names["main"](servers)

    if "main" in names:
        asyncio.run(run())
    else:
        import aiokafka

        assert aiokafka.AIOKafkaProducer is compat.AIOKafkaProducer
    assert capsys.readouterr().out == PRINTED[number]
