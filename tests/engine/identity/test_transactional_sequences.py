"""Sequences within a transaction: which batches may be sent, and what their errors mean."""

from __future__ import annotations

import pytest

from aiokprod._engine.buffer.producer_batch import ProducerBatch
from aiokprod._engine.identity.sequence_errors import SequenceDecision
from aiokprod._engine.identity.transaction_progress import CoordinatorView
from aiokprod._engine.identity.transaction_states import TxnState
from aiokprod._engine.identity.transactional_sequences import TransactionalSequences
from aiokprod._engine.sender.batch_errors import outcome_of
from aiokprod._wire.record_batch import MAX_SEQUENCE
from aiokprod.errors import BrokerError, Code, Outcome
from aiokprod.records import TopicPartition
from tests.current import current
from tests.engine.identity.identity_helpers import (
    RecordingControl,
    batches,
    manager,
    opened,
    sequences,
)
from tests.virtual_time import in_virtual_time

KEY = TopicPartition("t", 0)


def decision(
    state: TransactionalSequences, batch: ProducerBatch, code: int, log_start: int = -1
) -> SequenceDecision:
    """Classify an error of the batch and apply the decision."""
    action = state.classify(batch, code, log_start)
    state.apply(batch, action)
    return action.decision


@in_virtual_time
async def test_duplicate_sequence_means_stored() -> None:
    state = sequences(opened())
    (batch,) = batches(1)
    state.assign_sequence(batch)
    assert decision(state, batch, Code.DUPLICATE_SEQUENCE_NUMBER) is SequenceDecision.DUPLICATE


@in_virtual_time
async def test_duplicate_sequence_means_nothing_once_the_sequences_wrapped() -> None:
    """Kafka 1.0.0 and 1.0.1 return it for batches that they did not append."""
    made = opened()
    state = sequences(made)
    first, second = batches(2)
    state.assign_sequence(first)
    made.tracker.of(first).next = MAX_SEQUENCE
    state.on_success(first, 0)
    state.assign_sequence(second)
    assert decision(state, second, Code.DUPLICATE_SEQUENCE_NUMBER) is SequenceDecision.NONE
    assert outcome_of(second) is Outcome.UNKNOWN
    assert not made.tracker.planned, "the epoch changes with the transaction"


@in_virtual_time
async def test_out_of_order_waits_for_an_older_batch_and_aborts_if_there_is_none() -> None:
    state = sequences(opened())
    first, second = batches(2)
    state.assign_sequence(first)
    state.assign_sequence(second)
    code = Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert decision(state, second, code) is SequenceDecision.RETRY
    assert decision(state, first, code) is SequenceDecision.NONE, "nothing older is open"
    state.on_success(first, 0)
    assert decision(state, second, code) is SequenceDecision.NONE, "the log has what precedes it"


@in_virtual_time
async def test_unknown_producer_without_log_start_is_retried_once_renumbered_too() -> None:
    state = sequences(opened())
    (batch,) = batches(1)
    state.assign_sequence(batch)
    assert decision(state, batch, Code.UNKNOWN_PRODUCER_ID) is SequenceDecision.RETRY
    batch.sequence_reset = True
    assert decision(state, batch, Code.UNKNOWN_PRODUCER_ID, 9) is SequenceDecision.RETRY


@in_virtual_time
async def test_sequence_errors_are_not_retried_once_the_transaction_fails() -> None:
    made = opened()
    state = sequences(made)
    (batch,) = batches(1)
    state.assign_sequence(batch)
    made.abort_with(BrokerError("x"))
    for code in (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.UNKNOWN_PRODUCER_ID):
        assert decision(state, batch, code, 9) is SequenceDecision.NONE
    made.abort_with(BrokerError("y"))
    assert "x" in made.abortable_error().message, "the first reason is kept"


@in_virtual_time
async def test_first_attempt_needs_an_open_transaction_and_an_added_partition() -> None:
    made = manager()
    state = sequences(made)
    (batch,) = batches(1)
    assert not state.may_drain(batch.queue, batch), "no transaction"
    made = opened()
    state = sequences(made)
    assert not state.may_drain(batch.queue, batch), "the coordinator does not know the partition"
    made.added([KEY])
    assert state.may_drain(batch.queue, batch)
    made.pacing.awaits_markers = True
    assert not state.may_drain(batch.queue, batch)


@in_virtual_time
async def test_retry_is_sent_also_while_the_transaction_ends() -> None:
    made = opened()
    state = sequences(made)
    made.added([KEY])
    (batch,) = batches(1)
    state.assign_sequence(batch)
    for step in (TxnState.COMMITTING, TxnState.ABORTABLE_ERROR, TxnState.ABORTING):
        made._become(step)
        assert state.may_drain(batch.queue, batch)


@in_virtual_time
async def test_numbered_batch_is_part_of_the_transaction_and_its_outcome_is_awaited() -> None:
    made = opened()
    state = sequences(made)
    (batch,) = batches(1)
    state.assign_sequence(batch)
    assert batch.transactional
    assert made.progress.view is CoordinatorView.STARTED
    assert not made.settled()
    state.on_success(batch, 0)
    assert made.settled()
    assert current(made.progress.view) is CoordinatorView.CONFIRMED


@in_virtual_time
async def test_given_up_batch_leaves_a_gap_that_needs_a_new_epoch() -> None:
    made = opened()
    state = sequences(made)
    numbered, never_sent = batches(2)
    state.on_failure(never_sent, unknown=False)
    assert not made.progress.needs_bump
    state.assign_sequence(numbered)
    state.on_failure(numbered, unknown=False)
    assert current(made.progress.needs_bump)
    assert made.settled()


@in_virtual_time
async def test_split_parts_belong_to_the_transaction() -> None:
    state = sequences(opened())
    batch, *parts = batches(3)
    state.assign_sequence(batch)
    state.on_split(batch, parts)
    assert all(part.transactional for part in parts)
    assert [part.base_sequence for part in parts] == [0, 1]


@pytest.mark.parametrize("again", [True, False])
@in_virtual_time
async def test_sequences_of_a_forgotten_topic_are_kept_until_there_is_a_newer_epoch(
    again: bool,
) -> None:
    made = opened()
    state = sequences(made)
    first, second = batches(2)
    state.assign_sequence(first)
    state.on_success(first, 0)
    state.on_topic_forgotten("t", 3)
    if again:
        state.assign_sequence(second)
        assert second.base_sequence == 1, "it continues under the same epoch"
        state.on_success(second, 1)
    made.tracker.set_producer_id(0, 1)
    assert not made.tracker.partitions
    assert not made.tracker.retired


@in_virtual_time
async def test_pass_of_the_sender_drops_what_must_not_be_sent_once() -> None:
    control = RecordingControl()
    made = opened(control=control)
    state = sequences(made)
    state.bump_epochs()
    assert not control.failed
    made.abort_with(BrokerError("x"))
    assert not made.settled()
    state.bump_epochs()
    state.bump_epochs()
    ((error, with_sequence, in_doubt),) = control.failed
    assert "x" in error.message
    assert with_sequence, "a new epoch is needed anyway, so a sequence gap does no harm"
    assert not in_doubt, "first protocol: nothing fences what may be in the log"
    assert made.settled()


def test_recreated_topic_needs_nothing_within_a_transaction() -> None:
    @in_virtual_time
    async def main() -> None:
        made = opened()
        sequences(made).on_topic_recreated("t")
        assert not sequences(made).on_cluster_changed()
        assert not made.tracker.planned

    main()
