"""The byte budget of unsettled records: accounting with FIFO waiters, never a pool of buffers.

Source: Java `BufferPool` without its reuse of buffers (CVE-2026-35554: a buffer given back while
a request still used it put records into other topics).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING

from aiokprod.errors import BufferTimeout, KafkaError, Outcome
from aiokprod.hot.core import MemoryBudget

if TYPE_CHECKING:
    from collections.abc import Callable


class _Waiter:
    __slots__ = ("future", "granted", "size")

    def __init__(self, size: int, future: asyncio.Future[None]) -> None:
        self.size = size
        self.future = future
        self.granted = False


class BufferMemory(MemoryBudget):
    """Counts bytes held; who finds no room waits in order of arrival.

    Invariant: `used` is the sum of what was granted and not released; `has_waiters` sends the
    append fast path to the end of the queue. Only the head waiter is ever considered, so that a
    large record is not starved by small ones.
    """

    def __init__(self, limit: int, on_exhausted: Callable[[], None]) -> None:
        super().__init__(limit)
        self._waiters: OrderedDict[_Waiter, None] = OrderedDict()  # leaving is O(1)
        self._on_exhausted = on_exhausted
        self._closed: KafkaError | None = None

    @property
    def waiting(self) -> int:
        """Callers that wait for room."""
        return len(self._waiters)

    def has_room(self, size: int) -> bool:
        """True if nobody waits and `size` bytes are there."""
        return not self._waiters and self.used + size <= self.limit

    def try_reserve(self, size: int) -> bool:
        """Take `size` bytes at once, if nobody waits and they are there."""
        if not self.has_room(size):
            return False
        self.used += size
        return True

    async def reserve(self, size: int, deadline: float) -> None:
        """Take `size` bytes (≤ `limit`), waiting in line until `deadline` (loop time).

        Raises:
            BufferTimeout: the deadline passed; nothing was taken.
            KafkaError: the error given to `close`.

        Cancellation: the place in the line is given up; bytes granted meanwhile go on to the next.
        """
        if self._closed is not None:
            raise self._closed.copy()
        if self.try_reserve(size):
            return
        loop = asyncio.get_running_loop()
        waiter = _Waiter(size, loop.create_future())
        self._waiters[waiter] = None
        self.has_waiters = True
        self._on_exhausted()
        timer = loop.call_at(deadline, self._expire, waiter)
        try:
            await waiter.future
        except asyncio.CancelledError:
            self._leave(waiter)
            raise
        finally:
            timer.cancel()

    def release(self, size: int) -> None:
        """Give bytes back and wake as many waiters as now fit, in order."""
        self.used -= size
        assert self.used >= 0, "more bytes released than reserved"
        if self._waiters:
            self._grant()

    def close(self, error: KafkaError) -> None:
        """Fail everyone who waits, now and later, with a copy of `error`."""
        self._closed = error
        self.refuse(error)

    def refuse(self, error: KafkaError) -> None:
        """Fail everyone who waits now with a copy of `error`."""
        waiters, self._waiters = self._waiters, OrderedDict()
        self.has_waiters = False
        for waiter in waiters:
            if not waiter.future.done():
                waiter.future.set_exception(error.copy())

    def _grant(self) -> None:
        waiters = self._waiters
        while waiters:
            waiter = next(iter(waiters))
            if self.used + waiter.size > self.limit:
                break
            del waiters[waiter]
            if not waiter.future.done():
                self.used += waiter.size
                waiter.granted = True
                waiter.future.set_result(None)
        self.has_waiters = bool(waiters)

    def _leave(self, waiter: _Waiter) -> None:
        """A waiter was cancelled: it may stand in the line, or hold bytes it will not use."""
        if waiter in self._waiters:
            del self._waiters[waiter]
            self._grant()
        elif waiter.granted:
            self.release(waiter.size)

    def _expire(self, waiter: _Waiter) -> None:
        if waiter.future.done():
            return
        del self._waiters[waiter]
        waiter.future.set_exception(
            BufferTimeout(
                f"no room for {waiter.size} bytes within max_block_ms: {self.used} of "
                f"{self.limit} bytes of buffer_memory are held by records without an outcome. "
                "Send slower, raise buffer_memory, or look why brokers do not answer",
                outcome=Outcome.NOT_SENT,
            )
        )
        self._grant()
