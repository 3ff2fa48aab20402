"""An executor for producers that drain while the interpreter shuts down."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")


class LateExecutor(ThreadPoolExecutor):
    """A `ThreadPoolExecutor` that still works in functions registered with `atexit`.

    When `atexit` functions run, the threads of all executors have ended and, since Python 3.12, no
    thread can be started. Submitted functions then run in the calling thread and block its event
    loop.
    """

    _is_shut_down = False

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """See `Executor.submit`."""
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError:
            if self._is_shut_down:
                raise
        done: Future[R] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:
            done.set_exception(error)
        return done

    def _adjust_thread_count(self) -> None:
        """Start a thread for a queued function, if necessary. If no thread can be started, an
        existing thread runs the function. Without any thread, the function is removed from the
        queue, because `submit` then runs it."""
        try:
            super()._adjust_thread_count()
        except RuntimeError:
            if not self._threads:
                self._work_queue.get_nowait()
                raise

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `Executor.shutdown`."""
        self._is_shut_down = True
        super().shutdown(wait, cancel_futures=cancel_futures)
