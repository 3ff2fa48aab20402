"""Batches of a transaction that are too large for their topic. Their parts belong to the
transaction, too."""

from __future__ import annotations

from typing import Any

import pytest

from aiokprod import Producer
from aiokprod._engine.identity.sequence_errors import SequenceDecision
from aiokprod._errors import Code
from aiokprod.errors import KafkaError, Outcome
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.virtual import run
from tests.engine.identity.identity_helpers import batches, opened, sequences
from tests.transactions.transaction_helpers import PRODUCE, committed, one, stable, transactional

COUNT = 40


async def too_large(cluster: FakeCluster, producer: Producer[Any, Any]) -> list[bytes]:
    """Send a batch that must be divided several times within the open transaction."""
    cluster.topics["t"].config.max_message_bytes = 1_500
    values = [b"%03d" % number + b"x" * 200 for number in range(COUNT)]
    handles = [await producer.submit("t", value, partition=0) for value in values]
    offsets = [(await handle).offset for handle in handles]
    assert offsets == sorted(offset for offset in offsets if offset is not None)
    assert any(r.code is Code.MESSAGE_TOO_LARGE for r in cluster.refusals)
    batches = cluster.topics["t"].partitions[0].log.batches
    data = [stored.batch for stored in batches if stored.marker is None]
    assert len(data) > 4
    assert all(batch.is_transactional for batch in data)
    assert committed(cluster) == []
    return values


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@transactional(linger_ms=50)
async def test_parts_of_a_divided_batch_carry_the_transactional_flag(
    cluster: FakeCluster, producer: Producer[Any, Any], commit: bool
) -> None:
    await producer.begin_transaction()
    values = await too_large(cluster, producer)
    await (producer.commit_transaction() if commit else producer.abort_transaction())
    expected = values if commit else []
    assert committed(cluster) == expected
    await one(producer, b"next")
    assert committed(cluster) == [*expected, b"next"]
    assert stable(cluster)


@transactional(linger_ms=50)
async def test_batch_in_doubt_that_is_too_large_is_divided_and_committed(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.begin_transaction()
    cluster.fail_produce(("t", 0), Code.NOT_LEADER_OR_FOLLOWER)
    cluster.fail_produce(("t", 0), Code.MESSAGE_TOO_LARGE)
    values = [b"%d" % number for number in range(4)]
    handles = [await producer.submit("t", value, partition=0) for value in values]
    assert [(await handle).offset for handle in handles] == [0, 1, 2, 3]
    await producer.commit_transaction()
    assert committed(cluster) == values
    assert stable(cluster)


@transactional(linger_ms=50)
async def test_rest_of_a_divided_batch_is_not_sent_once_a_part_has_failed(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    """The rest was never sent under its own sequence number, and brokers that verify a transaction
    would reject it."""
    await producer.begin_transaction()
    cluster.fail_produce(("t", 0), Code.MESSAGE_TOO_LARGE, times=2)
    first, second = [await producer.submit("t", b"%d" % n, partition=0) for n in range(2)]
    for handle in (first, second):
        with pytest.raises(KafkaError) as found:
            await handle
        assert found.value.outcome is Outcome.REJECTED
    assert cluster.count(PRODUCE) == 2
    await producer.abort_transaction()
    await one(producer, b"next")
    assert committed(cluster) == [b"next"]
    assert stable(cluster)


@pytest.mark.parametrize(
    ("log_start", "restarts"),
    [(6, True), (5, False), (4, False)],
    ids=["took-our-last", "stopped-at-it", "before-it"],
)
def test_unknown_producer_restarts_only_if_retention_took_our_last_record(
    log_start: int, restarts: bool
) -> None:
    """The last acknowledged record has offset 5. If the log starts at 5, that record still exists,
    so the broker should still have the producer state."""

    async def main() -> None:
        state = sequences(opened())
        (batch,) = batches(1)
        state.assign_sequence(batch)
        state.tracker.of(batch).last_acked_offset = 5
        action = state.classify(batch, Code.UNKNOWN_PRODUCER_ID, log_start)
        assert action.decision is (SequenceDecision.RETRY if restarts else SequenceDecision.NONE)
        assert not batch.sequence_reset, "a classification changes nothing"
        state.apply(batch, action)
        assert batch.sequence_reset is restarts

    run(main)
