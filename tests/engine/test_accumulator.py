"""Queues of batches and when each may leave (Java RecordAccumulatorTest)."""

from __future__ import annotations

import asyncio
import math

import pytest

from aiokprod.engine.batch import ProducerBatch
from aiokprod.engine.partition_queue import PartitionQueue
from aiokprod.errors import BrokerError, Code, Outcome
from aiokprod.hot.append import DELIVERY_CHARGE
from aiokprod.records import TopicPartition
from aiokprod.testing.virtual import VirtualLoop
from aiokprod.wire.compression import codec_for
from aiokprod.wire.messages.produce import NodeEndpoint
from aiokprod.wire.record_batch import HEADER_SIZE
from tests.engine.world import (
    BACKOFF,
    World,
    error_of,
    offset_of,
    quiet,
    refusal,
    virtual,
)

T0 = TopicPartition("t", 0)


def yes(queue: PartitionQueue, batch: ProducerBatch) -> bool:
    return True


def drained(world: World, node: int = 1, size: int = 1 << 20) -> list[ProducerBatch]:
    """Batches taken by hand; they are never sent."""
    return world.accumulator.drain(node, size, yes)


def append_many(world: World, count: int) -> None:
    for _ in range(count):
        world.append(b"x" * 100)


# -- appending ------------------------------------------------------------------------------------


@virtual
async def test_records_share_the_open_batch_until_it_is_full() -> None:
    world = World(batch_size=200)
    for _ in range(2):
        world.append(b"x" * 50)
    assert len(world.queued()) == 1
    world.append(b"x" * 50)
    first, second = world.queued()
    assert first.core.record_count == 2
    world.accumulator.advance(world.now)
    assert first.payload is not None, "closed by the next pass, although it cannot leave yet"
    assert first.size <= 200
    assert second.core.record_count == 1


@virtual
async def test_record_larger_than_batch_size_gets_a_batch_of_its_own() -> None:
    world = World(batch_size=100)
    world.append(b"small")
    world.append(b"x" * 1000)
    world.append(b"small")
    assert [batch.core.record_count for batch in world.queued()] == [1, 1, 1]


@virtual
async def test_batch_size_0_makes_every_record_a_batch() -> None:
    world = World(batch_size=0)
    for _ in range(3):
        world.append(b"x")
    assert [batch.core.record_count for batch in world.queued()] == [1, 1, 1]


@virtual
async def test_batch_size_above_max_request_size_is_cut_to_it() -> None:
    world = World(batch_size=10_000, max_request_size=500)
    for _ in range(10):
        world.append(b"x" * 100)
    assert all(batch.size <= 500 for batch in world.queued())


@virtual
async def test_only_a_new_batch_wakes_the_sender() -> None:
    world = World(batch_size=200)
    world.append(b"x" * 50)
    assert world.wakeups == 1
    world.append(b"x" * 50)
    assert world.wakeups == 1
    world.append(b"x" * 50)
    assert world.wakeups == 2


@virtual
async def test_memory_counts_bytes_and_handles_and_returns_to_zero() -> None:
    world = World()
    world.append(b"x" * 50)
    batch = world.queued()[0]
    assert world.memory.used == batch.core.size + DELIVERY_CHARGE == batch.core.charged
    world.append(b"x" * 50)
    assert world.memory.used == batch.core.size + 2 * DELIVERY_CHARGE
    world.step()
    world.brokers.last.ack()
    world.step()
    world.check_idle()


@virtual
async def test_batch_is_refused_by_the_producer_state_before_it_exists() -> None:
    world = World()
    world.state.on_fatal(BrokerError("over"))
    with pytest.raises(BrokerError):
        world.append(b"v")
    assert not world.queued()
    assert world.memory.used == 0
    world.check_idle()


# -- sticky partitions ----------------------------------------------------------------------------


@virtual
async def test_sticky_partition_stays_while_it_got_less_than_batch_size() -> None:
    world = World(partitions=3, batch_size=1000)
    world.next_sticky = 2
    for _ in range(5):
        world.append(b"x" * 100, None)
    world.next_sticky = 1
    world.append(b"x" * 100, None)
    assert [len(world.queued(p)) for p in range(3)] == [0, 0, 1]


