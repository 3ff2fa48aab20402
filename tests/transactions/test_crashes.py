"""The process dies at each step of a transaction. All or none of its records become visible, and
the next instance continues."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiokprod import Producer
from aiokprod.testing.fake_cluster import FakeCluster, Reaction, Request, lose_request
from tests.scenarios.scenario_helpers import make_producer, now, until
from tests.transactions.transaction_helpers import (
    ID,
    Machine,
    committed,
    full,
    one,
    stable,
    transactional,
)

pytestmark = pytest.mark.matrix

TIMEOUT_S = 10.0


async def run_until_crash(cluster: FakeCluster, step: int, arrives: bool) -> bool:
    """Run a transaction on a machine that dies when it has sent `step` requests and sends the next
    one.

    If `arrives`, the broker still receives that request. Return True if the commit returned before
    the crash.
    """
    machine = Machine(cluster.network)
    producer = make_producer(
        cluster, dialer=machine, transactional_id=ID,
        transaction_timeout_ms=int(TIMEOUT_S * 1000),
    )  # fmt: skip
    died = asyncio.Event()
    seen = 0

    def count(request: Request) -> Reaction | None:
        nonlocal seen
        if died.is_set():
            return None
        seen += 1
        if seen <= step:
            return None
        machine.die()
        died.set()
        return None if arrives else lose_request()

    stop = cluster.control(None, count)
    work = asyncio.ensure_future(full(producer, b"1"))
    dying = asyncio.ensure_future(died.wait())
    await asyncio.wait({work, dying}, return_when=asyncio.FIRST_COMPLETED)
    dying.cancel()
    finished = work.done()
    if not finished:
        work.cancel()
    await asyncio.wait({work})
    await producer.close(0)
    stop()
    return finished


def check_all_or_nothing(cluster: FakeCluster, finished: bool) -> None:
    seen = [value for value in committed(cluster) if value == b"1"]
    assert seen in ([], [b"1"] * 2), "torn"
    offsets = cluster.transactions.committed_offsets
    assert offsets == ({"g": {("in", 0): 1}} if seen else {}), "offsets apart from the records"
    if finished:
        assert seen, "reported as committed"


@pytest.mark.parametrize("arrives", [True, False], ids=["arrives", "lost"])
@pytest.mark.parametrize("restart", [True, False], ids=["restarted", "gone"])
@pytest.mark.parametrize("step", range(16))
@transactional()
async def test_crash_at_request_all_or_nothing_and_readers_go_on(
    cluster: FakeCluster, producer: Producer[Any, Any], step: int, arrives: bool, restart: bool
) -> None:
    finished = await run_until_crash(cluster, step, arrives)
    crashed = now()
    if restart:
        await one(producer, b"next")
        assert now() - crashed < 2.0
    else:
        await until(lambda: stable(cluster))
        assert now() - crashed <= TIMEOUT_S + 0.1
    check_all_or_nothing(cluster, finished)
    others = [value for value in committed(cluster) if value != b"1"]
    assert others == ([b"next"] if restart else [])
    assert stable(cluster)


@transactional()
async def test_crash_steps_reach_beyond_the_commit(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    assert not await run_until_crash(cluster, 0, True)
    assert await run_until_crash(cluster, 15, True)
