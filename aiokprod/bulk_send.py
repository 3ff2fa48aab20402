"""The work behind `send_many`: hand over as fast as memory allows, yielding to the loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiokprod.arguments import checked_record
from aiokprod.bulk import BulkResult, Columns, wait_settled
from aiokprod.errors import ConfigError, KafkaError
from aiokprod.hot.append import BulkTracker
from aiokprod.records import ProducerRecord, validate_partition, validate_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aiokprod.admission import Admission
    from aiokprod.hot.append import TopicSlot
    from aiokprod.records import Header
    from aiokprod.runtime import Runtime


class BulkSender:
    """One `send_many` call.

    A record that cannot be admitted gets its error in the result; only an error that ends the
    producer ends the call.
    """

    def __init__(
        self,
        runtime: Runtime,
        admission: Admission,
        check: Callable[[], None],
        max_block: float,
    ) -> None:
        self._runtime = runtime
        self._admission = admission
        self._check = check
        self._max_block = max_block
        self._tracker = BulkTracker()
        self._refused: dict[int, KafkaError] = {}

    async def send_columns(
        self,
        topic: str,
        values: Iterable[Any],
        keys: Iterable[Any] | None,
        timestamps_ms: Iterable[int | None] | None,
        headers: Iterable[Sequence[Header] | None] | None,
        partition: int | None,
    ) -> BulkResult:
        """Columns of one topic; see `Producer.send_many`."""
        validate_topic(topic)
        if partition is not None:
            validate_partition(partition)
        columns = Columns(values, keys, timestamps_ms, headers)
        i, end = 0, len(columns.values)
        while i < end:
            self._check()
            stopped = i
            slot = self._slot(topic, partition)
            if slot is not None:
                i = self._runtime.appender.append_column(
                    self._tracker, slot, columns.values, columns.keys, columns.timestamps,
                    columns.headers, -1 if partition is None else partition, i,
                )  # fmt: skip
            if i == end:
                break
            if i > stopped and self._runtime.appender.slice_is_over():
                await asyncio.sleep(0)
            else:
                value, key, timestamp, row_headers = columns.row(i)
                await self._one(i, (topic, value, key, partition, timestamp, row_headers))
                i += 1
        return await self._finish()

    def _slot(self, topic: str, partition: int | None) -> TopicSlot | None:
        """The topic's slot if the compiled path may be used for it."""
        appender = self._runtime.appender
        if not appender.enabled:
            return None
        slot = appender.topics.get(topic)
        if slot is None or (partition is not None and partition >= len(slot.slots)):
            return None
        return slot

    async def send_records(self, records: Iterable[Any]) -> BulkResult:
        """Records of any topics; see `Producer.send_many`."""
        if not hasattr(records, "__iter__") or isinstance(records, (bytes, bytearray, memoryview)):
            raise ConfigError(
                "send_many takes an iterable of ProducerRecord, or a topic and columns; not "
                f"{type(records).__name__}"
            )
        tracker, appender = self._tracker, self._runtime.appender
        for number, record in enumerate(records):
            if not isinstance(record, ProducerRecord):
                self._refused[number] = ConfigError(
                    f"send_many: entry {number} is {type(record).__name__}, not ProducerRecord"
                )
                continue
            delivery = appender.try_append(
                record.topic, record.value, record.key, record.partition, record.timestamp_ms,
                record.headers or None,
            )  # fmt: skip
            if delivery is not None:
                tracker.add_delivery(delivery)
            else:
                await self._one(
                    number,
                    (record.topic, record.value, record.key, record.partition,
                     record.timestamp_ms, record.headers),
                )  # fmt: skip
            if not number & 255 and appender.slice_is_over():
                await asyncio.sleep(0)
                self._check()
        return await self._finish()

    async def _one(self, position: int, fields: tuple[Any, ...]) -> None:
        """Admit one record by the slow path; its refusal is its own."""
        try:
            record = checked_record(*fields)
            deadline = self._runtime.loop.time() + self._max_block
            delivery = await self._admission.admit(record, deadline)
        except KafkaError as error:
            self._check()
            self._refused[position] = error
        else:
            self._tracker.add_delivery(delivery)

    async def _finish(self) -> BulkResult:
        await wait_settled(self._tracker.cores)
        return BulkResult(self._tracker, self._refused)
