"""Queues of batches, and when each batch may be sent (Java RecordAccumulatorTest)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from aiokprod._core.batch import Delivery
from aiokprod._core.record_fields import DELIVERY_CHARGE
from aiokprod._engine.buffer import accumulator
from aiokprod._engine.buffer.batch_states import BatchState
from aiokprod._engine.buffer.producer_batch import ProducerBatch
from aiokprod._wire.compression import codec_for
from aiokprod._wire.messages.produce import NodeEndpoint
from aiokprod.errors import BrokerError, Code, Outcome, ProducerFailed
from aiokprod.records import TopicPartition
from aiokprod.testing.virtual import VirtualLoop
from tests.engine.engine_harness import (
    BACKOFF,
    EngineHarness,
    error_of,
    offset_of,
    outcome_of,
    quiet,
    refusal,
    virtual,
)
from tests.simulation.call_interrupts import Injector, Interrupt

T0 = TopicPartition("t", 0)
BUFFER = str(Path(accumulator.__file__).parent)


def drained(harness: EngineHarness, node: int = 1, size: int = 1 << 20) -> list[ProducerBatch]:
    """Return the batches of a manual drain; they are never sent."""
    return harness.drain(node, size)


def answered(batch: ProducerBatch) -> ProducerBatch:
    """Return a drained batch after the response to its request."""
    batch.change_state(BatchState.IN_FLIGHT)
    batch.change_state(BatchState.COMPLETING)
    return batch


def append_many(harness: EngineHarness, count: int) -> None:
    for _ in range(count):
        harness.append(b"x" * 100)


# -- appending ------------------------------------------------------------------------------------


@virtual
async def test_records_share_the_open_batch_until_it_is_full() -> None:
    harness = EngineHarness(batch_size=200)
    for _ in range(2):
        harness.append(b"x" * 50)
    assert len(harness.queued()) == 1
    harness.append(b"x" * 50)
    first, second = harness.queued()
    assert first.core.record_count == 2
    harness.accumulator.advance(harness.now)
    assert first.payload is not None, "closed by the next pass, although it cannot leave yet"
    assert first.size <= 200
    assert second.core.record_count == 1


@virtual
async def test_record_larger_than_batch_size_gets_a_batch_of_its_own() -> None:
    harness = EngineHarness(batch_size=100)
    harness.append(b"small")
    harness.append(b"x" * 1000)
    harness.append(b"small")
    assert [batch.core.record_count for batch in harness.queued()] == [1, 1, 1]


@virtual
async def test_batch_size_0_makes_every_record_a_batch() -> None:
    harness = EngineHarness(batch_size=0)
    for _ in range(3):
        harness.append(b"x")
    assert [batch.core.record_count for batch in harness.queued()] == [1, 1, 1]


@virtual
async def test_batch_size_above_max_request_size_is_cut_to_it() -> None:
    harness = EngineHarness(batch_size=10_000, max_request_size=500)
    for _ in range(10):
        harness.append(b"x" * 100)
    assert all(batch.size <= 500 for batch in harness.queued())


@virtual
async def test_only_a_new_batch_wakes_the_sender() -> None:
    harness = EngineHarness(batch_size=200)
    harness.append(b"x" * 50)
    assert harness.wakeups == 1
    harness.append(b"x" * 50)
    assert harness.wakeups == 1
    harness.append(b"x" * 50)
    assert harness.wakeups == 2


@virtual
async def test_memory_counts_bytes_and_handles_and_returns_to_zero() -> None:
    harness = EngineHarness()
    harness.append(b"x" * 50)
    batch = harness.queued()[0]
    assert harness.memory.used == batch.core.size + DELIVERY_CHARGE == batch.core.buffered_bytes
    harness.append(b"x" * 50)
    assert harness.memory.used == batch.core.size + 2 * DELIVERY_CHARGE
    harness.step()
    harness.brokers.last.ack()
    harness.step()
    harness.check_idle()


@virtual
async def test_batch_is_refused_by_the_producer_state_before_it_exists() -> None:
    harness = EngineHarness()
    harness.state.source.on_fatal(BrokerError("over"))
    with pytest.raises(BrokerError):
        harness.append(b"v")
    assert not harness.queued()
    assert harness.memory.used == 0
    harness.check_idle()


# -- sticky partitions ----------------------------------------------------------------------------


@virtual
async def test_sticky_partition_stays_while_it_got_less_than_batch_size() -> None:
    harness = EngineHarness(partitions=3, batch_size=1000)
    harness.next_sticky = 2
    for _ in range(5):
        harness.append(b"x" * 100, None)
    harness.next_sticky = 1
    harness.append(b"x" * 100, None)
    assert [len(harness.queued(p)) for p in range(3)] == [0, 0, 1]


@virtual
async def test_sticky_partition_changes_with_the_batch_after_batch_size_bytes() -> None:
    harness = EngineHarness(partitions=3, batch_size=1000)
    harness.next_sticky = 2
    for _ in range(12):
        harness.append(b"x" * 100, None)
        if harness.queued(2) and harness.queued(2)[0].core.record_count > 3:
            harness.next_sticky = 1
    assert harness.queued(2)[0].core.record_count == 8
    assert len(harness.queued(1)) + len(harness.queued(2)) == 2


@virtual
async def test_sticky_choice_may_fall_on_a_batch_with_room() -> None:
    harness = EngineHarness(partitions=2, batch_size=1000)
    harness.append(b"mine", 1)
    harness.next_sticky = 1
    harness.append(b"x", None)
    assert harness.queued(1)[0].core.record_count == 2


@virtual
async def test_sticky_batch_drained_early_opens_another_on_the_same_partition() -> None:
    harness = EngineHarness(partitions=2, batch_size=1000)
    harness.append(b"a", None)
    harness.step()
    harness.next_sticky = 1
    harness.append(b"b", None)
    assert [len(harness.queued(p)) for p in range(2)] == [1, 0], "it got only a few bytes so far"


@virtual
async def test_usable_partitions_leave_out_those_whose_broker_takes_nothing_for_too_long() -> None:
    harness = EngineHarness(partitions=4, brokers=2, partitioner_availability_timeout_ms=500)
    slot = harness.appender.topics["t"]
    everywhere = (0, 1, 2, 3)
    harness.brokers.busy.add(1)
    harness.append(b"v", 0)
    harness.step()
    assert harness.accumulator.usable(slot, everywhere) == [0, 1, 2, 3]
    harness.later(0.5)
    assert harness.accumulator.usable(slot, everywhere) == [0, 1, 2, 3]
    harness.later(0.1)
    assert harness.accumulator.usable(slot, everywhere) == [1, 2, 3], "2 has nothing queued yet"
    harness.append(b"w", 2)
    assert harness.accumulator.usable(slot, everywhere) == [1, 3], "one batch for each partition"
    harness.brokers.busy.clear()
    harness.step()
    assert harness.accumulator.usable(slot, everywhere) == [0, 1, 2, 3]
    for sent in harness.brokers.waiting:
        sent.ack()
    harness.step()
    harness.check_idle()


@virtual
async def test_partition_with_data_is_usable_as_soon_as_its_broker_has_taken_a_request() -> None:
    harness = EngineHarness(partitioner_availability_timeout_ms=500)
    slot = harness.appender.topics["t"]
    harness.brokers.busy.add(1)
    harness.append(b"v")
    harness.step()
    harness.later(0.6)
    assert harness.accumulator.usable(slot, [0]) == []
    harness.brokers.busy.clear()
    harness.step()
    harness.append(b"w")
    harness.step()
    assert len(harness.queued()) == 1, "the second batch waits for the first response"
    assert harness.accumulator.usable(slot, [0]) == [0]


@virtual
async def test_usable_partitions_of_a_broker_that_takes_requests_are_all() -> None:
    """This holds however long a batch lingers or waits behind another batch."""
    harness = EngineHarness(
        partitions=2,
        partitioner_availability_timeout_ms=500,
        linger_ms=10_000,
        adaptive_linger=False,
    )
    harness.append(b"v", 0)
    harness.later(5.0)
    assert harness.accumulator.usable(harness.appender.topics["t"], (0, 1)) == [0, 1]


@virtual
async def test_usable_partitions_without_a_limit_are_all() -> None:
    harness = EngineHarness(partitions=2, partitioner_availability_timeout_ms=0)
    harness.append(b"v", 0)
    harness.pass_time(100)
    assert harness.accumulator.usable(harness.appender.topics["t"], (0, 1)) == [0, 1]


# -- readiness ------------------------------------------------------------------------------------


@virtual
async def test_lingering_batch_is_due_only_for_an_idle_node() -> None:
    harness = EngineHarness(linger_ms=100)
    harness.append(b"v")
    harness.accumulator.advance(harness.now)
    assert harness.accumulator.due_nodes(busy=()) == [1]
    assert harness.accumulator.due_nodes(busy={1}) == []
    harness.pass_time(0.1)
    harness.accumulator.advance(harness.now)
    assert harness.accumulator.due_nodes(busy={1}) == [1]
    assert harness.accumulator.has_ready(1)
    assert not harness.accumulator.has_ready(99)


@virtual
async def test_passes_cost_nothing_for_partitions_without_data() -> None:
    harness = EngineHarness(partitions=1000)
    assert harness.accumulator.due_nodes(busy=()) == []
    harness.accumulator.advance(harness.now)
    assert harness.accumulator.next_due() == math.inf
    assert harness.accumulator.next_expiry() == math.inf


@virtual
async def test_linger_of_a_batch_behind_a_retry_is_not_forgotten() -> None:
    """The retry leaves at once for the leader in the response; the open batch behind it must still
    leave when its own linger ends."""
    harness = EngineHarness(linger_ms=100, adaptive_linger=False, brokers=2)
    harness.append(b"first")
    harness.later(0.1)
    start = harness.now
    behind = harness.append(b"behind")
    assert harness.step() == start + 0.1
    harness.brokers.last.answer(
        {T0: refusal(T0, Code.NOT_LEADER_OR_FOLLOWER, leader=(2, 50))},
        endpoints=[NodeEndpoint(2, "host-2", 9092, None)],
    )
    harness.later(0.01)
    assert harness.brokers.last.values == [b"first"]
    harness.brokers.last.ack()
    assert harness.step() == start + 0.1
    harness.later(0.09)
    assert harness.brokers.last.values == [b"behind"]
    harness.brokers.last.ack()
    assert offset_of(behind) == 1


@virtual
async def test_deadline_of_a_batch_that_left_wakes_nobody() -> None:
    harness = EngineHarness(linger_ms=100, adaptive_linger=True)
    harness.append(b"v")
    harness.step()
    harness.brokers.last.ack()
    assert harness.step() == math.inf


@virtual
async def test_backoff_of_the_head_holds_up_what_is_behind_it() -> None:
    harness = EngineHarness()
    harness.append_all(b"1")
    harness.step()
    harness.brokers.last.refuse(Code.NOT_ENOUGH_REPLICAS)
    harness.append_all(b"2")
    assert harness.step() == harness.now + BACKOFF
    assert not harness.brokers.waiting
    harness.later()
    assert harness.brokers.last.values == [b"1"]


@virtual
async def test_partition_in_backoff_does_not_hold_up_another() -> None:
    harness = EngineHarness(partitions=2)
    harness.append(b"1", 0)
    harness.step()
    harness.brokers.last.refuse(Code.NOT_ENOUGH_REPLICAS)
    harness.append(b"2", 1)
    harness.step()
    assert list(harness.brokers.last.batches) == [TopicPartition("t", 1)]


# -- drain ----------------------------------------------------------------------------------------


@virtual
async def test_drain_takes_the_first_batch_of_each_partition() -> None:
    harness = EngineHarness(partitions=2)
    harness.append_all(b"a", b"b", partition=0)
    harness.append_all(b"c", b"d", partition=1)
    taken = drained(harness)
    assert [batch.topic_partition.partition for batch in taken] == [0, 1]
    assert all(batch.payload is not None for batch in taken)
    assert [len(harness.queued(p)) for p in range(2)] == [1, 1]


@virtual
async def test_drain_asks_for_each_head_and_skips_who_may_not_leave() -> None:
    harness = EngineHarness(partitions=3)
    for partition in range(3):
        harness.append(b"v", partition)
    taken = harness.drain(
        1, 1 << 20, lambda queue, batch: queue.partition != 1 and batch is queue.batches[0]
    )
    assert [batch.topic_partition.partition for batch in taken] == [0, 2]
    assert [batch.topic_partition.partition for batch in drained(harness)] == [1]


@virtual
async def test_drain_stops_at_the_size_but_takes_one_in_any_case() -> None:
    harness = EngineHarness(partitions=3, max_request_size=5000, batch_size=4000)
    for partition in range(3):
        harness.append(b"x" * 1000, partition)
    assert len(drained(harness, size=10)) == 1
    assert len(drained(harness, size=2500)) == 2


@virtual
async def test_drain_turns_so_that_no_partition_starves() -> None:
    harness = EngineHarness(partitions=4, max_request_size=5000, batch_size=4000)
    order = []
    for partition in range(4):
        for _ in range(3):
            harness.append(b"x" * 1000, partition)
            harness.close_open(partition)
    for _ in range(6):
        order += [batch.topic_partition.partition for batch in drained(harness, size=2500)]
    assert order == [0, 1, 2, 3] * 3


@virtual
async def test_drain_of_an_unknown_node_is_empty() -> None:
    harness = EngineHarness()
    harness.append(b"v")
    assert drained(harness, node=77) == []


@virtual
async def test_drained_batch_takes_no_more_records_and_no_withdrawal() -> None:
    harness = EngineHarness()
    delivery = harness.append(b"v")
    (batch,) = drained(harness)
    harness.append(b"w")
    assert batch.core.record_count == 1
    delivery.cancel()
    assert not delivery.withdrawn


# -- withdrawing ----------------------------------------------------------------------------------


@virtual
async def test_withdrawn_record_is_left_out() -> None:
    harness = EngineHarness(linger_ms=100, adaptive_linger=False)
    deliveries = [harness.append(b"%d" % i) for i in range(3)]
    deliveries[1].cancel()
    harness.later(0.1)
    assert harness.brokers.last.values == [b"0", b"2"]
    harness.brokers.last.ack()
    assert [offset_of(deliveries[0]), offset_of(deliveries[2])] == [0, 1]
    harness.step()
    harness.check_idle()


@virtual
async def test_batch_emptied_by_withdrawals_never_existed() -> None:
    harness = EngineHarness(linger_ms=100, adaptive_linger=False)
    deliveries = [harness.append(b"%d" % i) for i in range(2)]
    for delivery in deliveries:
        assert delivery.cancel()
        assert delivery.withdrawn
    assert harness.memory.used == 0, "at once"
    harness.step()
    harness.check_idle()
    assert harness.later(0.1) == math.inf
    assert not harness.brokers.sent
    harness.append(b"next")
    harness.later(0.1)
    assert harness.brokers.last.values == [b"next"]
    assert harness.brokers.last.sequence[2] == 0


# -- retries and splits ---------------------------------------------------------------------------


@virtual
async def test_reenqueued_batches_take_their_place_whatever_the_order_of_their_failures() -> None:
    harness = EngineHarness()
    harness.append_all(b"1", b"2", b"3", b"4")
    batches = [answered(drained(harness)[0]) for _ in range(3)]
    for batch in (batches[1], batches[2], batches[0]):
        harness.accumulator.reenqueue(batch, harness.now, harness.now)
    assert [batch.order for batch in harness.queued()] == [(0,), (1,), (2,), (3,)]


@virtual
async def test_split_shares_out_memory_and_place_and_deadline() -> None:
    harness = EngineHarness(partitions=2)
    for i in range(5):
        harness.append(b"%d" % i * 20)
    harness.close_open()
    harness.append(b"behind")
    (batch,) = drained(harness)
    used = harness.memory.used
    assert batch.payload is not None
    answered(batch).attempts = 3
    parts = harness.accumulator.split(batch, batch.payload, len(batch.payload) // 2, harness.now)
    assert [part.order for part in parts] == [(0, i) for i in range(len(parts))]
    assert [b.order for b in harness.queued()] == [part.order for part in parts] + [(1,)]
    assert harness.memory.used == used
    assert (
        sum(part.core.buffered_bytes for part in parts) + harness.queued()[-1].core.buffered_bytes
        == used
    )
    assert batch.core.buffered_bytes == 0
    assert all(part.deadline == batch.deadline for part in parts)
    assert all(part.attempts == 2 for part in parts)
    assert batch not in harness.accumulator.incomplete
    assert all(part in harness.accumulator.incomplete for part in parts)


# -- expiry ---------------------------------------------------------------------------------------


@virtual
async def test_expired_batches_come_in_order_until_they_have_an_outcome() -> None:
    harness = EngineHarness(delivery_timeout_ms=30_000, request_timeout_ms=30_000)
    harness.append_all(b"1")
    harness.pass_time(1)
    harness.append_all(b"2")
    first, second = harness.queued()
    assert harness.accumulator.next_expiry() == first.deadline
    assert harness.accumulator.expired(first.deadline - 0.001) == []
    assert harness.accumulator.expired(second.deadline) == [first, second]
    harness.accumulator.remove(first)
    harness.accumulator.deallocate(first)
    assert harness.accumulator.expired(second.deadline) == [second]


@virtual
async def test_expired_parts_come_before_a_batch_that_was_opened_after_theirs() -> None:
    harness = EngineHarness()
    harness.append(b"1")
    harness.append(b"2")
    harness.step()
    harness.pass_time(1)
    harness.append(b"3")
    (later,) = harness.queued()
    harness.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
    found = harness.accumulator.expired(math.inf)
    assert len(found) == 3
    assert found == [*harness.queued()[:2], later]


@virtual
async def test_settled_batches_do_not_pile_up_behind_a_stuck_one() -> None:
    harness = EngineHarness(partitions=2, brokers=2)
    harness.brokers.busy.add(2)
    stuck = harness.append(b"stuck", 1)
    for _ in range(500):
        harness.append(b"v", 0)
        harness.step()
        harness.brokers.last.ack()
    assert len(harness.accumulator.incomplete) == 1
    assert len(harness.accumulator._due) < 200
    assert not stuck.done()


# -- topology -------------------------------------------------------------------------------------


@virtual
async def test_partition_without_leader_is_reported_and_not_drained() -> None:
    harness = EngineHarness(partitions=2)
    harness.append(b"v", 0)
    harness.move(0, None)
    assert harness.accumulator.leaderless_topics() == {"t"}
    assert drained(harness) == []
    harness.move(0, 1)
    assert harness.accumulator.leaderless_topics() == set()
    assert len(drained(harness)) == 1


@virtual
async def test_moved_partition_keeps_its_order_and_its_linger() -> None:
    harness = EngineHarness(brokers=2, linger_ms=100, adaptive_linger=False)
    start = harness.now
    harness.append(b"1")
    harness.move(0, 2)
    assert harness.step() == start + 0.1
    harness.later(0.1)
    assert harness.brokers.last.node_id == 2


@virtual
async def test_linger_is_noted_once_however_often_the_partition_moves() -> None:
    """Otherwise the heap of deadlines would grow with every change of leaders."""
    harness = EngineHarness(brokers=2, linger_ms=100, adaptive_linger=False)
    start = harness.now
    harness.append(b"1")
    for move in range(10):
        harness.move(0, 2 - move % 2)
        assert harness.accumulator.next_due() == start + 0.1
    assert len(harness.accumulator._due) == 1


@virtual
async def test_backoff_stays_if_the_leader_is_no_newer() -> None:
    harness = EngineHarness(brokers=2)
    harness.append(b"v")
    harness.step()
    harness.brokers.last.refuse(Code.NOT_ENOUGH_REPLICAS)
    harness.publish()
    harness.step()
    assert not harness.brokers.waiting


@virtual
async def test_forget_keeps_what_is_still_queued_or_on_the_wire() -> None:
    harness = EngineHarness(partitions=2)
    harness.append(b"v", 1)
    assert harness.accumulator.forget("t") is None
    harness.step()
    assert harness.accumulator.forget("t") is None
    harness.brokers.last.ack()
    assert harness.accumulator.forget("t") == 2
    assert harness.accumulator._queues == {}
    assert harness.accumulator.forget("other") == 0


@virtual
async def test_forget_keeps_a_batch_whose_answer_changes_the_leaders() -> None:
    harness = EngineHarness(brokers=2)
    harness.append(b"v")
    harness.step()
    forgotten: list[int | None] = []
    harness.metadata.on_change(lambda snapshot: forgotten.append(harness.accumulator.forget("t")))
    harness.brokers.last.refuse(Code.NOT_LEADER_OR_FOLLOWER, leader=(2, 50))
    assert forgotten == [None]
    harness.step()
    assert harness.brokers.last.node_id == 2


# -- shares of the buffer -------------------------------------------------------------------------


@virtual
async def test_sick_broker_holds_at_most_its_share() -> None:
    harness = EngineHarness(partitions=2, brokers=2, buffer_memory=10_000, batch_size=1000)
    harness.brokers.busy.add(1)
    slot = harness.appender.topics["t"]
    taken = 0
    while (result := harness.appender.append(slot, 0, b"x" * 800, None, None, None)).delivery:
        taken += 1
        harness.step()
    assert result.over_quota is harness.accumulator.queue("t", 0)
    assert 5_000 < harness.memory.used < 7_000
    healthy = harness.append(b"v", 1)
    harness.step()
    harness.brokers.last.ack()
    assert offset_of(healthy) == 0


@virtual
async def test_single_broker_may_hold_everything() -> None:
    harness = EngineHarness(buffer_memory=10_000, batch_size=1000)
    harness.brokers.busy.add(1)
    slot = harness.appender.topics["t"]
    while harness.appender.append(slot, 0, b"x" * 800, None, None, None).delivery:
        pass
    assert harness.memory.used > 9_000


@virtual
async def test_sticky_choice_avoids_a_broker_that_holds_its_share() -> None:
    harness = EngineHarness(partitions=2, brokers=2, buffer_memory=10_000, batch_size=1000)
    harness.brokers.busy.add(1)
    slot = harness.appender.topics["t"]
    while harness.appender.append(slot, 0, b"x" * 800, None, None, None).delivery:
        pass
    assert harness.accumulator.usable(slot, (0, 1)) == [1]
    slot.sticky = 0
    harness.next_sticky = 1
    delivery = harness.append(b"x", None)
    assert delivery.partition == 1


@virtual
async def test_share_goes_with_the_partition_to_its_new_leader() -> None:
    harness = EngineHarness(partitions=2, brokers=2, buffer_memory=10_000, batch_size=1000)
    harness.append_all(b"x" * 800, b"x" * 800)
    held = harness.quota.reserved_bytes(1)
    assert held > 1600
    harness.move(0, 2)
    assert harness.quota.reserved_bytes(1) == 0
    assert harness.quota.reserved_bytes(2) == held
    harness.step()
    harness.brokers.last.ack()
    harness.step()
    harness.brokers.last.ack()
    assert harness.quota.reserved_bytes(2) == 0


# -- compression in a worker thread ---------------------------------------------------------------


@virtual
async def test_expired_batch_that_is_still_being_compressed_is_forgotten_when_that_ends() -> None:
    harness = EngineHarness(
        codec=codec_for("gzip"),
        executor=object(),  # type: ignore[arg-type]
        batch_size=100_000,
        delivery_timeout_ms=30_000,
        request_timeout_ms=30_000,
    )
    assert isinstance(harness.loop, VirtualLoop)
    harness.loop.executor_delay_s = 60.0
    delivery = harness.append(b"x" * 50_000)
    harness.step()
    assert not harness.brokers.sent
    assert harness.queued()[0].state is BatchState.COMPRESSING
    harness.later(30.0)
    assert error_of(delivery).outcome is Outcome.NOT_SENT
    harness.check_idle()
    await asyncio.sleep(61)
    await quiet()
    harness.step()
    harness.check_idle()
    assert not harness.brokers.sent


@virtual
async def test_order_is_kept_while_the_head_is_being_compressed() -> None:
    harness = EngineHarness(codec=codec_for("gzip"), executor=object(), batch_size=100_000)  # type: ignore[arg-type]
    assert isinstance(harness.loop, VirtualLoop)
    harness.loop.executor_delay_s = 0.05
    task = asyncio.ensure_future(harness.sender.run())
    deliveries = harness.append_all(b"x" * 50_000, b"small", b"y" * 60_000)
    await quiet()
    assert not harness.brokers.sent
    for _ in range(3):
        await asyncio.sleep(0.06)
        harness.brokers.waiting[0].ack()
        await quiet()
    assert [offset_of(d) for d in deliveries] == [0, 1, 2]
    task.cancel()
    await quiet()
    harness.check_idle()


# -- signal handlers and finalizers ---------------------------------------------------------------


def strike_everywhere(scene: Callable[[int], bool]) -> None:
    """Run a scene with the fault at the first bytecode, then at the second and so on, until the
    scene returns False because it has no more bytecodes."""
    for step in itertools.count(1):
        if not scene(step):
            assert step > 50, "the tracer saw nothing"
            return


def raise_interrupt() -> None:
    raise Interrupt


def deliver_rest(harness: EngineHarness) -> None:
    """Run the sender and acknowledge requests until nothing remains."""
    for _ in range(4):
        harness.step()
        for sent in harness.brokers.waiting:
            sent.ack()
    harness.step()
    harness.check_idle()


@pytest.mark.parametrize("sealed", [False, True])
def test_withdrawal_that_is_interrupted_anywhere_leaves_nothing_behind(sealed: bool) -> None:
    def interrupted(step: int) -> bool:
        injector = Injector(step, raise_interrupt, BUFFER)

        @virtual
        async def scene() -> None:
            harness = EngineHarness(batch_size=100)
            delivery = harness.append(b"a" * 60)
            later = harness.append(b"b" * 60) if sealed else None
            with contextlib.suppress(Interrupt), injector.armed():
                delivery.cancel()
            deliver_rest(harness)
            assert delivery.withdrawn
            assert later is None or offset_of(later) == 0

        scene()
        return injector.has_struck

    strike_everywhere(interrupted)


@pytest.mark.parametrize(
    ("within", "sealed"), [("append", False), ("pass", False), ("pass", True), ("expiry", False)]
)
def test_record_may_be_cancelled_anywhere_within_a_call_or_a_pass(
    within: str, sealed: bool
) -> None:
    """Interrupt as `asyncio.run` does on SIGINT: its signal handler cancels the main task, which
    may await a record, between any two bytecodes."""

    def cancelled(step: int) -> bool:
        delivery: Delivery
        injector = Injector(step, lambda: delivery.cancel(), BUFFER)

        @virtual
        async def scene() -> None:
            nonlocal delivery
            harness = EngineHarness(batch_size=100)
            delivery = harness.append(b"a" * 60)
            others = [harness.append(b"b" * 60)] if sealed else []
            if within == "expiry":
                harness.pass_time(200.0)
            with injector.armed():
                if within == "append":
                    others.append(harness.append(b"b" * 60))
                else:
                    harness.step()
            deliver_rest(harness)
            assert delivery.cancelled() or outcome_of(delivery) is not None
            sent = within != "expiry" and not delivery.withdrawn
            first = [b"a" * 60] if sent else []
            assert harness.brokers.stored(T0) == first + [b"b" * 60] * len(others)
            assert [offset_of(other) for other in others] == [len(first)] * len(others)

        scene()
        return injector.has_struck

    strike_everywhere(cancelled)


def test_batch_whose_sealing_was_interrupted_anywhere_counts_for_its_broker_when_sent() -> None:
    def interrupted(step: int) -> bool:
        injector = Injector(step, raise_interrupt, BUFFER)

        @virtual
        async def scene() -> None:
            harness = EngineHarness(batch_size=100, brokers=2)
            harness.append(b"a" * 60)
            (batch,) = harness.queued()
            with contextlib.suppress(Interrupt), injector.armed():
                harness.append(b"b" * 60)
            harness.step()
            assert batch.in_flight
            assert batch.core.buffered_bytes > 60
            assert harness.quota.reserved_bytes(1) == batch.core.buffered_bytes
            deliver_rest(harness)

        scene()
        return injector.has_struck

    strike_everywhere(interrupted)


@pytest.mark.parametrize("refused", [False, True])
def test_batch_taken_out_by_an_interrupted_drain_is_not_in_doubt(refused: bool) -> None:
    """The batch was not sent, and an earlier attempt was refused. The interrupt ends the
    producer."""
    states = set()

    def interrupted(step: int) -> bool:
        injector = Injector(step, raise_interrupt, BUFFER)

        @virtual
        async def scene() -> None:
            harness = EngineHarness()
            delivery = harness.append(b"v")
            delivery.add_done_callback(lambda _: None)  # without a callback the failure is logged
            if refused:
                harness.step()
                harness.brokers.last.refuse(Code.NOT_ENOUGH_REPLICAS)
                harness.pass_time(BACKOFF)
            (batch,) = harness.queued()
            with contextlib.suppress(Interrupt), injector.armed():
                harness.drain()
            states.add((batch.state, batch in batch.queue.batches))
            harness.sender.fail_all(ProducerFailed("interrupted"))
            expected = Outcome.REJECTED if refused else Outcome.NOT_SENT
            assert error_of(delivery).outcome is expected
            harness.check_idle()

        scene()
        return injector.has_struck

    strike_everywhere(interrupted)
    assert {(BatchState.READY, False), (BatchState.DRAINED, False)} <= states


@virtual
async def test_record_appended_while_the_last_one_is_being_withdrawn_is_sent() -> None:
    """A finalizer appends the record to the same batch before the batch is discarded."""
    harness = EngineHarness()
    delivery = harness.append(b"a")
    (batch,) = harness.queued()
    appended = []
    discard = harness.accumulator.discard

    def append_first(emptied: ProducerBatch) -> None:
        appended.append(harness.append(b"b"))
        discard(emptied)

    harness.accumulator.discard = append_first  # type: ignore[assignment,method-assign]
    delivery.cancel()
    assert harness.queued() == [batch]
    harness.step()
    assert harness.brokers.last.values == [b"b"]
    harness.brokers.last.ack()
    assert offset_of(appended[0]) == 0
    harness.step()
    harness.check_idle()


# -- what is not in use any more ------------------------------------------------------------------


@virtual
async def test_batch_without_records_that_a_pass_finds_wakes_the_sender_again() -> None:
    """The withdrawal of the records was interrupted. The sender must make another pass, because the
    end of a transaction may be waiting only for this batch, and a pass checks for that before it
    drains."""
    harness = EngineHarness()
    delivery = harness.append(b"v")

    def discard(batch: ProducerBatch) -> None:
        raise Interrupt

    harness.accumulator.discard = discard  # type: ignore[method-assign]
    with pytest.raises(Interrupt):
        delivery.cancel()
    before = harness.wakeups
    harness.step()
    assert harness.wakeups == before + 1
    harness.check_idle()


@virtual
async def test_batch_that_is_withdrawn_wakes_the_sender() -> None:
    """The end of a transaction may wait only for this batch."""
    harness = EngineHarness()
    harness.brokers.busy.add(1)
    delivery = harness.append(b"v")
    harness.step()
    before = harness.wakeups
    assert delivery.cancel()
    assert harness.wakeups == before + 1
    harness.step()
    harness.check_idle()
