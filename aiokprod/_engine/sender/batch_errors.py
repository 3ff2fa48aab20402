"""The errors of batches that are given up: outcome, class and text.

Source: Java `ProducerBatch.completeExceptionally`, KIP-467.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiokprod.errors import (
    REJECTED_WITH_BATCH,
    Code,
    DeliveryTimeout,
    ErrorCode,
    Outcome,
    RecordRejected,
    broker_error,
)

if TYPE_CHECKING:
    from aiokprod._engine.buffer.producer_batch import ProducerBatch
    from aiokprod.errors import KafkaError


def outcome_of(batch: ProducerBatch) -> Outcome:
    """Return the outcome of a batch that is given up now, which shows whether its records can be in
    the log."""
    if batch.possibly_appended:
        return Outcome.UNKNOWN
    return Outcome.REJECTED if batch.maybe_written else Outcome.NOT_SENT


def batch_error(
    code: ErrorCode,
    batch: ProducerBatch,
    now: float,
    broker: int,
    text: str | None,
    cause: KafkaError | None = None,
) -> KafkaError:
    """Return the error of a batch that is not sent again. Its text contains the broker, the number
    of attempts and a hint.

    Args:
        text: the error message in the response, if any.
        cause: the error of the request if there was no response; None if the broker responded.
    """
    outcome = outcome_of(batch)
    hint = code.hint
    if code.number == Code.CLUSTER_AUTHORIZATION_FAILED and not batch.has_sequence:
        hint = ""  # the hint is about idempotence, which this producer does not use
    happened = "no response to"
    if cause is None:
        happened = f"broker {broker} responded with {code.name} to"
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
    """Return the errors of single records by position (KIP-467), or None if the response has none.

    Records that the response names get their own message. The other records get a retriable error
    with the message that their batch was rejected. `answer` is the partition's part of the
    response, or None.
    """
    if answer is None or not answer.record_errors:
        return None
    named = {entry.batch_index: entry.batch_index_error_message for entry in answer.record_errors}
    errors: dict[int, KafkaError] = {}
    for index in range(batch.core.record_count):
        is_named = index in named
        text = named[index] if is_named else f"{REJECTED_WITH_BATCH}; send it again"
        errors[index] = RecordRejected(
            f"{batch.topic_partition}: {text or error.message}",
            code=error.code,
            outcome=error.outcome,
            retriable=None if is_named else True,
        )
    return errors


def given_up_error(batch: ProducerBatch, error: KafkaError) -> KafkaError:
    """Return a copy of `error` for one batch, with the outcome that its attempts so far allow."""
    return error.copy().with_(outcome=outcome_of(batch))


def delivery_timeout_error(
    batch: ProducerBatch, now: float, network: KafkaError | None, waits_for: str = ""
) -> DeliveryTimeout:
    """Return the error of a batch whose delivery deadline has passed.

    Args:
        network: the reason why the cluster cannot be reached, if known; it is the cause of the
            error of a batch that was never sent.
        waits_for: text that names what the batch is waiting for, if known.
    """
    attempts = batch.attempts
    code, cause = batch.last_failure
    if not attempts:
        code, cause = "never sent", network
    reason = code or "no response yet"
    if cause is not None:
        reason += f": {cause.message}"
    elif waits_for:
        reason += f": {waits_for}"
    error = DeliveryTimeout(
        f"{batch.topic_partition}: no acknowledgment within delivery_timeout_ms; the batch of the "
        f"record was opened {now - batch.created_at:.3f} s ago and sent {attempts} "
        f"time{'' if attempts == 1 else 's'}, last: {reason}; "
        f"the record {'may be' if batch.possibly_appended else 'is not'} in the log",
        outcome=outcome_of(batch),
    )
    error.__cause__ = cause
    return error
