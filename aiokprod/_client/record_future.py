"""`RecordFuture`: the outcome of a record that another thread has sent."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections import deque
from concurrent.futures._base import (
    CANCELLED,
    CANCELLED_AND_NOTIFIED,
    FINISHED,
    LOGGER,
    PENDING,
)
from typing import TYPE_CHECKING, Any, Final, Protocol

from aiokprod._client.thread_waits import ThreadWaits
from aiokprod._core.batch import RecordMetadata

if TYPE_CHECKING:
    import asyncio
    import contextvars
    from collections.abc import Callable

    from aiokprod._core.batch import Delivery
    from aiokprod.errors import KafkaError

Fields = tuple[Any, Any, Any, Any, Any, Any]
"""The topic, value, key, partition, timestamp_ms and headers of a record."""


UNKNOWN_SIZE: Final = 256
"""Assumed size in bytes of a key or value that is not serialized yet."""


_NO_FIELDS: Final[Fields] = (None, None, None, None, None, None)


class RecordOwner(Protocol):
    """The interface of `ThreadQueue` that a future needs.

    Attributes:
        loop: the event loop of the producer.
        outcomes: lock for the states of all futures of the queue.
    """

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def outcomes(self) -> contextlib.AbstractContextManager[Any, Any]: ...

    def check_waiting(self, record: RecordFuture) -> None:
        """Raise if a wait for the record in this thread would never end. If the loop is closed,
        fail the record instead."""

    def on_unretrieved(self, error: BaseException) -> None:
        """Report an error that was never retrieved."""


class RecordFuture(concurrent.futures.Future[RecordMetadata]):
    """The future that `Producer.send_threadsafe` returns.

    `result(timeout)` waits for the `RecordMetadata` or raises the record's `KafkaError`. `cancel()`
    ends the wait, and withdraws the record if its batch has not been encoded for sending; see
    `Delivery.cancel`. A failure that is never retrieved is logged.

    Creating the lock and the lists of a standard `Future` would take more time than all other work
    for a record. Here they are created on first use, which is rare. The state is therefore changed
    under a lock of the queue.

    A signal handler that waits for the loop may interrupt `result`, `exception`, `cancel` and
    `add_done_callback`; see `ThreadWaits`. It must not interrupt `concurrent.futures.wait` or
    `as_completed`, which hold locks that the loop takes when a record gets its outcome.

    Attributes:
        topic: the topic of the record.
        fields: the arguments of `Producer.send` in its order. All are None once the record is in a
            batch or has failed, so that the future does not keep key and value in memory.
        size: bytes of key and value; `UNKNOWN_SIZE` for each that is not serialized yet.
        context: the context of the caller, for serializers, interceptors and plug-ins; None if
            there are none.
        delivery: the handle of the record, or None until the record is in a batch.
    """

    # The slots include the attributes of `Future`, so that no dict is created for them.
    __slots__ = (
        "_appending",
        "_exception",
        "_made_condition",
        "_queue",
        "_result",
        "_retrieved",
        "_state",
        "_unread",
        "_waiters",
        "_watchers",
        "context",
        "delivery",
        "fields",
        "size",
        "topic",
    )

    def __init__(
        self, queue: RecordOwner, fields: Fields, size: int, context: contextvars.Context | None
    ) -> None:
        # Do not call `super().__init__()`, which creates the lock and the lists.
        self._queue = queue
        self.topic: str = fields[0]
        self.fields = fields
        self.size = size
        self.context = context
        self.delivery: Delivery | None = None
        self._state = PENDING
        self._result: Any = None
        self._exception: BaseException | None = None
        self._made_condition: threading.Condition | None = None
        self._watchers: _Watchers | None = None
        self._retrieved = False
        self._unread: _Unread | None = None
        self._appending: asyncio.Task[Delivery] | None = None

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        """The condition that `wait` and `as_completed` lock."""
        if self._made_condition is None:
            made = threading.Condition()
            waiters: list[Any] = []
            with self._queue.outcomes:  # no call inside, because a signal handler could run in it
                if self._made_condition is None:
                    self._waiters = waiters
                    self._made_condition = made
        return self._made_condition

    def _watched(self) -> _Watchers:
        """Return the waiting threads and callbacks. After adding one, the caller must check the
        state again, because the record may already have its outcome."""
        if self._watchers is None:
            made = _Watchers()
            with self._queue.outcomes:  # no call inside
                if self._watchers is None:
                    self._watchers = made
        return self._watchers

    # -- in any thread --------------------------------------------------------------------------

    def done(self) -> bool:
        """Return True if the record has its outcome, or was cancelled."""
        return self._state != PENDING

    def cancelled(self) -> bool:
        """Return True if `cancel` was called before the record had its outcome."""
        return self._state in (CANCELLED, CANCELLED_AND_NOTIFIED)

    def running(self) -> bool:
        """Return False, because the future can be cancelled until the record has its outcome."""
        return False

    def cancel(self) -> bool:
        """Withdraw the record or stop waiting for it. Return False if it already has an outcome."""
        with self._queue.outcomes:  # no call inside
            is_first = self._state == PENDING
            if is_first:
                self._state = CANCELLED
        if not is_first:
            return self.cancelled()
        self._call_watchers()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing can be withdrawn
            self._queue.loop.call_soon_threadsafe(self._withdraw)
        return True

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Call the function when the record has its outcome or was cancelled; at once if that has
        already happened. Exceptions raised by the function are logged."""
        self._watched().callbacks.append(fn)
        if self._state != PENDING:
            self._call_watchers()

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for the outcome and return the record's metadata.

        Raises:
            KafkaError: the record failed; see `.outcome`.
            TimeoutError: the record has no outcome after `timeout` seconds; its delivery continues.
            WrongLoop: called on the producer's event loop, which would wait for itself.
            ForkedProcess: called in a child process; only the parent receives the outcome.
            concurrent.futures.CancelledError: the future was cancelled.
        """
        if self._state == FINISHED and self._exception is None:
            metadata: RecordMetadata = self._result
            return metadata
        error = self._retrieved_error(timeout)
        if error is not None:
            try:
                raise error
            finally:
                del error, self  # avoid a reference cycle of error, traceback and frame
        metadata = self._result
        return metadata

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the outcome and return the record's error, or None if it was delivered. Raises
        the other errors of `result`."""
        return self._retrieved_error(timeout)

    def _retrieved_error(self, timeout: float | None) -> BaseException | None:
        if self._state == PENDING:
            self._queue.check_waiting(self)
        self._retrieved = True
        try:
            if self._state == PENDING:
                self._watched().waits.wait(self.done, timeout)
        finally:
            self._retrieved = False  # before `done()`: a failure after it counts as not retrieved
            has_ended = self._retrieved = self.done()
        if not has_ended:
            raise TimeoutError
        if self._unread is not None:
            self._unread.error = None
        if self.cancelled():
            raise concurrent.futures.CancelledError
        return self._exception

    # -- on the loop ----------------------------------------------------------------------------

    def settle(self, metadata: RecordMetadata | None, error: KafkaError | None) -> None:
        """Set the outcome, unless the future was cancelled. This is the record's `on_delivery`."""
        if error is None:
            self._finish(metadata, None)
        else:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Set an error as the outcome, unless the future has an outcome or was cancelled."""
        self.fields, self.context = _NO_FIELDS, None
        self._finish(None, error)
        if self._exception is error:
            if not self._retrieved:
                self._unread = _Unread(self._queue, error)
            if self._retrieved and self._unread is not None:  # another thread has retrieved it
                self._unread.error = None

    def _finish(self, result: RecordMetadata | None, error: BaseException | None) -> None:
        with self._queue.outcomes:  # no call inside
            condition = self._made_condition
            is_first = condition is None and self._state == PENDING
            if is_first:
                self._result = result
                self._exception = error
                self._state = FINISHED
        if condition is not None:
            is_first = self._finish_seen(condition, result, error)
        if is_first:
            if self._watchers is not None:
                self._call_watchers()
        elif self._state == CANCELLED:
            self.end_cancelled()

    def _finish_seen(
        self,
        condition: threading.Condition,
        result: RecordMetadata | None,
        error: BaseException | None,
    ) -> bool:
        """Set the outcome of a future that `wait` or `as_completed` may use. They read the state
        and add waiters under `condition`, so set the state and notify waiters under it too."""
        with condition:
            with self._queue.outcomes:  # no call inside
                is_first = self._state == PENDING
                if is_first:
                    self._result = result
                    self._exception = error
                    self._state = FINISHED
            if is_first:
                for waiter in self._waiters:
                    if error is None:
                        waiter.add_result(self)
                    else:
                        waiter.add_exception(self)
        return is_first

    def _call_watchers(self) -> None:
        """Wake the threads that wait in `result` or `exception`, and call each callback once. May
        run in any thread."""
        watchers = self._watchers
        if watchers is None:
            return
        watchers.waits.wake()
        while watchers.callbacks:
            try:
                function = watchers.callbacks.popleft()
            except IndexError:  # another thread took the last one
                return
            try:
                function(self)
            except Exception:
                LOGGER.exception("exception calling callback for %r", self)

    def end_cancelled(self) -> None:
        """Report to `wait` and `as_completed` that the future was cancelled."""
        with self._queue.outcomes:  # no call inside
            condition = self._made_condition
            if condition is None and self._state == CANCELLED:
                self._state = CANCELLED_AND_NOTIFIED
        if condition is None:
            return
        with condition:
            if self._state == CANCELLED:
                self._state = CANCELLED_AND_NOTIFIED
                for waiter in self._waiters:
                    waiter.add_cancelled(self)

    def waits(self, appending: asyncio.Task[Delivery]) -> None:
        """Store the task that appends the record once there are metadata and memory. Cancelling the
        task withdraws the record."""
        self._appending = appending
        if self.cancelled():
            appending.cancel()

    def appended(self, delivery: Delivery) -> None:
        """Store the handle of the appended record. If the future was cancelled, withdraw the
        record."""
        self.delivery = delivery
        self.fields, self.context = _NO_FIELDS, None
        if self._state != PENDING and self.cancelled():
            delivery.cancel()

    def _withdraw(self) -> None:
        if self.delivery is not None:
            self.delivery.cancel()
        elif self._appending is not None:
            self._appending.cancel()


class _Watchers:
    """The threads that wait for a record's outcome, and the callbacks to call with it."""

    __slots__ = ("callbacks", "waits")

    def __init__(self) -> None:
        self.waits = ThreadWaits()
        self.callbacks: deque[Callable[[Any], object]] = deque()


class _Unread:
    """Holds the error of a `RecordFuture`, and reports it if this object is deleted before the
    error was retrieved."""

    __slots__ = ("_queue", "error")

    def __init__(self, queue: RecordOwner, error: BaseException) -> None:
        self._queue = queue
        self.error: BaseException | None = error

    def __del__(self) -> None:
        if self.error is not None:
            self._queue.on_unretrieved(self.error)


class RecordLink:
    """The `on_delivery` of a record that waits to be appended. The traceback of the record's error
    references this object instead of the `RecordFuture`. If it kept the future alive, a failure
    that is never retrieved would not be detected."""

    __slots__ = ("record",)

    def __init__(self, record: RecordFuture) -> None:
        self.record: RecordFuture | None = record

    def settle(self, metadata: RecordMetadata | None, error: KafkaError | None) -> None:
        if self.record is not None:
            self.record.settle(metadata, error)


def size_of(data: Any) -> int:
    """Return the size of a key or value in bytes, or `UNKNOWN_SIZE` if it is not serialized yet. A
    str counts its characters."""
    if data is None:
        return 0
    return len(data) if isinstance(data, (bytes, bytearray, str)) else UNKNOWN_SIZE
