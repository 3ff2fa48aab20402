"""Event loops that this package starts itself: uvloop if it is installed."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import Future, InvalidStateError
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
    """An event loop that runs in a daemon thread.

    Attributes:
        is_ending: the loop was stopped; calls that have no result are cancelled.
    """

    def __init__(self, name: str) -> None:
        self.loop = new_event_loop()
        self._executor = LateExecutor(thread_name_prefix=f"{name}-worker")
        self.loop.set_default_executor(self._executor)
        # The thread is a daemon: the interpreter must not wait for it before it calls the `atexit`
        # functions.
        self.is_ending = False
        self._calls: set[Future[Any]] = set()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self._run_until_stopped()
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self._executor.shutdown(wait=False)
            asyncio.set_event_loop(None)
            self.loop.close()
            for call in list(self._calls):  # the loop was stopped before it got to them
                _end(call)

    def _run_until_stopped(self) -> None:
        """Run the loop again if user code raises SystemExit or KeyboardInterrupt: in this thread
        they cannot end the program, and they must not end the loop, for which other threads
        wait."""
        while True:
            try:
                self.loop.run_forever()
                self.is_ending = True
                return
            except BaseException as error:
                message = f"aiokprod: {type(error).__name__} was raised in the thread of the loop"
                self.loop.call_exception_handler({"message": message, "exception": error})

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
            call = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except BaseException:
            coroutine.close()
            raise
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        if self.loop.is_closed():
            _end(call)
        return call

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


def _end(call: Future[Any]) -> None:
    """Fail a call that the loop did not begin, unless it has its result."""
    with contextlib.suppress(InvalidStateError):
        call.set_exception(RuntimeError("Event loop is closed"))
