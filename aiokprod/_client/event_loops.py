"""Event loops that this package creates, with uvloop if it is installed."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from aiokprod._client.late_executor import LateExecutor
from aiokprod._client.thread_waits import ThreadWaits

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

R = TypeVar("R")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Create an event loop of uvloop, or of asyncio if uvloop is not installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class LoopCall(Generic[R]):
    """The result of a coroutine on an event loop, for other threads. Unlike a wait for a
    `concurrent.futures.Future`, a wait for the result may be interrupted by a signal handler that
    itself waits for the loop; see `ThreadWaits`.

    Args:
        on_end: called with this object when it has its result.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, R],
        on_end: Callable[[LoopCall[Any]], object],
    ) -> None:
        self._loop = loop
        self._coroutine = coroutine
        self._on_end = on_end
        self._task: asyncio.Task[R] | None = None
        self._outcome: tuple[R | None, BaseException | None] | None = None
        self._waits = ThreadWaits()

    @classmethod
    def ended(cls, result: R) -> LoopCall[R]:
        """Create a call that already has its result."""
        call = cls.__new__(cls)
        call._outcome = (result, None)
        return call

    def done(self) -> bool:
        """Return True if the call has a result or an error, or was cancelled."""
        return self._outcome is not None

    def cancelled(self) -> bool:
        """Return True if the call was cancelled."""
        return self._outcome is not None and isinstance(self._outcome[1], CancelledError)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the call is done. Return False after `timeout` seconds."""
        return self.done() or self._waits.wait(self.done, timeout)

    def result(self, timeout: float | None = None) -> R:
        """Wait for the result and return it.

        Raises:
            TimeoutError: there is no result after `timeout` seconds.
            concurrent.futures.CancelledError: the call was cancelled.
            Others: the exception that the coroutine raised.
        """
        if not self.wait(timeout):
            raise TimeoutError
        assert self._outcome is not None
        result, error = self._outcome
        if error is not None:
            try:
                raise error
            finally:
                del error, self  # avoid a reference cycle of error, traceback and frame
        return cast("R", result)

    def cancel(self) -> None:
        """End the wait and cancel the coroutine, unless the call is done."""
        if self.done():
            return
        self.end(None, CancelledError())
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._withdraw)

    def end(self, result: R | None, error: BaseException | None) -> None:
        """Set the outcome, unless the call already has one."""
        outcome = (result, error)
        if self._outcome is None:  # no function call before the assignment: see `ThreadWaits`
            self._outcome = outcome
        self._waits.wake()
        self._on_end(self)

    # -- on the loop ----------------------------------------------------------------------------

    def begin(self) -> None:
        """Run the coroutine, unless the call was cancelled."""
        if self.done():
            self._coroutine.close()
            return
        self._task = self._loop.create_task(self._coroutine)
        self._task.add_done_callback(self._on_task_done)

    def _withdraw(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _on_task_done(self, task: asyncio.Task[R]) -> None:
        if task.cancelled():
            self.end(None, CancelledError())
        elif (error := task.exception()) is not None:
            self.end(None, error)
        else:
            self.end(task.result(), None)


class ThreadedLoop:
    """An event loop that runs in a daemon thread.

    Attributes:
        is_ending: True once the loop was stopped. Calls without a result are then cancelled.
    """

    def __init__(self, name: str) -> None:
        self.loop = new_event_loop()
        self._executor = LateExecutor(thread_name_prefix=f"{name}-worker")
        self.loop.set_default_executor(self._executor)
        # Use a daemon thread, so that the interpreter does not wait for it before it calls the
        # `atexit` functions.
        self.is_ending = False
        self._calls: set[LoopCall[Any]] = set()
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
            for call in list(self._calls):  # the loop was stopped before it began these calls
                _end(call)

    def _run_until_stopped(self) -> None:
        """Run the loop until it is stopped. If user code raises SystemExit or KeyboardInterrupt,
        run it again: in this thread these exceptions cannot end the program, and other threads wait
        for the loop."""
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
        """True if called in the thread of the loop."""
        return threading.current_thread() is self._thread

    def start(self, coroutine: Coroutine[Any, Any, R]) -> LoopCall[R]:
        """Run a coroutine on the loop.

        Raises:
            RuntimeError: the loop is closed.
        """
        call = LoopCall(self.loop, coroutine, self._calls.discard)
        self._calls.add(call)
        try:
            self.loop.call_soon_threadsafe(call.begin)
        except BaseException:
            self._calls.discard(call)
            coroutine.close()
            raise
        if self.loop.is_closed():
            _end(call)
        return call

    def run(self, coroutine: Coroutine[Any, Any, R], timeout: float | None = None) -> R:
        """Run a coroutine on the loop and wait for its result. If the wait times out or is
        interrupted, the coroutine is cancelled."""
        call = self.start(coroutine)
        try:
            return call.result(timeout)
        except BaseException:
            call.cancel()
            raise

    def read(self, function: Callable[[], R]) -> R:
        """Call a function on the loop and return its result. The function must not block."""

        async def call() -> R:
            return function()

        return self.run(call())

    def stop(self, within: float) -> None:
        """Stop the loop, and wait at most `within` seconds until its thread ends."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(within)


def _end(call: LoopCall[Any]) -> None:
    """Fail a call that the loop did not begin, unless the call already has its result."""
    call.end(None, RuntimeError("Event loop is closed"))
