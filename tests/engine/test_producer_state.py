"""Producer id, sequences, epochs (KIP-98, KIP-360; Java TransactionManagerTest and
the idempotence tests of SenderTest)."""

from __future__ import annotations

import asyncio
import dataclasses
import math

import pytest

from aiokprod.engine.idempotence import MAX_EPOCH, Idempotent
from aiokprod.engine.producer_state import NonIdempotent
from aiokprod.engine.silence import PATIENCE_S
from aiokprod.errors import (
    AuthorizationError,
    BrokerError,
    Code,
    DeliveryTimeout,
    Disconnected,
    Outcome,
    ProducerFailed,
    UnsupportedVersion,
)
from aiokprod.hot.core import Delivery
from aiokprod.records import TopicPartition
from aiokprod.wire.record_batch import MAX_SEQUENCE, NO_PRODUCER_ID, increment_sequence
from tests.engine.world import (
    BACKOFF,
    PRODUCER_ID,
    Sent,
    World,
    error_of,
    offset_of,
    outcome_of,
    quiet,
    virtual,
)

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


def state_of(world: World) -> Idempotent:
    assert isinstance(world.state, Idempotent)
    return world.state


def sequences(world: World) -> list[tuple[int, int]]:
    """Epoch and base sequence of every request, in order."""
    return [sent.sequence[1:] for sent in world.brokers.produce]


async def started(**settings: object) -> tuple[World, asyncio.Task[None]]:
    """A world with one acknowledged record and a running sender."""
    world = World(**settings)  # type: ignore[arg-type]
    task = asyncio.ensure_future(world.sender.run())
    world.append_all(b"first")
    await quiet()
    world.brokers.last.ack()
    await quiet()
    return world, task


async def end(world: World, task: asyncio.Task[None]) -> None:
    task.cancel()
    await quiet()
    world.check_idle()


def acknowledged(world: World, value: bytes = b"first") -> Delivery:
    """One record delivered, so that brokers know the producer."""
    (delivery,) = world.append_all(value)
    world.step()
    world.brokers.last.ack()
    return delivery


def three_in_flight(world: World) -> tuple[list[Delivery], list[Sent]]:
    acknowledged(world)
    deliveries = world.append_all(b"1", b"2", b"3")
    world.step()
    assert sequences(world)[1:] == [(0, 1), (0, 2), (0, 3)]
    return deliveries, world.brokers.waiting


def deliver_all(world: World) -> None:
    """The brokers answer as they should until nothing is left."""
    for _ in range(50):
        world.refresh()
        world.step()
        for sent in world.brokers.waiting:
            sent.ack()
        if not world.accumulator.incomplete:
            break
        world.later()
    world.step()
    world.check_idle()


# -- the plain producer ---------------------------------------------------------------------------


@virtual
async def test_plain_producer_needs_no_id_and_writes_none() -> None:
    world = World(idempotent=False, known_producer=False)
    world.append(b"v")
    world.step()
    assert not world.brokers.init_requests
    assert world.brokers.last.sequence == (-1, -1, -1)


def test_plain_state_has_no_wishes() -> None:
    state = NonIdempotent(guarantee_order=False)
    assert state.next_request(0.0, True) is None
    assert state.next_request_at(0.0, True) == math.inf
    assert state.take_failure() is None


def test_first_fatal_error_stands() -> None:
    state = Idempotent(lambda n: 0.1, lambda: None)
    first = BrokerError("first")
    state.admit(T0)
    state.on_fatal(first)
    state.on_fatal(BrokerError("second"))
    assert state.fatal_error is first
    with pytest.raises(BrokerError, match="first") as caught:
        state.admit(T0)
    assert caught.value is not first, "each caller gets a copy"


def test_nothing_is_fatal_to_a_producer_without_idempotence() -> None:
    state = NonIdempotent(guarantee_order=True)
    state.on_fatal(BrokerError("of one batch"))
    assert state.fatal_error is None
    state.admit(T0)


# -- getting an id --------------------------------------------------------------------------------


@virtual
async def test_id_is_asked_for_before_anything_is_sent() -> None:
    world = World(known_producer=False)
    delivery = world.append(b"v")
    world.step()
    assert len(world.brokers.init_requests) == 1
    assert not world.brokers.produce
    assert world.brokers.init_requests[0].request.transactional_id is None
    world.step()
    assert len(world.brokers.init_requests) == 1, "one at a time"
    world.init_producer(4711, 3)
    world.step()
    assert world.brokers.last.sequence == (4711, 3, 0)
    world.brokers.last.ack()
    assert offset_of(delivery) == 0


@virtual
async def test_id_wakes_the_sender() -> None:
    world = World(known_producer=False)
    task = asyncio.ensure_future(world.sender.run())
    await quiet()
    world.append(b"v")
    await quiet()
    world.init_producer()
    await quiet()
    assert len(world.brokers.produce) == 1
    world.brokers.last.ack()
    await quiet()
    await end(world, task)


@virtual
async def test_id_without_a_reachable_node_waits_for_an_event() -> None:
    world = World(known_producer=False)
    world.brokers.down[1] = math.inf
    world.append(b"v")
    assert world.step() == world.now + PATIENCE_S
    world.brokers.down[1] = world.now + 0.5
    assert world.step() == world.now + 0.5
    world.brokers.set_nodes([])
    assert world.step() == world.now + PATIENCE_S


@pytest.mark.parametrize(
    "code", [Code.COORDINATOR_LOAD_IN_PROGRESS, Code.NOT_COORDINATOR, Code.NOT_ENOUGH_REPLICAS]
)
@virtual
async def test_id_refused_for_now_is_asked_for_again_after_a_pause(code: Code) -> None:
    world = World(known_producer=False)
    delivery = world.append(b"v")
    world.step()
    world.init_producer(code=code)
    assert world.step() == world.now + BACKOFF
    assert len(world.brokers.init_requests) == 1
    world.later()
    assert len(world.brokers.init_requests) == 2
    world.init_producer()
    world.step()
    world.brokers.last.ack()
    assert offset_of(delivery) == 0


@virtual
async def test_id_request_lost_is_repeated() -> None:
    world = World(known_producer=False)
    world.append(b"v")
    world.step()
    world.brokers.init_requests[-1].fail(Disconnected("gone"))
    world.step()
    world.later()
    assert len(world.brokers.init_requests) == 2


@virtual
async def test_id_refused_for_good_fails_what_waits_and_a_later_record_tries_again() -> None:
    world = World(known_producer=False)
    delivery = world.append(b"v")
    world.step()
    world.init_producer(code=Code.CLUSTER_AUTHORIZATION_FAILED)
    assert world.step() == math.inf, "no retry while nobody wants it"
    error = error_of(delivery)
    assert isinstance(error, AuthorizationError)
    assert error.outcome is Outcome.NOT_SENT
    assert "IdempotentWrite" in str(error)
    world.check_idle()
    world.later(1.0)
    assert len(world.brokers.init_requests) == 1
    again = world.append(b"w")
    world.step()
    assert len(world.brokers.init_requests) == 2
    world.init_producer()
    world.step()
    world.brokers.last.ack()
    assert offset_of(again) == 0


