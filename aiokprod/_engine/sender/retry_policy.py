"""Decides what to do with a batch after a response, and makes the errors of failed batches.

The functions have no side effects; `BatchCompletion` carries the decision out. What an error code
means is in its row in `_errors`; CONTRIBUTING.md has the steps to change what happens after a code.

Two cases are not decided here alone: FATAL does nothing for a producer without a producer id
(`NoProducerId.on_fatal`), and after CONCURRENT_TRANSACTIONS `BatchCompletion._retry` asks for the
short backoff of `retry_delay` (`awaits_markers`), for transactional producers only.

Source: Java `Sender.completeBatch`, `Sender.canRetry`.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final

from aiokprod._engine.identity.sequence_errors import SequenceDecision
from aiokprod.errors import (
    REJECTED_WITH_BATCH,
    Code,
    DeliveryTimeout,
    ErrorCode,
    Outcome,
    RecordRejected,
    broker_error,
    error_code,
)

if TYPE_CHECKING:
    from aiokprod._engine.buffer.producer_batch import ProducerBatch
    from aiokprod.errors import KafkaError


_MARKERS_BACKOFF: Final = 0.02
"""Backoff in seconds while the markers of the previous transaction are being written. It is short
because the leader waits for them too before it answers CONCURRENT_TRANSACTIONS."""

_MARKERS_ATTEMPTS: Final = 5
"""Number of attempts with that backoff. After them the usual backoff applies."""


class Action(enum.Enum):
    """What to do with the batch.

    EXPIRE: fail it, because its delivery deadline has passed. SETTLE_SEQUENCE: only release its
    sequence, because its records already have an outcome (it expired in flight).
    """

    ACKNOWLEDGE = "acknowledge"
    RETRY = "retry"
    SPLIT = "split"
    FAIL = "fail"
    FATAL = "fatal"
    EXPIRE = "expire"
    SETTLE_SEQUENCE = "settle_sequence"


def decide(
    code: ErrorCode,
    *,
    records: int,
    attempts: int,
    retries: int,
    sequence: SequenceDecision = SequenceDecision.NONE,
    settled: bool = False,
    expired: bool = False,
) -> Action:
    """What to do with a batch of `records` records whose attempt number `attempts` ended in `code`.

    FATAL applies only to producers with sequences; others continue with their next batch.

    Args:
        settled: its records have an outcome.
        expired: its delivery deadline has passed. A batch that would be sent again expires now, as
            it would if the response had arrived one pass later.
    """
    if settled and sequence is not SequenceDecision.DUPLICATE:
        return Action.SETTLE_SEQUENCE
    action = _action(code, records, attempts, retries, sequence)
    return Action.EXPIRE if expired and action in (Action.RETRY, Action.SPLIT) else action


def _action(
    code: ErrorCode, records: int, attempts: int, retries: int, sequence: SequenceDecision
) -> Action:
    if code.number == Code.NONE or sequence is SequenceDecision.DUPLICATE:
        return Action.ACKNOWLEDGE
    if code.too_large and records > 1:
        return Action.SPLIT
    if code.fatal_idempotent:
        return Action.FATAL
    if sequence is SequenceDecision.RETRY or code.retriable:
        return Action.RETRY if attempts <= retries else Action.FAIL
    return Action.FAIL


def retry_delay(
    backoff: float, *, attempts: int, retries: int, at_once: bool, awaits_markers: bool
) -> float:
    """Seconds until the next attempt.

    Args:
        backoff: the usual delay.
        at_once: a newer leader is known, so there is no need to wait. The last attempt still waits
            for its backoff: a leader that was just elected may not be ready, and there is no
            further attempt.
        awaits_markers: the leader waits for the markers of the previous transaction.
    """
    delay = 0.0 if at_once and attempts < retries else backoff
    if awaits_markers and attempts <= _MARKERS_ATTEMPTS:
        delay = min(delay, _MARKERS_BACKOFF)
    return delay


def batch_error(
    code: ErrorCode,
    batch: ProducerBatch,
    now: float,
    broker: int,
    text: str | None,
    cause: KafkaError | None = None,
) -> KafkaError:
    """The error of a batch that is not sent again. Its text has the broker, the number of attempts
    and a hint.

    Args:
        text: the error message in the response, if any.
        cause: the error of the request if there was no response; None if the broker responded.
    """
    outcome = outcome_of(batch)
    hint = code.hint
    if code.number == Code.CLUSTER_AUTHORIZATION_FAILED and not batch.has_sequence:
        hint = ""  # the hint is about idempotence, which this producer does not use
    happened = f"broker {broker} answered {code.name} to" if cause is None else "no answer to"
    parts = [
        f"{batch.topic_partition}: {happened} attempt {batch.attempts} after "
        f"{now - batch.created_at:.3f} s"
    ]
    if text:
        parts.append(text)
    if hint:
        parts.append(hint)
    parts.append(
        "the record may be in the log"
        if outcome is Outcome.UNKNOWN
        else "the record is not in the log"
    )
    if cause is None:
        return broker_error(code.number, "; ".join(parts), outcome=outcome)
    return cause.copy().with_(message=f"{'; '.join(parts)}: {cause.message}", outcome=outcome)


def record_errors(
    batch: ProducerBatch, answer: Any, error: KafkaError
) -> dict[int, KafkaError] | None:
    """Errors of single records by position (KIP-467), None if the response has none.

    Records that the response names get their own message, the others one that says that their batch
    failed. `answer` is the partition's part of the response, or None.
    """
    if answer is None or not answer.record_errors:
        return None
    named = {entry.batch_index: entry.batch_index_error_message for entry in answer.record_errors}
    errors: dict[int, KafkaError] = {}
    for index in range(batch.core.record_count):
        text = named.get(index) if index in named else f"{REJECTED_WITH_BATCH}; send it again"
        errors[index] = RecordRejected(
            f"{batch.topic_partition}: {text or error.message}",
            code=error.code,
            outcome=error.outcome,
        )
    return errors


def given_up_error(batch: ProducerBatch, error: KafkaError) -> KafkaError:
    """A copy of `error` for one batch, with the outcome that its attempts so far allow."""
    return error.copy().with_(outcome=outcome_of(batch))


def delivery_timeout_error(
    batch: ProducerBatch,
    now: float,
    network: KafkaError | None,
    *,
    leaderless: bool = False,
    topic_error: int = 0,
) -> DeliveryTimeout:
    """The error of a batch whose delivery deadline has passed.

    Args:
        network: why the cluster cannot be reached, if known; the cause for a batch that was never
            sent.
        leaderless: the partition has no leader, according to the brokers.
        topic_error: error code of the topic in the last response that had it; 0 if none.
    """
    reason, cause = batch.last_failure
    if not batch.attempts:
        cause = network
        reason = "never sent"
        if cause is not None:
            reason += f": {cause.message}"
        elif leaderless:
            code = f" ({error_code(topic_error).name})" if topic_error else ""
            reason += f": the partition has no leader{code}"
    error = DeliveryTimeout(
        f"{batch.topic_partition}: no acknowledgment within delivery_timeout_ms "
        f"({now - batch.created_at:.3f} s, {batch.attempts} attempts, last: "
        f"{reason or 'no answer yet'}); "
        f"the record {'may be' if batch.possibly_appended else 'is not'} in the log",
        outcome=outcome_of(batch),
    )
    error.__cause__ = cause
    return error


def outcome_of(batch: ProducerBatch) -> Outcome:
    """Whether the records of a batch that is given up now can be in the log."""
    if batch.possibly_appended:
        return Outcome.UNKNOWN
    return Outcome.REJECTED if batch.maybe_written else Outcome.NOT_SENT
