"""Commit messages: the reports of finished tasks to the driver. They are small, because the driver
keeps the messages of all tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import WriterCommitMessage

from aiokprod import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aiokprod.spark.context import Task
    from aiokprod.spark.task_sender import Range

MAX_BYTES: Final = 52_000
"""Limit for the pickled ranges of a task, in bytes. It keeps a message below 64 KiB."""
MAX_TOPIC_BYTES: Final = 8_000
"""Limit for the pickled names of the topics that hold a task's marker, in bytes."""
_TOPIC_BYTES: Final = 8
"""Size of a pickled topic name in bytes, without its characters."""
_RANGE_BYTES: Final = 48
"""Size of a pickled range in bytes, without the characters of the topic name."""

Ranges = tuple[tuple[str, int, int | None, int | None, int], ...]
"""(topic, partition, first offset, last offset, count) of each range. The offsets are None if the
broker did not return them."""


@dataclass(frozen=True)
class TaskReport(WriterCommitMessage):
    """The message of a task attempt whose rows are all acknowledged.

    Attributes:
        size: size of the sent Arrow columns in bytes.
        trimmed: True if `ranges` lacks some partitions.
        seconds: time from the task's start to the last acknowledgment.
        version: version of aiokprod on the executor.
    """

    partition: int
    attempt: int
    host: str
    rows: int
    size: int
    ranges: Ranges
    trimmed: bool
    seconds: float
    query_id: str | None
    batch_id: int | None
    version: str = __version__


@dataclass(frozen=True)
class Prepared(TaskReport):
    """The report of a task whose rows are in a transaction that only the driver may end.

    Attributes:
        transactional_id, producer_id, epoch: identity of the transaction, for EndTxn.
        second_protocol: the transaction uses transactions version 2 (KIP-890).
        row_hash: sum of the hashes of the rows, independent of their order.
        skipped: an earlier attempt at this batch was committed, so this one sent nothing.
        marked_rows, marked_hash: rows and hash of the committed attempt, if skipped.
        marked: topics that hold the task's marker, as many as fit into a message.
        unmarked: before this attempt, Kafka had no marker of the task for any batch.
    """

    transactional_id: str = ""
    producer_id: int = -1
    epoch: int = -1
    second_protocol: bool = False
    row_hash: int = 0
    skipped: bool = False
    marked_rows: int = 0
    marked_hash: int = 0
    marked: tuple[str, ...] = ()
    unmarked: bool = False


def trimmed_topics(topics: Iterable[str]) -> tuple[str, ...]:
    """Return the first topics in alphabetical order, up to a size of `MAX_TOPIC_BYTES`."""
    left = MAX_TOPIC_BYTES
    listed = []
    for topic in sorted(topics):
        left -= len(topic) + _TOPIC_BYTES
        if left < 0:
            break
        listed.append(topic)
    return tuple(listed)


def report_fields(
    task: Task, *, rows: int, size: int, ranges: Mapping[tuple[str, int], Range], seconds: float
) -> dict[str, Any]:
    """Return the fields of a `TaskReport`, with as many ranges as `MAX_BYTES` allows."""
    left = MAX_BYTES
    listed = []
    for (topic, partition), one in sorted(ranges.items()):
        left -= _RANGE_BYTES + len(topic)
        if left < 0:
            break
        listed.append((topic, partition, one.first, one.last, one.count))
    return {
        "partition": task.partition,
        "attempt": task.attempt,
        "host": task.host,
        "rows": rows,
        "size": size,
        "ranges": tuple(listed),
        "trimmed": len(listed) < len(ranges),
        "seconds": round(seconds, 6),
        "query_id": task.query_id,
        "batch_id": task.batch_id,
    }
