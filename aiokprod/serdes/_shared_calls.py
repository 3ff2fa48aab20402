"""Calls whose result several tasks share: one call for each key and event loop. A failure is
remembered for a second."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Any, Final, Generic, TypeVar

from aiokprod.serializers import SerializerProblem

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")

_FAILURE_KEPT_S: Final = 1.0
"""Seconds for which a failure is remembered. Otherwise every record with a schema that the registry
does not have would cause a request."""


_ABANDONED: Final = "the request was abandoned"


class RepeatableProblem(SerializerProblem):
    """A problem that can be copied, so that each waiting task gets a separate error."""

    def copy(self) -> RepeatableProblem:
        """Return an equal error without traceback."""
        fresh = type(self)(*self.args)
        fresh.retriable = self.retriable
        return fresh


class _Call(Generic[R]):
    """A call in progress.

    Attributes:
        waiters: a future for each waiting task. Its result is the result or the error of the call;
            an exception is never set. `asyncio.shield` of a single future would also work. But if
            thousands of records reach their deadline at the same time, each removal of a callback
            would search all callbacks.
    """

    def __init__(self) -> None:
        self.waiters: dict[asyncio.Future[R | RepeatableProblem], None] = {}
        self.task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        """Cancel the task, if it was started."""
        if self.task is not None:
            self.task.cancel()


class _LoopCalls(Generic[K, R]):
    """The calls of one event loop, and recent failures with the loop time at which they expire."""

    def __init__(self) -> None:
        self.running: dict[K, _Call[R]] = {}
        self.failed: dict[K, tuple[RepeatableProblem, float]] = {}


class SharedCalls(Generic[K, R]):
    """Calls by key.

    Args:
        limit: maximum number of failures that are remembered.
        keeps_running: True if a call continues until `abandon` when no task waits for it any
            longer. Otherwise it is cancelled then.
        describe: returns the error for an exception other than `RepeatableProblem`.
    """

    def __init__(
        self, limit: int, keeps_running: bool, describe: Callable[[Exception], RepeatableProblem]
    ) -> None:
        self._limit = limit
        self._keeps_running = keeps_running
        self._describe = describe
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopCalls[K, R]] = (
            weakref.WeakKeyDictionary()
        )

    def __getstate__(self) -> tuple[Any, ...]:
        # Leave out the calls, which belong to a loop of this process.
        return self._limit, self._keeps_running, self._describe

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def failure(self, key: K) -> RepeatableProblem | None:
        """Return a copy of the error of the last call if it failed less than a second ago, or None.
        Without a running loop, return None."""
        loop = _running_loop()
        if loop is None:
            return None
        calls = self._calls(loop)
        found = calls.failed.get(key)
        if found is None:
            return None
        error, until = found
        if loop.time() < until:
            return error.copy()
        del calls.failed[key]
        return None

    def start(
        self,
        key: K,
        make: Callable[[], Awaitable[R]],
        waiter: asyncio.Future[R | RepeatableProblem] | None = None,
    ) -> _Call[R]:
        """Start the call, unless it is in progress. `waiter` gets the outcome."""
        loop = asyncio.get_running_loop()
        calls = self._calls(loop)
        call = calls.running.get(key)
        if call is None:
            call = calls.running[key] = _Call()
        if waiter is not None:
            call.waiters[waiter] = None  # before the task: an eager task may end while it starts
        if call.task is None:  # the call is new, or a signal handler interrupted its start
            call.task = loop.create_task(
                self._run(calls, key, call, make), name="aiokprod-schema-lookup"
            )
            # `_run` cannot do this, because it does not run if the task is cancelled before its
            # first step.
            call.task.add_done_callback(partial(self._end_abandoned, calls, key, call))
        return call

    async def result(self, key: K, make: Callable[[], Awaitable[R]]) -> R:
        """Wait for the call and return its result. Start the call unless it is in progress.

        Raises:
            RepeatableProblem: the call failed, or an earlier call failed less than a second ago.
        """
        failure = self.failure(key)
        if failure is not None:
            raise failure
        waiter: asyncio.Future[R | RepeatableProblem] = asyncio.get_running_loop().create_future()
        call = self.start(key, make, waiter)
        try:
            answer = await waiter
        finally:
            call.waiters.pop(waiter, None)
            if not call.waiters and not self._keeps_running:
                call.cancel()  # has no effect if the call has ended
                # The next task that needs this result starts a new call.
                self._forget(self._calls(asyncio.get_running_loop()), key, call)
        if isinstance(answer, RepeatableProblem):
            raise answer.copy()
        return answer

    def abandon(self) -> None:
        """Cancel the calls of the running loop. Waiting tasks get an error."""
        loop = _running_loop()
        if loop is None:
            return
        for call in [*self._calls(loop).running.values()]:
            call.cancel()

    def _calls(self, loop: asyncio.AbstractEventLoop) -> _LoopCalls[K, R]:
        # No lock is needed: only the thread of a loop adds that loop, and adding a key to a dict is
        # atomic.
        calls = self._loops.get(loop)
        return self._loops.setdefault(loop, _LoopCalls()) if calls is None else calls

    async def _run(
        self, calls: _LoopCalls[K, R], key: K, call: _Call[R], make: Callable[[], Awaitable[R]]
    ) -> None:
        answer: R | RepeatableProblem = RepeatableProblem(_ABANDONED)
        try:
            answer = await make()
        except Exception as error:
            answer = error.copy() if isinstance(error, RepeatableProblem) else self._describe(error)
            self._remember(calls, key, answer)
        finally:
            self._end(calls, key, call, answer)

    def _end_abandoned(
        self, calls: _LoopCalls[K, R], key: K, call: _Call[R], task: asyncio.Task[None]
    ) -> None:
        if task.cancelled():
            self._end(calls, key, call, RepeatableProblem(_ABANDONED))

    def _end(
        self, calls: _LoopCalls[K, R], key: K, call: _Call[R], answer: R | RepeatableProblem
    ) -> None:
        self._forget(calls, key, call)
        for waiter in call.waiters:
            if not waiter.done():
                waiter.set_result(answer)

    def _forget(self, calls: _LoopCalls[K, R], key: K, call: _Call[R]) -> None:
        if calls.running.get(key) is call:
            del calls.running[key]

    def _remember(self, calls: _LoopCalls[K, R], key: K, error: RepeatableProblem) -> None:
        calls.failed.pop(key, None)
        while len(calls.failed) >= self._limit:
            del calls.failed[next(iter(calls.failed))]
        until = asyncio.get_running_loop().time() + _FAILURE_KEPT_S
        calls.failed[key] = (error, until)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