@virtual
async def test_broker_without_idempotence_ends_the_producer() -> None:
    world = World(known_producer=False)
    delivery = world.append(b"v")
    world.step()
    world.brokers.init_requests[-1].fail(
        UnsupportedVersion("no InitProducerId"), maybe_written=False
    )
    assert world.step() == math.inf
    assert isinstance(error_of(delivery), ProducerFailed)
    with pytest.raises(ProducerFailed, match="enable_idempotence=False"):
        world.append(b"w")
    assert len(world.brokers.init_requests) == 1


# -- numbers --------------------------------------------------------------------------------------


@virtual
async def test_sequences_count_records_per_partition() -> None:
    world = World(partitions=2)
    for partition in (0, 1):
        for value in (b"a", b"b"):
            world.append(value, partition)
    world.step()
    world.brokers.last.ack()
    world.append(b"c", 0)
    world.append(b"c", 1)
    world.step()
    assert [b.base_sequence for b in world.brokers.last.batches.values()] == [2, 2]


@virtual
async def test_first_batch_of_a_partition_goes_alone_until_it_is_acknowledged() -> None:
    """A broker without state takes any first sequence: a second batch on its way could be stored
    before the first one."""
    world = World()
    world.append_all(b"1", b"2", b"3")
    world.step()
    assert sequences(world) == [(0, 0)]
    world.brokers.last.ack()
    world.step()
    assert sequences(world) == [(0, 0), (0, 1), (0, 2)]
    for sent in world.brokers.waiting:
        sent.ack()
    world.step()
    world.check_idle()


@virtual
async def test_no_more_than_five_batches_are_open() -> None:
    world = World()
    acknowledged(world)
    world.brokers.max_in_flight = 50
    world.append_all(*(b"%d" % i for i in range(8)))
    world.step()
    assert len(world.brokers.waiting) == 5
    world.brokers.waiting[0].ack()
    world.step()
    assert len(world.brokers.waiting) == 5


@virtual
async def test_sequence_after_the_highest_is_zero() -> None:
    world = World()
    acknowledged(world)
    entry = state_of(world)._partitions[T0]
    entry.next = MAX_SEQUENCE - 1
    entry.last_acked = MAX_SEQUENCE - 2
    world.brokers.log(T0).ledger.forget()
    for value in (b"a", b"b", b"c"):
        world.append(value)
    world.close_open()
    world.append(b"d")
    world.step()
    assert sequences(world)[1:] == [(0, MAX_SEQUENCE - 1), (0, 1)]
    deliver_all(world)
    assert entry.last_acked == 1
    assert world.brokers.stored(T0)[1:] == [b"a", b"b", b"c", b"d"]


async def before_the_wrap(left: int) -> World:
    """A world whose brokers are Kafka 1.0.0, `left` sequences before they wrap."""
    world = World()
    ledger = world.brokers.log(T0).ledger
    ledger.by_order = True
    acknowledged(world)
    entry = state_of(world)._partitions[T0]
    (known,) = ledger._entries[PRODUCER_ID].window
    last = MAX_SEQUENCE - left
    ledger.forget()
    ledger.restore(
        PRODUCER_ID, dataclasses.replace(known, base_sequence=last, last_sequence=last)
    )
    entry.last_acked, entry.next = last, increment_sequence(last, 1)
    entry.wrapped = entry.next == 0
    return world


@pytest.mark.parametrize("left", [0, 1, 2])
@virtual
async def test_duplicate_answered_because_the_sequences_wrapped_is_not_believed(left: int) -> None:
    """Kafka 1.0.0 and 1.0.1 compare sequences as numbers: behind the wrap they call every batch a
    duplicate and append none of them."""
    world = await before_the_wrap(left)
    world.append_all(*(b"%d" % number for number in range(left)))
    deliver_all(world)
    stored = [b"first", *(b"%d" % number for number in range(left))]
    deliveries = [world.append(b"a"), world.append(b"b")]
    deliver_all(world)
    assert world.brokers.stored(T0) == stored
    assert [error_of(delivery).outcome for delivery in deliveries] == [Outcome.UNKNOWN] * 2
    later = world.append_all(b"c", b"d")
    deliver_all(world)
    assert world.brokers.stored(T0) == [*stored, b"c", b"d"], "under a new epoch"
    assert [offset_of(delivery) for delivery in later] == [left + 1, left + 2]


@virtual
async def test_duplicate_answered_before_the_sequences_wrap_is_believed() -> None:
    world = await before_the_wrap(2)
    (delivery,) = world.append_all(b"a")
    world.step()
    world.brokers.last.refuse(Code.DUPLICATE_SEQUENCE_NUMBER)
    assert offset_of(delivery) is None
    world.step()
    world.check_idle()


@virtual
async def test_acknowledgments_across_the_wrap_only_move_forward() -> None:
    world = World()
    acknowledged(world)
    entry = state_of(world)._partitions[T0]
    entry.acknowledge(MAX_SEQUENCE)
    entry.acknowledge(3)
    assert entry.last_acked == 3
    entry.acknowledge(MAX_SEQUENCE - 1)
    assert entry.last_acked == 3


@virtual
async def test_retry_keeps_its_sequence_and_its_bytes() -> None:
    world = World()
    acknowledged(world)
    world.append(b"v")
    world.step()
    first = world.brokers.last.raw[T0]
    world.brokers.last.refuse(Code.NOT_ENOUGH_REPLICAS)
    world.step()
    world.later()
    assert world.brokers.last.raw[T0] == first


@virtual
async def test_sequences_outlive_metadata() -> None:
    world = World()
    acknowledged(world)
    assert world.accumulator.forget("t") == 1
    world.add_slot("t")
    delivery = world.append(b"v")
    world.step()
    assert sequences(world)[-1] == (0, 1)
    world.brokers.last.ack()
    assert offset_of(delivery) == 1


# -- duplicates -----------------------------------------------------------------------------------


@virtual
async def test_batch_lost_after_the_append_is_acknowledged_with_its_first_offset() -> None:
    world = World()
    acknowledged(world)
    delivery = world.append(b"v")
    world.step()
    world.brokers.last.lose(stored=True)
    deliver_all(world)
    assert offset_of(delivery) == 1
    assert world.brokers.stored(T0) == [b"first", b"v"]


@virtual
async def test_duplicate_sequence_is_success_without_an_offset() -> None:
    world = World()
    delivery = world.append(b"v")
    world.step()
    world.brokers.last.refuse(Code.DUPLICATE_SEQUENCE_NUMBER)
    assert offset_of(delivery) is None
    world.append(b"w")
    world.step()
    assert sequences(world)[-1] == (0, 1)
    world.brokers.last.lose()
    world.publish()


@virtual
async def test_plain_producer_takes_a_sequence_error_for_what_it_is() -> None:
    for code in (
        Code.DUPLICATE_SEQUENCE_NUMBER,
        Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
        Code.UNKNOWN_PRODUCER_ID,
    ):
        world = World(idempotent=False)
        delivery = world.append(b"v")
        world.step()
        world.brokers.last.refuse(code)
        assert error_of(delivery).code.number == code  # type: ignore[union-attr]