@virtual
async def test_sticky_partition_changes_with_the_batch_after_batch_size_bytes() -> None:
    world = World(partitions=3, batch_size=1000)
    world.next_sticky = 2
    for _ in range(12):
        world.append(b"x" * 100, None)
        if world.queued(2) and world.queued(2)[0].core.record_count > 3:
            world.next_sticky = 1
    assert world.queued(2)[0].core.record_count == 8
    assert len(world.queued(1)) + len(world.queued(2)) == 2


@virtual
async def test_batch_that_waits_behind_another_one_grows() -> None:
    world = World(batch_size=1000, elastic_batch_size=3000)
    world.brokers.busy.add(1)
    append_many(world, 80)
    sizes = [batch.core.size for batch in world.queued(0)]
    assert [800 < size <= 1000 for size in sizes] == [True, False, False, False]
    assert [2800 < size <= 3000 for size in sizes] == [False, True, True, False]
    world.brokers.busy.clear()
    for _ in sizes:
        world.step()
        for sent in list(world.brokers.waiting):
            sent.ack()
    assert len(world.brokers.log(T0).records()) == 80


@virtual
@pytest.mark.parametrize(("age", "grows"), [(1.9, True), (2.1, False)])
async def test_batch_grows_until_a_sixteenth_of_its_time_is_over(age: float, grows: bool) -> None:
    """What waits for so long must not become larger, and later, still."""
    world = World(batch_size=1000, elastic_batch_size=3000, delivery_timeout_ms=32_000)
    world.brokers.busy.add(1)
    append_many(world, 10)
    assert len(world.queued(0)) == 2
    world.pass_time(age)
    append_many(world, 12)
    assert (world.queued(0)[1].core.size > 1000) is grows


@virtual
async def test_parts_of_a_batch_that_grew_are_no_larger_than_batch_size() -> None:
    world = World(batch_size=1000, elastic_batch_size=6000)
    world.brokers.busy.add(1)
    append_many(world, 60)
    world.brokers.busy.clear()
    world.step()
    world.brokers.last.ack()
    world.step()
    grown = len(world.brokers.last.values)
    assert grown > 30
    others = len(world.queued(0))
    world.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
    parts = world.queued(0)[: len(world.queued(0)) - others]
    assert sum(part.core.record_count for part in parts) == grown
    assert max(part.core.size for part in parts) <= 1000 - HEADER_SIZE


@virtual
async def test_batches_of_a_topic_with_a_small_limit_grow_no_more() -> None:
    world = World(batch_size=1000, elastic_batch_size=3000)
    append_many(world, 8)
    world.step()
    world.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
    world.brokers.busy.add(1)
    append_many(world, 40)
    assert max(batch.core.size for batch in world.queued(0)) <= 1000
    assert len(world.queued(0)) >= 6


@virtual
async def test_batch_that_grew_counts_once_for_its_broker() -> None:
    world = World(batch_size=1000, elastic_batch_size=3000)
    world.brokers.busy.add(1)
    append_many(world, 40)
    world.close_open()
    batches = world.queued()
    assert any(batch.size > 1000 for batch in batches), "none has grown"
    assert world.shares.held(1) == sum(batch.core.charged for batch in batches)
    world.brokers.busy.clear()
    while world.accumulator.incomplete:
        world.step()
        for sent in world.brokers.waiting:
            sent.ack()
    assert world.shares.held(1) == 0
    world.check_idle()


@pytest.mark.parametrize("elastic", [0, 1000])
@virtual
async def test_batches_keep_their_size_if_they_shall(elastic: int) -> None:
    world = World(batch_size=1000, elastic_batch_size=elastic)
    world.brokers.busy.add(1)
    append_many(world, 40)
    assert max(batch.core.size for batch in world.queued(0)) <= 1000


@virtual
async def test_sticky_choice_may_fall_on_a_batch_with_room() -> None:
    world = World(partitions=2, batch_size=1000)
    world.append(b"mine", 1)
    world.next_sticky = 1
    world.append(b"x", None)
    assert world.queued(1)[0].core.record_count == 2


@virtual
async def test_sticky_batch_drained_early_opens_another_on_the_same_partition() -> None:
    world = World(partitions=2, batch_size=1000)
    world.append(b"a", None)
    world.step()
    world.next_sticky = 1
    world.append(b"b", None)
    assert [len(world.queued(p)) for p in range(2)] == [1, 0], "it got only a few bytes so far"


