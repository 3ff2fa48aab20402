"""Runs an event loop in a thread of each Python process, and keeps clients between tasks.

Spark runs tasks in the main thread of worker processes, which it forks, reuses, leaves idle and
kills without notice. So nothing starts at import, and a forked child uses no thread of its parent.
No record is pending when a task returns; only connections stay open.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Iterable
from typing import Any, Final, Protocol, TypeVar

from aiokprod.errors import ConfigError

IDLE_SECONDS: Final = 60.0
"""Seconds for which an unused client is kept. Spark kills idle workers after the same time."""

EXIT_SECONDS: Final = 2.0
"""Seconds for which the process waits for a busy loop when it exits."""

T = TypeVar("T")


class Closable(Protocol):
    """A client that can be kept: a producer or a `ClusterClient`."""

    async def close(self, timeout: float | None = None) -> Any: ...


C = TypeVar("C", bound=Closable)


class LoopThread:
    """An event loop that runs in a daemon thread. Call `run` from any other thread."""

    def __init__(self, kind: str) -> None:
        self.pid = os.getpid()
        self.kind = kind
        self.loop = _new_loop(kind)
        self.kept: dict[Hashable, _Kept] = {}
        self._running: set[asyncio.Task[Any] | None] = set()
        self._thread = threading.Thread(target=self._main, name="aiokprod-spark", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            with contextlib.suppress(RuntimeError):  # the loop was stopped before the task ended
                self.loop.run_until_complete(self._end())
        finally:
            self.loop.close()

    @property
    def usable(self) -> bool:
        """True if the thread is alive and belongs to this process."""
        return self.pid == os.getpid() and self._thread.is_alive()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine on the loop. Return a future for the calling thread."""
        return asyncio.run_coroutine_threadsafe(self._counted(coroutine), self.loop)

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop and return its result. If the wait is interrupted, the
        coroutine is cancelled.

        Raises:
            TimeoutError: the coroutine took longer than `timeout` seconds and was cancelled.
        """
        future = self.start(coroutine)
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise

    def stop(self, within: float) -> None:
        """Cancel all tasks, close the kept clients and end the thread within `within` seconds. If
        that takes longer, stop the loop again and wait for another `within` seconds.

        The thread must not outlive the interpreter, because a uvloop that wakes up later crashes.
        """
        for _ in range(2):
            with contextlib.suppress(RuntimeError):  # the loop may already be closed
                self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(within)

    # -- on the loop ----------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def borrowed(
        self, key: Hashable, make: Callable[[], Awaitable[C]], *, keep: bool
    ) -> AsyncIterator[C]:
        """Yield the client stored under `key`, or a new client. If the block raises, the client is
        closed.

        With `keep`, the client is stored for the next task, and closed after `IDLE_SECONDS` without
        use.
        """
        entry = self.kept.pop(key, None)
        if entry is None:
            item: Any = await make()
        else:
            entry.timer.cancel()
            item = entry.item
        try:
            yield item
        except BaseException:
            with contextlib.suppress(Exception):
                await item.close(0)
            raise
        if not keep or key in self.kept:
            await item.close()
            return
        timer = self.loop.call_later(IDLE_SECONDS, self._expire, key)
        self.kept[key] = _Kept(item, timer)

    async def drop(self, unwanted: Callable[[Any], bool]) -> None:
        """Close the unused clients whose keys `unwanted` selects."""
        for key in [key for key in self.kept if unwanted(key)]:
            entry = self.kept.pop(key)
            entry.timer.cancel()
            await _close(entry.item)

    async def _counted(self, coroutine: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        self._running.add(task)
        try:
            return await coroutine
        finally:
            self._running.discard(task)

    async def _end(self) -> None:
        await _cancelled(self._running)
        await self.drop(lambda key: True)
        await _cancelled(asyncio.all_tasks() - {asyncio.current_task()})

    def _expire(self, key: Hashable) -> None:
        entry = self.kept.pop(key, None)
        if entry is not None:
            entry.closing = self.loop.create_task(_close(entry.item))


class _Kept:
    """An unused client, its expiry timer, and the task that closes the expired client."""

    __slots__ = ("closing", "item", "timer")

    def __init__(self, item: Any, timer: asyncio.TimerHandle) -> None:
        self.item = item
        self.timer = timer
        self.closing: asyncio.Task[None] | None = None


async def _cancelled(tasks: Iterable[asyncio.Task[Any] | None]) -> None:
    stopped = [task for task in tasks if task is not None and task.cancel()]
    await asyncio.gather(*stopped, return_exceptions=True)


async def _close(item: Closable) -> None:
    with contextlib.suppress(Exception):
        await item.close(5.0)


def _new_loop(kind: str) -> asyncio.AbstractEventLoop:
    if kind != "asyncio":
        try:
            import uvloop
        except ImportError:
            if kind == "uvloop":
                raise ConfigError(
                    "option 'loop' is 'uvloop', which is not installed here: install it on "
                    "executors and driver, or use loop=auto"
                ) from None
        else:
            return uvloop.new_event_loop()
    return asyncio.SelectorEventLoop()


class _Process:
    """The loop threads of this process, by the kind of loop."""

    def __init__(self) -> None:
        self._threads: dict[str, LoopThread] = {}
        self._lock = threading.Lock()

    def loop_thread(self, kind: str) -> LoopThread:
        with self._lock:
            thread = self._threads.get(kind)
            if thread is None or not thread.usable:
                thread = self._threads[kind] = LoopThread(kind)
            return thread

    def stop(self) -> None:
        """Stop all loop threads when the process exits."""
        with self._lock:
            threads, self._threads = self._threads, {}
        for thread in threads.values():
            if thread.usable:
                thread.stop(EXIT_SECONDS)

    def renew_lock(self) -> None:
        """Replace the lock in a forked child, because another thread of the parent may have held
        it. The parent's loop threads do not run in the child and are not `usable`, so
        `loop_thread` replaces them."""
        self._lock = threading.Lock()


_process = _Process()
atexit.register(_process.stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process.renew_lock)


def loop_thread(kind: str = "auto") -> LoopThread:
    """Return the loop thread of this process. The thread starts on first use.

    Raises:
        ConfigError: `kind` is "uvloop", but uvloop is not installed.
    """
    return _process.loop_thread(kind)