# -- order of retries -----------------------------------------------------------------------------


@virtual
async def test_retries_leave_one_by_one_in_sequence_order() -> None:
    world = World()
    deliveries, requests = three_in_flight(world)
    for sent in requests:
        sent.lose()
    world.publish()
    world.step()
    world.later()
    assert sequences(world)[4:] == [(0, 1)]
    world.brokers.last.ack()
    world.step()
    assert sequences(world)[4:] == [(0, 1), (0, 2)]
    deliver_all(world)
    assert [offset_of(d) for d in deliveries] == [1, 2, 3]


@virtual
async def test_new_batches_wait_behind_retries() -> None:
    world = World()
    _, requests = three_in_flight(world)
    for sent in requests:
        sent.refuse(Code.NOT_ENOUGH_REPLICAS)
    world.append(b"new")
    world.later()
    assert [sent.values for sent in world.brokers.waiting] == [[b"1"]]
    deliver_all(world)
    assert world.brokers.stored(T0) == [b"first", b"1", b"2", b"3", b"new"]


@virtual
async def test_out_of_order_that_only_follows_an_earlier_retry_is_retried_under_its_number() -> (
    None
):
    """Java SenderTest.testCorrectHandlingOfOutOfOrderResponses."""
    world = World()
    deliveries, requests = three_in_flight(world)
    requests[0].refuse(Code.NOT_ENOUGH_REPLICAS)
    requests[1].ack()
    requests[2].ack()
    assert world.observer.retries == ["NOT_ENOUGH_REPLICAS"] + ["OUT_OF_ORDER_SEQUENCE_NUMBER"] * 2
    deliver_all(world)
    assert sequences(world)[4:] == [(0, 1), (0, 2), (0, 3)], "no epoch bump"
    assert [offset_of(d) for d in deliveries] == [1, 2, 3]


@virtual
async def test_answers_of_the_old_leader_are_awaited_before_the_new_one_gets_anything() -> None:
    world = World(brokers=2)
    _, requests = three_in_flight(world)
    world.append(b"new")
    world.move(0, 2)
    world.step()
    assert {sent.node_id for sent in world.brokers.waiting} == {1}
    for sent in requests:
        sent.refuse(Code.NOT_LEADER_OR_FOLLOWER)
    world.refresh()
    world.step()
    world.later()
    assert [(s.node_id, s.values) for s in world.brokers.waiting] == [(2, [b"1"])]
    deliver_all(world)
    assert world.brokers.stored(T0) == [b"first", b"1", b"2", b"3", b"new"]


# -- gaps: bumping the epoch ----------------------------------------------------------------------


@virtual
async def test_sequences_that_a_broker_has_seen_are_never_given_out_again() -> None:
    """Whatever it answered: had it stored the batch, it would take the next one for a copy."""
    world = World()
    acknowledged(world)
    delivery = world.append(b"bad")
    world.step()
    world.brokers.last.refuse(Code.INVALID_RECORD)
    assert error_of(delivery).outcome is Outcome.REJECTED
    world.append(b"good")
    world.step()
    assert sequences(world)[-2:] == [(0, 1), (1, 0)], "a new epoch"
    deliver_all(world)
    assert world.brokers.stored(T0) == [b"first", b"good"]


@virtual
async def test_sequences_that_never_reached_a_broker_are_given_out_again() -> None:
    world = World(retries=1)
    acknowledged(world)
    delivery = world.append(b"unlucky")
    world.step()
    world.brokers.last.lose(maybe_written=False)
    world.publish()
    world.later()
    world.brokers.last.lose(maybe_written=False)
    world.publish()
    assert error_of(delivery).outcome is Outcome.NOT_SENT
    world.append(b"good")
    world.step()
    assert sequences(world)[-3:] == [(0, 1)] * 3, "no gap, no bump"
    deliver_all(world)
    assert world.brokers.stored(T0) == [b"first", b"good"]


@virtual
async def test_batch_refused_before_others_restarts_the_partition_under_a_new_epoch() -> None:
    world = World(partitions=2)
    deliveries, requests = three_in_flight(world)
    requests[0].refuse(Code.INVALID_RECORD)
    world.step()
    assert state_of(world).epoch == 0, "the others are on the wire"
    requests[1].ack()
    requests[2].ack()
    deliver_all(world)
    assert error_of(deliveries[0]).outcome is Outcome.REJECTED
    assert [offset_of(d) for d in deliveries[1:]] == [1, 2]
    assert sequences(world)[4:] == [(1, 0), (1, 1)]


@virtual
async def test_nothing_new_leaves_between_a_gap_and_its_bump() -> None:
    world = World()
    _, requests = three_in_flight(world)
    requests[0].refuse(Code.INVALID_RECORD)
    new = world.append(b"new")
    world.step()
    assert world.brokers.waiting == requests[1:]
    requests[1].ack()
    world.step()
    assert world.brokers.waiting == requests[2:]
    requests[2].ack()
    deliver_all(world)
    assert sequences(world)[4:] == [(1, 0), (1, 1), (1, 2)]
    assert offset_of(new) == 3


@virtual
async def test_partition_without_a_sequence_under_the_present_epoch_restarts_without_a_bump() -> (
    None
):
    """A bump is for brokers that know a sequence under the epoch. Bumping for every partition of an
    outage would use up the epochs."""
    world = World(partitions=2)
    for partition in (0, 1):
        world.append(b"first", partition)
    deliver_all(world)
    for partition in (0, 1):
        world.append(b"bad", partition)
        world.step()
    bad_0, bad_1 = world.brokers.waiting
    bad_0.refuse(Code.INVALID_RECORD)
    world.step()
    assert state_of(world).epoch == 1
    bad_1.refuse(Code.INVALID_RECORD)
    good = [world.append(b"good", partition) for partition in (0, 1)]
    deliver_all(world)
    assert state_of(world).epoch == 1
    assert [offset_of(one) for one in good] == [1, 1]
    # Now both have sequences under it.
    world.append(b"bad", 1)
    world.step()
    world.brokers.last.refuse(Code.INVALID_RECORD)
    last = world.append(b"last", 1)
    deliver_all(world)
    assert offset_of(last) == 2
    stored = [[(r.epoch, r.sequence) for r in world.brokers.log(tp).records()] for tp in (T0, T1)]
    assert stored == [[(0, 0), (1, 0)], [(0, 0), (1, 0), (2, 0)]]


@virtual
async def test_bump_of_one_partition_leaves_another_one_its_epoch_and_its_pipeline() -> None:
    world = World(partitions=2)
    for partition in (0, 1):
        world.append(b"first", partition)
    deliver_all(world)
    open_ones = [world.append(b"open", 1)]
    world.step()
    world.append_all(b"bad", b"next")
    world.step()
    other, bad, following = world.brokers.waiting
    bad.refuse(Code.INVALID_RECORD)
    following.ack()
    world.step()
    assert state_of(world).epoch == 1
    open_ones.append(world.append(b"later", 1))
    world.close_open(1)
    world.step()
    assert world.brokers.last.sequence == (PRODUCER_ID, 0, 2), "epochs are each partition's own"
    other.refuse(Code.NOT_ENOUGH_REPLICAS)
    deliver_all(world)
    assert [offset_of(d) for d in open_ones] == [1, 2]
    assert [(s.epoch, s.sequence) for s in world.brokers.log(T1).records()] == [
        (0, 0),
        (0, 1),
        (0, 2),
    ]


