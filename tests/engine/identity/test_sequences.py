"""`PartitionSequences` and `SequenceTracker` in isolation."""

from __future__ import annotations

from typing import Any

import pytest

from aiokprod._engine.buffer.batch_states import BatchState
from aiokprod._engine.identity.sequence_errors import SequenceAction, SequenceDecision
from aiokprod._engine.identity.sequences import (
    MAX_OPEN_BATCHES,
    PartitionSequences,
    SequenceTracker,
)
from aiokprod._wire.record_batch import MAX_SEQUENCE
from aiokprod.records import TopicPartition
from tests.engine.identity.identity_helpers import batches
from tests.virtual_time import in_virtual_time

T0 = TopicPartition("t", 0)


def tracker() -> SequenceTracker:
    made = SequenceTracker()
    made.set_producer_id(7, 0)
    return made


@in_virtual_time
async def test_nothing_is_drained_without_a_producer_id() -> None:
    made = SequenceTracker()
    (batch,) = batches(1)
    assert not made.may_drain(batch.queue, batch)
    made.set_producer_id(7, 0)
    assert made.may_drain(batch.queue, batch)


@in_virtual_time
async def test_second_batch_waits_for_the_first_acknowledgment_then_five_may_be_open() -> None:
    made = tracker()
    first, *others = batches(2 + MAX_OPEN_BATCHES)
    made.assign_sequence(first)
    assert not made.may_drain(others[0].queue, others[0])
    made.of(first).on_success(first, 0)
    first.queue.acknowledged_at = first.sent_at
    for batch in others[:MAX_OPEN_BATCHES]:
        assert made.may_drain(batch.queue, batch)
        made.assign_sequence(batch)
    assert not made.may_drain(others[-1].queue, others[-1])
    assert [batch.base_sequence for batch in others[:-1]] == [1, 2, 3, 4, 5]


@in_virtual_time
async def test_batches_of_a_moved_partition_wait_for_the_old_leader() -> None:
    made = tracker()
    (batch,) = batches(1)
    batch.queue.in_flight, batch.queue.wire_node = 1, 99
    assert not made.may_drain(batch.queue, batch)
    batch.queue.wire_node = batch.queue.node or 0
    assert made.may_drain(batch.queue, batch)


@in_virtual_time
async def test_sequence_is_assigned_once() -> None:
    made = tracker()
    (batch,) = batches(1)
    made.assign_sequence(batch)
    made.assign_sequence(batch)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 0, 0)
    assert made.of(batch).open == [batch]


@in_virtual_time
async def test_new_epoch_restarts_a_partition_without_open_batches_only() -> None:
    made = tracker()
    first, second, third = batches(3)
    made.assign_sequence(first)
    made.of(first).on_success(first, 0)
    made.assign_sequence(second)
    made.set_producer_id(7, 1)
    assert made.is_stale(made.of(second))
    made.of(second).on_success(second, 1)
    made.assign_sequence(third)
    assert (third.producer_epoch, third.base_sequence) == (1, 0)


@pytest.mark.parametrize("field", ["clear_doubt", "bump_epoch", "reset_sequences"])
@in_virtual_time
async def test_apply_does_what_the_action_says_and_nothing_else(field: str) -> None:
    made = tracker()
    (batch,) = batches(1)
    made.assign_sequence(batch)
    batch.in_doubt = True
    flag: dict[str, Any] = {field: True}
    made.apply(batch, SequenceAction(SequenceDecision.RETRY, **flag))
    assert batch.in_doubt is (field != "clear_doubt")
    assert made.of(batch).bump_planned is (field == "bump_epoch")
    assert made.planned == ({T0} if field == "bump_epoch" else set())
    assert batch.sequence_reset is (field == "reset_sequences")


@in_virtual_time
async def test_retired_sequences_are_kept_while_they_must_continue() -> None:
    made = tracker()
    first, second = batches(2)
    made.assign_sequence(first)
    made.retire(TopicPartition("t", 5))
    made.retire(T0)
    made.set_producer_id(7, 1)
    assert made.retired == {T0}, "a batch is open"
    assert made.any_open([T0, TopicPartition("t", 5)])
    made.of(first).on_success(first, 0)
    assert not made.any_open([T0])
    made.set_producer_id(7, 2)
    assert not made.partitions
    assert not made.retired
    made.assign_sequence(second)
    assert second.base_sequence == 0


@in_virtual_time
async def test_older_acknowledgment_changes_nothing_also_across_the_end_of_sequences() -> None:
    entry = PartitionSequences(7, 0)
    entry.next = MAX_SEQUENCE
    older, newer = batches(2)
    for batch in (older, newer):
        entry.number(batch)
        entry.open.append(batch)
    assert (older.base_sequence, newer.base_sequence) == (MAX_SEQUENCE, 0)
    entry.on_success(newer, 9)
    entry.on_success(older, -1)
    assert entry.last_acked == 0
    assert entry.last_acked_offset == 9


@in_virtual_time
async def test_sequences_are_reused_only_if_no_broker_saw_them() -> None:
    entry = PartitionSequences(7, 0)
    first, second = batches(2)
    entry.number(first)
    entry.number(second)
    assert not entry.may_reuse(first), "a newer batch follows"
    assert entry.may_reuse(second)
    second.maybe_written = True
    assert not entry.may_reuse(second)


@in_virtual_time
async def test_restart_waits_for_what_is_in_flight_or_in_doubt() -> None:
    entry = PartitionSequences(7, 0)
    oldest, newest = batches(2)
    entry.open = [oldest, newest]
    assert entry.may_restart()
    newest.change_state(BatchState.IN_FLIGHT)
    assert not entry.may_restart()
    newest.change_state(BatchState.COMPLETING)
    newest.in_doubt = True
    assert entry.may_restart(), "nothing is behind a batch that is certainly missing"
    oldest.in_doubt = True
    assert not entry.may_restart()
