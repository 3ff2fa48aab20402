"""The runs of the sender: what is sent when, in which request, and what wakes the sender (Java
SenderTest)."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from aiokprod._core.batch import Delivery
from aiokprod._core.memory import Reservation
from aiokprod._engine.buffer import accumulator
from aiokprod._engine.buffer.accumulator import RecordAccumulator
from aiokprod._engine.sender import sender
from aiokprod._engine.sender.sender import Sender
from aiokprod._engine.sender.unresponsive_brokers import OVERDUE_AFTER_S
from aiokprod._wire.messages.produce import (
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from aiokprod.errors import (
    Code,
    CorrelationMismatch,
    DecodeError,
    DeliveryTimeout,
    Disconnected,
    Outcome,
    ProducerClosed,
    RequestTimedOut,
    UnsupportedVersion,
)
from aiokprod.records import TopicPartition
from aiokprod.testing.virtual import VirtualLoop
from tests.engine.engine_harness import (
    BACKOFF,
    PRODUCER_ID,
    EngineHarness,
    Sent,
    error_of,
    offset_of,
    outcome_of,
    quiet,
    refusal,
    virtual,
)
from tests.liveness_check import check_passes
from tests.simulation.call_interrupts import Injector

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


def sent_values(harness: EngineHarness) -> list[list[bytes | None]]:
    """Return the values of each batch of each Produce request, by partition within a request."""
    return [
        [record.value for record in sent.batches[tp].records]
        for sent in harness.brokers.produce
        for tp in sorted(sent.batches)
    ]


# -- what is due ----------------------------------------------------------------------------------


@virtual
async def test_pass_without_records_asks_for_no_other_pass() -> None:
    harness = EngineHarness()
    assert harness.step() == math.inf
    assert not harness.brokers.sent


@virtual
async def test_pass_sends_what_is_queued_and_returns_the_delivery_deadline() -> None:
    harness = EngineHarness(delivery_timeout_ms=800, request_timeout_ms=800)
    start = harness.now
    delivery = harness.append(b"v")
    assert harness.step() == start + 0.8
    assert sent_values(harness) == [[b"v"]]
    harness.brokers.last.ack()
    assert offset_of(delivery) == 0
    assert harness.step() == math.inf
    harness.check_idle()


@virtual
async def test_strict_linger_is_counted_from_the_first_record_and_never_rearmed() -> None:
    harness = EngineHarness(linger_ms=125, adaptive_linger=False)
    start = harness.now
    harness.append(b"1")
    assert harness.step() == start + 0.125
    harness.later(0.0625)
    harness.append(b"2")
    assert harness.step() == start + 0.125
    assert not harness.brokers.sent
    harness.later(0.0625)
    assert sent_values(harness) == [[b"1", b"2"]]


@virtual
async def test_strict_linger_full_batch_leaves_at_once_and_takes_the_open_one_along() -> None:
    harness = EngineHarness(linger_ms=100, adaptive_linger=False, batch_size=200, partitions=2)
    harness.append(b"x" * 100, 0)
    harness.append(b"small", 1)
    harness.step()
    assert not harness.brokers.sent
    harness.append(b"y" * 100, 0)
    harness.step()
    assert sent_values(harness) == [[b"x" * 100], [b"small"]]
    assert len(harness.brokers.sent) == 1


@virtual
async def test_adaptive_linger_idle_leader_gets_the_batch_in_the_next_pass() -> None:
    harness = EngineHarness(linger_ms=100, adaptive_linger=True)
    harness.append(b"1")
    harness.append(b"2")
    harness.step()
    assert sent_values(harness) == [[b"1", b"2"]]


@virtual
async def test_adaptive_linger_busy_leader_gets_the_batch_after_the_reply() -> None:
    harness = EngineHarness(linger_ms=100, adaptive_linger=True)
    harness.append(b"1")
    harness.step()
    start = harness.now
    harness.append(b"2")
    assert harness.step() == start + 0.1
    assert len(harness.brokers.sent) == 1
    harness.brokers.last.ack()
    harness.step()
    assert sent_values(harness) == [[b"1"], [b"2"]]


@virtual
async def test_adaptive_linger_busy_leader_gets_the_batch_when_linger_is_over() -> None:
    harness = EngineHarness(linger_ms=100, adaptive_linger=True)
    harness.append(b"0")
    harness.step()
    harness.brokers.last.ack()
    harness.append(b"1")
    harness.step()
    harness.append(b"2")
    harness.step()
    assert len(harness.brokers.waiting) == 1
    harness.later(0.1)
    assert [sent.values for sent in harness.brokers.waiting] == [[b"1"], [b"2"]]


@virtual
async def test_retry_ignores_linger() -> None:
    harness = EngineHarness(linger_ms=5000, adaptive_linger=False, delivery_timeout_ms=60_000)
    harness.append(b"1")
    harness.later(5.0)
    harness.brokers.last.refuse(Code.NOT_ENOUGH_REPLICAS)
    assert harness.step() == harness.now + BACKOFF
    harness.later()
    assert len(harness.brokers.waiting) == 1


@virtual
async def test_waiters_for_memory_make_everything_leave() -> None:
    harness = EngineHarness(
        linger_ms=60_000, adaptive_linger=False, buffer_memory=500, batch_size=400
    )
    harness.append(b"x" * 100)
    harness.step()
    assert not harness.brokers.sent
    reservation = Reservation(harness.memory)
    before = harness.wakeups
    waiter = asyncio.ensure_future(harness.memory.reserve(450, reservation, harness.now + 10))
    await quiet()
    assert harness.wakeups == before + 1
    harness.step()
    assert len(harness.brokers.sent) == 1
    harness.brokers.last.ack()
    await waiter
    harness.memory.give_back(reservation)
    harness.check_idle()


@virtual
async def test_flush_makes_everything_leave() -> None:
    harness = EngineHarness(linger_ms=60_000, adaptive_linger=False)
    harness.append(b"x")
    flush = asyncio.ensure_future(harness.flushes.wait(list(harness.accumulator.incomplete)))
    await quiet()
    harness.step()
    harness.brokers.last.ack()
    await flush


@virtual
async def test_closing_makes_everything_leave() -> None:
    harness = EngineHarness(linger_ms=60_000, adaptive_linger=False)
    harness.append(b"x")
    harness.accumulator.closing = True
    harness.step()
    assert sent_values(harness) == [[b"x"]]


# -- requests -------------------------------------------------------------------------------------


@virtual
async def test_six_partitions_on_two_brokers_make_two_requests() -> None:
    harness = EngineHarness(partitions=6, brokers=2)
    for partition in range(6):
        harness.append(b"p%d" % partition, partition)
    harness.step()
    requests = harness.brokers.produce
    assert [sent.node_id for sent in requests] == [1, 2]
    assert [sorted(tp.partition for tp in sent.batches) for sent in requests] == [
        [0, 2, 4],
        [1, 3, 5],
    ]


@virtual
async def test_request_holds_one_batch_per_partition_the_rest_follows_in_the_same_pass() -> None:
    harness = EngineHarness()
    harness.append_all(b"0")
    harness.step()
    harness.brokers.last.ack()
    harness.append_all(b"1", b"2", b"3")
    harness.step()
    assert [sent.values for sent in harness.brokers.waiting] == [[b"1"], [b"2"], [b"3"]]


@virtual
async def test_requests_stop_at_the_in_flight_limit_and_go_on_with_each_reply() -> None:
    harness = EngineHarness(idempotent=False, max_in_flight_requests_per_connection=2)
    harness.append_all(b"1", b"2", b"3", b"4")
    harness.step()
    assert len(harness.brokers.waiting) == 2
    harness.brokers.waiting[0].ack()
    harness.step()
    assert [sent.values for sent in harness.brokers.waiting] == [[b"2"], [b"3"]]


@pytest.mark.parametrize(("acks", "on_wire"), [("all", -1), (1, 1)])
@virtual
async def test_request_carries_acks_and_request_timeout(acks: object, on_wire: int) -> None:
    harness = EngineHarness(idempotent=acks == "all", acks=acks, request_timeout_ms=12_345)
    harness.append(b"v")
    harness.step()
    request = harness.brokers.last.request
    assert request.acks == on_wire
    assert request.timeout_ms == 12_345
    assert request.transactional_id is None
    assert harness.brokers.last.timeout == 12.345
    assert harness.brokers.last.expect_response


@virtual
async def test_request_size_limit_holds_back_the_next_batch_but_never_the_first() -> None:
    harness = EngineHarness(partitions=3, max_request_size=1000, batch_size=900)
    for partition in range(3):
        harness.append(b"x" * 600, partition)
    harness.step()
    assert [list(sent.batches) for sent in harness.brokers.produce] == [
        [TopicPartition("t", partition)] for partition in range(3)
    ]


@virtual
async def test_partitions_that_did_not_fit_come_first_next_time() -> None:
    harness = EngineHarness(
        idempotent=False,
        partitions=3,
        max_request_size=1000,
        batch_size=900,
        max_in_flight_requests_per_connection=1,
    )
    for _ in range(2):
        for partition in range(3):
            harness.append(b"x" * 600, partition)
            harness.close_open(partition)
    order = []
    harness.step()
    while harness.brokers.waiting:
        order += [tp.partition for tp in harness.brokers.last.batches]
        harness.brokers.last.ack()
        harness.step()
    assert order == [0, 1, 2, 0, 1, 2]


@virtual
async def test_metadata_in_use_is_touched_when_sending() -> None:
    harness = EngineHarness(metadata_max_idle_ms=60_000)
    harness.pass_time(50)
    harness.append(b"v")
    harness.step()
    harness.pass_time(30)
    harness.publish()
    assert harness.metadata.topics() == ("t",)


# -- nodes ----------------------------------------------------------------------------------------


@virtual
async def test_node_in_backoff_decides_the_next_pass() -> None:
    harness = EngineHarness()
    harness.brokers.down[1] = harness.now + 0.05
    harness.append(b"v")
    assert harness.step() == harness.now + 0.05
    assert harness.brokers.ready_calls == [1]
    harness.later(0.05)
    await quiet()
    harness.step()
    assert sent_values(harness) == [[b"v"]]


@virtual
async def test_busy_node_does_not_hold_up_another() -> None:
    harness = EngineHarness(partitions=2, brokers=2)
    harness.brokers.busy.add(1)
    harness.append(b"a", 0)
    harness.append(b"b", 1)
    assert harness.step() == harness.now + OVERDUE_AFTER_S
    assert [sent.node_id for sent in harness.brokers.sent] == [2]


def last_to(harness: EngineHarness, node_id: int) -> Sent:
    """Return the newest Produce request to a node."""
    return [sent for sent in harness.brokers.produce if sent.node_id == node_id][-1]


@virtual
async def test_silent_broker_is_asked_after_every_second() -> None:
    harness = EngineHarness()
    delivery = harness.append(b"v")
    harness.step()
    for turn in range(3):
        harness.later(OVERDUE_AFTER_S - 0.01)
        assert not harness.metadata.update_due(harness.now), turn
        harness.later(0.01)
        assert harness.metadata.update_due(harness.now), turn
        harness.refresh()
    harness.brokers.last.ack()
    assert offset_of(delivery) == 0
    assert harness.step() == math.inf, "an idle producer has nothing to look after"


@virtual
async def test_looking_after_a_silent_broker_delays_no_fetch_that_is_needed() -> None:
    harness = EngineHarness(partitions=2, brokers=2)
    harness.append(b"a", 0)
    harness.step()
    for _ in range(8):
        harness.later(OVERDUE_AFTER_S)
        harness.refresh()
    harness.append(b"b", 1)
    harness.step()
    last_to(harness, 2).refuse(Code.NOT_LEADER_OR_FOLLOWER)
    assert harness.metadata.next_update_at(harness.now) <= harness.now + BACKOFF


@virtual
async def test_silent_broker_loses_what_another_one_leads() -> None:
    harness = EngineHarness(partitions=2, brokers=2)
    moved, stays = harness.append(b"a", 0), harness.append(b"b", 1)
    harness.step()
    harness.later(OVERDUE_AFTER_S)
    last_to(harness, 2).ack()
    harness.leaders[T0] = 2
    harness.publish()
    harness.step()
    assert last_to(harness, 1).done
    assert outcome_of(moved) is None, "it is sent again"
    harness.later()
    last_to(harness, 2).ack()
    assert (offset_of(moved), offset_of(stays)) == (0, 0)


@virtual
async def test_silent_broker_keeps_what_has_no_attempt_left() -> None:
    harness = EngineHarness(partitions=3, brokers=2, retries=0, idempotent=False)
    harness.append(b"a", 0)
    harness.append(b"c", 2)
    harness.step()
    harness.later(OVERDUE_AFTER_S)
    harness.leaders[T0] = 2
    harness.publish()
    harness.step()
    assert not last_to(harness, 1).done, "its other partition may be served"


@virtual
async def test_broker_that_throttles_is_not_silent() -> None:
    harness = EngineHarness(partitions=2, linger_ms=0)
    for partition in (0, 1):
        harness.append(b"v", partition)
        harness.step()
    first, _ = harness.brokers.waiting
    first.throttle_ms = 5_000
    first.ack()
    harness.later(5.0)
    assert not harness.metadata.update_due(harness.now)
    harness.later(OVERDUE_AFTER_S)
    assert harness.metadata.update_due(harness.now)


@pytest.mark.parametrize(("module", "silent"), [(accumulator, False), (sender, True)])
def test_record_may_be_appended_anywhere_within_a_pass(module: ModuleType, silent: bool) -> None:
    """A finalizer or a signal handler appends the record, to a partition whose broker has not been
    checked yet."""
    folder = str(Path(str(module.__file__)).parent)

    def appended(step: int) -> bool:
        harness: EngineHarness
        new: list[Delivery] = []

        def append_twice() -> None:
            new.extend(harness.append(b"x" * 100, None) for _ in range(2))

        injector = Injector(step, append_twice, folder)

        @virtual
        async def scene() -> None:
            nonlocal harness
            harness = EngineHarness(
                partitions=3, brokers=3, batch_size=100, partitioner_availability_timeout_ms=100
            )
            slot = harness.appender.topics["t"]
            harness.accumulator._choose_partition = lambda _: harness.accumulator.usable(slot, [2])[
                0
            ]
            deliveries = [harness.append(b"a", 0), harness.append(b"b", 1)]
            if silent:
                harness.step()
                harness.pass_time(OVERDUE_AFTER_S)
            with injector.armed():
                harness.step()
            for _ in range(3):
                for sent in harness.brokers.waiting:
                    sent.ack()
                harness.refresh()
                harness.later()
            assert [offset_of(delivery) for delivery in deliveries] == [0, 0]
            assert [offset_of(delivery) for delivery in new] == list(range(len(new)))
            harness.check_idle()

        scene()
        return injector.has_struck

    assert any(not appended(step) for step in itertools.count(1))


@virtual
async def test_each_batch_is_taken_back_from_the_broker_it_was_sent_to() -> None:
    harness = EngineHarness(partitions=1, brokers=2, idempotent=False)
    harness.append(b"a")
    harness.step()
    harness.move(0, 2)
    harness.append(b"b")
    harness.step()
    assert [sent.node_id for sent in harness.brokers.waiting] == [1, 2]
    harness.later(OVERDUE_AFTER_S)
    assert last_to(harness, 1).done


@virtual
async def test_broker_that_is_slow_but_still_leads_keeps_what_it_has() -> None:
    harness = EngineHarness(partitions=2, brokers=2)
    harness.append(b"a", 0)
    harness.step()
    harness.later(OVERDUE_AFTER_S)
    harness.leaders[T1] = 1
    harness.publish()
    harness.step()
    assert not last_to(harness, 1).done


@virtual
async def test_broker_that_may_still_answer_keeps_what_another_one_leads() -> None:
    harness = EngineHarness(partitions=2, brokers=2)
    harness.append(b"a", 0)
    harness.step()
    harness.later(OVERDUE_AFTER_S - 0.1)
    harness.leaders[T0] = 2
    harness.publish()
    harness.step()
    assert not last_to(harness, 1).done


@virtual
async def test_broker_without_connection_is_asked_after_until_its_data_are_elsewhere() -> None:
    harness = EngineHarness(partitions=2, brokers=2)
    harness.brokers.busy.add(1)
    delivery = harness.append(b"a", 0)
    harness.step()
    harness.later(OVERDUE_AFTER_S)
    assert harness.metadata.update_due(harness.now)
    harness.leaders[T0] = 2
    harness.publish()
    harness.step()
    last_to(harness, 2).ack()
    assert offset_of(delivery) == 0
    assert harness.step() == math.inf
    harness.check_idle()


@virtual
async def test_brokers_are_dialled_while_a_metadata_update_is_due() -> None:
    """The sender must not wait for the update, because the updater may be waiting for a node that
    never becomes ready."""
    harness = EngineHarness()
    harness.brokers.down[1] = 0.0
    harness.append(b"v")
    harness.metadata.request_update()
    harness.pass_time(1.0)
    assert harness.metadata.update_due(harness.now)
    harness.step()
    assert harness.brokers.ready_calls == [1]
    assert not harness.brokers.sent


@virtual
async def test_due_metadata_update_has_the_first_slot() -> None:
    harness = EngineHarness()
    harness.append(b"v")
    harness.metadata.request_update()
    harness.pass_time(1.0)
    assert harness.metadata.update_due(harness.now)
    assert harness.step() == harness.now + 119.0, "woken by the updater, not by the clock"
    assert not harness.brokers.sent
    harness.metadata.plan(harness.now)  # the request is in flight
    harness.step()
    assert sent_values(harness) == [[b"v"]]


@virtual
async def test_leaderless_partition_keeps_its_records_and_asks_for_metadata() -> None:
    harness = EngineHarness(metadata_max_idle_ms=60_000)
    harness.move(0, None)
    harness.metadata.plan(harness.now)
    harness.metadata.failed(harness.now)
    harness.append(b"v")
    harness.pass_time(1)
    harness.step()
    assert not harness.brokers.sent
    assert harness.metadata.next_update_at(harness.now) < math.inf
    harness.move(0, 1)
    harness.step()
    assert sent_values(harness) == [[b"v"]]


@virtual
async def test_moved_partition_is_sent_to_the_new_leader() -> None:
    harness = EngineHarness(brokers=2)
    harness.append(b"v")
    harness.move(0, 2)
    harness.step()
    assert harness.brokers.last.node_id == 2


# -- the task -------------------------------------------------------------------------------------


@virtual
async def test_task_sleeps_without_work_and_sends_records_of_one_turn_together() -> None:
    harness = EngineHarness()
    task = asyncio.ensure_future(harness.sender.run())
    await quiet()
    first, second = harness.append(b"1"), harness.append(b"2")
    await quiet()
    assert sent_values(harness) == [[b"1", b"2"]]
    harness.brokers.last.ack()
    assert [(await first).offset, (await second).offset] == [0, 1]
    await asyncio.sleep(500)
    task.cancel()
    await quiet()
    assert task.cancelled()


@pytest.mark.parametrize("by", ["observer", "finalizer"])
@virtual
async def test_record_appended_within_a_pass_is_taken_in_by_the_next_one(by: str) -> None:
    """No event and no deadline precedes that run: the appended batch itself wakes the sender."""
    harness = EngineHarness(partitions=2, brokers=2)
    task = asyncio.ensure_future(harness.sender.run())
    await quiet()
    start = harness.now

    class Finalized:
        def __del__(self) -> None:
            harness.append(b"within", 1)

    held = [Finalized()] if by == "finalizer" else []

    def on_batches_sent(node_id: int, batches: Sequence[object]) -> None:
        if node_id == 1 and by == "observer":
            harness.append(b"within", 1)
        held.clear()

    harness.observer.on_batches_sent = on_batches_sent  # type: ignore[method-assign]
    harness.append(b"first", 0)
    await quiet()
    assert sent_values(harness) == [[b"first"], [b"within"]]
    assert harness.now == start
    for sent in harness.brokers.waiting:
        sent.ack()
    task.cancel()
    await quiet()


@virtual
async def test_task_wakes_for_linger_backoff_and_expiry() -> None:
    harness = EngineHarness(
        linger_ms=50, adaptive_linger=False, request_timeout_ms=1000, delivery_timeout_ms=2000
    )
    task = asyncio.ensure_future(harness.sender.run())
    start = harness.now
    delivery = harness.append(b"v")
    await asyncio.sleep(0.06)
    assert harness.brokers.last.at == start + 0.05
    harness.brokers.last.refuse(Code.NOT_ENOUGH_REPLICAS)
    await asyncio.sleep(0.2)
    assert len(harness.brokers.produce) == 2
    with pytest.raises(DeliveryTimeout):
        await delivery
    assert harness.now == start + 2.0
    harness.brokers.last.lose()
    task.cancel()
    await quiet()
    harness.check_idle()


@virtual
async def test_task_wakes_as_soon_as_a_node_connects() -> None:
    harness = EngineHarness()
    task = asyncio.ensure_future(harness.sender.run())
    harness.brokers.down[1] = math.inf
    harness.append(b"v")
    await quiet()
    assert not harness.brokers.sent
    harness.brokers.connected(1)
    await quiet()
    assert len(harness.brokers.sent) == 1
    task.cancel()
    await quiet()


# -- answers --------------------------------------------------------------------------------------


@virtual
async def test_acknowledged_records_get_consecutive_offsets_and_their_own_timestamps() -> None:
    harness = EngineHarness()
    harness.append(b"0")
    harness.step()
    harness.brokers.last.ack()
    deliveries = [harness.append(b"%d" % i, timestamp_ms=50 - i) for i in range(3)]
    harness.step()
    harness.brokers.last.ack()
    results = [delivery.result() for delivery in deliveries]
    assert [md.offset for md in results] == [1, 2, 3]
    assert [md.timestamp_ms for md in results] == [50, 49, 48]


@virtual
async def test_log_append_time_is_reported_for_every_record() -> None:
    harness = EngineHarness()
    deliveries = [harness.append(b"%d" % i, timestamp_ms=i) for i in range(3)]
    harness.step()
    harness.brokers.last.answer({T0: PartitionProduceResponse(0, 0, 70, 123_456)})
    assert [d.result().timestamp_ms for d in deliveries] == [123_456] * 3
    assert [d.result().offset for d in deliveries] == [70, 71, 72]


@virtual
async def test_acks_0_is_done_when_written_without_an_offset() -> None:
    harness = EngineHarness(idempotent=False, acks=0)
    delivery = harness.append(b"v")
    harness.step()
    assert not harness.brokers.last.expect_response
    assert not delivery.done()
    harness.brokers.last.written()
    assert offset_of(delivery) is None
    harness.step()
    harness.check_idle()


@virtual
async def test_partition_left_out_of_the_answer_is_retried_as_unknown() -> None:
    harness = EngineHarness(partitions=2)
    kept, lost = harness.append(b"kept", 0), harness.append(b"lost", 1)
    harness.step()
    sent = harness.brokers.last
    answers = sent.store()
    sent.answer({T0: answers[T0]})
    assert offset_of(kept) == 0
    assert not lost.done()
    assert harness.metadata.next_update_at(harness.now) < harness.now + 300, "a fetch is wanted"
    harness.publish()
    harness.later()
    harness.brokers.last.ack()
    assert offset_of(lost) == 0, "the broker knows it by its sequence"
    assert harness.brokers.stored(T1) == [b"lost"]


@virtual
async def test_partition_left_out_until_the_deadline_fails_as_unknown() -> None:
    harness = EngineHarness(delivery_timeout_ms=30_000, request_timeout_ms=30_000)
    delivery = harness.append(b"v")
    harness.step()
    harness.brokers.last.answer({})
    harness.later(30.0)
    assert error_of(delivery).outcome is Outcome.UNKNOWN


@virtual
async def test_partition_not_asked_for_is_ignored() -> None:
    harness = EngineHarness()
    delivery = harness.append(b"v")
    harness.step()
    sent = harness.brokers.last
    strange = TopicPartition("t", 9)
    sent.answer({strange: refusal(strange, Code.INVALID_RECORD), **sent.store()})
    assert offset_of(delivery) == 0


@pytest.mark.parametrize("version", [12, 13])
@virtual
async def test_topic_not_asked_for_is_ignored(version: int) -> None:
    harness = EngineHarness(version=version)
    harness.brokers.topic_ids["other"] = bytes(range(16))
    delivery = harness.append(b"v")
    harness.step()
    sent = harness.brokers.last
    sent.answer({TopicPartition("other", 0): refusal(T0, Code.INVALID_RECORD), **sent.store()})
    assert offset_of(delivery) == 0


@virtual
async def test_second_entry_of_a_partition_is_ignored() -> None:
    harness = EngineHarness()
    delivery = harness.append(b"v")
    harness.step()
    sent = harness.brokers.last
    good = sent.store()[T0]
    bad = refusal(T0, Code.INVALID_RECORD)
    topic_id = harness.brokers.topic_ids["t"]
    sent.respond(ProduceResponse([TopicProduceResponse("", topic_id, [good, bad])]))
    assert offset_of(delivery) == 0


@virtual
async def test_partitions_of_one_answer_are_settled_each_by_its_own_code() -> None:
    harness = EngineHarness(partitions=3)
    good, bad, again = (harness.append(b"v", partition) for partition in range(3))
    harness.step()
    sent = harness.brokers.last
    answers = sent.store()
    answers[T1] = refusal(T1, Code.INVALID_RECORD)
    t2 = TopicPartition("t", 2)
    answers[t2] = refusal(t2, Code.NOT_ENOUGH_REPLICAS)
    sent.answer(answers)
    assert offset_of(good) == 0
    assert error_of(bad).code.name == "INVALID_RECORD"  # type: ignore[union-attr]
    assert outcome_of(again) is None


@virtual
async def test_named_records_get_their_own_error_and_the_rest_is_told_why() -> None:
    harness = EngineHarness()
    deliveries = [harness.append(b"%d" % i) for i in range(3)]
    harness.step()
    harness.brokers.last.refuse(
        Code.INVALID_RECORD, message="whole batch", record_errors=[(1, "no key"), (2, None)]
    )
    texts = [str(error_of(delivery)) for delivery in deliveries]
    assert "other records of its batch are invalid" in texts[0]
    assert "no key" in texts[1]
    assert "whole batch" in texts[2], "the broker named the record but gave it no text"
    assert [error_of(delivery).retriable for delivery in deliveries] == [True, False, False]
    assert all(error_of(delivery).outcome is Outcome.REJECTED for delivery in deliveries)
    assert all(error_of(d).code.number == Code.INVALID_RECORD for d in deliveries)  # type: ignore[union-attr]


@virtual
async def test_record_errors_count_from_the_records_that_were_sent() -> None:
    harness = EngineHarness(linger_ms=1000, adaptive_linger=False)
    deliveries = [harness.append(b"%d" % i) for i in range(3)]
    deliveries[0].cancel()
    harness.later(1.0)
    assert harness.brokers.last.values == [b"1", b"2"]
    harness.brokers.last.refuse(Code.INVALID_RECORD, record_errors=[(0, "it is one")])
    assert "it is one" in str(error_of(deliveries[1]))
    assert "other records" in str(error_of(deliveries[2]))


@virtual
async def test_error_text_names_partition_broker_attempts_time_and_mend() -> None:
    harness = EngineHarness()
    delivery = harness.append(b"v")
    harness.step()
    harness.pass_time(0.25)
    harness.brokers.last.refuse(Code.TOPIC_AUTHORIZATION_FAILED, message="ask ops")
    text = str(error_of(delivery))
    for part in ("t-0", "broker 1", "attempt 1", "0.250 s", "ask ops", "grant Write", "not in the"):
        assert part in text
    assert text.count("grant") == 1
    assert "ACL" not in text


# -- new leaders named by the answer --------------------------------------------------------------


@pytest.mark.parametrize("code", [Code.NOT_LEADER_OR_FOLLOWER, Code.FENCED_LEADER_EPOCH])
@virtual
async def test_new_leader_in_the_answer_is_used_at_once(code: Code) -> None:
    harness = EngineHarness(brokers=2)
    delivery = harness.append(b"v")
    harness.step()
    harness.brokers.last.answer(
        {T0: refusal(T0, code, leader=(2, 50))},
        endpoints=[NodeEndpoint(2, "host-2", 9092, None)],
    )
    harness.step()
    assert harness.brokers.last.node_id == 2, "no backoff, no metadata fetch"
    assert not harness.metadata.update_due(harness.now + 10)
    harness.brokers.last.ack()
    assert offset_of(delivery) == 0


@virtual
async def test_results_before_the_first_error_are_settled_before_new_leaders_are_applied() -> None:
    harness = EngineHarness(partitions=2, brokers=2)
    harness.move(1, 1)
    good, moved = harness.append(b"a", 0), harness.append(b"b", 1)
    harness.step()
    sent = harness.brokers.last
    answers = sent.store()
    answers[T1] = refusal(T1, Code.NOT_LEADER_OR_FOLLOWER, leader=(2, 50))
    settled: list[bool] = []
    harness.metadata.on_change(lambda snapshot: settled.append(good.done()))
    sent.answer(answers, endpoints=[NodeEndpoint(2, "host-2", 9092, None)])
    assert settled == [True]
    assert not moved.done()
    assert harness.metadata.snapshot.leader_of(T1) == 2


@virtual
async def test_new_leader_on_an_unknown_broker_comes_with_its_address() -> None:
    harness = EngineHarness()
    harness.append(b"v")
    harness.step()
    harness.brokers.last.answer(
        {T0: refusal(T0, Code.NOT_LEADER_OR_FOLLOWER, leader=(9, 50))},
        endpoints=[NodeEndpoint(9, "host-9", 9092, None)],
    )
    harness.step()
    assert harness.brokers.last.node_id == 9
    assert harness.metadata.snapshot.nodes[9].host == "host-9"


@virtual
async def test_older_leader_in_the_answer_is_not_believed() -> None:
    harness = EngineHarness(brokers=2)
    harness.publish()
    harness.append(b"v")
    harness.step()
    harness.brokers.last.answer(
        {T0: refusal(T0, Code.NOT_LEADER_OR_FOLLOWER, leader=(2, 1))},
        endpoints=[NodeEndpoint(2, "host-2", 9092, None)],
    )
    assert harness.metadata.next_update_at(harness.now) < harness.now + 10, "fetched instead"
    harness.publish()
    harness.step()
    assert not harness.brokers.waiting, "backoff applies"
    harness.later()
    assert harness.brokers.last.node_id == 1


@virtual
async def test_hint_before_version_10_does_not_exist() -> None:
    harness = EngineHarness(brokers=2, version=9)
    harness.append(b"v")
    harness.step()
    harness.brokers.last.refuse(Code.NOT_LEADER_OR_FOLLOWER)
    assert harness.metadata.next_update_at(harness.now) < harness.now + 10


@virtual
async def test_backoff_is_skipped_once_metadata_show_a_newer_leader() -> None:
    harness = EngineHarness(brokers=2)
    harness.append(b"v")
    harness.step()
    harness.brokers.last.refuse(Code.NOT_LEADER_OR_FOLLOWER)
    harness.step()
    harness.move(0, 2)
    harness.step()
    assert harness.brokers.last.node_id == 2


@virtual
async def test_backoff_is_skipped_if_metadata_have_shown_a_newer_leader_before() -> None:
    harness = EngineHarness(brokers=2)
    harness.append(b"v")
    harness.step()
    harness.move(0, 2)
    last_to(harness, 1).refuse(Code.NOT_LEADER_OR_FOLLOWER)
    harness.step()
    assert [sent.node_id for sent in harness.brokers.waiting] == [2]


@virtual
async def test_last_attempt_is_made_without_haste() -> None:
    harness = EngineHarness(brokers=2, retries=1)
    harness.append(b"v")
    harness.step()
    harness.move(0, 2)
    last_to(harness, 1).refuse(Code.NOT_LEADER_OR_FOLLOWER)
    harness.step()
    harness.move(0, 1)
    harness.step()
    assert not harness.brokers.waiting
    harness.later()
    assert len(harness.brokers.waiting) == 1


@virtual
async def test_backoff_is_skipped_once_the_same_broker_leads_anew() -> None:
    harness = EngineHarness(brokers=2)
    harness.append(b"v")
    harness.step()
    harness.brokers.last.refuse(Code.NOT_LEADER_OR_FOLLOWER)
    harness.step()
    harness.publish()
    harness.step()
    assert not harness.brokers.waiting, "the same leader in the same epoch"
    harness.move(0, None)
    harness.move(0, 1)
    harness.step()
    assert [sent.node_id for sent in harness.brokers.waiting] == [1]


# -- requests without an answer -------------------------------------------------------------------


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Disconnected("gone"), "NETWORK_EXCEPTION"),
        (RequestTimedOut("late"), "REQUEST_TIMED_OUT"),
        (CorrelationMismatch("odd"), "NETWORK_EXCEPTION"),
        (DecodeError("odd"), "NETWORK_EXCEPTION"),
    ],
)
@virtual
async def test_request_lost_after_bytes_left_is_retried_and_metadata_fetched(
    idempotent: bool, error: Exception, code: str
) -> None:
    harness = EngineHarness(idempotent=idempotent)
    delivery = harness.append(b"v")
    harness.step()
    harness.brokers.last.fail(error)  # type: ignore[arg-type]
    assert harness.observer.retries == [code]
    assert harness.metadata.next_update_at(harness.now) < harness.now + 10
    assert not delivery.done()
    harness.publish()
    harness.later()
    harness.brokers.last.ack()
    assert offset_of(delivery) == 0


@virtual
async def test_request_lost_before_any_byte_left_can_fail_as_definite() -> None:
    harness = EngineHarness(delivery_timeout_ms=30_000, request_timeout_ms=30_000)
    delivery = harness.append(b"v")
    harness.step()
    harness.brokers.last.lose(maybe_written=False)
    harness.later(30.0)
    assert error_of(delivery).outcome.definite


@virtual
async def test_request_that_cannot_be_encoded_fails_its_batches_only() -> None:
    harness = EngineHarness(partitions=2)
    delivery = harness.append(b"v", 0)
    harness.step()
    harness.brokers.last.fail(DecodeError("cannot encode"), maybe_written=False)
    error = error_of(delivery)
    assert isinstance(error, DecodeError)
    assert harness.state.source.fatal_error is None
    other = harness.append(b"w", 1)
    harness.step()
    harness.brokers.last.ack()
    assert offset_of(other) == 0
    harness.step()
    harness.check_idle()


@virtual
async def test_request_that_cannot_be_encoded_says_nothing_about_an_earlier_attempt() -> None:
    harness = EngineHarness(partitions=2)
    maybe = harness.append(b"maybe", 0)
    harness.step()
    harness.brokers.last.lose()
    harness.publish()
    harness.pass_time(BACKOFF)
    never = harness.append(b"never", 1)
    harness.step()
    assert len(harness.brokers.last.batches) == 2
    harness.brokers.last.fail(DecodeError("cannot encode"), maybe_written=False)
    assert error_of(maybe).outcome is Outcome.UNKNOWN
    assert error_of(never).outcome is Outcome.NOT_SENT


@virtual
async def test_broker_without_a_common_version_ends_the_producer() -> None:
    harness = EngineHarness()
    delivery = harness.append(b"v")
    harness.step()
    waiting = harness.append(b"w")
    harness.brokers.last.fail(UnsupportedVersion("broker 1 is too old"), maybe_written=False)
    assert isinstance(error_of(delivery), UnsupportedVersion)
    harness.step()
    assert isinstance(error_of(waiting), UnsupportedVersion)
    assert error_of(waiting).outcome is Outcome.NOT_SENT
    with pytest.raises(UnsupportedVersion):
        harness.append(b"x")
    harness.check_idle()


# -- retries and their end ------------------------------------------------------------------------


@virtual
async def test_retries_count_the_attempts_after_the_first() -> None:
    harness = EngineHarness(idempotent=False, retries=2)
    delivery = harness.append(b"v")
    harness.step()
    for _ in range(2):
        harness.brokers.last.refuse(Code.NOT_ENOUGH_REPLICAS)
        assert not delivery.done()
        harness.step()
        assert not harness.brokers.waiting, "backoff"
        harness.later()
    harness.brokers.last.refuse(Code.NOT_ENOUGH_REPLICAS)
    error = error_of(delivery)
    assert error.code is not None
    assert error.code.number == Code.NOT_ENOUGH_REPLICAS
    assert error.outcome is Outcome.REJECTED
    harness.check_idle()


@virtual
async def test_without_retries_the_first_error_is_the_last() -> None:
    harness = EngineHarness(idempotent=False, retries=0)
    delivery = harness.append(b"v")
    harness.step()
    harness.brokers.last.lose()
    assert error_of(delivery).outcome is Outcome.UNKNOWN
    harness.check_idle()


@virtual
async def test_retriable_answer_after_the_deadline_is_a_delivery_timeout() -> None:
    """The result is the same one run later, once the batch has expired."""
    harness = EngineHarness(delivery_timeout_ms=30_000, request_timeout_ms=30_000)
    delivery = harness.append(b"v")
    harness.step()
    harness.pass_time(30.0)
    harness.brokers.last.refuse(Code.NOT_ENOUGH_REPLICAS)
    error = error_of(delivery)
    assert isinstance(error, DeliveryTimeout)
    assert error.outcome is Outcome.REJECTED
    assert error.retriable
    assert "opened 30.000 s ago and sent 1 time, last: NOT_ENOUGH_REPLICAS;" in str(error)
    harness.step()
    harness.check_idle()


@virtual
async def test_request_lost_after_the_deadline_is_a_delivery_timeout_in_doubt() -> None:
    harness = EngineHarness(delivery_timeout_ms=30_000, request_timeout_ms=30_000)
    delivery = harness.append(b"v")
    harness.step()
    harness.pass_time(30.0)
    harness.brokers.last.lose()
    error = error_of(delivery)
    assert isinstance(error, DeliveryTimeout)
    assert error.outcome is Outcome.UNKNOWN
    assert "last: NETWORK_EXCEPTION" in str(error)
    harness.step()
    harness.check_idle()


@virtual
async def test_record_never_sent_expires_as_not_sent_and_says_what_stood_in_the_way() -> None:
    harness = EngineHarness(delivery_timeout_ms=30_000, request_timeout_ms=30_000)
    harness.brokers.down[1] = math.inf
    delivery = harness.append(b"v")
    harness.metadata.note_error(Disconnected("host-1 refuses"))
    harness.step()
    harness.later(29.5)
    assert not delivery.done()
    harness.later(0.5)
    error = error_of(delivery)
    assert isinstance(error, DeliveryTimeout)
    assert error.outcome is Outcome.NOT_SENT
    assert "host-1 refuses" in str(error)
    harness.check_idle()


@virtual
async def test_record_refused_until_the_deadline_expires_as_rejected() -> None:
    harness = EngineHarness(delivery_timeout_ms=1000, request_timeout_ms=1000)
    delivery = harness.append(b"v")
    harness.step()
    harness.brokers.last.refuse(Code.NOT_ENOUGH_REPLICAS)
    harness.brokers.busy.add(1)
    harness.later(1.0)
    error = error_of(delivery)
    assert error.outcome is Outcome.REJECTED
    assert "NOT_ENOUGH_REPLICAS" in str(error)


@virtual
async def test_record_expires_on_the_wire_as_unknown_and_keeps_its_memory_until_the_answer() -> (
    None
):
    harness = EngineHarness(delivery_timeout_ms=30_000, request_timeout_ms=30_000)
    delivery = harness.append(b"v")
    harness.step()
    held = harness.memory.used
    assert held > 0
    harness.later(30.0)
    assert error_of(delivery).outcome is Outcome.UNKNOWN
    assert harness.memory.used == held, "CVE-2026-35554: the socket may still have the bytes"
    assert not harness.accumulator.incomplete
    harness.brokers.last.ack()
    assert error_of(delivery).outcome is Outcome.UNKNOWN, "the first outcome stands"
    assert harness.memory.used == 0
    assert sum(harness.observer.failed.values()) == 1
    assert not harness.observer.acknowledged
    harness.step()
    harness.check_idle()


@pytest.mark.parametrize("code", [Code.NOT_ENOUGH_REPLICAS, Code.INVALID_RECORD])
@virtual
async def test_record_expired_on_the_wire_is_not_retried(code: Code) -> None:
    harness = EngineHarness(delivery_timeout_ms=30_000, request_timeout_ms=30_000)
    harness.append(b"v")
    harness.step()
    harness.later(30.0)
    harness.brokers.last.refuse(code)
    harness.later()
    assert len(harness.brokers.produce) == 1
    harness.check_idle()


@virtual
async def test_expired_batch_is_not_split() -> None:
    harness = EngineHarness(delivery_timeout_ms=30_000, request_timeout_ms=30_000)
    deliveries = [harness.append(b"v"), harness.append(b"w")]
    harness.step()
    harness.later(30.0)
    harness.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
    harness.later()
    assert all(isinstance(error_of(d), DeliveryTimeout) for d in deliveries)
    harness.check_idle()


@virtual
async def test_batch_too_large_past_its_deadline_fails_instead_of_being_split() -> None:
    harness = EngineHarness(delivery_timeout_ms=30_000, request_timeout_ms=30_000)
    deliveries = [harness.append(b"v"), harness.append(b"w")]
    harness.step()
    harness.pass_time(30.0)
    harness.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
    for error in map(error_of, deliveries):  # the records are not too large, only their batch
        assert isinstance(error, DeliveryTimeout)
        assert error.outcome is Outcome.REJECTED
        assert "last: MESSAGE_TOO_LARGE" in str(error)
    harness.step()
    harness.check_idle()


@virtual
async def test_record_that_expired_during_a_stall_is_not_sent_any_more() -> None:
    harness = EngineHarness(delivery_timeout_ms=30_000, request_timeout_ms=30_000)
    delivery = harness.append(b"v")
    harness.pass_time(60.0)
    harness.step()
    assert not harness.brokers.sent
    assert error_of(delivery).outcome is Outcome.NOT_SENT


@virtual
async def test_answer_that_arrived_during_a_stall_is_read_before_the_record_expires() -> None:
    harness = EngineHarness(delivery_timeout_ms=30_000, request_timeout_ms=30_000)
    task = asyncio.ensure_future(harness.sender.run())
    delivery = harness.append(b"v")
    await quiet()
    harness.pass_time(60.0)
    assert isinstance(harness.loop, VirtualLoop)
    harness.loop.world_at(harness.now, harness.brokers.last.ack)
    assert (await delivery).offset == 0
    task.cancel()
    await quiet()


@virtual
async def test_each_deadline_waits_for_the_sockets_to_be_read_anew() -> None:
    """The run that expires an earlier record has not read the data that arrived since."""
    harness = EngineHarness(delivery_timeout_ms=30_000, request_timeout_ms=30_000, partitions=2)
    first = harness.append(b"1")
    harness.step()
    harness.pass_time(10.0)
    second = harness.append(b"2", 1)
    harness.step()
    harness.refresh()
    harness.step()
    answer = harness.brokers.last
    assert answer.values == [b"2"]
    harness.pass_time(20.0)
    assert harness.sender.run_once(harness.now) == harness.now, "read the sockets, and come again"
    assert outcome_of(first) is None
    assert harness.sender.run_once(harness.now) > harness.now
    assert error_of(first).outcome is Outcome.UNKNOWN
    harness.pass_time(10.0)
    assert harness.sender.run_once(harness.now) == harness.now
    assert outcome_of(second) is None
    answer.ack()
    assert offset_of(second) == 0
    third = harness.append(b"3", 1)
    harness.step()
    harness.pass_time(30.0)
    assert harness.sender.run_once(harness.now) == harness.now, "also after a deadline that was met"
    assert outcome_of(third) is None


@virtual
async def test_many_batches_expire_in_one_pass() -> None:
    harness = EngineHarness(delivery_timeout_ms=30_000, request_timeout_ms=30_000, partitions=3)
    harness.move(0, None)
    deliveries = [harness.append(b"v", partition) for partition in (0, 0, 1, 2)]
    harness.brokers.busy.add(1)
    harness.step()
    harness.later(30.0)
    assert all(error_of(d).outcome is Outcome.NOT_SENT for d in deliveries)
    harness.check_idle()


# -- splitting ------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [Code.MESSAGE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE])
@pytest.mark.parametrize("idempotent", [True, False])
@virtual
async def test_batch_too_large_is_split_and_delivered_in_order(
    code: Code, idempotent: bool
) -> None:
    harness = EngineHarness(idempotent=idempotent, max_in_flight_requests_per_connection=1)
    values = [b"%d" % i for i in range(8)]
    deliveries = [harness.append(value) for value in values]
    deliveries[3].add_done_callback(lambda delivery: None)
    used = harness.memory.used
    harness.step()
    harness.brokers.last.refuse(code)
    assert harness.observer.splits == 1
    assert harness.memory.used == used
    harness.step()
    while harness.brokers.waiting:
        if len(harness.brokers.last.values) > 2:
            harness.brokers.last.refuse(code)
        else:
            harness.brokers.last.ack()
        harness.step()
    assert harness.brokers.stored(T0) == values
    assert [offset_of(d) for d in deliveries] == list(range(8))
    harness.check_idle()


@virtual
async def test_split_does_not_use_up_retries() -> None:
    harness = EngineHarness(idempotent=False, retries=1, max_in_flight_requests_per_connection=1)
    deliveries = [harness.append(b"a"), harness.append(b"b")]
    harness.step()
    harness.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
    harness.step()
    harness.brokers.last.refuse(Code.NOT_ENOUGH_REPLICAS)
    assert not deliveries[0].done(), "one retry is left"
    harness.later()
    harness.brokers.last.ack()
    harness.step()
    harness.brokers.last.ack()
    assert [offset_of(d) for d in deliveries] == [0, 1]


@virtual
async def test_single_record_too_large_fails_with_the_mend() -> None:
    harness = EngineHarness()
    delivery = harness.append(b"v")
    harness.step()
    harness.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
    assert "max.message.bytes" in str(error_of(delivery))
    assert error_of(delivery).outcome is Outcome.REJECTED
    harness.step()
    harness.check_idle()


@virtual
async def test_flush_waits_for_the_parts_of_a_split_batch() -> None:
    harness = EngineHarness()
    harness.append(b"a")
    harness.append(b"b")
    flush = asyncio.ensure_future(harness.flushes.wait(list(harness.accumulator.incomplete)))
    await quiet()
    harness.step()
    harness.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
    await quiet()
    assert not flush.done()
    harness.step()
    harness.brokers.last.ack()
    await quiet()
    assert not flush.done()
    harness.step()
    harness.brokers.last.ack()
    await flush


@virtual
async def test_part_of_a_batch_that_may_be_written_stays_unknown() -> None:
    harness = EngineHarness(idempotent=False, delivery_timeout_ms=30_000, request_timeout_ms=30_000)
    deliveries = [harness.append(b"a"), harness.append(b"b")]
    harness.step()
    harness.brokers.last.lose()
    harness.publish()
    harness.later()
    harness.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
    harness.brokers.busy.add(1)
    harness.later(30.0)
    assert [error_of(d).outcome for d in deliveries] == [Outcome.UNKNOWN] * 2


# -- order without idempotence --------------------------------------------------------------------


@virtual
async def test_one_in_flight_mutes_the_partition_so_that_retries_cannot_be_overtaken() -> None:
    harness = EngineHarness(idempotent=False, max_in_flight_requests_per_connection=1, partitions=2)
    harness.append_all(b"1", b"2")
    harness.step()
    assert len(harness.brokers.waiting) == 1
    harness.brokers.last.refuse(Code.NOT_ENOUGH_REPLICAS)
    harness.step()
    assert not harness.brokers.waiting, "the second one waits behind the first one's backoff"
    harness.later()
    assert harness.brokers.last.values == [b"1"]
    harness.brokers.last.ack()
    harness.step()
    harness.brokers.last.ack()
    assert harness.brokers.stored(T0) == [b"1", b"2"]


@virtual
async def test_one_in_flight_mutes_the_partition_on_the_new_leader_too() -> None:
    harness = EngineHarness(idempotent=False, max_in_flight_requests_per_connection=1, brokers=2)
    harness.append_all(b"1", b"2")
    harness.step()
    harness.move(0, 2)
    harness.step()
    assert len(harness.brokers.waiting) == 1
    harness.brokers.last.refuse(Code.NOT_LEADER_OR_FOLLOWER)
    harness.publish()
    harness.later()
    assert harness.brokers.last.values == [b"1"]
    assert harness.brokers.last.node_id == 2


# -- giving up ------------------------------------------------------------------------------------


@virtual
async def test_fail_all_tells_each_record_whether_it_may_be_in_the_log() -> None:
    harness = EngineHarness(partitions=4)
    rejected, on_wire, lost, queued = (harness.append(b"v", p) for p in range(4))
    harness.brokers.max_in_flight = 1
    harness.step()
    first = harness.brokers.last
    first.answer(
        {
            T0: refusal(T0, Code.NOT_ENOUGH_REPLICAS),
            T1: refusal(T1, Code.NOT_ENOUGH_REPLICAS),
            TopicPartition("t", 2): refusal(T0, Code.NOT_ENOUGH_REPLICAS),
        }
    )
    assert not any(d.done() for d in (rejected, on_wire, lost, queued))
    late = harness.append(b"new", 3)
    harness.close_open(3)
    unsent = harness.append(b"newer", 3)
    harness.sender.fail_all(ProducerClosed("closed"))
    assert error_of(rejected).outcome is Outcome.REJECTED
    assert error_of(queued).outcome is Outcome.UNKNOWN, "its partition was left out"
    assert error_of(late).outcome is Outcome.NOT_SENT
    assert error_of(unsent).outcome is Outcome.NOT_SENT
    harness.step()
    harness.check_idle()


@virtual
async def test_fail_all_reports_no_failure_of_a_batch_without_records() -> None:
    harness = EngineHarness()
    assert harness.append(b"v").cancel()
    harness.sender.fail_all(ProducerClosed("closed"))
    assert not harness.observer.failed
    harness.check_idle()


@virtual
async def test_fail_all_keeps_the_memory_of_what_is_on_the_wire() -> None:
    harness = EngineHarness()
    delivery = harness.append(b"v")
    harness.step()
    harness.sender.fail_all(ProducerClosed("closed"))
    assert error_of(delivery).outcome is Outcome.UNKNOWN
    assert harness.memory.used > 0
    harness.sender.fail_all(ProducerClosed("closed again"))
    assert "again" not in str(error_of(delivery))
    harness.brokers.last.lose()
    assert harness.memory.used == 0
    harness.step()
    harness.check_idle()


@pytest.mark.parametrize(
    ("with_sequence", "in_doubt"), [(False, False), (True, False), (True, True)]
)
@virtual
async def test_fail_unsent_leaves_what_is_on_the_wire_and_what_has_a_sequence_or_may_be_in_the_log(
    with_sequence: bool, in_doubt: bool
) -> None:
    harness = EngineHarness(partitions=4)
    refused = harness.append(b"refused", 0)
    harness.step()
    harness.brokers.last.refuse(Code.NOT_ENOUGH_REPLICAS)
    appended = harness.append(b"appended", 3)
    harness.step()
    harness.brokers.last.refuse(Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    on_wire = harness.append(b"on the wire", 1)
    harness.step()
    queued = harness.append(b"queued", 2)
    harness.sender.fail_unsent(
        ProducerClosed("over"), with_sequence=with_sequence, in_doubt=in_doubt
    )
    assert error_of(queued).outcome is Outcome.NOT_SENT
    assert refused.done() == with_sequence
    if with_sequence:
        assert error_of(refused).outcome is Outcome.REJECTED
    assert appended.done() == in_doubt
    assert not on_wire.done()
    if in_doubt:
        assert error_of(appended).outcome is Outcome.UNKNOWN
    harness.brokers.last.ack()
    assert offset_of(on_wire) == 0
    if not in_doubt:
        harness.later()
        for attempt in list(harness.brokers.waiting):
            attempt.ack()
    harness.step()
    harness.check_idle()


@virtual
async def test_fatal_error_cancels_the_rest_and_every_later_record() -> None:
    harness = EngineHarness(partitions=2)
    first, second = harness.append(b"v", 0), harness.append(b"w", 1)
    harness.step()
    sent = harness.brokers.last
    answers = sent.store()
    answers[T0] = refusal(T0, Code.CLUSTER_AUTHORIZATION_FAILED)
    answers[T1] = refusal(T1, Code.NOT_ENOUGH_REPLICAS)
    sent.answer(answers)
    assert error_of(first).code.number == Code.CLUSTER_AUTHORIZATION_FAILED  # type: ignore[union-attr]
    harness.step()
    assert error_of(second).outcome.definite
    with pytest.raises(type(error_of(first))):
        harness.append(b"x")
    harness.step()
    harness.check_idle()


@virtual
async def test_failure_nobody_waits_for_is_reported_once_per_batch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness = EngineHarness()
    watched = harness.append(b"watched")
    watched.add_done_callback(lambda delivery: None)
    for _ in range(3):
        harness.append(b"unwatched")
    harness.step()
    harness.brokers.last.refuse(Code.INVALID_RECORD)
    assert harness.observer.unretrieved == [(T0, 3)]
    assert caplog.text.count("no task was waiting") == 1
    assert "unwatched" not in caplog.text.replace("nobody", ""), "never a value"


@virtual
async def test_withdrawn_records_are_not_counted_as_waited_for() -> None:
    harness = EngineHarness(linger_ms=1000, adaptive_linger=False)
    harness.append(b"unwatched")
    for _ in range(2):
        withdrawn = harness.append(b"withdrawn")
        withdrawn.add_done_callback(lambda delivery: None)
        withdrawn.cancel()
    harness.later(1.0)
    harness.brokers.last.refuse(Code.INVALID_RECORD)
    assert harness.observer.unretrieved == [(T0, 1)]


@virtual
async def test_producer_id_is_on_every_batch() -> None:
    harness = EngineHarness()
    harness.append(b"v")
    harness.step()
    assert harness.brokers.last.sequence == (PRODUCER_ID, 0, 0)


# -- every queued batch has its next look ---------------------------------------------------------


@virtual
async def test_batch_that_becomes_ready_without_a_leader_asks_for_metadata() -> None:
    """This holds even if the metadata has neither a leader nor an error, so that nothing else
    requests it again."""
    harness = EngineHarness(brokers=2)
    harness.leaderless_code = 0
    delivery = harness.append(b"v")
    harness.step()
    harness.brokers.last.refuse(Code.NOT_LEADER_OR_FOLLOWER)
    harness.pass_time(0.06)
    harness.move(0, None)
    harness.step()
    assert not harness.metadata.update_due(harness.now + 10), "its backoff is not over"
    harness.later()
    assert harness.metadata.update_due(harness.now + 1)
    harness.leaders[T0] = 2
    await harness.run_for(0)
    harness.pass_time(1)
    harness.refresh()
    harness.step()
    harness.brokers.last.ack()
    assert offset_of(delivery) == 0
    harness.step()
    harness.check_idle()


@virtual
async def test_pass_that_overlooks_a_batch_without_a_leader_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a metadata request from the check after each run, nothing would end this wait."""
    monkeypatch.setattr(Sender, "_refresh_leaderless", lambda self, now: None)
    harness = EngineHarness()
    harness.leaderless_code = 0
    harness.append(b"v")
    harness.move(0, None)
    with pytest.raises(AssertionError, match="no leader, and no metadata are fetched"):
        harness.step()
    with pytest.raises(AssertionError, match="overlooked by a sender"):
        check_passes()