@virtual
async def test_usable_partitions_leave_out_those_whose_broker_takes_nothing_for_too_long() -> None:
    world = World(partitions=4, brokers=2, partitioner_availability_timeout_ms=500)
    slot = world.appender.topics["t"]
    everywhere = (0, 1, 2, 3)
    world.brokers.busy.add(1)
    world.append(b"v", 0)
    world.step()
    assert world.accumulator.usable(slot, everywhere) == [0, 1, 2, 3]
    world.later(0.5)
    assert world.accumulator.usable(slot, everywhere) == [0, 1, 2, 3]
    world.later(0.1)
    assert world.accumulator.usable(slot, everywhere) == [1, 2, 3], "2 has nothing queued yet"
    world.append(b"w", 2)
    assert world.accumulator.usable(slot, everywhere) == [1, 3], "one batch for each partition"
    world.brokers.busy.clear()
    world.step()
    assert world.accumulator.usable(slot, everywhere) == [0, 1, 2, 3]
    for sent in world.brokers.waiting:
        sent.ack()
    world.step()
    world.check_idle()


@virtual
async def test_usable_partitions_of_a_broker_that_takes_requests_are_all() -> None:
    """However long a batch lingers, or waits behind another one."""
    world = World(
        partitions=2,
        partitioner_availability_timeout_ms=500,
        linger_ms=10_000,
        adaptive_linger=False,
    )
    world.append(b"v", 0)
    world.later(5.0)
    assert world.accumulator.usable(world.appender.topics["t"], (0, 1)) == [0, 1]


@virtual
async def test_usable_partitions_without_a_limit_are_all() -> None:
    world = World(partitions=2, partitioner_availability_timeout_ms=0)
    world.append(b"v", 0)
    world.pass_time(100)
    assert world.accumulator.usable(world.appender.topics["t"], (0, 1)) == [0, 1]


# -- readiness ------------------------------------------------------------------------------------


def idle(node_id: int) -> bool:
    return True


def busy(node_id: int) -> bool:
    return False


@virtual
async def test_lingering_batch_is_due_only_for_an_idle_node() -> None:
    world = World(linger_ms=100)
    world.append(b"v")
    assert world.accumulator.due_nodes(idle) == [1]
    assert world.accumulator.due_nodes(busy) == []
    world.pass_time(0.1)
    world.accumulator.advance(world.now)
    assert world.accumulator.due_nodes(busy) == [1]
    assert world.accumulator.has_ready(1)
    assert not world.accumulator.has_ready(99)


@virtual
async def test_passes_cost_nothing_for_partitions_without_data() -> None:
    world = World(partitions=1000)
    assert world.accumulator.due_nodes(idle) == []
    world.accumulator.advance(world.now)
    assert world.accumulator.next_due() == math.inf
    assert world.accumulator.next_expiry() == math.inf


@virtual
async def test_linger_of_a_batch_behind_a_retry_is_not_forgotten() -> None:
    """The retry leaves at once for the leader it was told; the open batch behind it must still
    leave when its own linger is over."""
    world = World(linger_ms=100, adaptive_linger=False, brokers=2)
    world.append(b"first")
    world.later(0.1)
    start = world.now
    behind = world.append(b"behind")
    assert world.step() == start + 0.1
    world.brokers.last.answer(
        {T0: refusal(T0, Code.NOT_LEADER_OR_FOLLOWER, leader=(2, 50))},
        endpoints=[NodeEndpoint(2, "host-2", 9092, None)],
    )
    world.later(0.01)
    assert world.brokers.last.values == [b"first"]
    world.brokers.last.ack()
    assert world.step() == start + 0.1
    world.later(0.09)
    assert world.brokers.last.values == [b"behind"]
    world.brokers.last.ack()
    assert offset_of(behind) == 1


@virtual
async def test_deadline_of_a_batch_that_left_wakes_nobody() -> None:
    world = World(linger_ms=100, adaptive_linger=True)
    world.append(b"v")
    world.step()
    world.brokers.last.ack()
    assert world.step() == math.inf


@virtual
async def test_backoff_of_the_head_holds_up_what_is_behind_it() -> None:
    world = World()
    world.append_all(b"1")
    world.step()
    world.brokers.last.refuse(Code.NOT_ENOUGH_REPLICAS)
    world.append_all(b"2")
    assert world.step() == world.now + BACKOFF
    assert not world.brokers.waiting
    world.later()
    assert world.brokers.last.values == [b"1"]


@virtual
async def test_partition_in_backoff_does_not_hold_up_another() -> None:
    world = World(partitions=2)
    world.append(b"1", 0)
    world.step()
    world.brokers.last.refuse(Code.NOT_ENOUGH_REPLICAS)
    world.append(b"2", 1)
    world.step()
    assert list(world.brokers.last.batches) == [TopicPartition("t", 1)]


