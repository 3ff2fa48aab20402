"""Faults inside a call: a signal handler, a finalizer or user code acts between any two bytecodes
of `try_submit` and `submit`.

A tracer counts the bytecodes of the package and strikes at a chosen one. It raises, like a handler
of `signal.signal` (KeyboardInterrupt, soft time limits of job runners), or it calls the producer
again, like a handler or a `__del__` that logs to Kafka. The same number always strikes at the same
place, regardless of earlier runs.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Awaitable, Callable, Generator, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

import aiokprod

T = TypeVar("T")

PACKAGE = str(Path(aiokprod.__file__).parent)
TESTING = str(Path(PACKAGE) / "testing")
BUGS = str(Path(__file__).parent.parent / "detection")
"""Directory of the bug functions that replace functions of the package."""


class Interrupt(BaseException):
    """An exception that a signal handler raises. Must not be caught, like KeyboardInterrupt."""


class TimeUp(Exception):
    """An exception that a signal handler raises. May be caught, like the soft time limit of a job
    runner."""


class Injector:
    """Strikes once, at the `step`-th bytecode of the package that runs under `armed()`.

    Args:
        folder: count bytecodes of the files in this folder only.

    Attributes:
        has_struck: the injector has struck.
    """

    def __init__(self, step: int, strike: Callable[[], object], folder: str = PACKAGE) -> None:
        self._left = step
        self._folder = folder
        self._strike = strike
        self._ours: dict[CodeType, bool] = {}
        self.has_struck = False

    @contextlib.contextmanager
    def armed(self) -> Iterator[None]:
        """Count the bytecodes that run inside, and restore the previous tracer at the end.

        Garbage collection is disabled inside, because an exception raised in a finalizer is lost.
        """
        if self.has_struck:
            yield
            return
        before, collects = sys.gettrace(), gc.isenabled()
        gc.disable()
        tracer = self._enter  # kept for the reason given in `tests.interrupts.inject`
        sys.settrace(tracer)
        try:
            yield
        finally:
            sys.settrace(before)
            if collects:
                gc.enable()

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        ours = self._ours.get(code)
        if ours is None:
            name = code.co_filename
            ours = name.startswith((self._folder, BUGS)) and not name.startswith(TESTING)
            self._ours[code] = ours
        if not ours:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._step

    def _step(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode" and not self.has_struck:
            self._left -= 1
            if self._left <= 0:
                self.has_struck = True
                sys.settrace(None)
                self._strike()
        return self._step


class _Stepped(Awaitable[T]):
    """An awaitable whose first step runs under the injector: the part of `submit` before its first
    wait."""

    def __init__(self, awaitable: Awaitable[T], injector: Injector) -> None:
        self._awaitable = awaitable
        self._injector = injector

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._awaitable.__await__()
        try:
            with self._injector.armed():
                yielded = next(steps)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        while True:
            try:
                sent = yield yielded
            except BaseException as error:
                advance = _throw(steps, error)
            else:
                advance = _send(steps, sent)
            try:
                yielded = advance()
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]


def _throw(steps: Any, error: BaseException) -> Callable[[], Any]:
    return lambda: steps.throw(error)


def _send(steps: Any, sent: Any) -> Callable[[], Any]:
    return lambda: steps.send(sent) if sent is not None else next(steps)


def stepped(awaitable: Awaitable[T], injector: Injector) -> Awaitable[T]:
    """Return `awaitable` with its first step under the injector."""
    return _Stepped(awaitable, injector)
