"""Submits the tables of a task to the producer without waiting for acknowledgments.

`Producer.send_table` returns once each row has an outcome. A task has many tables, in order, and
must not wait for the acknowledgments of a table before it submits the next table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from aiokprod.errors import REJECTED_WITH_BATCH, Outcome
from aiokprod.spark.sink_schema import ALLOWED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aiokprod.errors import KafkaError
    from aiokprod.producer import Producer
    from aiokprod.spark.failures import Counts

_NAMES: Final = {name: name for name in ALLOWED}
"""Name of the column for each field of a record, as in `Producer.send_table`."""


class SinkBatch(Protocol):
    """The attributes of the producer's batches that the sink reads.

    Attributes:
        base_offset: offset of the first record, or -1 if the broker did not return it.
        parts: the batches into which this batch was split, or None if it was not split.
    """

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def record_count(self) -> int: ...
    @property
    def error(self) -> KafkaError | None: ...
    @property
    def parts(self) -> Sequence[SinkBatch] | None: ...


class Tracker(Protocol):
    """Tracks the batches that contain the rows of a table."""

    @property
    def cores(self) -> Sequence[SinkBatch]: ...
    @property
    def count(self) -> int: ...
    def failed(self) -> list[int]: ...
    def position(self, record: int, /) -> tuple[int, int | None, KafkaError | None]: ...


class SubmittedTable(Protocol):
    """The result of `Producer.table_sender`.

    Attributes:
        refused: errors of rows that are in no batch, by row number.
        interrupted: the error that stopped the submission; None if all rows were submitted.
    """

    @property
    def tracker(self) -> Tracker: ...
    @property
    def refused(self) -> dict[int, KafkaError]: ...
    @property
    def interrupted(self) -> KafkaError | None: ...
    async def append(
        self, topic: str | None, table: Any, names: Mapping[str, str | None], /
    ) -> None: ...
    async def wait_settled(self) -> None: ...


class TableHandoff:
    """One table that is being submitted.

    Args:
        first_row: number of the table's first row within the task.

    Attributes:
        complete: True if every row is in a batch or was refused.
        sender: None until `submit_table` begins.
    """

    __slots__ = ("complete", "first_row", "sender")

    def __init__(self, first_row: int = 0) -> None:
        self.first_row = first_row
        self.complete = False
        self.sender: SubmittedTable | None = None

    @property
    def tracker(self) -> Tracker | None:
        """The tracker of the rows that are in batches, or None before `submit_table`."""
        return None if self.sender is None else self.sender.tracker

    @property
    def refused(self) -> dict[int, KafkaError]:
        """Errors of rows that are in no batch, by row number."""
        return {} if self.sender is None else self.sender.refused

    @property
    def cores(self) -> Sequence[SinkBatch]:
        """The batches that contain rows of this table. Adjacent tables may share batches."""
        return [] if self.tracker is None else self.tracker.cores

    @property
    def appended(self) -> int:
        """Number of rows that are in batches."""
        return 0 if self.tracker is None else self.tracker.count

    async def wait_settled(self) -> None:
        """Wait until all batches in `cores` have an outcome."""
        if self.sender is not None:
            await self.sender.wait_settled()

    def first_refused(self) -> tuple[int, KafkaError]:
        """Return (row number within the task, error) of the first refused row, which must exist."""
        row = min(self.refused)
        return self.first_row + row, self.refused[row]

    def first_failure(self) -> tuple[str, int, KafkaError] | None:
        """Return ("topic-partition", row number within the task, error) of the first row that
        failed in a batch. A row that failed only because it shared a batch with an invalid row is
        returned only if there is no other."""
        tracker = self.tracker
        failed = [] if tracker is None else tracker.failed()
        if tracker is None or not failed:
            return None
        entry = next((one for one in failed if not _with_batch(tracker, one)), failed[0])
        partition, _, error = tracker.position(entry)
        assert error is not None, "a failed entry has an error"
        topics = [
            core.topic for core in self.cores if core.partition == partition and _has_failed(core)
        ]
        return f"{topics[0]}-{partition}", self.first_row + self._row_of(entry), error

    def _row_of(self, entry: int) -> int:
        """Return the row number in the table of an entry of the tracker. The tracker has no entries
        for refused rows."""
        for refused in sorted(self.refused):
            if refused > entry:
                break
            entry += 1
        return entry

    def count_into(self, counts: Counts) -> None:
        """Add the rows to `counts` by outcome. Every row must have an outcome."""
        for error in self.refused.values():
            counts.add(error.outcome)
        tracker = self.tracker
        if tracker is None:
            return
        failed = tracker.failed()
        for entry in failed:
            found = tracker.position(entry)[2]
            counts.add(Outcome.UNKNOWN if found is None else found.outcome)
        counts.acknowledged += tracker.count - len(failed)


def _with_batch(tracker: Tracker, entry: int) -> bool:
    error = tracker.position(entry)[2]
    return error is not None and REJECTED_WITH_BATCH in error.message


def _has_failed(core: SinkBatch) -> bool:
    return core.error is not None or any(map(_has_failed, core.parts or ()))


async def submit_table(
    producer: Producer[Any, Any], topic: str | None, table: Any, handed: TableHandoff
) -> None:
    """Put all rows of a RecordBatch into batches, in order. Waits while the buffer is full.

    Raises:
        KafkaError: the producer failed or was closed. `handed` contains the rows submitted until
            then.
    """
    handed.sender = sender = producer.table_sender()
    await sender.append(topic, table, _NAMES)
    if sender.interrupted is not None:
        raise sender.interrupted
