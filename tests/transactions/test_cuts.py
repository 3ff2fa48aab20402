"""The connection breaks after any byte of EndTxn or of its response. The transaction is committed
or aborted once, as requested, and the next transaction is not affected."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from aiokprod import Producer
from aiokprod.testing.fake_cluster import FakeCluster, cut
from aiokprod.testing.fake_cluster.apis.find_coordinator import coordinator_of
from tests.transactions.transaction_helpers import END, ID, committed, one, stable, transactional

pytestmark = pytest.mark.matrix

ANSWER = 32
"""Maximum size of a response to EndTxn, including the length field."""


@pytest.mark.parametrize("processed", [True, False], ids=["processed", "lost"])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("size", range(ANSWER + 1))
@transactional(request_timeout_ms=2_000)
async def test_end_cut_after_any_byte_verdict_stands(
    cluster: FakeCluster, producer: Producer[Any, Any], size: int, commit: bool, processed: bool
) -> None:
    await one(producer, b"before")
    await producer.begin_transaction()
    await producer.send("t", b"v", partition=0)
    cluster.control(END, cut(size, process=processed), times=1)
    await (producer.commit_transaction() if commit else producer.abort_transaction())
    await one(producer, b"after")
    middle = [b"v"] if commit else []
    assert committed(cluster) == [b"before", *middle, b"after"]
    assert cluster.transactions.ids[ID].history == [True, commit, True]
    assert stable(cluster)


@pytest.mark.parametrize("broker", [1, 2, 3])
@pytest.mark.parametrize("late", [0.0, 0.01, 0.05, 0.2])
@transactional(request_timeout_ms=2_000, cluster={"marker_s": 0.05})
async def test_end_broker_dies_around_it_verdict_stands(
    cluster: FakeCluster, producer: Producer[Any, Any], broker: int, late: float
) -> None:
    import asyncio

    await one(producer, b"before")
    await producer.begin_transaction()
    for number in range(30):
        await producer.submit("t", b"%d" % number, partition=number % 3)
    asyncio.get_running_loop().call_later(late, cluster.kill, broker)
    await producer.commit_transaction(timeout=100)
    await one(producer, b"after", timeout=100)
    await asyncio.sleep(1)
    assert sorted(committed(cluster)) == sorted(
        [b"before", b"after", *(b"%d" % number for number in range(30))]
    )
    assert stable(cluster)


@pytest.mark.parametrize("cut_with", ["reset", "eof"])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@transactional(request_timeout_ms=2_000)
async def test_end_request_cut_after_any_byte_verdict_stands(
    cluster: FakeCluster,
    producer: Producer[Any, Any],
    commit: bool,
    cut_with: Literal["reset", "eof"],
) -> None:
    wanted: list[bytes] = []
    size, whole = 0, False
    while not whole:
        await producer.begin_transaction()
        await producer.send("t", b"%d" % size, partition=0)
        coordinator = coordinator_of(cluster.brokers[1], ID)
        assert coordinator is not None
        before = cluster.count(END)
        pipe = cluster.network.links_to(coordinator.host, coordinator.port)[-1].up
        pipe.cut_at, pipe.cut_with = pipe.taken + size, cut_with
        await (producer.commit_transaction() if commit else producer.abort_transaction())
        wanted += [b"%d" % size] if commit else []
        assert committed(cluster) == wanted, size
        assert stable(cluster), size
        # The cut was after the last byte: the broker read the request, but its response may be
        # lost.
        whole = pipe.taken == pipe.cut_at
        assert cluster.count(END) - before in ((1, 2) if whole else (1,)), size
        size += 1
    assert 40 < size < 80
    assert cluster.transactions.ids[ID].history == [commit] * size