# -- drain ----------------------------------------------------------------------------------------


@virtual
async def test_drain_takes_the_first_batch_of_each_partition() -> None:
    world = World(partitions=2)
    world.append_all(b"a", b"b", partition=0)
    world.append_all(b"c", b"d", partition=1)
    taken = drained(world)
    assert [batch.topic_partition.partition for batch in taken] == [0, 1]
    assert all(batch.payload is not None for batch in taken)
    assert [len(world.queued(p)) for p in range(2)] == [1, 1]


@virtual
async def test_drain_asks_for_each_head_and_skips_who_may_not_leave() -> None:
    world = World(partitions=3)
    for partition in range(3):
        world.append(b"v", partition)
    taken = world.accumulator.drain(
        1, 1 << 20, lambda queue, batch: queue.partition != 1 and batch is queue.batches[0]
    )
    assert [batch.topic_partition.partition for batch in taken] == [0, 2]
    assert [batch.topic_partition.partition for batch in drained(world)] == [1]


@virtual
async def test_drain_stops_at_the_size_but_takes_one_in_any_case() -> None:
    world = World(partitions=3, max_request_size=5000, batch_size=4000)
    for partition in range(3):
        world.append(b"x" * 1000, partition)
    assert len(drained(world, size=10)) == 1
    assert len(drained(world, size=2500)) == 2


@virtual
async def test_drain_turns_so_that_no_partition_starves() -> None:
    world = World(partitions=4, max_request_size=5000, batch_size=4000)
    order = []
    for partition in range(4):
        for _ in range(3):
            world.append(b"x" * 1000, partition)
            world.close_open(partition)
    for _ in range(6):
        order += [batch.topic_partition.partition for batch in drained(world, size=2500)]
    assert order == [0, 1, 2, 3] * 3


@virtual
async def test_drain_of_an_unknown_node_is_empty() -> None:
    world = World()
    world.append(b"v")
    assert drained(world, node=77) == []


@virtual
async def test_drained_batch_takes_no_more_records_and_no_withdrawal() -> None:
    world = World()
    delivery = world.append(b"v")
    (batch,) = drained(world)
    world.append(b"w")
    assert batch.core.record_count == 1
    delivery.cancel()
    assert not delivery.withdrawn


# -- withdrawing ----------------------------------------------------------------------------------


@virtual
async def test_withdrawn_record_is_left_out() -> None:
    world = World(linger_ms=100, adaptive_linger=False)
    deliveries = [world.append(b"%d" % i) for i in range(3)]
    deliveries[1].cancel()
    world.later(0.1)
    assert world.brokers.last.values == [b"0", b"2"]
    world.brokers.last.ack()
    assert [offset_of(deliveries[0]), offset_of(deliveries[2])] == [0, 1]
    world.step()
    world.check_idle()


@virtual
async def test_batch_emptied_by_withdrawals_never_existed() -> None:
    world = World(linger_ms=100, adaptive_linger=False)
    deliveries = [world.append(b"%d" % i) for i in range(2)]
    for delivery in deliveries:
        assert delivery.cancel()
        assert delivery.withdrawn
    world.check_idle()
    assert world.later(0.1) == math.inf
    assert not world.brokers.sent
    world.append(b"next")
    world.later(0.1)
    assert world.brokers.last.values == [b"next"]
    assert world.brokers.last.sequence[2] == 0


# -- retries and splits ---------------------------------------------------------------------------


@virtual
async def test_reenqueued_batches_take_their_place_whatever_the_order_of_their_failures() -> None:
    world = World()
    world.append_all(b"1", b"2", b"3", b"4")
    batches = [drained(world)[0] for _ in range(3)]
    for batch in (batches[1], batches[2], batches[0]):
        world.accumulator.reenqueue(batch, world.now, world.now)
    assert [batch.order for batch in world.queued()] == [(0,), (1,), (2,), (3,)]


