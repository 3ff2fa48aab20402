"""`RecordFuture`: the outcome of a record, for threads other than that of the event loop."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from concurrent.futures._base import CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED, PENDING
from typing import TYPE_CHECKING, Any, Final, Protocol

from aiokprod._core.batch import RecordMetadata

if TYPE_CHECKING:
    import asyncio
    import contextvars

    from aiokprod._core.batch import Delivery
    from aiokprod.errors import KafkaError

Fields = tuple[Any, Any, Any, Any, Any, Any]
"""Topic, value, key, partition, timestamp_ms and headers of a record."""


UNKNOWN_SIZE: Final = 256
"""Assumed size of a key or value that is not serialized yet, bytes."""


_NO_FIELDS: Final[Fields] = (None, None, None, None, None, None)


class RecordOwner(Protocol):
    """The interface of `ThreadQueue` that a future needs.

    Attributes:
        loop: the event loop of the producer.
        outcomes: lock of the states of all its futures.
    """

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def outcomes(self) -> contextlib.AbstractContextManager[Any, Any]: ...

    def check_waiting(self, record: RecordFuture) -> None:
        """Raise, or end the record, if waiting for it in this thread could not end."""

    def on_unretrieved(self, error: BaseException) -> None:
        """A failure was not retrieved."""


class RecordFuture(concurrent.futures.Future[RecordMetadata]):
    """The future that `Producer.send_threadsafe` returns.

    `result(timeout)` waits for the `RecordMetadata` or raises the record's `KafkaError`. `cancel()`
    ends the wait, and withdraws the record if its batch has not been encoded for sending; see
    `Delivery.cancel`. A failure that is never retrieved is logged.

    Creating the lock and the lists of waiters and callbacks that every `Future` has takes more time
    than everything else that is done for a record. Here they are created on first use, which is
    rare. Therefore the state is changed under a lock of the queue, and waiters are notified only if
    there are any.

    Attributes:
        topic: the topic of the record.
        fields: the arguments of `Producer.send` in its order; None once the record is in a batch
            or has failed, so that a future does not keep key and value in memory.
        size: bytes of key and value; assumed for those that are not serialized yet.
        context: the context of the caller, for serializers, interceptors and plug-ins; None if
            there are none.
        delivery: the handle of the record, None until it is in a batch.
    """

    # The slots include the attributes of `Future`, so that no dict is created for them.
    __slots__ = (
        "_appending",
        "_done_callbacks",
        "_exception",
        "_made_condition",
        "_queue",
        "_result",
        "_retrieved",
        "_state",
        "_unread",
        "_waiters",
        "context",
        "delivery",
        "fields",
        "size",
        "topic",
    )

    def __init__(
        self, queue: RecordOwner, fields: Fields, size: int, context: contextvars.Context | None
    ) -> None:
        # `super().__init__()` is not called; see the class.
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
        self._retrieved = False
        self._unread: _Unread | None = None
        self._appending: asyncio.Task[Delivery] | None = None

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        """The condition that the methods of `Future`, `wait` and `as_completed` lock."""
        if self._made_condition is None:
            made = threading.Condition()
            waiters: list[Any] = []
            callbacks: list[Any] = []
            with self._queue.outcomes:  # without a call, in which a signal handler could run
                if self._made_condition is None:
                    self._waiters = waiters
                    self._done_callbacks = callbacks
                    self._made_condition = made
        return self._made_condition

    # -- in any thread --------------------------------------------------------------------------

    def done(self) -> bool:
        """True if the record has its outcome, or was cancelled."""
        return self._state != PENDING

    def cancelled(self) -> bool:
        """True if `cancel` was called before the record had its outcome."""
        return self._state in (CANCELLED, CANCELLED_AND_NOTIFIED)

    def running(self) -> bool:
        """False: the record can be cancelled until it has its outcome."""
        return False

    def cancel(self) -> bool:
        """Withdraw the record or stop waiting for it. False if it has its outcome already."""
        condition = self._condition
        with condition:
            with self._queue.outcomes:
                if self._state != PENDING:
                    return self.cancelled()
                self._state = CANCELLED
            condition.notify_all()
        self._invoke_callbacks()  # type: ignore[attr-defined]
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing can be withdrawn
            self._queue.loop.call_soon_threadsafe(self._withdraw)
        return True

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """The record's metadata.

        Raises:
            KafkaError: the record failed; see `.outcome`.
            TimeoutError: it has no outcome after `timeout` seconds. It is still being delivered.
            WrongLoop: called on the producer's event loop, which would wait for itself.
            ForkedProcess: called in a child process; the outcome is known in the parent only.
            concurrent.futures.CancelledError: it was cancelled.
        """
        if self._state == FINISHED and self._exception is None:
            metadata: RecordMetadata = self._result
            return metadata
        self._begin_retrieval()
        try:
            return super().result(timeout)
        finally:
            self._retrieved = self.done()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error of a record that failed, None if it was delivered. Errors: see `result`."""
        self._begin_retrieval()
        try:
            return super().exception(timeout)
        finally:
            self._retrieved = self.done()

    def _begin_retrieval(self) -> None:
        if not self.done():
            self._queue.check_waiting(self)
        self._retrieved = True
        if self._unread is not None:
            self._unread.error = None

    # -- on the loop ----------------------------------------------------------------------------

    def settle(self, metadata: RecordMetadata | None, error: KafkaError | None) -> None:
        """Set the outcome, unless the future was cancelled; the `on_delivery` of the record."""
        if error is None:
            self._finish(metadata, None)
        else:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Set an error as the outcome, unless the future was cancelled."""
        self.fields, self.context = _NO_FIELDS, None
        if not self._retrieved:
            self._unread = _Unread(self._queue, error)
        self._finish(None, error)
        if self._state != FINISHED and self._unread is not None:
            self._unread.error = None

    def _finish(self, result: RecordMetadata | None, error: BaseException | None) -> None:
        with self._queue.outcomes:
            condition = self._made_condition
            if condition is None and self._state == PENDING:
                self._result = result
                self._exception = error
                self._state = FINISHED
        if condition is not None:
            # `wait` and `as_completed` add waiters and read the state under this lock, so both
            # must change together.
            with condition:
                with self._queue.outcomes:
                    self._set(result, error)
                if self._state == FINISHED:
                    for waiter in self._waiters:
                        if error is None:
                            waiter.add_result(self)
                        else:
                            waiter.add_exception(self)
                    condition.notify_all()
        if self._state != FINISHED:
            self.end_cancelled()
        elif condition is not None:
            self._invoke_callbacks()  # type: ignore[attr-defined]

    def _set(self, result: RecordMetadata | None, error: BaseException | None) -> None:
        if self._state == PENDING:
            self._result = result
            self._exception = error
            self._state = FINISHED

    def end_cancelled(self) -> None:
        """Report to waiters that the future was cancelled."""
        if self._state == CANCELLED:
            self.set_running_or_notify_cancel()

    def waits(self, appending: asyncio.Task[Delivery]) -> None:
        """The record waits for metadata or memory. Cancelling the task withdraws it."""
        self._appending = appending
        if self.cancelled():
            appending.cancel()

    def appended(self, delivery: Delivery) -> None:
        """The record is in a batch."""
        self.delivery = delivery
        self.fields, self.context = _NO_FIELDS, None
        if self._state != PENDING and self.cancelled():
            delivery.cancel()

    def _withdraw(self) -> None:
        if self.delivery is not None:
            self.delivery.cancel()
        elif self._appending is not None:
            self._appending.cancel()


class _Unread:
    """Has the error of a `RecordFuture`, and reports it when it is deleted if it was never read."""

    __slots__ = ("_queue", "error")

    def __init__(self, queue: RecordOwner, error: BaseException) -> None:
        self._queue = queue
        self.error: BaseException | None = error

    def __del__(self) -> None:
        if self.error is not None:
            self._queue.on_unretrieved(self.error)


class RecordLink:
    """The `on_delivery` of a record that waits. The frames of the record's error refer to this
    object. They must not keep the record itself alive: then a failure that is never read would not
    be noticed."""

    __slots__ = ("record",)

    def __init__(self, record: RecordFuture) -> None:
        self.record: RecordFuture | None = record

    def settle(self, metadata: RecordMetadata | None, error: KafkaError | None) -> None:
        if self.record is not None:
            self.record.settle(metadata, error)


def size_of(data: Any) -> int:
    """Bytes of a key or value; assumed if it is not serialized yet."""
    if data is None:
        return 0
    return len(data) if isinstance(data, (bytes, bytearray, str)) else UNKNOWN_SIZE
