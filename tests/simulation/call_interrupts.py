"""Faults inside a call: the actions of a signal handler, a finalizer or user code between any two
bytecodes of `try_submit` and `submit`.

A tracer counts the bytecodes of the package and strikes at a chosen one: it raises, as a handler of
`signal.signal` does (KeyboardInterrupt, soft time limits of job runners), or it calls the producer
again, as a handler or a `__del__` that logs to Kafka does. The same number strikes at the same
place, whatever ran before.
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
"""Functions of bugs that are put back stand here and take the place of some of the package."""


class Interrupt(BaseException):
    """What a handler raises that is not meant to be caught, as KeyboardInterrupt."""


class TimeUp(Exception):
    """What a handler raises that may be caught, as the soft time limits of job runners."""


class Injector:
    """Strikes once, at the `step`-th bytecode of the package that runs under `armed()`.

    Args:
        folder: count bytecodes of the files in this folder only.

    Attributes:
        has_struck: it did.
    """

    def __init__(self, step: int, strike: Callable[[], object], folder: str = PACKAGE) -> None:
        self._left = step
        self._folder = folder
        self._strike = strike
        self._ours: dict[CodeType, bool] = {}
        self.has_struck = False

    @contextlib.contextmanager
    def armed(self) -> Iterator[None]:
        """Count the bytecodes run inside; a tracer that was there comes back at the end.

        No garbage is collected inside: an exception that is raised in a finalizer is lost.
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
    """An awaitable whose first step runs under the injector: what `submit` does before it waits."""

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
    """`awaitable` with its first step under the injector."""
    return _Stepped(awaitable, injector)
