"""`send_many`: appends records as fast as memory allows, and yields to the event loop."""

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

    If a record cannot be appended, for example because there is no memory, its error is in the
    result. The call itself raises only if the producer ends, or if all records have a wrong type,
    which is a programming error. After a wait that timed out, later records do not wait for the
    same thing: for a topic until it is in the metadata, for memory until a record was appended.

    Attributes:
        tracker: the records that are in batches.
        refused: errors of the others, by position in the call.
        interrupted: why the remaining records were not read; None if all were.
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
        self._wrong_types = 0  # number of records with a wrong type
        self._no_room_since = -1  # number of appended records when a wait for memory timed out
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
        """True if all records have the same type as the first one, which was rejected. Never true
        with serializers, because they may accept other values of that type."""
        keys = columns.keys or ()
        return (
            self._slow_path.plain
            and len(set(map(type, columns.values))) == 1
            and len(set(map(type, keys))) <= 1
        )

    @contextlib.contextmanager
    def awaiting(self) -> Iterator[None]:
        """Failures of the records are not logged within: the caller gets them in the result."""
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
        """Append as many records as possible without waiting, or one by the slow path."""
        self._check()
        i = self._position
        appender = self._runtime.appender
        slot = self._slot(topic, partition)
        if slot is not None:
            with contextlib.suppress(MemoryError):  # the slow path reports the outcome
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
        """The producer ended: the remaining records fail with `error`, which is raised if there are
        no others."""
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
        """The caller's records, until their iterator ends or raises."""
        try:
            yield from enumerate(records)
        except Exception as error:
            if not self._position:
                raise
            self._break_off(unreadable("iterable of records", "record", self._position, error))

    def _break_off(self, error: KafkaError) -> None:
        """The records cannot be read to the end; the result has the outcomes of those before."""
        self.interrupted = error
        self._runtime.state.gate.on_refused(error)  # an open transaction can only be aborted

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
        """Append one record by the slow path. Its error does not end the call."""
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
            # Other errors, such as that of an invalid timestamp, say nothing about the topic.
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
                f"record {position} was appended, but there was no memory to record its position",
                outcome=Outcome.UNKNOWN,
            )
            own.__cause__ = error
            self.refused[position] = own

    def _deadline(self, topic: str, partition: int | None) -> float:
        """Deadline of a record's waits. If the last wait for memory timed out, it is now: otherwise
        a call with many records would take max_block_ms for each."""
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
        """The error of a record whose topic or partition an earlier record has waited for until a
        timeout, or which no broker can take because all refuse the credentials: otherwise each
        record would take max_block_ms."""
        runtime = self._runtime
        shut_out = runtime.shut_out()
        if (shut_out is None and topic not in self._missing) or not self._lacks(topic, partition):
            return None
        if shut_out is not None:
            # Otherwise no request would find out that the credentials are accepted again.
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
        """Report the first failed record to an open transaction, which can then only be aborted."""
        for error in self.refused.values():
            self._runtime.state.gate.on_refused(error, raised=False)
            break


def unreadable(what: str, one: str, position: int, error: Exception) -> KafkaError:
    """The error of a table or iterable that raised after `position` rows or records."""
    broken = SerializationError(
        f"reading the {what} failed after {one} {position} "
        f"({type(error).__name__}, chained); earlier {one}s were submitted",
        outcome=Outcome.NOT_SENT,
    )
    broken.__cause__ = error
    return broken
