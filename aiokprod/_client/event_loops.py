"""Event loops that this package starts itself: uvloop where it is installed."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from aiokprod._client.late_executor import LateExecutor

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

R = TypeVar("R")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """An event loop of uvloop, or of asyncio if that is not installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class ThreadedLoop:
    """An event loop that runs in a daemon thread."""

    def __init__(self, name: str) -> None:
        self.loop = new_event_loop()
        self._executor = LateExecutor(thread_name_prefix=f"{name}-worker")
        self.loop.set_default_executor(self._executor)
        # A daemon: the interpreter must not wait for it before it calls the `atexit` functions.
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self._executor.shutdown(wait=False)
            asyncio.set_event_loop(None)
            self.loop.close()

    @property
    def is_current(self) -> bool:
        """True if called in this thread."""
        return threading.current_thread() is self._thread

    def start(self, coroutine: Coroutine[Any, Any, R]) -> Future[R]:
        """Run a coroutine on the loop.

        Raises:
            RuntimeError: the loop is closed.
        """
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except BaseException:
            coroutine.close()
            raise

    def run(self, coroutine: Coroutine[Any, Any, R], timeout: float | None = None) -> R:
        """Run a coroutine on the loop and wait for its result; an interrupted wait cancels it."""
        future = self.start(coroutine)
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise

    def read(self, function: Callable[[], R]) -> R:
        """Call a function on the loop, which takes no time, and return its result."""

        async def call() -> R:
            return function()

        return self.run(call())

    def stop(self, within: float) -> None:
        """End the thread; returns after `within` seconds at the latest."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(within)
