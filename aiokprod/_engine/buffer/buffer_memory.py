"""`BufferMemory` counts the bytes of records without an outcome. Calls wait for room in a FIFO
queue.

Source: Java `BufferPool`, but without its pool of buffers. In CVE-2026-35554 a buffer was reused
while a request still referred to it, which wrote records to other topics.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING

from aiokprod._core.memory import MemoryBudget, Reservation
from aiokprod.errors import BufferTimeout, KafkaError, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable


class _Waiter:
    __slots__ = ("__weakref__", "future", "reservation", "size")

    def __init__(self, size: int, reservation: Reservation, future: asyncio.Future[None]) -> None:
        self.size = size
        self.reservation = reservation
        self.future = future


class BufferMemory(MemoryBudget):
    """Counts the bytes in use; callers for which there is no room wait in order of arrival.

    Only the first waiter is considered, so that small records do not starve a large one. While
    `has_waiters` is true, the fast path does not append, so that it does not overtake a waiter.

    Invariant: `used` is the sum of the bytes that were granted and not returned.

    Attributes:
        refused: True if a call that does not wait has found no room since bytes were last returned.
    """

    def __init__(self, limit: int, on_exhausted: Callable[[], None]) -> None:
        super().__init__(limit)
        # An ordered dict, so that removing a waiter is O(1).
        self._waiters: OrderedDict[_Waiter, None] = OrderedDict()
        self._on_exhausted = on_exhausted
        self.refused = False
        self._closed: KafkaError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # of the waiting callers

    @property
    def waiting(self) -> int:
        """Number of callers that wait for room."""
        return len(self._waiters)

    def has_room(self, size: int) -> bool:
        """Return True if no caller waits and `size` bytes are free."""
        return not self._waiters and self.used + size <= self.limit

    def try_reserve(self, size: int, reservation: Reservation) -> bool:
        """Grant `size` bytes if no caller waits and these bytes are free; return False
        otherwise."""
        if not self.has_room(size):
            return False
        reservation.grant(size)
        return True

    async def reserve(self, size: int, reservation: Reservation, deadline: float) -> None:
        """Grant `size` bytes (≤ `limit`), waiting until `deadline` (loop time).

        Raises:
            BufferTimeout: the deadline passed; nothing was granted.
            KafkaError: the error passed to `close` or `fail_waiters`.

        Cancellation: only the wait ends; bytes that were already granted are in the reservation.
        """
        if self._closed is not None:
            raise self._closed.copy()
        if self.try_reserve(size, reservation):
            return
        self._loop = loop = asyncio.get_running_loop()
        waiter = _Waiter(size, reservation, loop.create_future())
        # The timer has only a weak reference: a call that is interrupted here leaves its timer
        # behind, which must not keep the waiter.
        timer = loop.call_at(deadline, self._expire, weakref.ref(waiter))
        try:
            self._waiters[waiter] = None
            self.has_waiters = True
            self._grant()  # a reservation may have been dropped since `try_reserve`
            self._on_exhausted()
            await waiter.future
        finally:
            timer.cancel()
            self._leave(waiter)

    def on_refused(self) -> None:
        """Record that a record was refused because there is no room and its caller does not wait.
        Until bytes are returned, batches are sent as if a caller were waiting."""
        if not self.refused:
            self._on_exhausted()  # first, because this call may be interrupted
            self.refused = True

    def give_back(self, reservation: Reservation) -> None:
        """Return the bytes that a reservation still has, and grant them to waiters."""
        if reservation.give_back():
            self.returned()

    def returned(self) -> None:
        """Grant the requests of the first waiters while there is room. Called after bytes were
        returned."""
        assert self.used >= 0, "more bytes released than reserved"
        self.refused = False
        if self._waiters:
            self._grant()

    def on_dropped(self) -> None:
        """Wake waiters after an interrupted caller has dropped its reservation. They are woken in
        the next iteration of the event loop, because a finalizer may run in any thread and within
        `_grant`."""
        assert self._loop is not None, "called only while a caller waits"
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.returned)

    def close(self, error: KafkaError) -> None:
        """Fail all present and later waits with a copy of `error`."""
        self._closed = error
        self.fail_waiters(error)

    def fail_waiters(self, error: KafkaError) -> None:
        """Fail all present waits with a copy of `error`."""
        waiters, self._waiters = self._waiters, OrderedDict()
        self.has_waiters = False
        for waiter in waiters:
            if not waiter.future.done():
                _fail(waiter.future, error.copy())

    def _grant(self) -> None:
        waiters = self._waiters
        while waiters:
            waiter = next(iter(waiters))
            if self.used + waiter.size > self.limit:
                break
            del waiters[waiter]
            if not waiter.future.done():
                waiter.reservation.grant(waiter.size)
                waiter.future.set_result(None)
        self.has_waiters = bool(waiters)

    def _leave(self, waiter: _Waiter) -> None:
        """Remove a waiter whose wait was cancelled."""
        if waiter in self._waiters:
            del self._waiters[waiter]
            self._grant()

    def _expire(self, reference: weakref.ref[_Waiter]) -> None:
        waiter = reference()
        if waiter is None or waiter.future.done():
            return
        self._waiters.pop(waiter, None)
        _fail(
            waiter.future,
            BufferTimeout(
                f"no room for {waiter.size} bytes within max_block_ms: {self.used} of "
                f"{self.limit} bytes of buffer_memory are held by records without an outcome. "
                "Send more slowly, raise buffer_memory, or find out why the brokers do not respond",
                outcome=Outcome.NOT_SENT,
            ),
        )
        self._grant()


def _fail(future: asyncio.Future[None], error: KafkaError) -> None:
    future.set_exception(error)
    future.exception()  # mark it as retrieved: the call that waited may have been interrupted
