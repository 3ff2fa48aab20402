"""A transaction that one producer flushes and another process ends, as Spark's tasks and driver
do."""

from __future__ import annotations

from typing import Any

import pytest

from aiokprod import AbortableTransactionError, GroupMetadata, Producer, TransactionError
from aiokprod.testing.fake_cluster import FakeCluster
from tests.transactions.transaction_helpers import END, committed, stable, transactional


@transactional()
async def test_prepare_then_close_leaves_the_transaction_open(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.begin_transaction()
    await producer.send("t", b"x", partition=0)
    producer_id, epoch, _ = await producer.prepare_transaction()
    assert producer_id >= 0
    assert epoch >= 0
    with pytest.raises(TransactionError, match="accepts nothing more"):
        await producer.send("t", b"late", partition=0)
    await producer.close()
    assert committed(cluster) == []
    assert not stable(cluster)
    assert cluster.count(END) == 0


@transactional()
async def test_prepare_tells_the_protocol(
    cluster: FakeCluster, producer: Producer[Any, Any], tv: int
) -> None:
    await producer.begin_transaction()
    await producer.send("t", b"x", partition=0)
    assert (await producer.prepare_transaction())[2] is (tv == 2)
    await producer.commit_transaction()  # the producer that prepared it may end it, too
    assert committed(cluster) == [b"x"]


@transactional()
async def test_prepare_before_records_are_settled_is_refused(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    async with producer.transaction():
        await producer.submit("t", b"x", partition=0)
        with pytest.raises(TransactionError, match="flush first"):
            await producer.prepare_transaction()
    assert committed(cluster) == [b"x"]


@transactional()
async def test_prepare_after_a_failed_record_raises_and_close_aborts(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    cluster.fail_produce(("t", 0), 87)  # INVALID_RECORD
    await producer.begin_transaction()
    delivery = await producer.submit("t", b"x", partition=0)
    with pytest.raises(Exception, match=r".*"):
        await delivery
    with pytest.raises(AbortableTransactionError):
        await producer.prepare_transaction()
    await producer.close()
    assert stable(cluster)


@transactional()
async def test_prepare_without_transaction_is_refused(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    with pytest.raises(TransactionError, match="within a transaction"):
        await producer.prepare_transaction()


@transactional()
async def test_prepare_counts_offsets_and_next_begin_starts_afresh(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.begin_transaction()
    await producer.send_offsets_to_transaction({("t", 0): 7}, GroupMetadata("g"))
    await producer.prepare_transaction()
    await producer.commit_transaction()
    async with producer.transaction():
        await producer.send("t", b"y", partition=0)
    assert committed(cluster) == [b"y"]
