"""`send_many`: appends records as fast as memory allows, and regularly yields to the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from aiokprod._client.bulk_result import BulkResult, Columns, wait_settled
from aiokprod._client.record_serializers import close_coroutines
from aiokprod._client.validation import checked_record
from aiokprod._core.batch import Delivery
from aiokprod._core.bulk_append import RecordSource, append_column, append_objects, append_records
from aiokprod._core.bulk_tracker import BulkTracker
from aiokprod._core.memory import Reservation
from aiokprod.errors import (
    BrokerError,
    BufferTimeout,
    ConfigError,
    InvalidTopic,
    KafkaError,
    MetadataTimeout,
    Outcome,
    SerializationError,
    UnknownTopic,
)
from aiokprod.records import ProducerRecord, validate_partition, validate_topic
from aiokprod.serializers import WrongType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from aiokprod._client.bulk_result import BulkProgress
    from aiokprod._client.runtime import Runtime
    from aiokprod._client.slow_path import SlowPath
    from aiokprod._core.serialization import SerializedRecord
    from aiokprod._core.slots import TopicSlot
    from aiokprod.records import Header


class BulkSender:
    """One `send_many` call.

    If a record cannot be appended, for example for lack of memory, its error is in the result. The
    call itself raises only if the producer ends, or if all records have a wrong type, which is a
    programming error. After a wait has timed out, later records do not wait for the same reason.
    They wait for a topic again once it is in the metadata, and for memory once a record was
    appended. If another transaction begins during the call, the remaining records fail.

    Attributes:
        tracker: the records that are in batches.
        refused: errors of the records that were not appended, by position in the call.
        interrupted: the error that ended the reading of the records early, or None.
        is_running: True until the call has ended.
        raised: True if the call has ended with an exception.
        on_read: called once all records have been appended or refused.
    """

    def __init__(
        self,
        runtime: Runtime,
        slow_path: SlowPath,
        check: Callable[[], None],
        max_block: float,
        progress: BulkProgress | None = None,
    ) -> None:
        self._runtime = runtime
        self._slow_path = slow_path
        self._check_running = check
        self._transaction = runtime.state.gate.transaction
        self._max_block = max_block
        self._progress = progress  # None once the call has begun
        self.tracker = BulkTracker()
        self.refused: dict[int, KafkaError] = {}
        self.interrupted: KafkaError | None = None
        self.is_running = True
        self.raised = False
        self.on_read: Callable[[], object] | None = None
        self._is_read = False  # all records were appended or refused
        self._wrong_types = 0  # number of records with a wrong type
        self._no_room_since = -1  # number of appended records at the last timeout for memory
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
        """Send columns of records to one topic; see `Producer.send_many`."""
        validate_topic(topic)
        if partition is not None:
            validate_partition(partition)
        columns = Columns(values, keys, timestamps_ms, headers)
        end = len(columns.values)
        with self.awaiting():
            try:
                while self.position < end:
                    await self._advance(topic, partition, columns)
                    if self._wrong_types == self.position == 1 and self._all_like_first(columns):
                        break
            except KafkaError as error:
                self._fail_rest(range(self.position, end), error)
            return await self._finish()

    def _check(self) -> None:
        self._check_running()
        self._runtime.state.gate.check_same(self._transaction)

    def _all_like_first(self, columns: Columns) -> bool:
        """Return True if all records have the same type as the first record, which was rejected.
        Always False with serializers, because they may accept other values of that type."""
        keys = columns.keys or ()
        return (
            self._slow_path.plain
            and len(set(map(type, columns.values))) == 1
            and len(set(map(type, keys))) <= 1
        )

    @contextlib.contextmanager
    def awaiting(self) -> Iterator[None]:
        """Context of the running call. Failures of records are not logged in it, because the caller
        gets them from the result or, if the call raises, from its `BulkProgress`."""
        progress, self._progress = self._progress, None
        if progress is not None:
            progress.begin(self)
        try:
            yield
        except BaseException as error:
            self.raised = True
            if progress is None:
                self.tracker.abandon()
            elif not self._is_read and self.interrupted is None:
                self.interrupted = KafkaError(
                    f"the call ended after record {self.position} ({type(error).__name__}); "
                    "later records were not sent",
                    outcome=Outcome.NOT_SENT,
                )
            raise
        finally:
            self.is_running = False

    def abandon(self) -> None:
        """Log the failures of a call that has raised, because its caller will not retrieve them.
        Known failures are logged now, later failures when they occur."""
        # Deleting an unread result reports the known failures.
        BulkResult(self.tracker, self.refused, None, self._runtime.on_unretrieved_bulk)
        self.tracker.abandon()

    @property
    def position(self) -> int:
        """Number of records that have been appended or refused so far."""
        return self.tracker.count + len(self.refused)

    async def _advance(self, topic: str, partition: int | None, columns: Columns) -> None:
        """Append as many records as possible without waiting, or one record by the slow path."""
        self._check()
        i = self.position
        appender = self._runtime.appender
        slot = self._slot(topic, partition)
        result = None
        if slot is not None:
            with contextlib.suppress(MemoryError):  # the slow path retries and reports the error
                if appender.calls_user:
                    result = append_objects(
                        appender, self.tracker, slot, columns.values, columns.keys,
                        columns.timestamps, columns.headers, partition, i,
                    )  # fmt: skip
                else:
                    append_column(
                        appender, self.tracker, slot, columns.values, columns.keys,
                        columns.timestamps, columns.headers,
                        -1 if partition is None else partition, i,
                    )  # fmt: skip
        # If user code was already called for this record, append it without suspending: the results
        # are not kept.
        if result is None and self.position > i and self._runtime.yield_queue.slice_is_over():
            await asyncio.sleep(0)
        elif self.position < len(columns.values):
            i = self.position
            value, key, timestamp, row_headers = columns.row(i)
            await self._one(i, (topic, value, key, partition, timestamp, row_headers), result)

    def _fail_rest(self, positions: Iterable[int], error: KafkaError) -> None:
        """Refuse the remaining records with `error`, because the producer or the transaction ended.
        If no record was processed yet, raise `error`."""
        if not self.position:
            raise error
        not_sent = error.with_(outcome=Outcome.NOT_SENT)
        self.refused.update(dict.fromkeys(positions, not_sent))

    def _slot(self, topic: str, partition: int | None) -> TopicSlot | None:
        """Return the topic's slot if the compiled path may be used, otherwise None."""
        appender = self._runtime.appender
        if not appender.enabled:
            return None
        slot = appender.topics.get(topic)
        if slot is None or (partition is not None and partition >= len(slot.slots)):
            return None
        return slot

    async def send_records(self, records: Iterable[Any]) -> BulkResult:
        """Send records to any topics; see `Producer.send_many`."""
        if not hasattr(records, "__iter__") or isinstance(records, (bytes, bytearray, memoryview)):
            raise ConfigError(
                "send_many takes an iterable of ProducerRecord, or a topic and columns; not "
                f"{type(records).__name__}"
            )
        with self.awaiting():
            source = RecordSource(iter(records), ProducerRecord)
            try:
                while not source.ended:
                    await self._advance_records(source)
            except KafkaError as error:
                self._fail_rest(self._positions_left(source), error)
            if source.failure is not None:
                self._on_unreadable(source.failure)
            return await self._finish()

    async def _advance_records(self, source: RecordSource) -> None:
        """Append as many records as possible without waiting, then one record by the slow path."""
        self._check()
        result = None
        with contextlib.suppress(MemoryError):  # the slow path retries and reports the error
            result = append_records(self._runtime.appender, self.tracker, source)
        if source.has_record:
            await self._record(self.position, source.take(), result)
        elif self._runtime.yield_queue.slice_is_over():
            await asyncio.sleep(0)

    def _positions_left(self, source: RecordSource) -> Iterator[int]:
        """Yield the positions of the records not read yet, until their iterator ends or raises."""
        try:
            for position, _ in enumerate(source.iterator, self.position):
                yield position
        except Exception as error:
            self._on_unreadable(error)

    def _on_unreadable(self, error: Exception) -> None:
        """Handle an exception raised by the caller's iterator. Raise it if no record was processed
        yet."""
        if not self.position:
            raise error
        self._break_off(unreadable("iterable of records", "record", self.position, error))

    def _break_off(self, error: KafkaError) -> None:
        """Stop reading records. The result contains the outcomes of the records before the
        failure."""
        self.interrupted = error
        # Report the error to an open transaction, which can then only be aborted.
        self._runtime.state.gate.on_refused(error, transaction=self._transaction)

    async def _record(
        self, number: int, record: Any, result: Delivery | SerializedRecord | None
    ) -> None:
        """Append or refuse a record that the compiled path has not appended."""
        if isinstance(record, ProducerRecord):
            fields = (
                record.topic, record.value, record.key, record.partition, record.timestamp_ms,
                record.headers or None,
            )  # fmt: skip
            await self._one(number, fields, result)
            return
        self.refused[number] = ConfigError(
            f"send_many: entry {number} is {type(record).__name__}, not ProducerRecord"
        )
        self._wrong_types += 1
        if self._runtime.yield_queue.slice_is_over():
            await asyncio.sleep(0)

    async def _one(
        self,
        position: int,
        fields: tuple[Any, ...],
        result: Delivery | SerializedRecord | None = None,
    ) -> None:
        """Append one record by the slow path, unless the fast path has appended it and `result` is
        its `Delivery`. An error of the record does not end the call."""
        if isinstance(result, Delivery):
            self._note(position, result)
            return
        try:
            await self._append_slowly(position, fields, result)
        finally:
            close_coroutines(result)
        if self._runtime.yield_queue.slice_is_over():
            await asyncio.sleep(0)

    async def _append_slowly(
        self, position: int, fields: tuple[Any, ...], serialized: SerializedRecord | None
    ) -> None:
        reservation = Reservation(self._runtime.memory)
        try:
            await self._append_reserved(position, fields, serialized, reservation)
        except BaseException:
            # The record may have been appended before a signal handler raised.
            delivery = reservation.delivery
            if delivery is not None and not delivery.withdrawn and self.position == position:
                self._note(position, delivery)
            raise

    async def _append_reserved(
        self,
        position: int,
        fields: tuple[Any, ...],
        serialized: SerializedRecord | None,
        reservation: Reservation,
    ) -> None:
        try:
            record = checked_record(*fields)
            known = self._known_missing(record.topic, record.partition)
            if known is not None:
                self._slow_path.refuse(record, known, serialized)
                raise known
            deadline = self._deadline(record.topic, record.partition)
            delivery = await self._slow_path.append(record, deadline, reservation, serialized)
        except KafkaError as error:
            self.refused[position] = error
            self._wrong_types += isinstance(error.__cause__, WrongType)
            if isinstance(error, BufferTimeout):
                self._no_room_since = self.tracker.count
            # These errors concern the topic. All others, such as an invalid timestamp, concern only
            # the record.
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

    def _note(self, position: int, delivery: Delivery) -> None:
        before = self.tracker.count
        try:
            self.tracker.add_delivery(delivery)
        except MemoryError as error:
            if self.tracker.count > before:
                return  # a signal handler raised the error after the record was added
            own = KafkaError(
                f"record {position} was appended, but there was no memory to record its position",
                outcome=Outcome.UNKNOWN,
            )
            own.__cause__ = error
            self.refused[position] = own

    def _deadline(self, topic: str, partition: int | None) -> float:
        """Return the deadline for the waits of a record. If a wait for memory timed out and no
        record was appended since, this is the current time. Otherwise a call with many records
        would wait max_block_ms for each."""
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
        """Return an error for a record that must not wait for metadata, otherwise None.

        A record must not wait if an earlier record has waited for the same topic or partition until
        the timeout, or if all brokers reject the credentials. Otherwise each record would take
        max_block_ms.
        """
        runtime = self._runtime
        shut_out = runtime.shut_out()
        if (shut_out is None and topic not in self._missing) or not self._lacks(topic, partition):
            return None
        if shut_out is not None:
            # Request the topic although the record fails. Without requests, the client would not
            # learn that the brokers accept the credentials again.
            runtime.metadata.request_topic(topic, runtime.loop.time())
            return shut_out.copy(topic=topic, partition=partition)
        waited_for, error = self._missing[topic]
        one_partition = isinstance(error, (MetadataTimeout, UnknownTopic))
        if waited_for == partition or not one_partition:
            return error.copy(topic=topic, partition=partition)
        return (UnknownTopic if isinstance(error, UnknownTopic) else MetadataTimeout)(
            f"the metadata of topic {topic} has no partition {partition}; an earlier record of "
            "this call has already waited for the metadata",
            outcome=Outcome.NOT_SENT,
        ).with_(topic=topic, partition=partition)

    async def _finish(self) -> BulkResult:
        self._is_read = True
        # Report refused records before the wait, so that another task cannot commit the transaction
        # without them.
        self.tell_refused()
        if self.on_read is not None:
            self.on_read()
        await self.wait_settled()
        if self.refused and self._wrong_types == self.position and self.interrupted is None:
            raise next(iter(self.refused.values()))
        return self.result()

    async def wait_settled(self) -> None:
        """Wait until every batch with records of the call has an outcome."""
        await wait_settled(self.tracker.cores)

    def result(self) -> BulkResult:
        """Return the outcomes of the records that were appended or refused."""
        return BulkResult(
            self.tracker, self.refused, self.interrupted, self._runtime.on_unretrieved_bulk
        )

    def tell_refused(self) -> None:
        """Report the first refused record to an open transaction, which must then be aborted."""
        for error in self.refused.values():
            self._runtime.state.gate.on_refused(error, raised=False, transaction=self._transaction)
            break


def unreadable(what: str, one: str, position: int, error: Exception) -> KafkaError:
    """Return the error for a table or iterable that raised after `position` rows or records."""
    broken = SerializationError(
        f"reading the {what} failed after {one} {position} "
        f"({type(error).__name__}, chained); earlier {one}s were submitted",
        outcome=Outcome.NOT_SENT,
    )
    broken.__cause__ = error
    return broken
