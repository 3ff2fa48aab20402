"""Decides what to do with a batch after a response.

The functions have no side effects; `BatchCompletion` carries out the decision. The table in
`_errors` defines the meaning of each error code; CONTRIBUTING.md explains how to change the action
after a code.

Two cases also depend on other code. For a producer without a producer id, FATAL fails only the
batch (`NoProducerId.on_fatal`). After CONCURRENT_TRANSACTIONS, `BatchCompletion._retry` requests
the short backoff of `retry_delay` (`awaits_markers`) for transactional producers only.

Source: Java `Sender.completeBatch`, `Sender.canRetry`.
"""

from __future__ import annotations

import enum
from typing import Final

from aiokprod._engine.identity.sequence_errors import SequenceDecision
from aiokprod.errors import Code, ErrorCode

_MARKERS_BACKOFF: Final = 0.02
"""Backoff in seconds while the markers of the previous transaction are being written. It is short
because the leader also waits for them before it responds with CONCURRENT_TRANSACTIONS."""

_MARKERS_ATTEMPTS: Final = 5
"""Number of attempts with that backoff. After these, the usual backoff applies."""


def is_last_attempt(attempts: int, max_retries: int) -> bool:
    """Return True if no attempt follows attempt number `attempts`."""
    return attempts > max_retries


def next_is_last_attempt(attempts: int, max_retries: int) -> bool:
    """Return True if at most one attempt follows attempt number `attempts`."""
    return is_last_attempt(attempts + 1, max_retries)


class Action(enum.Enum):
    """The action for the batch.

    EXPIRE fails the batch, because its delivery deadline has passed. SETTLE_SEQUENCE only releases
    its sequence, because its records already have an outcome (the batch expired in flight).
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
    """Return the action for a batch of `records` records whose attempt number `attempts` ended with
    `code`.

    FATAL ends only producers with sequences; other producers continue with their next batch.

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
    if sequence is SequenceDecision.GIVE_UP:
        return Action.FAIL
    if code.too_large and records > 1:
        return Action.SPLIT
    if code.fatal_idempotent:
        return Action.FATAL
    if sequence is SequenceDecision.RETRY or code.retriable:
        return Action.FAIL if is_last_attempt(attempts, retries) else Action.RETRY
    return Action.FAIL


def retry_delay(
    backoff: float, *, attempts: int, retries: int, at_once: bool, awaits_markers: bool
) -> float:
    """Return the seconds until the next attempt.

    Args:
        backoff: the usual delay.
        at_once: a newer leader is known, so there is no need to wait. The last attempt still waits
            for its backoff: a leader that was just elected may not be ready, and there is no
            further attempt.
        awaits_markers: the leader waits for the markers of the previous transaction.
    """
    delay = 0.0 if at_once and not next_is_last_attempt(attempts, retries) else backoff
    if awaits_markers and attempts <= _MARKERS_ATTEMPTS:
        delay = min(delay, _MARKERS_BACKOFF)
    return delay
