"""The queue for records of other threads, which the event loop appends in groups.

All records that arrive before the loop runs need only one `call_soon_threadsafe`, which writes to a
pipe. Records of a thread to one topic keep their order. A record that waits for metadata or memory
delays only later records to its topic.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from aiokprod._client.record_future import Fields, RecordFuture, RecordLink, size_of
from aiokprod._client.thread_waits import ThreadWaits
from aiokprod._client.unread_failures import UnreadFailures
from aiokprod._core.batch import Delivery
from aiokprod.errors import (
    BufferFull,
    BufferTimeout,
    ForkedProcess,
    KafkaError,
    Outcome,
    ProducerClosed,
    TransactionError,
    WrongLoop,
)
from aiokprod.records import validate_topic

if TYPE_CHECKING:
    from aiokprod._client.drain import Drain
    from aiokprod._client.record_submitter import RecordSubmitter
    from aiokprod._client.runtime import Runtime
    from aiokprod._core.serialization import SerializedRecord

GROUP: Final = 256
"""Maximum number of records that are appended before other callbacks of the loop run."""

BUSY: Final = 20_000
"""Records per second above which the loop pauses before it takes more records. Without the pause it
would compete with the callers for the interpreter and send small batches."""

PAUSE: Final = 0.002
"""Length of this pause in seconds."""

MAX_RECORDS: Final = 10_000
MAX_BYTES: Final = 8 * 1024 * 1024
"""Limits of the queue. If it is full, callers wait in `put`. An empty queue accepts any record."""

_CLOSED: Final = "the producer was closed before the record was in a batch; it was not sent"

_CANCELLED: Final = "the send was cancelled before the record left"

_ABORTED: Final = "the transaction was aborted before the record was in a batch; it was not sent"

_Waiting = tuple[RecordFuture, "SerializedRecord | None", float]
"""A waiting record, its result from the fast path, and the deadline of its wait (loop time)."""


class _TopicQueue(NamedTuple):
    """The waiting records of a topic, in order, and the task that appends them.

    `records` also contains futures of `flush`. Each is completed after the records before it were
    processed.
    """

    records: deque[_Waiting | asyncio.Future[None]]
    task: asyncio.Task[None]


class ThreadQueue:
    """Accepts records of other threads for one producer.

    Args:
        submitter: appends the records that have to wait.
        max_block: maximum wait in seconds, of a record for metadata and memory, and of a caller for
            room in the queue.

    Attributes:
        loop, thread: the event loop of the producer, and the identifier of its thread.
        forked: True in a child process of the process that runs the loop.
        outcomes: lock for the states of all futures of the queue.
    """

    def __init__(self, runtime: Runtime, submitter: RecordSubmitter, max_block: float) -> None:
        self.loop = runtime.loop
        self.thread = threading.get_ident()
        self.forked = False
        # The locks are reentrant, because a signal handler that interrupts the main thread may send
        # records too. The loop never takes a lock that a caller holds while it calls other
        # functions: a signal handler that interrupts such a call may wait for the loop, and both
        # would wait forever.
        self.outcomes = threading.RLock()
        self._lock = threading.RLock()
        self._room = ThreadWaits()
        self._runtime = runtime
        self._appender = runtime.appender
        self._submitter = submitter
        self._max_block = max_block
        self._records: deque[RecordFuture] = deque()
        self._is_scheduled = False
        self._last_take = 0.0
        self._taken = 0  # number of records that were taken from `_records`
        self._topic_queues: dict[str, _TopicQueue] = {}
        self._parked = 0  # number of records in `_topic_queues`
        # Callers and the loop each change only one of these counters. Their difference is the
        # number of bytes in the queue.
        self._bytes_in = 0
        self._bytes_out = 0
        self._refusal: KafkaError | None = None
        self._idle: asyncio.Future[None] | None = None
        self._drain: Drain | None = None
        self._unread = UnreadFailures(self.loop, runtime.observer, runtime.client_id)
        self.on_unretrieved = self._unread.add
        self._reason: KafkaError = ProducerClosed(_CLOSED, outcome=Outcome.NOT_SENT)
        runtime.on_failure = self._on_failure

    # -- in any thread --------------------------------------------------------------------------

    def put(self, *fields: *Fields) -> RecordFuture:
        """Queue a record; see `Producer.send_threadsafe`."""
        validate_topic(fields[0])
        size = size_of(fields[1]) + size_of(fields[2])
        context = contextvars.copy_context() if self._appender.calls_user else None
        record = RecordFuture(self, fields, size, context)
        try:
            if not self._accepts(record):
                self._wait_for_room(record)
            is_refused = self._refusal is not None and self._take_back(record)
            self._wake()  # even after a refusal, because `finish` may wait for an empty queue
            if is_refused:
                assert self._refusal is not None
                raise self._refusal.copy()
        except Exception:
            raise
        except BaseException:  # KeyboardInterrupt: the caller does not get the future
            record.cancel()
            self._is_scheduled = False  # `_wake` may have set it without scheduling `_take`
            self._wake()
            raise
        return record

    def _accepts(self, record: RecordFuture) -> bool:
        """Append the record to the queue and return True if there is room.

        Another thread may append between the check and the append, so the queue may exceed its
        limits by one record per thread. A lock around both steps could be held when the interpreter
        switches threads. Every later record of every thread would then wait for a thread switch.
        """
        if self._refusal is not None or not self._has_room(record.size):
            return False
        self._records.append(record)
        with self._lock:
            self._bytes_in += record.size
        return True

    def _take_back(self, record: RecordFuture) -> bool:
        """Remove a record that was added after the queue was closed. Return False if the loop has
        already taken the record."""
        try:
            self._records.remove(record)
        except ValueError:
            return False
        self._bytes_in -= record.size
        return True

    def _wake(self) -> None:
        """Schedule `_take` on the loop, unless it is already scheduled."""
        if self._is_scheduled and not self.loop.is_closed():
            return
        self._is_scheduled = True
        try:
            self.loop.call_soon_threadsafe(self._take)
        except RuntimeError:
            self._on_loop_closed()

    def _has_room(self, size: int) -> bool:
        records = len(self._records) + self._parked
        used = self._bytes_in - self._bytes_out
        return records == 0 or (records < MAX_RECORDS and used + size <= MAX_BYTES)

    def _wait_for_room(self, record: RecordFuture) -> None:
        """Wait until there is room, and append the record to the queue."""
        topic = record.topic
        if threading.get_ident() == self.thread and self._refusal is None:
            raise BufferFull(
                f"{topic}: the queue for records of other threads is full; the producer's event "
                "loop cannot wait for itself, use `await producer.send(...)`"
            )
        accepted = False

        def ended() -> bool:
            nonlocal accepted
            accepted = self._accepts(record)
            return accepted or self._refusal is not None

        self._room.wait(ended, self._max_block)
        if accepted:
            return
        if self._refusal is not None:
            raise self._refusal.copy()
        raise BufferTimeout(
            f"{topic}: the queue for records of other threads was full for "
            f"{self._max_block} s (max_block_ms)"
        )

    def _on_loop_closed(self) -> None:
        """Fail all queued and later records, because the loop was closed before the producer."""
        error = ProducerClosed("the event loop of the producer is closed")
        self._refusal = error.with_(outcome=Outcome.NOT_SENT)
        self._room.wake()
        with contextlib.suppress(IndexError):  # empty: another thread may have taken the last one
            while True:
                self._records.popleft().fail(self._refusal.copy())

    def after_fork(self) -> None:
        """Replace the lock in the child process, because another thread may have held it."""
        self.forked = self._unread.forked = True
        self.outcomes = threading.RLock()

    def check_waiting(self, record: RecordFuture) -> None:
        """Raise if a wait for the record in this thread would never end. If the loop is closed,
        fail the record instead."""
        if self.forked:
            raise ForkedProcess(
                "the record was sent before the process forked; its outcome is known in the parent"
            )
        if self.loop.is_closed():
            self._on_loop_closed()
            record.fail(
                ProducerClosed(
                    "the event loop of the producer was closed before the record had an outcome",
                    outcome=Outcome.UNKNOWN,
                )
            )
        elif threading.get_ident() == self.thread:
            raise WrongLoop(
                "waiting for a record on the producer's event loop would block that loop: use "
                "`await producer.send(...)`, or asyncio.wrap_future"
            )

    # -- on the loop ----------------------------------------------------------------------------

    def _take(self) -> None:
        """Append queued records, at most `GROUP`, and schedule the next call if more are queued."""
        now = self.loop.time()
        busy = len(self._records) > BUSY * (now - self._last_take)
        self._last_take = now
        if not busy:
            # Reset this first. A record that arrives later is then taken by this call, or schedules
            # another one.
            self._is_scheduled = False
        try:
            for _ in range(min(GROUP, len(self._records))):
                record = self._next()
                if record is None:
                    break
                self._append(record)
        finally:
            if busy and len(self._records) < GROUP:
                self.loop.call_later(PAUSE, self._take)
            elif self._records and not self._is_scheduled:
                self._is_scheduled = True
                self.loop.call_soon(self._take)
            elif busy:
                self.loop.call_soon(self._take)
            self._make_room()

    def _next(self) -> RecordFuture | None:
        """Remove and return the first queued record, or None if the queue is empty. Other threads
        may take records back at any time."""
        try:
            record = self._records.popleft()
        except IndexError:
            return None
        self._taken += 1
        return record

    def _append(self, record: RecordFuture) -> None:
        """Append a record, or add it to the queue of its topic if it has to wait."""
        if record.topic in self._topic_queues:
            self._park(record, None)
            return
        has_ended = True
        try:
            has_ended, serialized = self._try_append(record)
        finally:
            if has_ended:
                self._bytes_out += record.size
        if not has_ended:
            self._park(record, serialized)

    def _try_append(self, record: RecordFuture) -> tuple[bool, SerializedRecord | None]:
        """Try to append a record on the fast path.

        Returns:
            (True, None) if the record is in a batch, has failed or was cancelled; otherwise False
            and the result of the fast path.
        """
        if record.done():
            self._count_refused(record, KafkaError(_CANCELLED, outcome=Outcome.NOT_SENT))
            record.end_cancelled()
            return True, None
        try:
            if record.context is None:
                result = self._appender.try_append(*record.fields, record.settle)
            else:
                result = record.context.run(
                    self._appender.try_append, *record.fields, record.settle
                )
        except BaseException as error:
            self._fail(record, error)
            if not isinstance(error, Exception):
                raise
            return True, None
        if isinstance(result, Delivery):
            self._on_appended(record, result)
            return True, None
        return False, result

    def _on_appended(self, record: RecordFuture, delivery: Delivery) -> None:
        record.appended(delivery)
        if self._drain is not None:
            self._drain.follow(delivery.core)

    def _fail(self, record: RecordFuture, error: BaseException) -> None:
        """Fail a record that is not in a batch. An open transaction can then only be aborted."""
        outcome = Outcome.NOT_SENT
        if isinstance(error, KafkaError):
            outcome = error.outcome
            self._runtime.state.gate.on_refused(error.copy(), raised=False)
        if self._drain is not None:
            self._drain.failed(record.topic, outcome)
        record.fail(error)

    def _make_room(self) -> None:
        if self._room:
            self._room.wake()
        if self._idle is not None and self.is_empty and not self._idle.done():
            self._idle.set_result(None)

    def _park(self, record: RecordFuture, serialized: SerializedRecord | None) -> None:
        topic = record.topic
        topic_queue = self._topic_queues.get(topic)
        if topic_queue is None:
            records: deque[_Waiting | asyncio.Future[None]] = deque()
            task = self.loop.create_task(
                self._append_waiting(topic, records), name="aiokprod-records-of-threads"
            )
            topic_queue = self._topic_queues[topic] = _TopicQueue(records, task)
            task.add_done_callback(partial(self._on_topic_queue_ended, topic))
        topic_queue.records.append((record, serialized, self.loop.time() + self._max_block))
        self._parked += 1

    async def _append_waiting(
        self, topic: str, records: deque[_Waiting | asyncio.Future[None]]
    ) -> None:
        """Append the waiting records of a topic one after another, until none is left."""
        while records:
            waiting = records.popleft()
            if isinstance(waiting, asyncio.Future):
                if not waiting.done():
                    waiting.set_result(None)
                continue
            record, serialized, deadline = waiting
            try:
                has_ended = False
                if serialized is None:
                    has_ended, serialized = self._try_append(record)
                if not has_ended:
                    await self._append_later(record, serialized, deadline)
                elif len(records) % GROUP == 0:
                    await asyncio.sleep(0)
            finally:
                self._parked -= 1
                self._bytes_out += record.size
                self._make_room()
        del self._topic_queues[topic]  # still empty: there was no await since the loop condition
        self._make_room()

    async def _append_later(
        self, record: RecordFuture, serialized: SerializedRecord | None, deadline: float
    ) -> None:
        block = max(0.0, deadline - self.loop.time())
        link = RecordLink(record)
        task = self.loop.create_task(
            # An abort fails the records that wait, and a commit waits for those sent before it.
            self._submitter.append(
                *record.fields, serialized, link.settle, block=block, any_transaction=True
            ),
            context=record.context,
        )
        record.waits(task)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            if task.done():  # the record may be in a batch
                self._end_waiting(record, link, task)
            else:
                task.cancel()  # the task reports the record to the observer
                self._refuse(record, tried=True)
            raise
        self._end_waiting(record, link, task)

    def _end_waiting(
        self, record: RecordFuture, link: RecordLink, task: asyncio.Task[Delivery]
    ) -> None:
        if task.cancelled():
            link.record = None
            if record.cancelled():
                record.end_cancelled()
            else:
                # Other code, such as a shutdown that cancels all tasks, has cancelled this task.
                self._refuse(record, tried=True)
        elif (error := task.exception()) is not None:
            link.record = None
            self._fail(record, error)
        else:
            self._on_appended(record, task.result())

    def _on_topic_queue_ended(self, topic: str, task: asyncio.Task[None]) -> None:
        """Refuse the remaining records of a topic whose task was cancelled, possibly before the
        task began."""
        topic_queue = self._topic_queues.get(topic)
        if topic_queue is None or topic_queue.task is not task:
            return
        del self._topic_queues[topic]
        records = []
        for waiting in topic_queue.records:
            if isinstance(waiting, asyncio.Future):
                if not waiting.done():
                    waiting.set_result(None)
            else:
                records.append(waiting[0])
        self._parked -= len(records)
        self._bytes_out += sum(record.size for record in records)
        for record in records:
            self._refuse(record)
        self._make_room()

    async def flush(self) -> None:
        """Wait until every record that is in the queue now is in a batch or has failed. Records
        that arrive later do not extend the wait."""
        goal = self._taken + len(self._records)
        while self._records and self._taken < goal:  # `goal` may be too high: see `_take_back`
            if not self._is_scheduled:
                self._take()
            await asyncio.sleep(PAUSE)
        marks: list[asyncio.Future[None]] = []
        for topic_queue in self._topic_queues.values():
            marks.append(self.loop.create_future())
            topic_queue.records.append(marks[-1])
        if marks:
            await asyncio.wait(marks)

    # -- closing --------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """True if no record is in the queue. Records may arrive until `finish` is called."""
        return not self._records and not self._topic_queues

    async def finish(self, drain: Drain, deadline: float) -> None:
        """Accept no more records, and append the queued records until `deadline`.

        Records that are still in the queue then fail. After a cancellation they fail at once.
        """
        self._drain = drain
        self._refusal = ProducerClosed("the producer is closed; create a new one")
        self._room.wake()
        try:
            if not self.is_empty and deadline > self.loop.time():
                self.loop.call_soon(self._take)  # in case a caller was interrupted before `_wake`
                self._idle = self.loop.create_future()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(deadline):
                        await self._idle
        finally:
            self.give_up()
            if ending := [topic_queue.task for topic_queue in self._topic_queues.values()]:
                await asyncio.wait(ending)  # so that the report includes their records

    def _on_failure(self, error: KafkaError) -> None:
        """Fail all queued and later records, because the producer has failed."""
        self._reason = self._refusal = error.copy().with_(outcome=Outcome.NOT_SENT)
        self._room.wake()
        self.give_up()

    async def abort(self) -> None:
        """Fail the records that are still in the queue. Their transaction was aborted, and they
        must not be sent in the next transaction."""
        reason, self._reason = self._reason, TransactionError(_ABORTED, outcome=Outcome.NOT_SENT)
        try:
            self.give_up()
            if ending := [topic_queue.task for topic_queue in self._topic_queues.values()]:
                await asyncio.wait(ending)
        finally:
            self._reason = reason

    def give_up(self) -> None:
        """Fail the records that are still in the queue."""
        records = []
        while (record := self._next()) is not None:  # other threads may still add records
            records.append(record)
        self._bytes_out += sum(record.size for record in records)
        for record in records:
            self._refuse(record)
        for topic_queue in list(self._topic_queues.values()):
            topic_queue.task.cancel()
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _refuse(self, record: RecordFuture, *, tried: bool = False) -> None:
        """Fail a record with the current reason.

        Args:
            tried: True if a call has tried to append the record. That call reports the record to
                the observer.
        """
        if self._drain is not None:
            self._drain.refused(record.topic)
        error = self._reason.copy().with_(topic=record.topic)
        self._runtime.state.gate.on_refused(error, raised=False)
        if not tried:
            self._count_refused(record, error)
        record.fail(error)

    def _count_refused(self, record: RecordFuture, error: KafkaError) -> None:
        """Report to the observer a record that no call has tried to append."""
        located = error.with_(topic=record.topic, partition=record.fields[3])
        self._runtime.observer.on_record_refused(located)