@virtual
async def test_real_gap_at_the_head_restarts_the_partition() -> None:
    world = World()
    acknowledged(world)
    world.brokers.log(T0).truncate(0)  # an unclean election lost it, yet the state knows more
    world.append_all(b"x")
    world.step()
    world.brokers.last.refuse(Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
    world.append_all(b"y")
    deliver_all(world)
    assert sequences(world)[2:] == [(1, 0), (1, 1)]
    assert world.brokers.stored(T0) == [b"x", b"y"]


@virtual
async def test_unknown_producer_with_log_start_restarts_the_partition_once() -> None:
    world = World()
    acknowledged(world)
    delivery = world.append(b"v")
    world.step()
    world.brokers.last.refuse(Code.UNKNOWN_PRODUCER_ID, log_start=1)
    world.later()
    world.later()
    assert sequences(world)[-1] == (1, 0)
    world.brokers.last.refuse(Code.UNKNOWN_PRODUCER_ID, log_start=1)
    world.later()
    world.later()
    assert sequences(world)[-1] == (1, 0), "renumbered before: the same again"
    deliver_all(world)
    assert offset_of(delivery) == 1


@virtual
async def test_unknown_producer_without_log_start_is_retried_as_it_is() -> None:
    world = World()
    acknowledged(world)
    world.append(b"v")
    world.step()
    world.brokers.last.refuse(Code.UNKNOWN_PRODUCER_ID, log_start=-1)
    world.later()
    assert sequences(world)[-1] == (0, 1)
    deliver_all(world)


@virtual
async def test_strict_broker_that_lost_its_state_is_written_to_again() -> None:
    world = World(strict=True)
    acknowledged(world)
    world.brokers.log(T0).ledger.forget()
    deliveries = world.append_all(b"1", b"2", b"3")
    deliver_all(world)
    assert [offset_of(d) for d in deliveries] == [1, 2, 3]


@virtual
async def test_producer_epoch_too_old_bumps_the_epoch_and_tries_the_batch_again() -> None:
    """As Java `TransactionManager.canRetry` does."""
    world = World()
    deliveries, requests = three_in_flight(world)
    for request in requests:
        request.refuse(Code.INVALID_PRODUCER_EPOCH)
    world.step()
    world.later()
    assert sequences(world)[4:] == [(1, 0)]
    deliver_all(world)
    assert [offset_of(d) for d in deliveries] == [1, 2, 3]
    assert world.brokers.stored(T0) == [b"first", b"1", b"2", b"3"]


@virtual
async def test_producer_epoch_too_old_ends_a_batch_whose_earlier_attempt_is_in_doubt() -> None:
    """Brokers find no copies under an older epoch; a new number would store it twice."""
    world = World()
    acknowledged(world)
    delivery = world.append(b"v")
    world.step()
    world.brokers.last.lose(stored=True)
    world.publish()
    world.later()
    world.brokers.last.refuse(Code.INVALID_PRODUCER_EPOCH)
    assert error_of(delivery).outcome is Outcome.UNKNOWN
    world.append(b"w")
    world.step()
    assert sequences(world)[-1] == (1, 0)
    deliver_all(world)
    assert world.brokers.stored(T0) == [b"first", b"v", b"w"]


@virtual
async def test_retries_exhausted_out_of_order_fails_and_bumps() -> None:
    world = World(retries=1)
    acknowledged(world)
    delivery = world.append(b"v")
    for _ in range(2):
        world.step()
        world.brokers.last.refuse(Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
        world.later()
    assert error_of(delivery).outcome is Outcome.REJECTED
    world.append(b"w")
    deliver_all(world)
    assert world.brokers.stored(T0) == [b"first", b"w"]


@virtual
async def test_topic_created_anew_gets_new_sequences_once_the_wire_is_quiet() -> None:
    world = World(partitions=2)
    deliveries, _ = three_in_flight(world)
    world.append(b"p1", 1)
    world.step()
    state_of(world).on_topic_recreated("t")
    state_of(world).on_topic_recreated("unknown")
    world.step()
    world.brokers.logs.clear()
    for sent in world.brokers.waiting:
        sent.refuse(Code.UNKNOWN_TOPIC_ID)
    world.publish()
    deliver_all(world)
    assert world.brokers.stored(T0) == [b"1", b"2", b"3"]
    assert [offset_of(d) for d in deliveries] == [0, 1, 2]
    assert world.brokers.stored(T1) == [b"p1"]


# -- fates that only the broker knows -------------------------------------------------------------


@virtual
async def test_unknown_fate_is_settled_before_a_bump_renumbers_anything() -> None:
    """Batch 2 was stored, its answer lost; batch 3 is refused for good, so a bump
    is due. Renumbering batch 2 now would store it twice."""
    world = World()
    acknowledged(world)
    maybe, refused = world.append_all(b"maybe", b"refused")
    world.step()
    first, second = world.brokers.waiting
    first.store()
    second.refuse(Code.INVALID_RECORD)
    first.lose()
    deliver_all(world)
    assert offset_of(maybe) == 1
    assert error_of(refused).outcome is Outcome.REJECTED
    follower = world.append(b"follower")
    deliver_all(world)
    assert offset_of(follower) == 2
    assert world.brokers.stored(T0) == [b"first", b"maybe", b"follower"]


@virtual
async def test_unknown_fate_behind_a_refused_batch_is_not_stored_twice() -> None:
    world = World()
    acknowledged(world)
    refused, maybe = world.append_all(b"refused", b"maybe")
    world.step()
    first, second = world.brokers.waiting
    first.refuse(Code.INVALID_RECORD)
    second.lose()
    deliver_all(world)
    assert error_of(refused).outcome is Outcome.REJECTED
    assert offset_of(maybe) == 1
    assert world.brokers.stored(T0) == [b"first", b"maybe"]


@virtual
async def test_stored_batch_is_retried_while_the_broker_still_remembers_it() -> None:
    """The broker stored batch 1 and said it timed out; its retry is held up while newer ones go
    through. Brokers know the last five batches: were more let through, the retry would look like
    a gap, and be stored again under a new epoch."""
    world = World(max_in_flight_requests_per_connection=5)
    acknowledged(world)
    deliveries = world.append_all(*(b"%d" % i for i in range(1, 12)))
    world.step()
    first, *others = world.brokers.waiting
    first.store()
    first.refuse(Code.REQUEST_TIMED_OUT)
    for sent in others:
        sent.ack()
    world.later()
    assert [sent.values for sent in world.brokers.waiting] == [[b"1"]], "five since the oldest"
    world.brokers.last.refuse(Code.NOT_ENOUGH_REPLICAS)
    deliver_all(world)
    assert world.brokers.stored(T0) == [b"first", *(b"%d" % i for i in range(1, 12))]
    assert [offset_of(d) for d in deliveries] == list(range(1, 12))
    assert state_of(world).epoch == 0


@virtual
async def test_expired_unsent_record_burns_no_sequence() -> None:
    world = World(delivery_timeout_ms=30_000, request_timeout_ms=30_000)
    acknowledged(world)
    world.brokers.busy.add(1)
    expired = world.append(b"expired")
    world.step()
    world.later(30.0)
    assert error_of(expired).outcome is Outcome.NOT_SENT
    world.brokers.busy.clear()
    world.refresh()
    world.append(b"v")
    world.step()
    assert sequences(world)[-1] == (0, 1)
    deliver_all(world)


@virtual
async def test_expired_on_the_wire_then_acknowledged_leaves_no_gap() -> None:
    world = World(delivery_timeout_ms=30_000, request_timeout_ms=30_000)
    acknowledged(world)
    expired = world.append(b"expired")
    world.step()
    world.later(30.0)
    assert error_of(expired).outcome is Outcome.UNKNOWN
    world.brokers.last.ack()
    world.refresh()
    world.append(b"v")
    world.step()
    assert sequences(world)[-1] == (0, 2)
    deliver_all(world)


@virtual
async def test_expired_on_the_wire_then_lost_bumps_before_anything_new() -> None:
    world = World(delivery_timeout_ms=30_000, request_timeout_ms=30_000)
    acknowledged(world)
    expired = world.append(b"expired")
    world.step()
    world.later(30.0)
    world.brokers.last.lose(stored=True)
    world.refresh()
    follower = world.append(b"follower")
    deliver_all(world)
    assert error_of(expired).outcome is Outcome.UNKNOWN
    assert offset_of(follower) == 2
    assert sequences(world)[-1] == (1, 0)


@pytest.mark.parametrize("stored", [True, False])
@virtual
async def test_expired_in_backoff_with_successors_on_the_wire(stored: bool) -> None:
    """Java SenderTest.testExpiryOfFirstBatchShouldNotCauseUnresolvedSequencesIfFutureBatchesSucceed
    and …ShouldCauseEpochBumpIfFutureBatchesFail."""
    world = World(delivery_timeout_ms=30_000, request_timeout_ms=30_000)
    acknowledged(world)
    (expired,) = world.append_all(b"expired")
    world.pass_time(10.0)
    (follower,) = world.append_all(b"follower")
    world.step()
    first, second = world.brokers.waiting
    world.pass_time(19.95)
    first.lose(stored=stored)
    world.publish()
    world.later(0.06)
    assert error_of(expired).outcome is Outcome.UNKNOWN
    new = world.append(b"new")
    world.step()
    assert world.brokers.waiting == [second], "nothing new while the fate of the old is open"
    second.ack()
    deliver_all(world)
    assert offset_of(follower) == 1 + stored
    assert offset_of(new) == 2 + stored
    assert state_of(world).epoch == (0 if stored else 1)


@virtual
async def test_successor_waits_no_longer_than_the_pass_that_gives_its_predecessor_up() -> None:
    """The bump that an expired retry needs must be made in the pass that expires it: no event
    follows."""
    world, task = await started(delivery_timeout_ms=30_000, request_timeout_ms=30_000)
    expired = world.append(b"expired")
    world.close_open()
    await quiet()
    await asyncio.sleep(29.95)
    follower = world.append(b"follower")
    world.brokers.produce[1].lose()
    await quiet()
    world.refresh()
    await asyncio.sleep(0.06)
    assert error_of(expired).outcome is Outcome.UNKNOWN
    assert [sent.values for sent in world.brokers.waiting] == [[b"follower"]]
    world.brokers.last.ack()
    assert offset_of(follower) == 1
    await quiet()
    await end(world, task)


@virtual
async def test_unknown_fate_is_resolved_when_the_last_open_batch_is_refused() -> None:
    """The partition was silent for ever: nothing was open that could resolve it."""
    world = World(delivery_timeout_ms=30_000, request_timeout_ms=30_000)
    acknowledged(world)
    (expired,) = world.append_all(b"expired")
    world.pass_time(10.0)
    (refused,) = world.append_all(b"refused")
    world.step()
    first, second = world.brokers.waiting
    world.pass_time(19.95)
    first.lose()
    world.publish()
    world.later(0.06)
    second.refuse(Code.INVALID_RECORD)
    new = world.append(b"new")
    deliver_all(world)
    assert error_of(expired).outcome is Outcome.UNKNOWN
    assert error_of(refused).outcome is Outcome.REJECTED
    assert offset_of(new) == 1
    assert state_of(world).epoch == 1


@virtual
async def test_late_duplicate_answer_of_an_expired_batch_settles_its_sequence() -> None:
    world = World(delivery_timeout_ms=30_000, request_timeout_ms=30_000)
    acknowledged(world)
    expired = world.append(b"expired")
    world.step()
    world.later(30.0)
    world.brokers.last.refuse(Code.DUPLICATE_SEQUENCE_NUMBER)
    assert isinstance(error_of(expired), DeliveryTimeout)
    world.refresh()
    world.append(b"v")
    world.step()
    assert sequences(world)[-1] == (0, 2)
    world.brokers.last.lose()
    world.publish()


@virtual
async def test_zombie_of_an_older_epoch_is_fenced() -> None:
    """A request whose connection died is appended by the broker after its batch was given up and
    the epoch bumped: it must not be stored behind newer records."""
    world = World(delivery_timeout_ms=30_000, request_timeout_ms=30_000)
    acknowledged(world)
    expired = world.append(b"zombie")
    world.step()
    zombie = world.brokers.last
    world.pass_time(29.95)
    zombie.lose()
    world.publish()
    world.later(0.06)
    assert error_of(expired).outcome is Outcome.UNKNOWN
    delivery = world.append(b"new")
    deliver_all(world)
    assert offset_of(delivery) == 1
    answers = zombie.store()
    assert answers[T0].error_code == Code.INVALID_PRODUCER_EPOCH
    assert world.brokers.stored(T0) == [b"first", b"new"]


# -- splits ---------------------------------------------------------------------------------------


@virtual
async def test_split_parts_share_out_the_sequences_of_their_batch() -> None:
    world = World()
    acknowledged(world)
    deliveries = [world.append(b"%d" % i) for i in range(4)]
    world.close_open()
    successor = world.append(b"successor")
    world.step()
    large, behind = world.brokers.waiting
    large.refuse(Code.MESSAGE_TOO_LARGE)
    behind.ack()  # out of order at the broker
    deliver_all(world)
    assert sequences(world)[1:] == [(0, 1), (0, 5), (0, 1), (0, 3), (0, 5)]
    assert [offset_of(d) for d in [*deliveries, successor]] == [1, 2, 3, 4, 5]


@virtual
async def test_split_part_refused_for_good_restarts_the_rest() -> None:
    world = World()
    acknowledged(world)
    deliveries = [world.append(b"%d" % i) for i in range(4)]
    world.step()
    world.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
    world.step()
    world.brokers.last.refuse(Code.INVALID_RECORD)
    deliver_all(world)
    assert [error_of(d).outcome for d in deliveries[:2]] == [Outcome.REJECTED] * 2
    assert [offset_of(d) for d in deliveries[2:]] == [1, 2]
    assert world.brokers.stored(T0) == [b"first", b"2", b"3"]


@virtual
async def test_parts_of_a_batch_that_is_in_the_log_are_not_stored_beside_it() -> None:
    """The limit was lowered between two attempts; brokers look at the size before they look for
    duplicates, and they find none of a part. Under new numbers the parts would be stored twice."""
    world = World()
    acknowledged(world)
    deliveries = [world.append(b"a"), world.append(b"b")]
    world.step()
    world.brokers.last.lose(stored=True)
    world.publish()
    world.later()
    world.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
    deliver_all(world)
    assert [error_of(d).outcome for d in deliveries] == [Outcome.UNKNOWN] * 2
    follower = world.append(b"follower")
    deliver_all(world)
    assert offset_of(follower) == 3
    assert world.brokers.stored(T0) == [b"first", b"a", b"b", b"follower"]


@virtual
async def test_parts_of_a_batch_in_doubt_that_is_not_in_the_log_are_delivered() -> None:
    world = World()
    acknowledged(world)
    deliveries = [world.append(b"%d" % i) for i in range(4)]
    world.step()
    world.brokers.last.lose(stored=False)
    world.publish()
    world.later()
    world.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
    follower = world.append(b"follower")
    deliver_all(world)
    assert [offset_of(d) for d in [*deliveries, follower]] == [1, 2, 3, 4, 5]
    assert sequences(world)[1:] == [(0, 1), (0, 1), (0, 1), (0, 3), (0, 5)]
    assert world.brokers.stored(T0) == [b"first", b"0", b"1", b"2", b"3", b"follower"]


@virtual
async def test_rest_of_a_batch_in_doubt_keeps_its_sequence_when_a_part_fails() -> None:
    """The first part fails; the whole may still be in the log, and the second part with it."""
    world = World()
    acknowledged(world)
    first, second = world.append(b"a"), world.append(b"b")
    world.step()
    world.brokers.last.lose(stored=True)
    world.publish()
    world.later()
    world.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
    world.step()
    world.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
    deliver_all(world)
    assert [error_of(d).outcome for d in (first, second)] == [Outcome.UNKNOWN] * 2
    assert sequences(world)[-1] == (0, 2)
    follower = world.append(b"follower")
    deliver_all(world)
    assert sequences(world)[-1] == (1, 0)
    assert offset_of(follower) == 3
    assert world.brokers.stored(T0) == [b"first", b"a", b"b", b"follower"]


@pytest.mark.parametrize(
    ("first_lost", "second_lost", "delivered"),
    [(False, False, True), (True, False, True), (False, True, True), (True, True, False)],
    ids=["answered", "first-lost", "second-lost", "both-lost"],
)
@virtual
async def test_gap_of_a_record_in_doubt_ends_the_next_one_only_if_copies_of_both_may_arrive(
    first_lost: bool, second_lost: bool, delivered: bool
) -> None:
    """A broker that has answered keeps no copy to itself; one that has not may still read it."""
    world = World()
    acknowledged(world)
    first = world.append(b"a")
    world.close_open()
    second = world.append(b"b")
    world.step()
    attempts = list(world.brokers.waiting)
    for attempt, lost in zip(attempts, (first_lost, second_lost), strict=True):
        if lost:
            attempt.lose(stored=False)
        else:
            attempt.refuse(Code.NOT_LEADER_OR_FOLLOWER)
    world.publish()
    world.later()
    world.brokers.last.refuse(Code.INVALID_RECORD)
    deliver_all(world)
    assert error_of(first).outcome is Outcome.UNKNOWN
    if delivered:
        assert offset_of(second) == 1
        assert world.brokers.stored(T0) == [b"first", b"b"]
    else:
        assert error_of(second).outcome is Outcome.UNKNOWN
        assert world.brokers.stored(T0) == [b"first"]


@virtual
async def test_copy_lost_under_an_older_epoch_is_no_doubt_behind_a_gap_of_the_next_one() -> None:
    """The third record is lost under epoch 0, where the first one leaves a gap; the second one
    leaves another under epoch 1. A copy that arrives late is refused for its epoch."""
    world = World()
    (first, second, third), attempts = three_in_flight(world)
    attempts[0].refuse(Code.NOT_LEADER_OR_FOLLOWER)
    attempts[1].refuse(Code.NOT_LEADER_OR_FOLLOWER)
    attempts[2].lose(stored=False)
    world.publish()
    world.later()
    world.brokers.last.refuse(Code.INVALID_RECORD)
    for _ in range(5):
        world.step()
        if sequences(world)[-1] == (1, 0):
            break
        world.brokers.last.ack()
        world.later()
    assert world.brokers.last.values == [b"2"]
    world.brokers.last.lose(stored=False)
    world.publish()
    world.later()
    assert sequences(world)[-1] == (1, 0)
    world.brokers.last.refuse(Code.INVALID_RECORD)
    deliver_all(world)
    assert [error_of(d).outcome for d in (first, second)] == [Outcome.UNKNOWN] * 2
    assert offset_of(third) == 1
    assert sequences(world)[-2:] == [(1, 1), (2, 0)]
    assert world.brokers.stored(T0) == [b"first", b"3"]


@pytest.mark.parametrize("withdrawn", [[0], [0, 1], [2, 3], [0, 1, 2, 3]])
@virtual
async def test_records_of_split_parts_have_numbers_and_cannot_be_withdrawn(
    withdrawn: list[int],
) -> None:
    """A part emptied by cancelling would keep its place among the open batches for ever."""
    world = World()
    acknowledged(world)
    deliveries = [world.append(b"%d" % i) for i in range(4)]
    for delivery in deliveries:
        delivery.add_done_callback(lambda delivery: None)
    world.step()
    world.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
    for index in withdrawn:
        deliveries[index].cancel()
        assert not deliveries[index].withdrawn
    successor = world.append(b"successor")
    deliver_all(world)
    assert offset_of(successor) == 5
    assert world.brokers.stored(T0) == [b"first", b"0", b"1", b"2", b"3", b"successor"]
    assert sequences(world)[-1] == (0, 5)


# -- the end of epochs ----------------------------------------------------------------------------


@virtual
async def test_epochs_used_up_get_a_new_producer_id() -> None:
    world, task = await started(max_in_flight_requests_per_connection=2, first_epoch=MAX_EPOCH)
    state = state_of(world)
    refused, follower, waiting = world.append_all(b"refused", b"follower", b"waiting")
    await quiet()
    first, second = world.brokers.waiting
    first.refuse(Code.INVALID_RECORD)
    second.refuse(Code.INVALID_RECORD)
    await quiet()
    assert state.producer_id == NO_PRODUCER_ID
    assert len(world.brokers.init_requests) == 1, "asked for in the same pass"
    assert not world.brokers.waiting
    world.init_producer(PRODUCER_ID + 1)
    await quiet()
    # No partition has a sequence under the new id, so its first epoch needs no bump.
    assert world.brokers.last.sequence == (PRODUCER_ID + 1, 0, 0)
    world.brokers.last.ack()
    await quiet()
    assert offset_of(waiting) == 1
    assert error_of(refused).outcome is error_of(follower).outcome is Outcome.REJECTED
    await end(world, task)


@virtual
async def test_open_batches_keep_the_old_id_while_a_new_one_is_used_elsewhere() -> None:
    world = World(partitions=2, first_epoch=MAX_EPOCH)
    for partition in (0, 1):
        world.append(b"first", partition)
    deliver_all(world)
    state = state_of(world)
    held = world.append(b"held", 1)
    world.step()
    on_wire = world.brokers.last
    world.append_all(b"refused", b"refused too")
    world.step()
    for sent in world.brokers.waiting[1:]:
        sent.refuse(Code.INVALID_RECORD)
    world.step()
    assert state.producer_id == NO_PRODUCER_ID
    world.init_producer(PRODUCER_ID + 1)
    on_wire.refuse(Code.NOT_ENOUGH_REPLICAS)
    deliver_all(world)
    assert offset_of(held) == 1
    assert world.brokers.log(T1).records()[-1].producer_id == PRODUCER_ID
    world.append(b"next", 1)
    deliver_all(world)
    assert world.brokers.log(T1).records()[-1].producer_id == PRODUCER_ID + 1


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
        world = World()
        deliveries, requests = three_in_flight(world)
        if "45" in (first, second, third) and {"lost, stored", "timed out, stored", "ok"} & {
            first,
            second,
            third,
        }:
            continue  # no broker answers like that
        for sent, how in zip(requests, (first, second, third), strict=True):
            FAILURES[how](sent)
        follower = world.append(b"follower")
        deliver_all(world)
        stored = world.brokers.stored(T0)
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
    world = World(known_producer=False)
    delivery = world.append(b"v")
    world.step()
    world.init_producer(producer_id=-1, epoch=-1)
    world.step()
    assert len(world.brokers.init_requests) == 1
    world.later()
    assert len(world.brokers.init_requests) == 2
    world.init_producer(producer_id=0)
    world.step()
    deliver_all(world)
    assert offset_of(delivery) == 0


# -- topics that are not in use any more ----------------------------------------------------------


@virtual
async def test_sequences_of_a_forgotten_topic_start_anew_under_a_higher_epoch() -> None:
    world = World(topics=("t", "u"))
    acknowledged(world)
    world.append(b"u", topic="u")
    deliver_all(world)
    state_of(world).on_topic_forgotten("t", 1)
    assert set(state_of(world)._partitions) == {TopicPartition("u", 0)}
    world.append(b"again")
    world.step()
    assert sequences(world)[-1] == (1, 0)
    world.append(b"more", topic="u")
    deliver_all(world)
    assert world.brokers.stored(T0) == [b"first", b"again"]
    assert world.brokers.stored(TopicPartition("u", 0)) == [b"u", b"more"]


@virtual
async def test_forgetting_a_topic_of_an_older_epoch_needs_no_bump() -> None:
    world = World(topics=("t", "u"))
    acknowledged(world)
    world.append(b"u", topic="u")
    deliver_all(world)
    state_of(world)._plan(T0)
    world.step()
    assert state_of(world).epoch == 1
    state_of(world).on_topic_forgotten("u", 1)
    world.step()
    assert state_of(world).epoch == 1
    world.append(b"again", topic="u")
    world.step()
    assert sequences(world)[-1] == (1, 0)
    deliver_all(world)
    assert world.brokers.stored(TopicPartition("u", 0)) == [b"u", b"again"]


@virtual
async def test_forgetting_a_topic_leaves_a_batch_in_doubt_its_sequence() -> None:
    world = World()
    acknowledged(world)
    delivery = world.append(b"v")
    world.step()
    world.brokers.last.lose(stored=True)
    state_of(world).on_topic_forgotten("t", 1)
    world.publish()
    world.later()
    assert sequences(world)[-2:] == [(0, 1), (0, 1)]
    deliver_all(world)
    assert offset_of(delivery) == 1
    assert world.brokers.stored(T0) == [b"first", b"v"]


# -- a broker that knows only the newest batch of a producer --------------------------------------


def lost(world: World, *values: bytes, stored: int, settled: bool = True) -> list[Delivery]:
    """Batches of one record in flight at once, their answers lost, the first `stored` in the log;
    then the leader restarts from its snapshot."""
    if settled:
        acknowledged(world)
    deliveries = world.append_all(*values)
    world.step()
    requests = world.brokers.waiting
    assert len(requests) == len(values)
    for number, sent in enumerate(requests):
        sent.lose(stored=number < stored)
    world.brokers.restart(T0)
    world.publish()
    world.later()
    return deliveries


@pytest.mark.parametrize("stored", range(5))
@pytest.mark.parametrize("in_flight", [2, 3, 4])
@virtual
async def test_batches_in_doubt_are_stored_once_by_a_leader_that_restarted(
    stored: int, in_flight: int
) -> None:
    """Its snapshot has only the newest batch: it answers OUT_OF_ORDER_SEQUENCE_NUMBER to the ones
    before it, as if they were missing. The newest one tells that they are not."""
    stored = min(stored, in_flight)
    world = World()
    values = [b"%d" % number for number in range(in_flight)]
    deliveries = lost(world, *values, stored=stored)
    deliver_all(world)
    assert world.brokers.stored(T0) == [b"first", *values]
    assert [offset_of(delivery) for delivery in deliveries] == list(range(1, in_flight + 1))


@virtual
async def test_newest_in_doubt_is_asked_only_after_an_older_one_was_out_of_order() -> None:
    """A broker that recognises all of them answers each in turn, without further requests."""
    world = World()
    acknowledged(world)
    deliveries = world.append_all(b"a", b"b", b"c")
    world.step()
    for sent in world.brokers.waiting:
        sent.lose(stored=True)
    world.publish()
    world.later()
    deliver_all(world)
    assert sequences(world)[1:] == [(0, 1), (0, 2), (0, 3)] * 2
    assert [offset_of(delivery) for delivery in deliveries] == [1, 2, 3]


@virtual
async def test_newest_in_doubt_is_asked_first_then_the_older_ones_again() -> None:
    world = World()
    deliveries = lost(world, b"a", b"b", b"c", stored=3)
    deliver_all(world)
    asked = [(0, 1), (0, 3), (0, 1), (0, 2)]
    assert sequences(world)[4:] == asked
    assert [offset_of(delivery) for delivery in deliveries] == [1, 2, 3]


@virtual
async def test_older_ones_have_no_offset_if_others_have_written_between_them() -> None:
    """The answer to the newest one proves that they are in the log, not where."""
    world = World()
    acknowledged(world)
    deliveries = world.append_all(b"a", b"b", b"c")
    world.step()
    requests = world.brokers.waiting
    requests[0].store()
    foreign = dataclasses.replace(requests[0].batch, producer_id=PRODUCER_ID + 1, base_sequence=0)
    world.brokers.append(T0, foreign)
    for sent in requests[1:]:
        sent.store()
    for sent in requests:
        sent.lose()
    world.brokers.restart(T0)
    world.publish()
    world.later()
    deliver_all(world)
    assert world.brokers.stored(T0) == [b"first", b"a", b"a", b"b", b"c"]
    assert [offset_of(delivery) for delivery in deliveries] == [None, None, 4]


@virtual
async def test_batches_in_doubt_are_renumbered_once_all_of_them_are_out_of_order() -> None:
    """A record before them is missing in the log."""
    world = World()
    acknowledged(world)
    refused = world.append_all(b"refused")
    deliveries = world.append_all(b"a", b"b", b"c")
    world.step()
    first, *rest = world.brokers.waiting
    first.refuse(Code.INVALID_RECORD)
    for sent in rest:
        sent.lose(stored=False)
    world.publish()
    world.later()
    deliver_all(world)
    assert world.brokers.stored(T0) == [b"first", b"a", b"b", b"c"]
    assert sequences(world)[5:] == [(0, 2), (0, 4), (0, 3), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert error_of(refused[0]).outcome is Outcome.REJECTED
    assert [offset_of(delivery) for delivery in deliveries] == [1, 2, 3]


@virtual
async def test_broker_that_lost_its_state_while_asked_proves_nothing() -> None:
    """It takes any first sequence: that the newest batch is in the log now says nothing of the
    ones before it. They are not acknowledged."""
    world = World()
    acknowledged(world)
    refused = world.append_all(b"refused")
    deliveries = world.append_all(b"a", b"b")
    world.step()
    first, *rest = world.brokers.waiting
    first.refuse(Code.INVALID_RECORD)
    for sent in rest:
        sent.lose(stored=False)
    world.publish()
    world.later()
    world.brokers.last.ack()
    world.later()
    assert world.brokers.last.values == [b"b"]
    world.brokers.log(T0).ledger.forget()
    deliver_all(world)
    assert world.brokers.stored(T0) == [b"first", b"b"]
    assert offset_of(deliveries[1]) == 1
    assert error_of(deliveries[0]).outcome is Outcome.UNKNOWN
    assert error_of(refused[0]).outcome is Outcome.REJECTED


@virtual
async def test_newest_batch_without_room_before_it_proves_nothing() -> None:
    """Its offset follows that of the last acknowledged one: a broker without state has taken it
    although the one before it was refused."""
    world = World()
    acknowledged(world)
    deliveries = world.append_all(b"a", b"b")
    world.step()
    first, second = world.brokers.waiting
    first.lose(stored=False)
    world.brokers.log(T0).ledger.forget()
    second.lose(stored=True)
    world.publish()
    world.later()
    deliver_all(world)
    assert world.brokers.stored(T0) == [b"first", b"b"]
    assert error_of(deliveries[0]).outcome is Outcome.UNKNOWN
    assert offset_of(deliveries[1]) == 1


@virtual
async def test_brokers_that_stamp_the_records_leave_the_older_ones_in_doubt() -> None:
    """Their answer looks the same whether the newest batch was in the log already or is new."""
    world = World()
    world.brokers.append_time_ms = 5
    deliveries = lost(world, b"a", b"b", stored=2)
    deliver_all(world)
    assert world.brokers.stored(T0) == [b"first", b"a", b"b"]
    assert error_of(deliveries[0]).outcome is Outcome.UNKNOWN
    assert offset_of(deliveries[1]) == 2


@virtual
async def test_batch_in_doubt_before_an_acknowledged_one_is_not_stored_twice() -> None:
    """The answer says that it may be in the log, that of the next batch is a success; a leader that
    restarted knows only the next one."""
    world = World()
    acknowledged(world)
    deliveries = world.append_all(b"a", b"b")
    world.step()
    first, second = world.brokers.waiting
    first.store()
    first.refuse(Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    second.ack()
    world.brokers.restart(T0)
    world.later()
    deliver_all(world)
    assert world.brokers.stored(T0) == [b"first", b"a", b"b"]
    assert error_of(deliveries[0]).outcome is Outcome.UNKNOWN
    assert offset_of(deliveries[1]) == 2


@virtual
async def test_record_after_a_batch_asked_out_of_turn_goes_on_in_the_same_epoch() -> None:
    world = World()
    lost(world, b"a", b"b", stored=2)
    later = world.append_all(b"later")
    deliver_all(world)
    assert sequences(world)[-1] == (0, 3)
    assert offset_of(later[0]) == 3


@virtual
async def test_batches_that_expire_while_the_newest_one_is_asked_end_in_doubt() -> None:
    world = World(delivery_timeout_ms=1_000, request_timeout_ms=500)
    deliveries = lost(world, b"a", b"b", b"c", stored=3)
    world.brokers.last.ack()  # out of order
    world.later()
    assert world.brokers.last.values == [b"c"]
    world.pass_time(2.0)
    world.step()
    world.step()
    assert [error_of(delivery).outcome for delivery in deliveries] == [Outcome.UNKNOWN] * 3
    world.brokers.last.ack()
    later = world.append_all(b"later")
    deliver_all(world)
    assert world.brokers.stored(T0) == [b"first", b"a", b"b", b"c", b"later"]
    assert offset_of(later[0]) == 4


@pytest.mark.parametrize("code", [Code.NOT_LEADER_OR_FOLLOWER, Code.REQUEST_TIMED_OUT])
@virtual
async def test_newest_in_doubt_is_asked_until_it_is_answered(code: Code) -> None:
    """Also by another leader, which recognises all of them."""
    world = World(brokers=2)
    deliveries = lost(world, b"a", b"b", b"c", stored=3)
    world.brokers.last.ack()
    world.later()
    assert world.brokers.last.values == [b"c"]
    world.brokers.last.refuse(code)
    world.brokers.restarted_at.clear()
    world.move(0, 2)
    world.later()
    assert world.brokers.last.values == [b"c"]
    deliver_all(world)
    assert world.brokers.stored(T0) == [b"first", b"a", b"b", b"c"]
    assert [offset_of(delivery) for delivery in deliveries] == [1, 2, 3]


@virtual
async def test_newest_in_doubt_that_is_divided_when_asked_leaves_the_older_one_in_doubt() -> None:
    """Nothing proves any more that it is not in the log."""
    world = World()
    acknowledged(world)
    older = world.append_all(b"a")
    newer = [world.append(b"b"), world.append(b"c")]
    world.close_open()
    world.step()
    for sent in world.brokers.waiting:
        sent.lose(stored=True)
    world.brokers.restart(T0)
    world.publish()
    world.later()
    world.brokers.last.ack()
    world.later()
    assert world.brokers.last.values == [b"b", b"c"]
    world.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
    deliver_all(world)
    assert world.brokers.stored(T0) == [b"first", b"a", b"b", b"c"]
    for delivery in (*older, *newer):
        assert error_of(delivery).outcome is Outcome.UNKNOWN


@virtual
async def test_answer_for_a_batch_that_was_stored_before_keeps_the_records_own_timestamps() -> None:
    """Kafka answers with the highest timestamp of the batch also where producers stamp the
    records."""
    world = World()
    acknowledged(world)
    deliveries = [world.append(b"a", timestamp_ms=10), world.append(b"b", timestamp_ms=20)]
    world.close_open()
    world.step()
    world.brokers.last.lose(stored=True)
    world.publish()
    world.later()
    deliver_all(world)
    assert [delivery.result().timestamp_ms for delivery in deliveries] == [10, 20]
