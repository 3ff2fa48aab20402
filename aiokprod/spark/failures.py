"""Exceptions of failed tasks. Spark forwards only their text to the driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aiokprod.errors import KafkaError, Outcome

AGAIN: Final = (
    "Spark will retry this task; rows already acknowledged may appear again "
    "(delivery=at_least_once)"
)
CLEAN: Final = (
    "Spark will retry this task; nothing of this attempt becomes visible to read_committed readers"
)


class SinkError(RuntimeError):
    """A task could not write all of its rows. Spark forwards only the text."""


class NonDeterministicReplay(RuntimeError):
    """A replayed micro-batch does not consist of the same tasks and rows as before."""


class CheckpointRolledBack(RuntimeError):
    """Kafka has a later micro-batch of the query than the one that Spark replays."""


def rolled_back(found: int, replayed: int) -> str:
    """Text of a refused batch: Kafka has batch `found` of the query, Spark replays `replayed`."""
    return (
        f"Kafka has batch {found} of this query, Spark replays batch {replayed}: the checkpoint "
        "was rolled back. Restore it, or start a new checkpoint with another transactionalIdPrefix"
    )


@dataclass(slots=True)
class Counts:
    """Rows of one task attempt by outcome.

    Attributes:
        acknowledged: in the log.
        unknown: may be in the log.
        unsent: not in the log.
    """

    acknowledged: int = 0
    unknown: int = 0
    unsent: int = 0

    def add(self, outcome: Outcome, rows: int = 1) -> None:
        """Count rows that failed."""
        if outcome is Outcome.UNKNOWN:
            self.unknown += rows
        else:
            self.unsent += rows


def describe(error: BaseException, counts: Counts, *, where: str, transactional: bool) -> SinkError:
    """The exception of a failed task attempt.

    Args:
        error: the first failure.
        where: "topic-partition", or another place.
        transactional: acknowledged rows do not become visible to read_committed readers.
    """
    if isinstance(error, KafkaError):
        name = error.code.name if error.code is not None else type(error).__name__
        again = "retriable" if error.retriable else "not retriable"
        text = error.message
    else:
        name, again, text = type(error).__name__, "not retriable", str(error)
    if isinstance(error, KafkaError) and error.code is not None and error.code.spark_hint:
        text += f" ({error.code.spark_hint})"
    return SinkError(
        f"aiokprod: {where}: {name} ({again}): {text}; rows of this attempt: "
        f"{counts.acknowledged} acknowledged, {counts.unknown} unknown, {counts.unsent} unsent. "
        f"{CLEAN if transactional else AGAIN}"
    )


def describe_early(error: BaseException) -> SinkError:
    """The exception of a task attempt that failed before its first row."""
    return describe(error, Counts(), where="start of the task", transactional=False)
