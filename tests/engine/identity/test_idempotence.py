"""Producer id, sequences, epochs (KIP-98, KIP-360; Java TransactionManagerTest and
the idempotence tests of SenderTest)."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from aiokprod._core.batch import Delivery
from aiokprod._engine.identity.idempotence import IdempotentSequences
from aiokprod._engine.identity.sequences import MAX_EPOCH, SequenceTracker
from aiokprod._wire.record_batch import MAX_SEQUENCE, NO_PRODUCER_ID, increment_sequence
from aiokprod.errors import (
    Code,
    DeliveryTimeout,
    Outcome,
)
from aiokprod.records import TopicPartition
from tests.engine.engine_harness import (
    BACKOFF,
    PRODUCER_ID,
    EngineHarness,
    Sent,
    error_of,
    offset_of,
    outcome_of,
    quiet,
    virtual,
)

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


def tracker_of(harness: EngineHarness) -> SequenceTracker:
    assert isinstance(harness.state.sequences, IdempotentSequences)
    return harness.state.sequences.tracker


def sequences(harness: EngineHarness) -> list[tuple[int, int]]:
    """Return the epoch and base sequence of every request, in order."""
    return [sent.sequence[1:] for sent in harness.brokers.produce]


async def started(**settings: object) -> tuple[EngineHarness, asyncio.Task[None]]:
    """Return a harness with one acknowledged record and its running sender."""
    harness = EngineHarness(**settings)  # type: ignore[arg-type]
    task = asyncio.ensure_future(harness.sender.run())
    harness.append_all(b"first")
    await quiet()
    harness.brokers.last.ack()
    await quiet()
    return harness, task


async def end(harness: EngineHarness, task: asyncio.Task[None]) -> None:
    task.cancel()
    await quiet()
    harness.check_idle()


def acknowledged(harness: EngineHarness, value: bytes = b"first") -> Delivery:
    """Deliver one record, so that brokers have state of the producer."""
    (delivery,) = harness.append_all(value)
    harness.step()
    harness.brokers.last.ack()
    return delivery


def three_in_flight(harness: EngineHarness) -> tuple[list[Delivery], list[Sent]]:
    acknowledged(harness)
    deliveries = harness.append_all(b"1", b"2", b"3")
    harness.step()
    assert sequences(harness)[1:] == [(0, 1), (0, 2), (0, 3)]
    return deliveries, harness.brokers.waiting


def expiring() -> EngineHarness:
    """Return a harness with one acknowledged record, whose records expire after 30 s."""
    harness = EngineHarness(delivery_timeout_ms=30_000, request_timeout_ms=30_000)
    acknowledged(harness)
    return harness


def expired_in_flight() -> tuple[EngineHarness, Delivery]:
    """Like `expiring`, with a record that has expired while its request is in flight."""
    harness = expiring()
    delivery = harness.append(b"expired")
    harness.step()
    harness.later(30.0)
    return harness, delivery


def expired_in_backoff(
    value: bytes, *, stored: bool = False
) -> tuple[EngineHarness, list[Delivery], Sent]:
    """Like `expiring`, with a record whose request was lost shortly before it expired, while the
    request of the next record, `value`, is in flight. `stored`: the broker has appended the first
    record.

    Returns:
        The harness, the handles of both records and the request of the second one.
    """
    harness = expiring()
    deliveries = harness.append_all(b"expired")
    harness.pass_time(10.0)
    deliveries += harness.append_all(value)
    harness.step()
    first, second = harness.brokers.waiting
    harness.pass_time(19.95)
    first.lose(stored=stored)
    harness.publish()
    harness.later(0.06)
    return harness, deliveries, second


def deliver_all(harness: EngineHarness) -> None:
    """Let the brokers process all requests correctly until none remains."""
    for _ in range(50):
        harness.refresh()
        harness.step()
        for sent in harness.brokers.waiting:
            sent.ack()
        if not harness.accumulator.incomplete:
            break
        harness.later()
    harness.step()
    harness.check_idle()


# -- sequences ------------------------------------------------------------------------------------


@virtual
async def test_sequences_count_records_per_partition() -> None:
    harness = EngineHarness(partitions=2)
    for partition in (0, 1):
        for value in (b"a", b"b"):
            harness.append(value, partition)
    harness.step()
    harness.brokers.last.ack()
    harness.append(b"c", 0)
    harness.append(b"c", 1)
    harness.step()
    assert [b.base_sequence for b in harness.brokers.last.batches.values()] == [2, 2]


@virtual
async def test_first_batch_of_a_partition_goes_alone_until_it_is_acknowledged() -> None:
    """A broker without state accepts any first sequence: a second batch in flight could be stored
    before the first one."""
    harness = EngineHarness()
    harness.append_all(b"1", b"2", b"3")
    harness.step()
    assert sequences(harness) == [(0, 0)]
    harness.brokers.last.ack()
    harness.step()
    assert sequences(harness) == [(0, 0), (0, 1), (0, 2)]
    for sent in harness.brokers.waiting:
        sent.ack()
    harness.step()
    harness.check_idle()


@virtual
async def test_no_more_than_five_batches_are_open() -> None:
    harness = EngineHarness()
    acknowledged(harness)
    harness.brokers.max_in_flight = 50
    harness.append_all(*(b"%d" % i for i in range(8)))
    harness.step()
    assert len(harness.brokers.waiting) == 5
    harness.brokers.waiting[0].ack()
    harness.step()
    assert len(harness.brokers.waiting) == 5


@virtual
async def test_sequence_after_the_highest_is_zero() -> None:
    harness = EngineHarness()
    acknowledged(harness)
    entry = tracker_of(harness).partitions[T0]
    entry.next = MAX_SEQUENCE - 1
    entry.last_acked = MAX_SEQUENCE - 2
    harness.brokers.log(T0).ledger.forget()
    for value in (b"a", b"b", b"c"):
        harness.append(value)
    harness.close_open()
    harness.append(b"d")
    harness.step()
    assert sequences(harness)[1:] == [(0, MAX_SEQUENCE - 1), (0, 1)]
    deliver_all(harness)
    assert entry.last_acked == 1
    assert harness.brokers.stored(T0)[1:] == [b"a", b"b", b"c", b"d"]


async def before_the_wrap(left: int) -> EngineHarness:
    """Return a harness whose brokers are Kafka 1.0.0, `left` sequences before they wrap."""
    harness = EngineHarness()
    ledger = harness.brokers.log(T0).ledger
    ledger.by_order = True
    acknowledged(harness)
    entry = tracker_of(harness).partitions[T0]
    (known,) = ledger._entries[PRODUCER_ID].window
    last = MAX_SEQUENCE - left
    ledger.forget()
    ledger.restore(PRODUCER_ID, dataclasses.replace(known, base_sequence=last, last_sequence=last))
    entry.last_acked, entry.next = last, increment_sequence(last, 1)
    entry.wrapped = entry.next == 0
    return harness


@pytest.mark.parametrize("left", [0, 1, 2])
@virtual
async def test_duplicate_answered_because_the_sequences_wrapped_is_not_believed(left: int) -> None:
    """Kafka 1.0.0 and 1.0.1 compare sequences as numbers: after the wrap they report every batch as
    a duplicate and append none of them."""
    harness = await before_the_wrap(left)
    harness.append_all(*(b"%d" % number for number in range(left)))
    deliver_all(harness)
    stored = [b"first", *(b"%d" % number for number in range(left))]
    deliveries = [harness.append(b"a"), harness.append(b"b")]
    deliver_all(harness)
    assert harness.brokers.stored(T0) == stored
    assert [error_of(delivery).outcome for delivery in deliveries] == [Outcome.UNKNOWN] * 2
    later = harness.append_all(b"c", b"d")
    deliver_all(harness)
    assert harness.brokers.stored(T0) == [*stored, b"c", b"d"], "under a new epoch"
    assert [offset_of(delivery) for delivery in later] == [left + 1, left + 2]


@virtual
async def test_duplicate_answered_before_the_sequences_wrap_is_believed() -> None:
    harness = await before_the_wrap(2)
    (delivery,) = harness.append_all(b"a")
    harness.step()
    harness.brokers.last.refuse(Code.DUPLICATE_SEQUENCE_NUMBER)
    assert offset_of(delivery) is None
    harness.step()
    harness.check_idle()


@virtual
async def test_acknowledgments_across_the_wrap_only_move_forward() -> None:
    harness = EngineHarness()
    acknowledged(harness)
    entry = tracker_of(harness).partitions[T0]
    entry.acknowledge(MAX_SEQUENCE)
    entry.acknowledge(3)
    assert entry.last_acked == 3
    entry.acknowledge(MAX_SEQUENCE - 1)
    assert entry.last_acked == 3


@virtual
async def test_retry_keeps_its_sequence_and_its_bytes() -> None:
    harness = EngineHarness()
    acknowledged(harness)
    harness.append(b"v")
    harness.step()
    first = harness.brokers.last.raw[T0]
    harness.brokers.last.refuse(Code.NOT_ENOUGH_REPLICAS)
    harness.step()
    harness.later()
    assert harness.brokers.last.raw[T0] == first


@virtual
async def test_sequences_outlive_metadata() -> None:
    harness = EngineHarness()
    acknowledged(harness)
    assert harness.accumulator.forget("t") == 1
    harness.add_slot("t")
    delivery = harness.append(b"v")
    harness.step()
    assert sequences(harness)[-1] == (0, 1)
    harness.brokers.last.ack()
    assert offset_of(delivery) == 1


# -- duplicates -----------------------------------------------------------------------------------


@virtual
async def test_batch_lost_after_the_append_is_acknowledged_with_its_first_offset() -> None:
    harness = EngineHarness()
    acknowledged(harness)
    delivery = harness.append(b"v")
    harness.step()
    harness.brokers.last.lose(stored=True)
    deliver_all(harness)
    assert offset_of(delivery) == 1
    assert harness.brokers.stored(T0) == [b"first", b"v"]


@virtual
async def test_duplicate_sequence_is_success_without_an_offset() -> None:
    harness = EngineHarness()
    delivery = harness.append(b"v")
    harness.step()
    harness.brokers.last.refuse(Code.DUPLICATE_SEQUENCE_NUMBER)
    assert offset_of(delivery) is None
    harness.append(b"w")
    harness.step()
    assert sequences(harness)[-1] == (0, 1)
    harness.brokers.last.lose()
    harness.publish()


@virtual
async def test_plain_producer_takes_a_sequence_error_for_what_it_is() -> None:
    for code in (
        Code.DUPLICATE_SEQUENCE_NUMBER,
        Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
        Code.UNKNOWN_PRODUCER_ID,
    ):
        harness = EngineHarness(idempotent=False)
        delivery = harness.append(b"v")
        harness.step()
        harness.brokers.last.refuse(code)
        assert error_of(delivery).code.number == code  # type: ignore[union-attr]


# -- order of retries -----------------------------------------------------------------------------


@virtual
async def test_retries_leave_one_by_one_in_sequence_order() -> None:
    harness = EngineHarness()
    deliveries, requests = three_in_flight(harness)
    for sent in requests:
        sent.lose()
    harness.publish()
    harness.step()
    harness.later()
    assert sequences(harness)[4:] == [(0, 1)]
    harness.brokers.last.ack()
    harness.step()
    assert sequences(harness)[4:] == [(0, 1), (0, 2)]
    deliver_all(harness)
    assert [offset_of(d) for d in deliveries] == [1, 2, 3]


@virtual
async def test_new_batches_wait_behind_retries() -> None:
    harness = EngineHarness()
    _, requests = three_in_flight(harness)
    for sent in requests:
        sent.refuse(Code.NOT_ENOUGH_REPLICAS)
    harness.append(b"new")
    harness.later()
    assert [sent.values for sent in harness.brokers.waiting] == [[b"1"]]
    deliver_all(harness)
    assert harness.brokers.stored(T0) == [b"first", b"1", b"2", b"3", b"new"]


@virtual
async def test_out_of_order_that_only_follows_an_earlier_retry_is_retried_under_its_number() -> (
    None
):
    """Java SenderTest.testCorrectHandlingOfOutOfOrderResponses."""
    harness = EngineHarness()
    deliveries, requests = three_in_flight(harness)
    requests[0].refuse(Code.NOT_ENOUGH_REPLICAS)
    requests[1].ack()
    requests[2].ack()
    assert (
        harness.observer.retries == ["NOT_ENOUGH_REPLICAS"] + ["OUT_OF_ORDER_SEQUENCE_NUMBER"] * 2
    )
    deliver_all(harness)
    assert sequences(harness)[4:] == [(0, 1), (0, 2), (0, 3)], "no epoch bump"
    assert [offset_of(d) for d in deliveries] == [1, 2, 3]


@virtual
async def test_answers_of_the_old_leader_are_awaited_before_the_new_one_gets_anything() -> None:
    harness = EngineHarness(brokers=2)
    _, requests = three_in_flight(harness)
    harness.append(b"new")
    harness.move(0, 2)
    harness.step()
    assert {sent.node_id for sent in harness.brokers.waiting} == {1}
    for sent in requests:
        sent.refuse(Code.NOT_LEADER_OR_FOLLOWER)
    harness.refresh()
    harness.step()
    harness.later()
    assert [(s.node_id, s.values) for s in harness.brokers.waiting] == [(2, [b"1"])]
    deliver_all(harness)
    assert harness.brokers.stored(T0) == [b"first", b"1", b"2", b"3", b"new"]


# -- gaps: bumping the epoch ----------------------------------------------------------------------


@virtual
async def test_sequences_that_a_broker_has_seen_are_never_given_out_again() -> None:
    """Whatever the broker returned: if it stored the batch, it would treat the next one as a
    duplicate."""
    harness = EngineHarness()
    acknowledged(harness)
    delivery = harness.append(b"bad")
    harness.step()
    harness.brokers.last.refuse(Code.INVALID_RECORD)
    assert error_of(delivery).outcome is Outcome.REJECTED
    harness.append(b"good")
    harness.step()
    assert sequences(harness)[-2:] == [(0, 1), (1, 0)], "a new epoch"
    deliver_all(harness)
    assert harness.brokers.stored(T0) == [b"first", b"good"]


@virtual
async def test_sequences_that_never_reached_a_broker_are_given_out_again() -> None:
    harness = EngineHarness(retries=1)
    acknowledged(harness)
    delivery = harness.append(b"unlucky")
    harness.step()
    harness.brokers.last.lose(maybe_written=False)
    harness.publish()
    harness.later()
    harness.brokers.last.lose(maybe_written=False)
    harness.publish()
    assert error_of(delivery).outcome is Outcome.NOT_SENT
    harness.append(b"good")
    harness.step()
    assert sequences(harness)[-3:] == [(0, 1)] * 3, "no gap, no bump"
    deliver_all(harness)
    assert harness.brokers.stored(T0) == [b"first", b"good"]


@virtual
async def test_batch_refused_before_others_restarts_the_partition_under_a_new_epoch() -> None:
    harness = EngineHarness(partitions=2)
    deliveries, requests = three_in_flight(harness)
    requests[0].refuse(Code.INVALID_RECORD)
    harness.step()
    assert tracker_of(harness).epoch == 0, "the others are in flight"
    requests[1].ack()
    requests[2].ack()
    deliver_all(harness)
    assert error_of(deliveries[0]).outcome is Outcome.REJECTED
    assert [offset_of(d) for d in deliveries[1:]] == [1, 2]
    assert sequences(harness)[4:] == [(1, 0), (1, 1)]


@virtual
async def test_nothing_new_leaves_between_a_gap_and_its_bump() -> None:
    harness = EngineHarness()
    _, requests = three_in_flight(harness)
    requests[0].refuse(Code.INVALID_RECORD)
    new = harness.append(b"new")
    harness.step()
    assert harness.brokers.waiting == requests[1:]
    requests[1].ack()
    harness.step()
    assert harness.brokers.waiting == requests[2:]
    requests[2].ack()
    deliver_all(harness)
    assert sequences(harness)[4:] == [(1, 0), (1, 1), (1, 2)]
    assert offset_of(new) == 3


@virtual
async def test_partition_without_a_sequence_under_the_present_epoch_restarts_without_a_bump() -> (
    None
):
    """A bump is for brokers that have a sequence under the epoch. A bump for every partition of an
    outage would exhaust the epochs."""
    harness = EngineHarness(partitions=2)
    for partition in (0, 1):
        harness.append(b"first", partition)
    deliver_all(harness)
    for partition in (0, 1):
        harness.append(b"bad", partition)
        harness.step()
    bad_0, bad_1 = harness.brokers.waiting
    bad_0.refuse(Code.INVALID_RECORD)
    harness.step()
    assert tracker_of(harness).epoch == 1
    bad_1.refuse(Code.INVALID_RECORD)
    good = [harness.append(b"good", partition) for partition in (0, 1)]
    deliver_all(harness)
    assert tracker_of(harness).epoch == 1
    assert [offset_of(one) for one in good] == [1, 1]
    # Now both partitions have sequences under it.
    harness.append(b"bad", 1)
    harness.step()
    harness.brokers.last.refuse(Code.INVALID_RECORD)
    last = harness.append(b"last", 1)
    deliver_all(harness)
    assert offset_of(last) == 2
    stored = [[(r.epoch, r.sequence) for r in harness.brokers.log(tp).records()] for tp in (T0, T1)]
    assert stored == [[(0, 0), (1, 0)], [(0, 0), (1, 0), (2, 0)]]


@virtual
async def test_bump_of_one_partition_leaves_epoch_and_batches_in_flight_of_another() -> None:
    harness = EngineHarness(partitions=2)
    for partition in (0, 1):
        harness.append(b"first", partition)
    deliver_all(harness)
    open_ones = [harness.append(b"open", 1)]
    harness.step()
    harness.append_all(b"bad", b"next")
    harness.step()
    other, bad, following = harness.brokers.waiting
    bad.refuse(Code.INVALID_RECORD)
    following.ack()
    harness.step()
    assert tracker_of(harness).epoch == 1
    open_ones.append(harness.append(b"later", 1))
    harness.close_open(1)
    harness.step()
    assert harness.brokers.last.sequence == (PRODUCER_ID, 0, 2), "epochs are each partition's own"
    other.refuse(Code.NOT_ENOUGH_REPLICAS)
    deliver_all(harness)
    assert [offset_of(d) for d in open_ones] == [1, 2]
    assert [(s.epoch, s.sequence) for s in harness.brokers.log(T1).records()] == [
        (0, 0),
        (0, 1),
        (0, 2),
    ]


@virtual
async def test_real_gap_at_the_head_restarts_the_partition() -> None:
    harness = EngineHarness()
    acknowledged(harness)
    harness.brokers.log(T0).truncate(0)  # an unclean election lost the record but no producer state
    harness.append_all(b"x")
    harness.step()
    harness.brokers.last.refuse(Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
    harness.append_all(b"y")
    deliver_all(harness)
    assert sequences(harness)[2:] == [(1, 0), (1, 1)]
    assert harness.brokers.stored(T0) == [b"x", b"y"]


@virtual
async def test_unknown_producer_with_log_start_restarts_the_partition_once() -> None:
    harness = EngineHarness()
    acknowledged(harness)
    delivery = harness.append(b"v")
    harness.step()
    harness.brokers.last.refuse(Code.UNKNOWN_PRODUCER_ID, log_start=1)
    harness.later()
    harness.later()
    assert sequences(harness)[-1] == (1, 0)
    harness.brokers.last.refuse(Code.UNKNOWN_PRODUCER_ID, log_start=1)
    harness.later()
    harness.later()
    assert sequences(harness)[-1] == (1, 0), "renumbered before: the same again"
    deliver_all(harness)
    assert offset_of(delivery) == 1


@virtual
async def test_unknown_producer_without_log_start_is_retried_as_it_is() -> None:
    harness = EngineHarness()
    acknowledged(harness)
    harness.append(b"v")
    harness.step()
    harness.brokers.last.refuse(Code.UNKNOWN_PRODUCER_ID, log_start=-1)
    harness.later()
    assert sequences(harness)[-1] == (0, 1)
    deliver_all(harness)


@virtual
async def test_strict_broker_that_lost_its_state_is_written_to_again() -> None:
    harness = EngineHarness(strict=True)
    acknowledged(harness)
    harness.brokers.log(T0).ledger.forget()
    deliveries = harness.append_all(b"1", b"2", b"3")
    deliver_all(harness)
    assert [offset_of(d) for d in deliveries] == [1, 2, 3]


@virtual
async def test_producer_epoch_too_old_means_another_id_and_tries_the_batch_again() -> None:
    """Another producer has the same id: a bump would lead to false duplicates."""
    harness = EngineHarness()
    deliveries, requests = three_in_flight(harness)
    for request in requests:
        request.refuse(Code.INVALID_PRODUCER_EPOCH)
    harness.step()
    harness.later()
    assert not harness.brokers.waiting
    assert len(harness.brokers.init_requests) == 1
    harness.init_producer(PRODUCER_ID + 1)
    harness.step()
    assert harness.brokers.last.sequence == (PRODUCER_ID + 1, 0, 0)
    deliver_all(harness)
    assert [offset_of(d) for d in deliveries] == [1, 2, 3]
    assert harness.brokers.stored(T0) == [b"first", b"1", b"2", b"3"]


@virtual
async def test_producer_epoch_too_old_ends_a_batch_whose_earlier_attempt_is_in_doubt() -> None:
    """Brokers detect no duplicates under an older epoch; a new sequence would store the batch
    twice."""
    harness = EngineHarness()
    acknowledged(harness)
    delivery = harness.append(b"v")
    harness.step()
    harness.brokers.last.lose(stored=True)
    harness.publish()
    harness.later()
    harness.brokers.last.refuse(Code.INVALID_PRODUCER_EPOCH)
    assert error_of(delivery).outcome is Outcome.UNKNOWN
    harness.append(b"w")
    harness.step()
    harness.init_producer(PRODUCER_ID + 1)
    harness.step()
    assert harness.brokers.last.sequence == (PRODUCER_ID + 1, 0, 0)
    deliver_all(harness)
    assert harness.brokers.stored(T0) == [b"first", b"v", b"w"]


@virtual
async def test_retries_exhausted_out_of_order_fails_and_bumps() -> None:
    harness = EngineHarness(retries=1)
    acknowledged(harness)
    delivery = harness.append(b"v")
    for _ in range(2):
        harness.step()
        harness.brokers.last.refuse(Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
        harness.later()
    assert error_of(delivery).outcome is Outcome.REJECTED
    harness.append(b"w")
    deliver_all(harness)
    assert harness.brokers.stored(T0) == [b"first", b"w"]


@virtual
async def test_recreated_topic_gets_new_sequences_once_nothing_is_in_flight() -> None:
    harness = EngineHarness(partitions=2)
    deliveries, _ = three_in_flight(harness)
    harness.append(b"p1", 1)
    harness.step()
    harness.state.sequences.on_topic_recreated("t")
    harness.state.sequences.on_topic_recreated("unknown")
    harness.step()
    harness.brokers.logs.clear()
    for sent in harness.brokers.waiting:
        sent.refuse(Code.UNKNOWN_TOPIC_ID)
    harness.publish()
    deliver_all(harness)
    assert harness.brokers.stored(T0) == [b"1", b"2", b"3"]
    assert [offset_of(d) for d in deliveries] == [0, 1, 2]
    assert harness.brokers.stored(T1) == [b"p1"]


@virtual
async def test_producer_id_that_was_requested_from_the_previous_cluster_is_not_used() -> None:
    harness = EngineHarness(known_producer=False)
    delivery = harness.append(b"v")
    harness.step()
    harness.sender.on_cluster_changed()
    harness.step()
    harness.init_producer()
    harness.later()
    assert len(harness.brokers.init_requests) == 2
    harness.init_producer(PRODUCER_ID + 1)
    harness.step()
    assert harness.brokers.last.sequence == (PRODUCER_ID + 1, 0, 0)
    deliver_all(harness)
    assert offset_of(delivery) == 0


@virtual
async def test_another_cluster_means_another_producer_id_for_what_is_not_in_doubt() -> None:
    harness = EngineHarness()
    acknowledged(harness)
    maybe, certain = harness.append_all(b"maybe", b"certain")
    harness.step()
    first, second = harness.brokers.waiting
    first.lose()
    second.refuse(Code.NOT_ENOUGH_REPLICAS)
    harness.sender.on_cluster_changed()
    harness.step()
    assert error_of(maybe).outcome is Outcome.UNKNOWN
    assert error_of(maybe).code == Code.INCONSISTENT_CLUSTER_ID.row
    harness.init_producer(PRODUCER_ID + 1)
    harness.pass_time(BACKOFF)
    harness.refresh()
    harness.step()
    assert harness.brokers.last.sequence == (PRODUCER_ID + 1, 0, 0)
    deliver_all(harness)
    assert offset_of(certain) == 1
    assert harness.brokers.stored(T0) == [b"first", b"certain"]


@virtual
async def test_producer_id_that_another_cluster_gives_once_more_begins_above_its_old_epochs() -> (
    None
):
    """The new cluster has the logs of the old one: with the old epoch, it would treat the next
    batch as a duplicate of the first one."""
    harness = EngineHarness()
    acknowledged(harness)
    harness.sender.on_cluster_changed()
    harness.step()
    delivery = harness.append(b"next")
    harness.init_producer(PRODUCER_ID)
    harness.step()
    assert harness.brokers.last.sequence == (PRODUCER_ID, 1, 0)
    deliver_all(harness)
    assert offset_of(delivery) == 1
    assert harness.brokers.stored(T0) == [b"first", b"next"]


@virtual
async def test_producer_id_without_epochs_left_is_refused_from_another_cluster() -> None:
    harness = EngineHarness(first_epoch=MAX_EPOCH)
    harness.sender.on_cluster_changed()
    harness.step()
    harness.append(b"v")
    harness.init_producer(PRODUCER_ID)
    harness.step()
    assert harness.brokers.waiting == []
    harness.later()
    harness.init_producer(PRODUCER_ID + 1)
    harness.step()
    assert harness.brokers.last.sequence == (PRODUCER_ID + 1, 0, 0)


# -- batches in doubt -----------------------------------------------------------------------------


@virtual
async def test_batch_in_doubt_is_resolved_before_a_bump_renumbers_anything() -> None:
    """Batch 2 was stored and its response lost; batch 3 is refused, so a bump is due. Renumbering
    batch 2 now would store it twice."""
    harness = EngineHarness()
    acknowledged(harness)
    maybe, refused = harness.append_all(b"maybe", b"refused")
    harness.step()
    first, second = harness.brokers.waiting
    first.store()
    second.refuse(Code.INVALID_RECORD)
    first.lose()
    deliver_all(harness)
    assert offset_of(maybe) == 1
    assert error_of(refused).outcome is Outcome.REJECTED
    follower = harness.append(b"follower")
    deliver_all(harness)
    assert offset_of(follower) == 2
    assert harness.brokers.stored(T0) == [b"first", b"maybe", b"follower"]


@virtual
async def test_batch_in_doubt_behind_a_refused_batch_is_not_stored_twice() -> None:
    harness = EngineHarness()
    acknowledged(harness)
    refused, maybe = harness.append_all(b"refused", b"maybe")
    harness.step()
    first, second = harness.brokers.waiting
    first.refuse(Code.INVALID_RECORD)
    second.lose()
    deliver_all(harness)
    assert error_of(refused).outcome is Outcome.REJECTED
    assert offset_of(maybe) == 1
    assert harness.brokers.stored(T0) == [b"first", b"maybe"]


@virtual
async def test_stored_batch_is_retried_while_the_broker_still_remembers_it() -> None:
    """The broker stored batch 1 and returned a timeout; its retry is delayed while newer batches
    are sent. Brokers keep the last five batches: if more were sent, the retry would look like a
    gap, and be stored again under a new epoch."""
    harness = EngineHarness(max_in_flight_requests_per_connection=5)
    acknowledged(harness)
    deliveries = harness.append_all(*(b"%d" % i for i in range(1, 12)))
    harness.step()
    first, *others = harness.brokers.waiting
    first.store()
    first.refuse(Code.REQUEST_TIMED_OUT)
    for sent in others:
        sent.ack()
    harness.later()
    assert [sent.values for sent in harness.brokers.waiting] == [[b"1"]], "five since the oldest"
    harness.brokers.last.refuse(Code.NOT_ENOUGH_REPLICAS)
    deliver_all(harness)
    assert harness.brokers.stored(T0) == [b"first", *(b"%d" % i for i in range(1, 12))]
    assert [offset_of(d) for d in deliveries] == list(range(1, 12))
    assert tracker_of(harness).epoch == 0


@virtual
async def test_expired_unsent_record_burns_no_sequence() -> None:
    harness = expiring()
    harness.brokers.busy.add(1)
    expired = harness.append(b"expired")
    harness.step()
    harness.later(30.0)
    assert error_of(expired).outcome is Outcome.NOT_SENT
    harness.brokers.busy.clear()
    harness.refresh()
    harness.append(b"v")
    harness.step()
    assert sequences(harness)[-1] == (0, 1)
    deliver_all(harness)


@virtual
async def test_expired_in_flight_then_acknowledged_leaves_no_gap() -> None:
    harness, expired = expired_in_flight()
    assert error_of(expired).outcome is Outcome.UNKNOWN
    harness.brokers.last.ack()
    harness.refresh()
    harness.append(b"v")
    harness.step()
    assert sequences(harness)[-1] == (0, 2)
    deliver_all(harness)


@virtual
async def test_expired_in_flight_then_lost_bumps_before_anything_new() -> None:
    harness, expired = expired_in_flight()
    harness.brokers.last.lose(stored=True)
    harness.refresh()
    follower = harness.append(b"follower")
    deliver_all(harness)
    assert error_of(expired).outcome is Outcome.UNKNOWN
    assert offset_of(follower) == 2
    assert sequences(harness)[-1] == (1, 0)


@pytest.mark.parametrize("stored", [True, False])
@virtual
async def test_expired_in_backoff_with_successors_in_flight(stored: bool) -> None:
    """Java SenderTest.testExpiryOfFirstBatchShouldNotCauseUnresolvedSequencesIfFutureBatchesSucceed
    and …ShouldCauseEpochBumpIfFutureBatchesFail."""
    harness, (expired, follower), second = expired_in_backoff(b"follower", stored=stored)
    assert error_of(expired).outcome is Outcome.UNKNOWN
    new = harness.append(b"new")
    harness.step()
    assert harness.brokers.waiting == [second], "nothing new while the fate of the old is open"
    second.ack()
    deliver_all(harness)
    assert offset_of(follower) == 1 + stored
    assert offset_of(new) == 2 + stored
    assert tracker_of(harness).epoch == (0 if stored else 1)


@virtual
async def test_successor_waits_no_longer_than_the_pass_that_gives_its_predecessor_up() -> None:
    """The bump that an expired retry needs must be made in the run of the sender that expires it:
    no event follows."""
    harness, task = await started(delivery_timeout_ms=30_000, request_timeout_ms=30_000)
    expired = harness.append(b"expired")
    harness.close_open()
    await quiet()
    await asyncio.sleep(29.95)
    follower = harness.append(b"follower")
    harness.brokers.produce[1].lose()
    await quiet()
    harness.refresh()
    await asyncio.sleep(0.06)
    assert error_of(expired).outcome is Outcome.UNKNOWN
    assert [sent.values for sent in harness.brokers.waiting] == [[b"follower"]]
    harness.brokers.last.ack()
    assert offset_of(follower) == 1
    await quiet()
    await end(harness, task)


@virtual
async def test_batch_in_doubt_is_resolved_when_the_last_open_batch_is_refused() -> None:
    """The defect: the partition stopped sending, because no open batch remained that could resolve
    the batch in doubt."""
    harness, (expired, refused), second = expired_in_backoff(b"refused")
    second.refuse(Code.INVALID_RECORD)
    new = harness.append(b"new")
    deliver_all(harness)
    assert error_of(expired).outcome is Outcome.UNKNOWN
    assert error_of(refused).outcome is Outcome.REJECTED
    assert offset_of(new) == 1
    assert tracker_of(harness).epoch == 1


@virtual
async def test_late_duplicate_answer_of_an_expired_batch_settles_its_sequence() -> None:
    harness, expired = expired_in_flight()
    harness.brokers.last.refuse(Code.DUPLICATE_SEQUENCE_NUMBER)
    assert isinstance(error_of(expired), DeliveryTimeout)
    harness.refresh()
    harness.append(b"v")
    harness.step()
    assert sequences(harness)[-1] == (0, 2)
    harness.brokers.last.lose()
    harness.publish()


@virtual
async def test_zombie_of_an_older_epoch_is_fenced() -> None:
    """A broker appends a request of a broken connection after the batch was given up and the epoch
    bumped: the batch must not be stored after newer records."""
    harness = expiring()
    expired = harness.append(b"zombie")
    harness.step()
    zombie = harness.brokers.last
    harness.pass_time(29.95)
    zombie.lose()
    harness.publish()
    harness.later(0.06)
    assert error_of(expired).outcome is Outcome.UNKNOWN
    delivery = harness.append(b"new")
    deliver_all(harness)
    assert offset_of(delivery) == 1
    answers = zombie.store()
    assert answers[T0].error_code == Code.INVALID_PRODUCER_EPOCH
    assert harness.brokers.stored(T0) == [b"first", b"new"]


# -- splits ---------------------------------------------------------------------------------------


@virtual
async def test_split_parts_share_out_the_sequences_of_their_batch() -> None:
    harness = EngineHarness()
    acknowledged(harness)
    deliveries = [harness.append(b"%d" % i) for i in range(4)]
    harness.close_open()
    successor = harness.append(b"successor")
    harness.step()
    large, behind = harness.brokers.waiting
    large.refuse(Code.MESSAGE_TOO_LARGE)
    behind.ack()  # the broker returns OUT_OF_ORDER_SEQUENCE_NUMBER
    deliver_all(harness)
    assert sequences(harness)[1:] == [(0, 1), (0, 5), (0, 1), (0, 3), (0, 5)]
    assert [offset_of(d) for d in [*deliveries, successor]] == [1, 2, 3, 4, 5]


@virtual
async def test_split_part_that_is_rejected_restarts_the_rest() -> None:
    harness = EngineHarness()
    acknowledged(harness)
    deliveries = [harness.append(b"%d" % i) for i in range(4)]
    harness.step()
    harness.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
    harness.step()
    harness.brokers.last.refuse(Code.INVALID_RECORD)
    deliver_all(harness)
    assert [error_of(d).outcome for d in deliveries[:2]] == [Outcome.REJECTED] * 2
    assert [offset_of(d) for d in deliveries[2:]] == [1, 2]
    assert harness.brokers.stored(T0) == [b"first", b"2", b"3"]


@virtual
async def test_parts_of_a_batch_that_is_in_the_log_are_not_stored_beside_it() -> None:
    """The limit was lowered between two attempts. Brokers check the size before they check for
    duplicates, and do not recognise parts. With new sequences the parts would be stored twice."""
    harness = EngineHarness()
    acknowledged(harness)
    deliveries = [harness.append(b"a"), harness.append(b"b")]
    harness.step()
    harness.brokers.last.lose(stored=True)
    harness.publish()
    harness.later()
    harness.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
    deliver_all(harness)
    assert [error_of(d).outcome for d in deliveries] == [Outcome.UNKNOWN] * 2
    follower = harness.append(b"follower")
    deliver_all(harness)
    assert offset_of(follower) == 3
    assert harness.brokers.stored(T0) == [b"first", b"a", b"b", b"follower"]


@virtual
async def test_parts_of_a_batch_in_doubt_that_is_not_in_the_log_are_delivered() -> None:
    harness = EngineHarness()
    acknowledged(harness)
    deliveries = [harness.append(b"%d" % i) for i in range(4)]
    harness.step()
    harness.brokers.last.lose(stored=False)
    harness.publish()
    harness.later()
    harness.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
    follower = harness.append(b"follower")
    deliver_all(harness)
    assert [offset_of(d) for d in [*deliveries, follower]] == [1, 2, 3, 4, 5]
    assert sequences(harness)[1:] == [(0, 1), (0, 1), (0, 1), (0, 3), (0, 5)]
    assert harness.brokers.stored(T0) == [b"first", b"0", b"1", b"2", b"3", b"follower"]


@virtual
async def test_rest_of_a_batch_in_doubt_keeps_its_sequence_when_a_part_fails() -> None:
    """The first part fails; the whole batch may still be in the log, and the second part with
    it."""
    harness = EngineHarness()
    acknowledged(harness)
    first, second = harness.append(b"a"), harness.append(b"b")
    harness.step()
    harness.brokers.last.lose(stored=True)
    harness.publish()
    harness.later()
    harness.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
    harness.step()
    harness.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
    deliver_all(harness)
    assert [error_of(d).outcome for d in (first, second)] == [Outcome.UNKNOWN] * 2
    assert sequences(harness)[-1] == (0, 2)
    follower = harness.append(b"follower")
    deliver_all(harness)
    assert sequences(harness)[-1] == (1, 0)
    assert offset_of(follower) == 3
    assert harness.brokers.stored(T0) == [b"first", b"a", b"b", b"follower"]


@pytest.mark.parametrize(
    ("first_lost", "second_lost", "delivered"),
    [(False, False, True), (True, False, True), (False, True, True), (True, True, False)],
    ids=["answered", "first-lost", "second-lost", "both-lost"],
)
@virtual
async def test_gap_of_a_record_in_doubt_ends_the_next_one_only_if_copies_of_both_may_arrive(
    first_lost: bool, second_lost: bool, delivered: bool
) -> None:
    """A broker that has responded has read the request. Without a response, it may still read
    it."""
    harness = EngineHarness()
    acknowledged(harness)
    first = harness.append(b"a")
    harness.close_open()
    second = harness.append(b"b")
    harness.step()
    attempts = list(harness.brokers.waiting)
    for attempt, lost in zip(attempts, (first_lost, second_lost), strict=True):
        if lost:
            attempt.lose(stored=False)
        else:
            attempt.refuse(Code.NOT_LEADER_OR_FOLLOWER)
    harness.publish()
    harness.later()
    harness.brokers.last.refuse(Code.INVALID_RECORD)
    deliver_all(harness)
    assert error_of(first).outcome is Outcome.UNKNOWN
    if delivered:
        assert offset_of(second) == 1
        assert harness.brokers.stored(T0) == [b"first", b"b"]
    else:
        assert error_of(second).outcome is Outcome.UNKNOWN
        assert harness.brokers.stored(T0) == [b"first"]


@virtual
async def test_copy_lost_under_an_older_epoch_is_no_doubt_behind_a_gap_of_the_next_one() -> None:
    """The third record is lost under epoch 0, where the first record leaves a gap; the second
    record leaves another gap under epoch 1. A late copy is refused because of its epoch."""
    harness = EngineHarness()
    (first, second, third), attempts = three_in_flight(harness)
    attempts[0].refuse(Code.NOT_LEADER_OR_FOLLOWER)
    attempts[1].refuse(Code.NOT_LEADER_OR_FOLLOWER)
    attempts[2].lose(stored=False)
    harness.publish()
    harness.later()
    harness.brokers.last.refuse(Code.INVALID_RECORD)
    for _ in range(5):
        harness.step()
        if sequences(harness)[-1] == (1, 0):
            break
        harness.brokers.last.ack()
        harness.later()
    assert harness.brokers.last.values == [b"2"]
    harness.brokers.last.lose(stored=False)
    harness.publish()
    harness.later()
    assert sequences(harness)[-1] == (1, 0)
    harness.brokers.last.refuse(Code.INVALID_RECORD)
    deliver_all(harness)
    assert [error_of(d).outcome for d in (first, second)] == [Outcome.UNKNOWN] * 2
    assert offset_of(third) == 1
    assert sequences(harness)[-2:] == [(1, 1), (2, 0)]
    assert harness.brokers.stored(T0) == [b"first", b"3"]


@pytest.mark.parametrize("withdrawn", [[0], [0, 1], [2, 3], [0, 1, 2, 3]])
@virtual
async def test_records_of_split_parts_have_numbers_and_cannot_be_withdrawn(
    withdrawn: list[int],
) -> None:
    """Otherwise a part emptied by cancellation would keep its place among the open batches
    forever."""
    harness = EngineHarness()
    acknowledged(harness)
    deliveries = [harness.append(b"%d" % i) for i in range(4)]
    for delivery in deliveries:
        delivery.add_done_callback(lambda delivery: None)
    harness.step()
    harness.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
    for index in withdrawn:
        deliveries[index].cancel()
        assert not deliveries[index].withdrawn
    successor = harness.append(b"successor")
    deliver_all(harness)
    assert offset_of(successor) == 5
    assert harness.brokers.stored(T0) == [b"first", b"0", b"1", b"2", b"3", b"successor"]
    assert sequences(harness)[-1] == (0, 5)


# -- the end of epochs ----------------------------------------------------------------------------


@virtual
async def test_epochs_used_up_get_a_new_producer_id() -> None:
    harness, task = await started(max_in_flight_requests_per_connection=2, first_epoch=MAX_EPOCH)
    state = tracker_of(harness)
    refused, follower, waiting = harness.append_all(b"refused", b"follower", b"waiting")
    await quiet()
    first, second = harness.brokers.waiting
    first.refuse(Code.INVALID_RECORD)
    second.refuse(Code.INVALID_RECORD)
    await quiet()
    assert state.producer_id == NO_PRODUCER_ID
    assert len(harness.brokers.init_requests) == 1, "asked for in the same pass"
    assert not harness.brokers.waiting
    harness.init_producer(PRODUCER_ID + 1)
    await quiet()
    # No partition has a sequence under the new id, so its first epoch needs no bump.
    assert harness.brokers.last.sequence == (PRODUCER_ID + 1, 0, 0)
    harness.brokers.last.ack()
    await quiet()
    assert offset_of(waiting) == 1
    assert error_of(refused).outcome is error_of(follower).outcome is Outcome.REJECTED
    await end(harness, task)


@virtual
async def test_open_batches_keep_the_old_id_while_a_new_one_is_used_elsewhere() -> None:
    harness = EngineHarness(partitions=2, first_epoch=MAX_EPOCH)
    for partition in (0, 1):
        harness.append(b"first", partition)
    deliver_all(harness)
    state = tracker_of(harness)
    held = harness.append(b"held", 1)
    harness.step()
    on_wire = harness.brokers.last
    harness.append_all(b"refused", b"refused too")
    harness.step()
    for sent in harness.brokers.waiting[1:]:
        sent.refuse(Code.INVALID_RECORD)
    harness.step()
    assert state.producer_id == NO_PRODUCER_ID
    harness.init_producer(PRODUCER_ID + 1)
    on_wire.refuse(Code.NOT_ENOUGH_REPLICAS)
    deliver_all(harness)
    assert offset_of(held) == 1
    assert harness.brokers.log(T1).records()[-1].producer_id == PRODUCER_ID
    harness.append(b"next", 1)
    deliver_all(harness)
    assert harness.brokers.log(T1).records()[-1].producer_id == PRODUCER_ID + 1


# -- all permutations of small failures -----------------------------------------------------------

FAILURES = {
    "ok": lambda sent: sent.ack(),
    "refused": lambda sent: sent.refuse(Code.INVALID_RECORD),
    "later": lambda sent: sent.refuse(Code.NOT_ENOUGH_REPLICAS),
    "lost": lambda sent: sent.lose(),
    "lost, stored": lambda sent: sent.lose(stored=True),
    "timed out, stored": lambda sent: sent.time_out(stored=True),
    "45": lambda sent: sent.refuse(Code.OUT_OF_ORDER_SEQUENCE_NUMBER),
}


@pytest.mark.parametrize("first", FAILURES)
@pytest.mark.parametrize("second", FAILURES)
@virtual
async def test_three_in_flight_failing_in_any_way_are_stored_once_and_in_order(
    first: str, second: str
) -> None:
    for third in FAILURES:
        harness = EngineHarness()
        deliveries, requests = three_in_flight(harness)
        if "45" in (first, second, third) and {"lost, stored", "timed out, stored", "ok"} & {
            first,
            second,
            third,
        }:
            continue  # no broker responds like this
        for sent, how in zip(requests, (first, second, third), strict=True):
            FAILURES[how](sent)
        follower = harness.append(b"follower")
        deliver_all(harness)
        stored = harness.brokers.stored(T0)
        expected = [b"first"]
        for value, delivery in zip((b"1", b"2", b"3"), deliveries, strict=True):
            outcome = outcome_of(delivery)
            if isinstance(outcome, Exception):
                assert outcome.outcome is Outcome.REJECTED
            else:
                expected.append(value)
        assert stored == [*expected, b"follower"], (first, second, third)
        assert offset_of(follower) == len(stored) - 1


@virtual
async def test_answer_without_error_and_without_an_id_is_asked_for_again_later() -> None:
    harness = EngineHarness(known_producer=False)
    delivery = harness.append(b"v")
    harness.step()
    harness.init_producer(producer_id=-1, epoch=-1)
    harness.step()
    assert len(harness.brokers.init_requests) == 1
    harness.later()
    assert len(harness.brokers.init_requests) == 2
    harness.init_producer(producer_id=0)
    harness.step()
    deliver_all(harness)
    assert offset_of(delivery) == 0


# -- topics that are not in use any more ----------------------------------------------------------


@virtual
async def test_sequences_of_a_forgotten_topic_restart_under_a_higher_epoch() -> None:
    harness = EngineHarness(topics=("t", "u"))
    acknowledged(harness)
    harness.append(b"u", topic="u")
    deliver_all(harness)
    harness.state.sequences.on_topic_forgotten("t", 1)
    assert set(tracker_of(harness).partitions) == {TopicPartition("u", 0)}
    harness.append(b"again")
    harness.step()
    assert sequences(harness)[-1] == (1, 0)
    harness.append(b"more", topic="u")
    deliver_all(harness)
    assert harness.brokers.stored(T0) == [b"first", b"again"]
    assert harness.brokers.stored(TopicPartition("u", 0)) == [b"u", b"more"]


@virtual
async def test_forgetting_a_topic_of_an_older_epoch_needs_no_bump() -> None:
    harness = EngineHarness(topics=("t", "u"))
    acknowledged(harness)
    harness.append(b"u", topic="u")
    deliver_all(harness)
    tracker_of(harness).request_epoch_bump(T0)
    harness.step()
    assert tracker_of(harness).epoch == 1
    harness.state.sequences.on_topic_forgotten("u", 1)
    harness.step()
    assert tracker_of(harness).epoch == 1
    harness.append(b"again", topic="u")
    harness.step()
    assert sequences(harness)[-1] == (1, 0)
    deliver_all(harness)
    assert harness.brokers.stored(TopicPartition("u", 0)) == [b"u", b"again"]


@virtual
async def test_forgetting_a_topic_leaves_a_batch_in_doubt_its_sequence() -> None:
    harness = EngineHarness()
    acknowledged(harness)
    delivery = harness.append(b"v")
    harness.step()
    harness.brokers.last.lose(stored=True)
    harness.state.sequences.on_topic_forgotten("t", 1)
    harness.publish()
    harness.later()
    assert sequences(harness)[-2:] == [(0, 1), (0, 1)]
    deliver_all(harness)
    assert offset_of(delivery) == 1
    assert harness.brokers.stored(T0) == [b"first", b"v"]


# -- a broker that knows only the newest batch of a producer --------------------------------------


def lost(
    harness: EngineHarness, *values: bytes, stored: int, settled: bool = True
) -> list[Delivery]:
    """Send batches of one record at once and lose their responses. The first `stored` batches are
    in the log. Then restart the leader from its snapshot."""
    if settled:
        acknowledged(harness)
    deliveries = harness.append_all(*values)
    harness.step()
    requests = harness.brokers.waiting
    assert len(requests) == len(values)
    for number, sent in enumerate(requests):
        sent.lose(stored=number < stored)
    harness.brokers.restart(T0)
    harness.publish()
    harness.later()
    return deliveries


@pytest.mark.parametrize("stored", range(5))
@pytest.mark.parametrize("in_flight", [2, 3, 4])
@virtual
async def test_batches_in_doubt_are_stored_once_by_a_leader_that_restarted(
    stored: int, in_flight: int
) -> None:
    """The snapshot of the leader contains only the newest batch, so it returns
    OUT_OF_ORDER_SEQUENCE_NUMBER for older batches as if they were missing. The newest batch proves
    that they are stored."""
    stored = min(stored, in_flight)
    harness = EngineHarness()
    values = [b"%d" % number for number in range(in_flight)]
    deliveries = lost(harness, *values, stored=stored)
    deliver_all(harness)
    assert harness.brokers.stored(T0) == [b"first", *values]
    assert [offset_of(delivery) for delivery in deliveries] == list(range(1, in_flight + 1))


@virtual
async def test_newest_in_doubt_is_asked_only_after_an_older_one_was_out_of_order() -> None:
    """A broker that recognises all batches responds to each in turn, without further requests."""
    harness = EngineHarness()
    acknowledged(harness)
    deliveries = harness.append_all(b"a", b"b", b"c")
    harness.step()
    for sent in harness.brokers.waiting:
        sent.lose(stored=True)
    harness.publish()
    harness.later()
    deliver_all(harness)
    assert sequences(harness)[1:] == [(0, 1), (0, 2), (0, 3)] * 2
    assert [offset_of(delivery) for delivery in deliveries] == [1, 2, 3]


@virtual
async def test_newest_in_doubt_is_asked_first_then_the_older_ones_again() -> None:
    harness = EngineHarness()
    deliveries = lost(harness, b"a", b"b", b"c", stored=3)
    deliver_all(harness)
    asked = [(0, 1), (0, 3), (0, 1), (0, 2)]
    assert sequences(harness)[4:] == asked
    assert [offset_of(delivery) for delivery in deliveries] == [1, 2, 3]


@virtual
async def test_older_ones_have_no_offset_if_others_have_written_between_them() -> None:
    """The response to the newest batch proves that the older ones are in the log, but not where."""
    harness = EngineHarness()
    acknowledged(harness)
    deliveries = harness.append_all(b"a", b"b", b"c")
    harness.step()
    requests = harness.brokers.waiting
    requests[0].store()
    foreign = dataclasses.replace(requests[0].batch, producer_id=PRODUCER_ID + 1, base_sequence=0)
    harness.brokers.append(T0, foreign)
    for sent in requests[1:]:
        sent.store()
    for sent in requests:
        sent.lose()
    harness.brokers.restart(T0)
    harness.publish()
    harness.later()
    deliver_all(harness)
    assert harness.brokers.stored(T0) == [b"first", b"a", b"a", b"b", b"c"]
    assert [offset_of(delivery) for delivery in deliveries] == [None, None, 4]


@virtual
async def test_batches_in_doubt_are_renumbered_once_all_of_them_are_out_of_order() -> None:
    """A record before them is missing in the log."""
    harness = EngineHarness()
    acknowledged(harness)
    refused = harness.append_all(b"refused")
    deliveries = harness.append_all(b"a", b"b", b"c")
    harness.step()
    first, *rest = harness.brokers.waiting
    first.refuse(Code.INVALID_RECORD)
    for sent in rest:
        sent.lose(stored=False)
    harness.publish()
    harness.later()
    deliver_all(harness)
    assert harness.brokers.stored(T0) == [b"first", b"a", b"b", b"c"]
    assert sequences(harness)[5:] == [(0, 2), (0, 4), (0, 3), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert error_of(refused[0]).outcome is Outcome.REJECTED
    assert [offset_of(delivery) for delivery in deliveries] == [1, 2, 3]


@virtual
async def test_broker_that_lost_its_state_while_asked_proves_nothing() -> None:
    """The broker accepts any first sequence, so a newest batch that is in the log proves nothing
    about the older batches. They are not acknowledged."""
    harness = EngineHarness()
    acknowledged(harness)
    refused = harness.append_all(b"refused")
    deliveries = harness.append_all(b"a", b"b")
    harness.step()
    first, *rest = harness.brokers.waiting
    first.refuse(Code.INVALID_RECORD)
    for sent in rest:
        sent.lose(stored=False)
    harness.publish()
    harness.later()
    harness.brokers.last.ack()
    harness.later()
    assert harness.brokers.last.values == [b"b"]
    harness.brokers.log(T0).ledger.forget()
    deliver_all(harness)
    assert harness.brokers.stored(T0) == [b"first", b"b"]
    assert offset_of(deliveries[1]) == 1
    assert error_of(deliveries[0]).outcome is Outcome.UNKNOWN
    assert error_of(refused[0]).outcome is Outcome.REJECTED


@virtual
async def test_newest_batch_without_room_before_it_proves_nothing() -> None:
    """The offset of the newest batch follows that of the last acknowledged batch: a broker without
    state has accepted it although the batch before it was refused."""
    harness = EngineHarness()
    acknowledged(harness)
    deliveries = harness.append_all(b"a", b"b")
    harness.step()
    first, second = harness.brokers.waiting
    first.lose(stored=False)
    harness.brokers.log(T0).ledger.forget()
    second.lose(stored=True)
    harness.publish()
    harness.later()
    deliver_all(harness)
    assert harness.brokers.stored(T0) == [b"first", b"b"]
    assert error_of(deliveries[0]).outcome is Outcome.UNKNOWN
    assert offset_of(deliveries[1]) == 1


@virtual
async def test_records_of_a_copy_that_arrives_late_keep_their_timestamps() -> None:
    """The batch was out of order because it was missing in the log. Then the lost copies of it and
    of the batch before it are appended after all."""
    harness = EngineHarness()
    acknowledged(harness)
    harness.append_all(b"a")
    deliveries = [harness.append(b"%d" % number, timestamp_ms=number) for number in (5, 7, 6)]
    harness.close_open()
    harness.step()
    first, second = harness.brokers.waiting
    for sent in (first, second):
        sent.lose(stored=False)
    harness.publish()
    for _ in range(2):  # the older batch, then the newer one
        harness.later()
        harness.brokers.last.refuse(Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
    first.store()
    second.store()
    deliver_all(harness)
    assert harness.brokers.stored(T0) == [b"first", b"a", b"5", b"7", b"6"]
    assert [delivery.result().timestamp_ms for delivery in deliveries] == [5, 7, 6]


@virtual
async def test_room_that_acknowledged_batches_take_proves_nothing() -> None:
    """A broker that lost its state appended the second and the third batch without the first: the
    offset of the third batch leaves room for one record, which is the second batch."""
    harness = EngineHarness()
    acknowledged(harness)
    deliveries = harness.append_all(b"a", b"b", b"c")
    harness.step()
    first, second, third = harness.brokers.waiting
    harness.brokers.log(T0).ledger.forget()
    second.ack()
    first.lose(stored=False)
    third.lose(stored=True)
    harness.publish()
    harness.later()
    deliver_all(harness)
    assert harness.brokers.stored(T0) == [b"first", b"b", b"c"]
    assert error_of(deliveries[0]).outcome is Outcome.UNKNOWN
    assert [offset_of(delivery) for delivery in deliveries[1:]] == [1, 2]


@virtual
async def test_room_of_a_batch_that_was_acknowledged_before_an_older_one_proves_nothing() -> None:
    harness = EngineHarness()
    acknowledged(harness)
    deliveries = harness.append_all(b"a", b"b", b"c", b"d")
    harness.step()
    first, second, third, fourth = harness.brokers.waiting
    answer = first.store()
    second.ack()
    first.answer(answer)
    harness.brokers.log(T0).ledger.forget()
    third.lose(stored=False)
    fourth.lose(stored=True)
    harness.publish()
    harness.later()
    deliver_all(harness)
    assert harness.brokers.stored(T0) == [b"first", b"a", b"b", b"d"]
    assert error_of(deliveries[2]).outcome is Outcome.UNKNOWN
    assert [offset_of(deliveries[number]) for number in (0, 1, 3)] == [1, 2, 3]


@virtual
async def test_room_proves_nothing_once_retention_has_deleted_all_acknowledged_records() -> None:
    """The broker deleted the producer state with its records and appended the second batch without
    the first. The offset leaves room for the first one, but a record of another producer is there.
    """
    harness = EngineHarness()
    acknowledged(harness)
    deliveries = harness.append_all(b"a", b"b")
    harness.step()
    first, second = harness.brokers.waiting
    foreign = dataclasses.replace(first.batch, producer_id=PRODUCER_ID + 1, base_sequence=0)
    harness.brokers.append(T0, foreign)
    harness.brokers.log(T0).delete_before(1)
    first.lose(stored=False)
    second.lose(stored=True)
    harness.publish()
    harness.later()
    deliver_all(harness)
    assert harness.brokers.stored(T0) == [b"a", b"b"]  # "a" is a record of the other producer
    assert error_of(deliveries[0]).outcome is Outcome.UNKNOWN
    assert offset_of(deliveries[1]) == 2


@virtual
async def test_newest_batch_proves_nothing_in_a_response_without_log_start_offset() -> None:
    """Produce before version 5 does not say whether retention has deleted records."""
    harness = EngineHarness()
    acknowledged(harness)
    harness.brokers.log(T0).start_offset = -1
    deliveries = lost(harness, b"a", b"b", stored=2, settled=False)
    deliver_all(harness)
    assert harness.brokers.stored(T0) == [b"first", b"a", b"b"]
    assert error_of(deliveries[0]).outcome is Outcome.UNKNOWN
    assert offset_of(deliveries[1]) == 2


@virtual
async def test_brokers_that_stamp_the_records_leave_the_older_ones_in_doubt() -> None:
    """Their response is the same whether the newest batch was already in the log or is new."""
    harness = EngineHarness()
    harness.brokers.append_time_ms = 5
    deliveries = lost(harness, b"a", b"b", stored=2)
    deliver_all(harness)
    assert harness.brokers.stored(T0) == [b"first", b"a", b"b"]
    assert error_of(deliveries[0]).outcome is Outcome.UNKNOWN
    assert offset_of(deliveries[1]) == 2


@virtual
async def test_batch_in_doubt_before_an_acknowledged_one_is_not_stored_twice() -> None:
    """One response says that the batch may be in the log, that of the next batch is a success; a
    restarted leader has only the next batch."""
    harness = EngineHarness()
    acknowledged(harness)
    deliveries = harness.append_all(b"a", b"b")
    harness.step()
    first, second = harness.brokers.waiting
    first.store()
    first.refuse(Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    second.ack()
    harness.brokers.restart(T0)
    harness.later()
    deliver_all(harness)
    assert harness.brokers.stored(T0) == [b"first", b"a", b"b"]
    assert error_of(deliveries[0]).outcome is Outcome.UNKNOWN
    assert offset_of(deliveries[1]) == 2


@virtual
async def test_record_after_a_batch_asked_out_of_turn_goes_on_in_the_same_epoch() -> None:
    harness = EngineHarness()
    lost(harness, b"a", b"b", stored=2)
    later = harness.append_all(b"later")
    deliver_all(harness)
    assert sequences(harness)[-1] == (0, 3)
    assert offset_of(later[0]) == 3


@virtual
async def test_batches_that_expire_while_the_newest_one_is_asked_end_in_doubt() -> None:
    harness = EngineHarness(delivery_timeout_ms=1_000, request_timeout_ms=500)
    deliveries = lost(harness, b"a", b"b", b"c", stored=3)
    harness.brokers.last.ack()  # the broker returns OUT_OF_ORDER_SEQUENCE_NUMBER
    harness.later()
    assert harness.brokers.last.values == [b"c"]
    harness.pass_time(2.0)
    harness.step()
    harness.step()
    assert [error_of(delivery).outcome for delivery in deliveries] == [Outcome.UNKNOWN] * 3
    harness.brokers.last.ack()
    later = harness.append_all(b"later")
    deliver_all(harness)
    assert harness.brokers.stored(T0) == [b"first", b"a", b"b", b"c", b"later"]
    assert offset_of(later[0]) == 4


@pytest.mark.parametrize("code", [Code.NOT_LEADER_OR_FOLLOWER, Code.REQUEST_TIMED_OUT])
@virtual
async def test_newest_in_doubt_is_asked_until_it_is_answered(code: Code) -> None:
    """This holds even if another leader responds, which recognises all batches."""
    harness = EngineHarness(brokers=2)
    deliveries = lost(harness, b"a", b"b", b"c", stored=3)
    harness.brokers.last.ack()
    harness.later()
    assert harness.brokers.last.values == [b"c"]
    harness.brokers.last.refuse(code)
    harness.brokers.restarted_at.clear()
    harness.move(0, 2)
    harness.later()
    assert harness.brokers.last.values == [b"c"]
    deliver_all(harness)
    assert harness.brokers.stored(T0) == [b"first", b"a", b"b", b"c"]
    assert [offset_of(delivery) for delivery in deliveries] == [1, 2, 3]


@virtual
async def test_newest_in_doubt_that_is_divided_when_asked_leaves_the_older_one_in_doubt() -> None:
    """Without the whole batch, nothing proves that the older one is missing in the log."""
    harness = EngineHarness()
    acknowledged(harness)
    older = harness.append_all(b"a")
    newer = [harness.append(b"b"), harness.append(b"c")]
    harness.close_open()
    harness.step()
    for sent in harness.brokers.waiting:
        sent.lose(stored=True)
    harness.brokers.restart(T0)
    harness.publish()
    harness.later()
    harness.brokers.last.ack()
    harness.later()
    assert harness.brokers.last.values == [b"b", b"c"]
    harness.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
    deliver_all(harness)
    assert harness.brokers.stored(T0) == [b"first", b"a", b"b", b"c"]
    for delivery in (*older, *newer):
        assert error_of(delivery).outcome is Outcome.UNKNOWN


@virtual
async def test_answer_for_a_batch_that_was_stored_before_keeps_the_records_own_timestamps() -> None:
    """Kafka returns the highest timestamp of the batch, even where producers stamp the records."""
    harness = EngineHarness()
    acknowledged(harness)
    deliveries = [harness.append(b"a", timestamp_ms=10), harness.append(b"b", timestamp_ms=20)]
    harness.close_open()
    harness.step()
    harness.brokers.last.lose(stored=True)
    harness.publish()
    harness.later()
    deliver_all(harness)
    assert [delivery.result().timestamp_ms for delivery in deliveries] == [10, 20]