@virtual
async def test_pass_that_forgets_a_backoff_or_a_linger_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RecordAccumulator, "next_due", lambda self: math.inf)
    harness = EngineHarness(linger_ms=50, adaptive_linger=False)
    harness.append(b"v")
    with pytest.raises(AssertionError, match="its linger ends unnoticed"):
        harness.step()
    monkeypatch.undo()
    other = EngineHarness()
    other.append(b"v")
    other.step()
    other.brokers.last.refuse(Code.NOT_ENOUGH_REPLICAS)
    monkeypatch.setattr(RecordAccumulator, "next_due", lambda self: math.inf)
    with pytest.raises(AssertionError, match="its backoff ends unnoticed"):
        other.step()
    with pytest.raises(AssertionError, match="overlooked by a sender"):
        check_passes()


@virtual
async def test_pass_that_leaves_a_batch_behind_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecordAccumulator, "due_nodes", lambda self, busy: [])
    harness = EngineHarness()
    harness.append(b"v")
    harness.close_open()
    with pytest.raises(AssertionError, match="left behind though its broker takes requests"):
        harness.step()
    with pytest.raises(AssertionError, match="overlooked by a sender"):
        check_passes()


@virtual
async def test_retries_are_counted_and_logged_at_debug_level(
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness = EngineHarness(partitions=2, delivery_timeout_ms=300_000)
    delivery = harness.append(b"v")
    with caplog.at_level(logging.DEBUG, "aiokprod._engine.sender.batch_completion"):
        harness.step()
        for _ in range(65):
            harness.brokers.last.refuse(Code.NOT_ENOUGH_REPLICAS)
            harness.later(1.0)
        harness.brokers.last.ack()
        harness.append(b"v", 1)
        harness.step()
        harness.brokers.last.refuse(Code.CONCURRENT_TRANSACTIONS)
        harness.later(1.0)
        harness.brokers.last.refuse(Code.NOT_ENOUGH_REPLICAS)
        harness.later(1.0)
        harness.brokers.last.ack()
    assert offset_of(delivery) == 0
    retries = [r for r in caplog.records if "retrying after" in r.getMessage()]
    assert len(retries) == 67
    assert {record.levelno for record in retries} == {logging.DEBUG}
    assert "retrying after NOT_ENOUGH_REPLICAS from broker 1 in" in retries[0].getMessage()
    fields = vars(retries[0])
    assert (fields["kafka_event"], fields["kafka_attempt"]) == ("batch_retried", 1)
    assert (fields["kafka_topic"], fields["kafka_partition"]) == ("t", 0)
    # Waiting for the markers of a transaction does not count.
    log = harness.sender.retry_log
    assert log.last is not None
    assert log.last[0] == "t-1: NOT_ENOUGH_REPLICAS from broker 1"
    assert log.take() == ({"NOT_ENOUGH_REPLICAS": 66}, ["t"])
    assert log.take() == ({}, [])
    assert harness.sender.acknowledged_at == harness.now