@virtual
async def test_split_shares_out_memory_and_place_and_deadline() -> None:
    world = World(partitions=2)
    for i in range(5):
        world.append(b"%d" % i * 20)
    world.close_open()
    world.append(b"behind")
    (batch,) = drained(world)
    used = world.memory.used
    assert batch.payload is not None
    batch.attempts = 3
    parts = world.accumulator.split(batch, batch.payload, len(batch.payload) // 2, world.now)
    assert [part.order for part in parts] == [(0, i) for i in range(len(parts))]
    assert [b.order for b in world.queued()] == [part.order for part in parts] + [(1,)]
    assert world.memory.used == used
    assert sum(part.core.charged for part in parts) + world.queued()[-1].core.charged == used
    assert batch.core.charged == 0
    assert all(part.deadline == batch.deadline for part in parts)
    assert all(part.attempts == 2 for part in parts)
    assert batch not in world.accumulator.incomplete
    assert all(part in world.accumulator.incomplete for part in parts)


# -- expiry ---------------------------------------------------------------------------------------


@virtual
async def test_expired_batches_come_in_order_until_they_have_an_outcome() -> None:
    world = World(delivery_timeout_ms=30_000, request_timeout_ms=30_000)
    world.append_all(b"1")
    world.pass_time(1)
    world.append_all(b"2")
    first, second = world.queued()
    assert world.accumulator.next_expiry() == first.deadline
    assert world.accumulator.expired(first.deadline - 0.001) == []
    assert world.accumulator.expired(second.deadline) == [first, second]
    world.accumulator.remove(first)
    world.accumulator.settle(first)
    assert world.accumulator.expired(second.deadline) == [second]


@virtual
async def test_expired_parts_come_before_a_batch_that_was_opened_after_theirs() -> None:
    world = World()
    world.append(b"1")
    world.append(b"2")
    world.step()
    world.pass_time(1)
    world.append(b"3")
    (later,) = world.queued()
    world.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
    found = world.accumulator.expired(math.inf)
    assert len(found) == 3
    assert found == [*world.queued()[:2], later]


@virtual
async def test_settled_batches_do_not_pile_up_behind_a_stuck_one() -> None:
    world = World(partitions=2, brokers=2)
    world.brokers.busy.add(2)
    stuck = world.append(b"stuck", 1)
    for _ in range(500):
        world.append(b"v", 0)
        world.step()
        world.brokers.last.ack()
    assert len(world.accumulator.incomplete) == 1
    assert len(world.accumulator._due) < 200
    assert not stuck.done()


# -- topology -------------------------------------------------------------------------------------


@virtual
async def test_partition_without_leader_is_reported_and_not_drained() -> None:
    world = World(partitions=2)
    world.append(b"v", 0)
    world.move(0, None)
    assert world.accumulator.leaderless_topics() == {"t"}
    assert drained(world) == []
    world.move(0, 1)
    assert world.accumulator.leaderless_topics() == set()
    assert len(drained(world)) == 1


@virtual
async def test_moved_partition_keeps_its_order_and_its_linger() -> None:
    world = World(brokers=2, linger_ms=100, adaptive_linger=False)
    start = world.now
    world.append(b"1")
    world.move(0, 2)
    assert world.step() == start + 0.1
    world.later(0.1)
    assert world.brokers.last.node_id == 2


@virtual
async def test_linger_is_noted_once_however_often_the_partition_moves() -> None:
    """Else the heap of instants would grow with every change of leaders."""
    world = World(brokers=2, linger_ms=100, adaptive_linger=False)
    start = world.now
    world.append(b"1")
    for move in range(10):
        world.move(0, 2 - move % 2)
        assert world.accumulator.next_due() == start + 0.1
    assert len(world.accumulator._due) == 1


@virtual
async def test_backoff_stays_if_the_leader_is_no_newer() -> None:
    world = World(brokers=2)
    world.append(b"v")
    world.step()
    world.brokers.last.refuse(Code.NOT_ENOUGH_REPLICAS)
    world.publish()
    world.step()
    assert not world.brokers.waiting


@virtual
async def test_forget_keeps_what_is_still_queued_or_on_the_wire() -> None:
    world = World(partitions=2)
    world.append(b"v", 1)
    assert world.accumulator.forget("t") is None
    world.step()
    assert world.accumulator.forget("t") is None
    world.brokers.last.ack()
    assert world.accumulator.forget("t") == 2
    assert world.accumulator._queues == {}
    assert world.accumulator.forget("other") == 0


@virtual
async def test_forget_keeps_a_batch_whose_answer_changes_the_leaders() -> None:
    world = World(brokers=2)
    world.append(b"v")
    world.step()
    forgotten: list[int | None] = []
    world.metadata.on_change(lambda snapshot: forgotten.append(world.accumulator.forget("t")))
    world.brokers.last.refuse(Code.NOT_LEADER_OR_FOLLOWER, leader=(2, 50))
    assert forgotten == [None]
    world.step()
    assert world.brokers.last.node_id == 2


# -- shares of the buffer -------------------------------------------------------------------------


@virtual
async def test_sick_broker_holds_at_most_its_share() -> None:
    world = World(partitions=2, brokers=2, buffer_memory=10_000, batch_size=1000)
    world.brokers.busy.add(1)
    slot = world.appender.topics["t"]
    taken = 0
    while world.appender.append(slot, 0, b"x" * 800, None, None, None) is not None:
        taken += 1
        world.step()
    assert world.accumulator.refused is world.accumulator.queue("t", 0)
    assert 5_000 < world.memory.used < 7_000
    healthy = world.append(b"v", 1)
    world.step()
    world.brokers.last.ack()
    assert offset_of(healthy) == 0


@virtual
async def test_single_broker_may_hold_everything() -> None:
    world = World(buffer_memory=10_000, batch_size=1000)
    world.brokers.busy.add(1)
    slot = world.appender.topics["t"]
    while world.appender.append(slot, 0, b"x" * 800, None, None, None) is not None:
        pass
    assert world.memory.used > 9_000


@virtual
async def test_sticky_choice_avoids_a_broker_that_holds_its_share() -> None:
    world = World(partitions=2, brokers=2, buffer_memory=10_000, batch_size=1000)
    world.brokers.busy.add(1)
    slot = world.appender.topics["t"]
    while world.appender.append(slot, 0, b"x" * 800, None, None, None) is not None:
        pass
    assert world.accumulator.usable(slot, (0, 1)) == [1]
    slot.sticky = 0
    world.next_sticky = 1
    delivery = world.append(b"x", None)
    assert delivery.partition == 1


@virtual
async def test_share_goes_with_the_partition_to_its_new_leader() -> None:
    world = World(partitions=2, brokers=2, buffer_memory=10_000, batch_size=1000)
    world.append_all(b"x" * 800, b"x" * 800)
    held = world.shares.held(1)
    assert held > 1600
    world.move(0, 2)
    assert world.shares.held(1) == 0
    assert world.shares.held(2) == held
    world.step()
    world.brokers.last.ack()
    world.step()
    world.brokers.last.ack()
    assert world.shares.held(2) == 0


# -- compression in a worker thread ---------------------------------------------------------------


@virtual
async def test_expired_batch_that_is_still_being_compressed_is_forgotten_when_that_ends() -> None:
    world = World(
        codec=codec_for("gzip"),
        executor=object(),  # type: ignore[arg-type]
        batch_size=100_000,
        delivery_timeout_ms=30_000,
        request_timeout_ms=30_000,
    )
    assert isinstance(world.loop, VirtualLoop)
    world.loop.executor_delay_s = 60.0
    delivery = world.append(b"x" * 50_000)
    world.step()
    assert not world.brokers.sent
    assert world.queued()[0].closing
    world.later(30.0)
    assert error_of(delivery).outcome is Outcome.NOT_SENT
    world.check_idle()
    await asyncio.sleep(61)
    await quiet()
    world.step()
    world.check_idle()
    assert not world.brokers.sent


@virtual
async def test_order_is_kept_while_the_head_is_being_compressed() -> None:
    world = World(codec=codec_for("gzip"), executor=object(), batch_size=100_000)  # type: ignore[arg-type]
    assert isinstance(world.loop, VirtualLoop)
    world.loop.executor_delay_s = 0.05
    task = asyncio.ensure_future(world.sender.run())
    deliveries = world.append_all(b"x" * 50_000, b"small", b"y" * 60_000)
    await quiet()
    assert not world.brokers.sent
    for _ in range(3):
        await asyncio.sleep(0.06)
        world.brokers.waiting[0].ack()
        await quiet()
    assert [offset_of(d) for d in deliveries] == [0, 1, 2]
    task.cancel()
    await quiet()
    world.check_idle()


# -- what is not in use any more ------------------------------------------------------------------


@virtual
async def test_batch_that_is_withdrawn_wakes_the_sender() -> None:
    """The end of a transaction may wait for nothing else."""
    world = World()
    world.brokers.busy.add(1)
    delivery = world.append(b"v")
    world.step()
    before = world.wakeups
    assert delivery.cancel()
    assert world.wakeups == before + 1
    world.step()
    world.check_idle()
