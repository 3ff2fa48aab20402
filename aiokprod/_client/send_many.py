"""The work behind `send_many`: hand over as fast as memory allows, yielding to the loop."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from aiokprod._client.bulk_result import BulkResult, Columns, wait_settled
from aiokprod._client.validation import checked_record
from aiokprod._core.batch import Reservation
from aiokprod._core.bulk_tracker import BulkTracker
from aiokprod.errors import (
    BrokerError,
    BufferTimeout,
    ConfigError,
    InvalidTopic,
    KafkaError,
    MetadataTimeout,
    Outcome,
    SerializationError,
)
from aiokprod.records import ProducerRecord, validate_partition, validate_topic
from aiokprod.serializers import WrongType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from aiokprod._client.runtime import Runtime
    from aiokprod._client.slow_path import SlowPath
    from aiokprod._core.append import TopicSlot
    from aiokprod._core.batch import Delivery
    from aiokprod.records import Header


class BulkSender:
    """One `send_many` call.

    A record that cannot be admitted gets its error in the result, also if there is no memory for
    it; only an error that ends the producer ends the call, and an error in the program: that of the
    first record is raised if all records have a wrong type. What one record has waited for in vain
    no later one waits for: a topic as long as the metadata lack it, room until one got in again.

    Attributes:
        tracker: the records that are in batches.
        refused: errors of those that got into none, by position in the call.
        interrupted: why the rest was not looked at; None if all were.
    """

    def __init__(
        self,
        runtime: Runtime,
        slow_path: SlowPath,
        check: Callable[[], None],
        max_block: float,
    ) -> None:
        self._runtime = runtime
        self._slow_path = slow_path
        self._check = check
        self._max_block = max_block
        self.tracker = BulkTracker()
        self.refused: dict[int, KafkaError] = {}
        self.interrupted: KafkaError | None = None
        self._wrong_types = 0  # records refused for that
        self._no_room_since = -1  # so many were admitted when one waited for room in vain
        self._missing: dict[str, tuple[int | None, KafkaError]] = {}

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
        end = len(columns.values)
        with self.awaiting():
            try:
                while self._position < end:
                    await self._advance(topic, partition, columns)
                    if self._wrong_types == self._position == 1 and self._all_like_first(columns):
                        break
            except KafkaError as error:
                self._refuse(range(self._position, end), error)
            return await self._finish()

    def _all_like_first(self, columns: Columns) -> bool:
        """The first record has a wrong type, and so have all others: each need not be tried. Types
        alone decide that only without serializers, which may look at contents."""
        keys = columns.keys or ()
        return (
            self._slow_path.plain
            and len(set(map(type, columns.values))) == 1
            and len(set(map(type, keys))) <= 1
        )

    @contextlib.contextmanager
    def awaiting(self) -> Iterator[None]:
        """The caller gets a result: until then, failures of its records are not logged."""
        try:
            yield
        except BaseException:
            self.tracker.abandon()
            raise

    @property
    def _position(self) -> int:
        """How many records have been admitted or refused so far."""
        return self.tracker.count + len(self.refused)

    async def _advance(self, topic: str, partition: int | None, columns: Columns) -> None:
        """Admit as many records as go at once, or one by the slow path."""
        self._check()
        i = self._position
        appender = self._runtime.appender
        slot = self._slot(topic, partition)
        if slot is not None:
            with contextlib.suppress(MemoryError):  # the slow path tells what becomes of its record
                appender.append_column(
                    self.tracker, slot, columns.values, columns.keys, columns.timestamps,
                    columns.headers, -1 if partition is None else partition, i,
                )  # fmt: skip
        if self._position > i and self._runtime.yield_queue.slice_is_over():
            await asyncio.sleep(0)
        elif self._position < len(columns.values):
            i = self._position
            value, key, timestamp, row_headers = columns.row(i)
            await self._one(i, (topic, value, key, partition, timestamp, row_headers))

    def _refuse(self, positions: Iterable[int], error: KafkaError) -> None:
        """The producer ended: what it has not taken fails with `error`; if it took nothing at all
        there is no result to give."""
        if not self._position:
            raise error
        not_sent = error.with_(outcome=Outcome.NOT_SENT)
        self.refused.update(dict.fromkeys(positions, not_sent))

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
        numbered = self._numbered(records)
        with self.awaiting():
            for number, record in numbered:
                try:
                    await self._record(number, record)
                except KafkaError as error:
                    self._refuse((number, *(later for later, _ in numbered)), error)
            return await self._finish()

    def _numbered(self, records: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """The caller's records, until they end or break off."""
        try:
            yield from enumerate(records)
        except Exception as error:
            if not self._position:
                raise
            self._break_off(unreadable("iterable of records", "record", self._position, error))

    def _break_off(self, error: KafkaError) -> None:
        """What is to be sent cannot be read on, but the outcomes of what was handed over must not
        be lost."""
        self.interrupted = error
        self._runtime.state.gate.on_refused(error)  # a transaction must know what it lacks

    async def _record(self, number: int, record: Any) -> None:
        if not isinstance(record, ProducerRecord):
            self.refused[number] = ConfigError(
                f"send_many: entry {number} is {type(record).__name__}, not ProducerRecord"
            )
            self._wrong_types += 1
            if not number & 255:
                await asyncio.sleep(0)
            return
        self._check()
        appender = self._runtime.appender
        fields = (
            record.topic, record.value, record.key, record.partition, record.timestamp_ms,
            record.headers or None,
        )  # fmt: skip
        before = self.tracker.count
        with contextlib.suppress(MemoryError):
            appender.try_append_noted(self.tracker, *fields)
        if self.tracker.count == before:
            await self._one(number, fields)
            return
        if not number & 255 and self._runtime.yield_queue.slice_is_over():
            await asyncio.sleep(0)

    async def _one(self, position: int, fields: tuple[Any, ...]) -> None:
        """Admit one record by the slow path; its refusal is its own."""
        runtime = self._runtime
        reservation = Reservation(runtime.memory)
        try:
            record = checked_record(*fields)
            known = self._known_missing(record.topic, record.partition)
            if known is not None:
                self._slow_path.refuse(record, known)
                raise known
            deadline = self._deadline(record.topic, record.partition)
            delivery = await self._slow_path.admit(record, deadline, reservation)
        except KafkaError as error:
            self.refused[position] = error
            self._wrong_types += isinstance(error.__cause__, WrongType)
            if isinstance(error, BufferTimeout):
                self._no_room_since = self.tracker.count
            # Any other, such as that of a bad timestamp, tells nothing of the topic.
            elif isinstance(error, (MetadataTimeout, BrokerError)):
                topic, partition = fields[0], fields[3]
                if topic not in self._missing and self._lacks(topic, partition):
                    self._missing[topic] = partition, error
        except Exception as error:
            sent = reservation.delivery is not None and not reservation.delivery.withdrawn
            own = KafkaError(
                f"record {position} could not be prepared: {type(error).__name__}",
                outcome=Outcome.UNKNOWN if sent else Outcome.NOT_SENT,
            )
            own.__cause__ = error
            self.refused[position] = own
        else:
            self._note(position, delivery)
        if runtime.yield_queue.slice_is_over():
            await asyncio.sleep(0)

    def _note(self, position: int, delivery: Delivery) -> None:
        before = self.tracker.count
        try:
            self.tracker.add_delivery(delivery)
        except MemoryError as error:
            if self.tracker.count > before:
                return  # raised by a signal handler, after the record was noted
            own = KafkaError(
                f"record {position} was handed over, but there was no memory to note where",
                outcome=Outcome.UNKNOWN,
            )
            own.__cause__ = error
            self.refused[position] = own

    def _deadline(self, topic: str, partition: int | None) -> float:
        """Until when a record may wait: not at all for room that the last one waited for in vain,
        or a call of many records would take max_block_ms for each."""
        now = self._runtime.loop.time()
        if self._no_room_since == self.tracker.count and not self._lacks(topic, partition):
            return now
        return now + self._max_block

    def _lacks(self, topic: str, partition: int | None) -> bool:
        try:
            return self._runtime.metadata.lookup(topic, partition) is None
        except InvalidTopic:
            return True

    def _known_missing(self, topic: str, partition: int | None) -> KafkaError | None:
        """The error of a record whose topic or partition an earlier one has waited for in vain: a
        column of wrong ones must not cost max_block_ms each. Nor must a wrong password cost every
        record a refusal, once all brokers have refused us for long."""
        runtime = self._runtime
        shut_out = runtime.shut_out()
        if (shut_out is None and topic not in self._missing) or not self._lacks(topic, partition):
            return None
        if shut_out is not None:
            # Or nobody would notice that they let us in again.
            runtime.metadata.request_topic(topic, runtime.loop.time())
            return shut_out.copy(topic=topic, partition=partition)
        waited_for, error = self._missing[topic]
        if waited_for == partition or isinstance(error, BrokerError):
            return error.copy(topic=topic, partition=partition)
        return MetadataTimeout(
            f"topic {topic} has no partition {partition} by its metadata, for which an earlier "
            "record of this call has waited",
            outcome=Outcome.NOT_SENT,
        ).with_(topic=topic, partition=partition)

    async def _finish(self) -> BulkResult:
        await wait_settled(self.tracker.cores)
        self._tell_refused()
        if self.refused and self._wrong_types == self._position and self.interrupted is None:
            raise next(iter(self.refused.values()))
        return BulkResult(
            self.tracker, self.refused, self.interrupted, self._runtime.on_unretrieved_bulk
        )

    def _tell_refused(self) -> None:
        """A transaction must know what it lacks."""
        for error in self.refused.values():
            self._runtime.state.gate.on_refused(error, raised=False)
            break


def unreadable(what: str, one: str, position: int, error: Exception) -> KafkaError:
    """The error of something that broke off while it was read, after `position` of its parts."""
    broken = SerializationError(
        f"the {what} could not be read on after {one} {position} "
        f"({type(error).__name__}, chained); the {one}s before were handed over",
        outcome=Outcome.NOT_SENT,
    )
    broken.__cause__ = error
    return broken
