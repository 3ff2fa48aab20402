"""A transactional id expires on the coordinator (transactional.id.expiration.ms) while the producer
is idle. The first transaction that meets this error is aborted, and the producer continues with a
new producer id. A producer that was replaced in the meantime is still fenced.

Source: Java 3.x `TransactionManager.beginCompletingTransaction` (InvalidPidMappingException), Kafka
`TransactionMetadata.isValidProducerId`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiokprod import AbortableTransactionError, FatalTransactionError, KafkaError, Producer
from aiokprod.testing.fake_cluster import FakeCluster
from tests.scenarios.scenario_helpers import make_producer
from tests.transactions.transaction_helpers import (
    END,
    ID,
    INIT,
    committed,
    full,
    one,
    stable,
    transactional,
)


async def found_out(producer: Producer[Any, Any], first: str) -> None:
    """Run the transaction that gets the error for the expired id."""
    await producer.begin_transaction()
    if first == "record":
        call: Any = producer.send("t", b"lost", partition=0)
    else:
        call = producer.send_offsets_to_transaction({("in", 0): 1}, "g")
    with pytest.raises(KafkaError) as caught:
        await call
    assert not isinstance(caught.value, FatalTransactionError)
    assert caught.value.outcome.definite
    with pytest.raises(AbortableTransactionError) as again:
        await producer.commit_transaction()
    assert again.value.code is not None
    assert again.value.code.number == 49


@pytest.mark.parametrize("first", ["record", "offsets"])
@transactional()
async def test_expired_id_costs_one_transaction_and_not_the_producer(
    cluster: FakeCluster, producer: Producer[Any, Any], first: str
) -> None:
    await one(producer, b"1")
    old = cluster.transactions.ids.pop(ID).producer_id
    await found_out(producer, first)
    await producer.abort_transaction()
    await full(producer, b"2")
    assert cluster.transactions.ids[ID].producer_id != old
    assert sorted(committed(cluster)) == [b"1", b"2", b"2"]
    assert cluster.transactions.committed_offsets == {"g": {("in", 0): 2}}
    assert stable(cluster)


@transactional()
async def test_run_transaction_repeats_after_an_expired_id(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await one(producer, b"1")
    cluster.transactions.ids.pop(ID)

    async def work(_: Any) -> None:
        await producer.submit("t", b"2", partition=0)

    await producer.run_transaction(work)
    assert committed(cluster) == [b"1", b"2"]
    assert cluster.count(INIT) == 2


@pytest.mark.parametrize("first", ["record", "offsets"])
@transactional()
async def test_expired_id_that_another_instance_took_is_fenced(
    cluster: FakeCluster, producer: Producer[Any, Any], first: str
) -> None:
    await one(producer, b"1")
    cluster.transactions.ids.pop(ID)
    other = make_producer(cluster, transactional_id=ID, seed=2)
    await one(other, b"other")
    await found_out(producer, first)
    await producer.abort_transaction()
    with pytest.raises(FatalTransactionError):
        await producer.begin_transaction()
    await one(other, b"other 2")
    await other.close()
    assert committed(cluster) == [b"1", b"other", b"other 2"]


@transactional(transaction_timeout_ms=2_000)
async def test_commit_of_an_unknown_id_is_refused_and_the_abort_ends(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.begin_transaction()
    await producer.send("t", b"1", partition=0)
    await asyncio.sleep(3)  # the coordinator aborts the transaction
    cluster.transactions.ids.pop(ID)
    with pytest.raises(AbortableTransactionError) as caught:
        await producer.commit_transaction()
    assert caught.value.outcome.definite
    await producer.abort_transaction()
    await one(producer, b"2")
    assert (cluster.count(END), cluster.count(INIT)) == (3, 2)
    assert committed(cluster) == [b"2"]
