"""The seam between RecordBatches and the producer: hands a table over, awaits no acknowledgment.

`Producer.send_table` waits until each row has its outcome. A task has many tables, in order, and
must not wait for the acknowledgments of one before it hands over the next.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from aiokprod.errors import Outcome
from aiokprod.table_schema import ROLES, layout_of
from aiokprod.table_send import TableReader, TableSender

if TYPE_CHECKING:
    from aiokprod.errors import KafkaError
    from aiokprod.hot.bulk import BulkTracker
    from aiokprod.hot.core import BatchCore
    from aiokprod.producer import Producer
    from aiokprod.spark.failures import Counts

_NAMES: Final = {role: role for role in ROLES}


class Handed:
    """One table on its way.

    Attributes:
        complete: all of its rows are in batches or refused.
        refused: errors of rows that got into no batch, by position.
    """

    __slots__ = ("complete", "refused", "tracker")

    def __init__(self) -> None:
        self.complete = False
        self.tracker: BulkTracker | None = None
        self.refused: dict[int, KafkaError] = {}

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
    producer: Producer[Any, Any], topic: str | None, table: Any, handed: Handed
) -> None:
    """Put all rows of a RecordBatch into batches, in order; waits while memory is short.

    Raises:
        KafkaError: the producer cannot go on; `handed` tells how far it came.
    """
    runtime = producer._usable()
    sender = TableSender(runtime, producer._admission, producer._check_running, producer._max_block)
    handed.tracker, handed.refused = sender._tracker, sender._refused
    reader = await TableReader.open(table, asyncio.get_running_loop())
    try:
        layout = layout_of(reader.schema, topic, _NAMES)
        await sender._send_all(reader, layout, topic)
    finally:
        reader.close()
    if sender._interrupted is not None:
        raise sender._interrupted
