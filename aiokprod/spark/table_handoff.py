"""The seam between RecordBatches and the producer: hands a table over, awaits no acknowledgment.

`Producer.send_table` waits until each row has its outcome. A task has many tables, in order, and
must not wait for the acknowledgments of one before it hands over the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aiokprod._client.table_schema import ROLES
from aiokprod.errors import Outcome

if TYPE_CHECKING:
    from aiokprod._client.send_table import TableSender
    from aiokprod._core.batch import BatchCore
    from aiokprod._core.bulk_tracker import BulkTracker
    from aiokprod.errors import KafkaError
    from aiokprod.producer import Producer
    from aiokprod.spark.failures import Counts

_NAMES: Final = {role: role for role in ROLES}


class TableHandoff:
    """One table on its way.

    Attributes:
        complete: all of its rows are in batches or refused.
        sender: what hands it over; None before that began.
    """

    __slots__ = ("complete", "sender")

    def __init__(self) -> None:
        self.complete = False
        self.sender: TableSender | None = None

    @property
    def tracker(self) -> BulkTracker | None:
        """The rows in batches."""
        return None if self.sender is None else self.sender.tracker

    @property
    def refused(self) -> dict[int, KafkaError]:
        """Errors of rows that got into no batch, by position."""
        return {} if self.sender is None else self.sender.refused

    @property
    def cores(self) -> list[BatchCore]:
        """The batches its rows are in; neighbours may share some."""
        return [] if self.tracker is None else self.tracker.cores

    @property
    def admitted(self) -> int:
        """Rows in batches."""
        return 0 if self.tracker is None else self.tracker.count

    def first_failure(self) -> tuple[str, KafkaError] | None:
        """("topic-partition", error) of the first row that failed in a batch."""
        tracker = self.tracker
        failed = [] if tracker is None else tracker.failed()
        if tracker is None or not failed:
            return None
        partition, _, error = tracker.position(failed[0])
        assert error is not None, "a failed entry has an error"
        topics = [
            core.topic for core in self.cores if core.partition == partition and _has_failed(core)
        ]
        return f"{topics[0]}-{partition}", error

    def count_into(self, counts: Counts) -> None:
        """Add up its rows by what is known of them; to be called when all of them are settled."""
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


def _has_failed(core: BatchCore) -> bool:
    return core.error is not None or any(map(_has_failed, core.parts or ()))


async def hand_over(
    producer: Producer[Any, Any], topic: str | None, table: Any, handed: TableHandoff
) -> None:
    """Put all rows of a RecordBatch into batches, in order; waits while memory is short.

    Raises:
        KafkaError: the producer cannot go on; `handed` tells how far it came.
    """
    handed.sender = sender = producer.table_sender()
    await sender.hand_over(topic, table, _NAMES)
    if sender.interrupted is not None:
        raise sender.interrupted
