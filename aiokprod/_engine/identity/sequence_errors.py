"""Classifies the error codes of Produce responses by their meaning for the sequence of a batch.

The functions are pure: they read the batch and its partition and return a `SequenceAction`. The
sequence policy carries out the action in `apply`, and `retry_policy.decide` uses its `decision`.

Source: Java `TransactionManager.canRetry`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aiokprod.errors import Code

if TYPE_CHECKING:
    from aiokprod._engine.buffer.producer_batch import ProducerBatch
    from aiokprod._engine.identity.sequences import PartitionSequences


class SequenceDecision(enum.Enum):
    """The consequence of a sequence error for the batch."""

    NONE = "none"  # not a sequence error: the error code alone decides
    # Send the batch again. It gets a new sequence if the partition restarts before that (see
    # `PartitionSequences.may_restart`); otherwise it keeps its old one.
    RETRY = "retry"
    DUPLICATE = "duplicate"  # the broker has already appended the batch
    GIVE_UP = "give up"  # the batch must not be sent again, whatever the error code


@dataclass(frozen=True, slots=True)
class SequenceAction:
    """The result of a classification.

    Attributes:
        decision: passed to `retry_policy.decide`.
        note_unknown: the error code does not show whether the batch is in the log.
        clear_doubt: no earlier copy of the batch is in the log; otherwise the broker would have
            recognised it.
        bump_epoch: the partition needs a higher epoch before anything new is sent to it.
        new_producer_id: another producer has the same producer id, so a new id is needed.
        reset_sequences: the partition restarts at sequence 0 in the current epoch.
        probe: a newer batch that is sent first, because its response shows whether this batch may
            be in the log.
    """

    decision: SequenceDecision
    note_unknown: bool = False
    clear_doubt: bool = False
    bump_epoch: bool = False
    new_producer_id: bool = False
    reset_sequences: bool = False
    probe: ProducerBatch | None = None


NO_ACTION: Final = SequenceAction(SequenceDecision.NONE)
_DUPLICATE: Final = SequenceAction(SequenceDecision.DUPLICATE)
_GIVE_UP: Final = SequenceAction(SequenceDecision.GIVE_UP)


def classify_idempotent(
    batch: ProducerBatch, code: int, log_start_offset: int, entry: PartitionSequences
) -> SequenceAction:
    """Return the action for an idempotent producer, which bumps its epoch itself.

    Args:
        log_start_offset: from the response, or -1 if it has none.
    """
    if entry.foreign and batch.in_doubt:
        return _GIVE_UP  # see `IdempotentSequences.on_cluster_changed`
    if code == Code.DUPLICATE_SEQUENCE_NUMBER:
        return _classify_duplicate(entry, bump_epoch=True)
    if code == Code.INVALID_PRODUCER_EPOCH:
        # A broker that has stored a higher epoch does not check for duplicates in this one. So the
        # error says nothing about earlier attempts, and a batch that may be in the log must not get
        # a new sequence. Only this producer bumps its epoch, and a partition never returns to an
        # older epoch. Hence another producer has the same id, which a reinstalled cluster has
        # assigned again, and a new id is needed. With a higher epoch of the same id, as in Java,
        # brokers would take batches of one producer for duplicates of the other's.
        decision = SequenceDecision.NONE if batch.in_doubt else SequenceDecision.RETRY
        return SequenceAction(decision, bump_epoch=True, new_producer_id=True)
    if code not in (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.UNKNOWN_PRODUCER_ID):
        return NO_ACTION
    if batch.divided_in_doubt:
        # This batch is a part of a split batch that may be in the log. With a new sequence, the
        # records of this part could be stored twice.
        return SequenceAction(SequenceDecision.NONE, bump_epoch=True)
    if code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER and batch.in_doubt:
        action = _classify_by_newer(batch, entry)
        if action is not None:
            return action
    if code == Code.UNKNOWN_PRODUCER_ID:
        # After a bump the batch has sequence 0, and a second bump would change nothing.
        lost = log_start_offset != -1 and bool(batch.base_sequence or not batch.sequence_reset)
        return SequenceAction(SequenceDecision.RETRY, clear_doubt=True, bump_epoch=lost)
    if not entry.is_gap_before(batch):
        return SequenceAction(SequenceDecision.RETRY, clear_doubt=True)
    # The missing batch before this one will not be sent again. If requests with both batches were
    # lost, copies of both may still arrive, in order, from a connection that was given up. With a
    # new sequence, this batch would then be stored twice, so it fails. Its outcome is UNKNOWN
    # (`possibly_appended` is still set), even if it is not in the log now. Attempts that got a
    # response leave no copies.
    both_lost = entry.lost and batch.lost
    decision = SequenceDecision.NONE if both_lost else SequenceDecision.RETRY
    return SequenceAction(decision, clear_doubt=True, bump_epoch=True)


def _classify_duplicate(entry: PartitionSequences, *, bump_epoch: bool) -> SequenceAction:
    """Return the action for DUPLICATE_SEQUENCE_NUMBER: the batch is in the log, unless the
    sequences have wrapped.

    Kafka 1.0.0 and 1.0.1 compare sequences without regard to wrapping. Once the sequences have
    wrapped, these releases respond with this code to every batch and append none
    (`ProducerAppendInfo.isDuplicate`). Therefore such a batch fails with outcome UNKNOWN. Later
    releases do not use the code.
    """
    if not entry.wrapped:
        return _DUPLICATE
    return SequenceAction(SequenceDecision.NONE, note_unknown=True, bump_epoch=bump_epoch)


def _classify_by_newer(batch: ProducerBatch, entry: PartitionSequences) -> SequenceAction | None:
    """Return the action for a batch that may be in the log and is out of order. Return None if no
    newer batch can be in the log; this proves that the batch itself is not in the log either.

    Brokers remember five batches of each producer, but only the newest one after a restart, because
    their snapshots contain no more (Java `ProducerStateManager.writeSnapshot`). Kafka 0.11 always
    remembers only one. Therefore the newest batch is sent first, because every broker recognises
    it.
    """
    if batch.order < entry.newest_proven:
        return _DUPLICATE
    newer = entry.newest_in_doubt(batch)
    if newer is not None:
        return SequenceAction(SequenceDecision.RETRY, probe=newer)
    if batch.order < entry.newest_written:
        # The newer batches whose responses could prove whether this one is in the log already have
        # their outcomes, so the outcome of this batch is UNKNOWN.
        return NO_ACTION
    return None


def classify_transactional(
    batch: ProducerBatch,
    code: int,
    log_start_offset: int,
    entry: PartitionSequences,
    *,
    is_open: bool,
) -> SequenceAction:
    """Return the action within a transaction. The epoch cannot change there, so a gap aborts the
    transaction.

    Args:
        log_start_offset: from the response, or -1 if it has none.
        is_open: the transaction may still be committed.
    """
    if code == Code.DUPLICATE_SEQUENCE_NUMBER:
        return _classify_duplicate(entry, bump_epoch=False)
    if not is_open:
        return NO_ACTION
    if code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER:
        gap = entry.is_gap_before(batch)
        decision = SequenceDecision.NONE if gap else SequenceDecision.RETRY
        return SequenceAction(decision, clear_doubt=True)
    if code != Code.UNKNOWN_PRODUCER_ID:
        return NO_ACTION
    if log_start_offset == -1 or batch.sequence_reset:
        return SequenceAction(SequenceDecision.RETRY)
    if entry.last_acked_offset < log_start_offset:
        # Restart the sequences: retention has deleted all records of this producer, and with them
        # the broker's state.
        return SequenceAction(SequenceDecision.RETRY, reset_sequences=entry.may_restart())
    return NO_ACTION
