"""Exceptions like those of signal handlers, raised at chosen or random bytecodes of a call.

`Injector` raises before one bytecode of the Python functions that a call reaches, the loop's own
included, by way of `sys.settrace`. That is stricter than CPython, which runs signal handlers at
calls, returns and jumps only: it covers MemoryError as well. `alarm` is a real signal handler.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Coroutine, Generator, Iterator
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


class Interrupted(BaseException):
    """As KeyboardInterrupt, but the loop lets it pass like any other error of a task."""


class SoftTimeLimit(Exception):
    """What a job runner's SIGALRM handler raises."""


KINDS: tuple[type[BaseException], ...] = (Interrupted, SoftTimeLimit, MemoryError)


class Injector:
    """Counts bytecodes while it is on, and raises `kind` before number `target` (0: never).

    Attributes:
        count: bytecodes seen so far.
        place: where it raised, as "function:line"; empty while it did not.
    """

    def __init__(self, target: int, kind: type[BaseException] = Interrupted) -> None:
        self.target = target
        self.kind = kind
        self.count = 0
        self.place = ""

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_globals.get("__name__", "").startswith("tests."):
            return None
        frame.f_trace = self._opcode  # first: else 3.13 does not see the bytecodes of this frame
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._opcode

    def _opcode(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            self.count += 1
            if self.count == self.target:
                self.place = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                sys.settrace(None)  # not into `raise` and its handlers; `call` restores
                raise self.kind(self.place)
        return self._opcode

    def call(self, function: Callable[[], T]) -> T:
        """Run a function under the injector; a tracer that was there, such as that of coverage,
        comes back at the end."""
        before = sys.gettrace()
        if not self.place:
            sys.settrace(self._call)
        try:
            return function()
        finally:
            sys.settrace(before)


class Alarm:
    """A signal handler that raises `kind` once, `delay` seconds of processor time after `call`."""

    def __init__(self, delay: float, kind: type[BaseException] = Interrupted) -> None:
        self.delay = delay
        self.kind = kind
        self.place = ""
        self._armed = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._armed and frame is not None:
            self._armed = False
            self.place = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
            raise self.kind(self.place)

    def call(self, function: Callable[[], T]) -> T:
        """Run a function; the signal may come while it runs."""
        if self.place:
            return function()
        signal.setitimer(signal.ITIMER_REAL, self.delay)
        self._armed = True
        try:
            return function()
        finally:
            self._armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """The handler is in place."""
        before = signal.signal(signal.SIGALRM, self._handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGALRM, before)


class Stepped:
    """Awaits a coroutine whose every step runs under an injector."""

    def __init__(self, injector: Injector | Alarm, coroutine: Coroutine[Any, Any, T]) -> None:
        self._injector = injector
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, Any]:
        coroutine = self._coroutine
        step: Callable[[], Any] = lambda: coroutine.send(None)  # noqa: E731
        try:
            while True:
                try:
                    waited_for = self._injector.call(step)
                except StopIteration as end:
                    return end.value
                try:
                    yield waited_for
                    step = lambda: coroutine.send(None)  # noqa: E731
                except BaseException as error:
                    raised = error
                    step = lambda: coroutine.throw(raised)  # noqa: B023, E731
        finally:
            coroutine.close()
