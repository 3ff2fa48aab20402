"""Exceptions of failed tasks. Spark passes only their text to the driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aiokprod.errors import (
    AuthenticationError,
    AuthorizationError,
    Code,
    ConfigError,
    InvalidTopic,
    KafkaError,
    Outcome,
    RecordRejected,
    RecordTooLarge,
    SerializationError,
    UnsupportedVersion,
)
from aiokprod.spark.options import in_options

_RETRY: Final = "Spark will retry this task"
_NO_RETRY: Final = (
    "Spark may retry this task, but every attempt will fail for this reason until it is removed"
)
_AGAIN: Final = "rows already acknowledged may appear again (delivery=at_least_once)"
_CLEAN: Final = "nothing of this attempt becomes visible to read_committed readers"

_LASTING: Final = (
    AuthenticationError,
    AuthorizationError,
    ConfigError,
    InvalidTopic,
    RecordRejected,
    RecordTooLarge,
    SerializationError,
    UnsupportedVersion,
)
"""Errors that recur in another attempt with the same rows, options and permissions."""
_LASTING_CODES: Final = frozenset(
    {
        Code.CLUSTER_AUTHORIZATION_FAILED,
        Code.GROUP_AUTHORIZATION_FAILED,
        Code.INVALID_TRANSACTION_TIMEOUT,
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
"""Codes of further errors that recur. These errors do not have one of the classes in `_LASTING` if
they made the producer fail."""


class SinkError(RuntimeError):
    """A task could not write all of its rows. Spark passes only the text of this error to the
    driver."""


class NonDeterministicReplay(RuntimeError):
    """A replayed micro-batch does not have the same tasks and rows as before."""


class CheckpointRolledBack(RuntimeError):
    """Kafka has a later micro-batch of the query than the micro-batch that Spark replays."""


def rolled_back(found: int, replayed: int) -> str:
    """Return the error text: Kafka has batch `found` of the query, but Spark replays `replayed`."""
    return (
        f"Kafka has batch {found} of this query, Spark replays batch {replayed}: the checkpoint "
        "was rolled back. Restore it, or start a new checkpoint with another transactionalIdPrefix"
    )


@dataclass(slots=True)
class Counts:
    """Rows of one task attempt by outcome.

    Attributes:
        acknowledged: rows that are in the log.
        unknown: rows that may be in the log.
        unsent: rows that are not in the log.
    """

    acknowledged: int = 0
    unknown: int = 0
    unsent: int = 0

    def add(self, outcome: Outcome, rows: int = 1) -> None:
        """Count failed rows."""
        if outcome is Outcome.UNKNOWN:
            self.unknown += rows
        else:
            self.unsent += rows


def describe(
    error: BaseException,
    counts: Counts,
    *,
    where: str,
    transactional: bool,
    row: int | None = None,
) -> SinkError:
    """Return the exception to raise for a failed task attempt.

    Args:
        error: the first failure.
        where: "topic-partition", or another location.
        transactional: acknowledged rows do not become visible to read_committed consumers.
        row: number of the failed row within the task; None if unknown.
    """
    if isinstance(error, KafkaError):
        name = error.code.name if error.code is not None else type(error).__name__
        again = "retriable" if error.retriable else "not retriable"
        text = error.message
    else:
        name, again, text = type(error).__name__, "not retriable", str(error)
    text = in_options(text)
    if isinstance(error, KafkaError) and error.code is not None and error.code.spark_hint:
        text += f" ({error.code.spark_hint})"
    if row is not None:
        text = f"row {row} of this task: {text}"
    return SinkError(
        f"aiokprod: {where}: {name} ({again}): {text}; rows of this attempt: "
        f"{counts.acknowledged} acknowledged, {counts.unknown} unknown, {counts.unsent} unsent. "
        f"{_NO_RETRY if is_lasting(error) else _RETRY}; {_CLEAN if transactional else _AGAIN}"
    )


def is_lasting(error: BaseException) -> bool:
    """Return True if every attempt fails in the same way until a row, an option, a permission or
    the cluster is changed."""
    if not isinstance(error, KafkaError):
        return False
    code = error.code
    return isinstance(error, _LASTING) or (code is not None and code.number in _LASTING_CODES)


def describe_early(error: BaseException) -> SinkError:
    """Return the exception to raise for a task attempt that failed before its first row."""
    return describe(error, Counts(), where="start of the task", transactional=False)
