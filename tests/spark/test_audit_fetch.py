"""Reading ranges back: patience has an end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from aiokprod.errors import KafkaTimeout
from aiokprod.spark.audit_fetch import EARLIEST, PATIENCE, RangeReader, list_offset
from aiokprod.testing.virtual import run


class Leaderless:
    """A session with a cluster whose topic has lost its leader for good."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.refreshed = 0

    async def topic(self, name: str, deadline: float) -> Any:
        return SimpleNamespace(partitions=[SimpleNamespace(partition=0, leader=None)])

    def refresh(self) -> None:
        self.refreshed += 1


async def read_offset(session: Any) -> None:
    await list_offset(session, "t", 0, timestamp=EARLIEST, committed=True)


async def read_range(session: Any) -> None:
    await RangeReader(session, "t", 0, 0, 9, committed=True, values=True, headers=True).read()


@pytest.mark.parametrize("read", [read_offset, read_range])
def test_partition_without_a_leader_is_given_up(read: Callable[[Any], Awaitable[None]]) -> None:
    async def main() -> None:
        session: Any = Leaderless()
        started = session.loop.time()
        with pytest.raises(KafkaTimeout, match="t-0: no leader"):
            await read(session)
        assert PATIENCE <= session.loop.time() - started < PATIENCE + 1
        assert session.refreshed > 1

    run(main, limit_s=600.0)
