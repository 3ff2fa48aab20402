"""Exceptions like those of signal handlers, raised at chosen or random bytecodes of a call.

`Injector` uses `sys.settrace` to raise before one bytecode of the Python functions that a call
reaches, including those of the loop. That is stricter than CPython, which runs signal handlers only
at calls, returns and jumps; it covers MemoryError as well. `alarm` is a real signal handler.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Coroutine, Generator, Iterator
from types import FrameType
from typing import Any, ClassVar, TypeVar

T = TypeVar("T")


class Interrupted(BaseException):
    """Like KeyboardInterrupt, but the loop treats it like any other error of a task."""


class SoftTimeLimit(Exception):
    """The exception of a job runner's SIGALRM handler."""


KINDS: tuple[type[BaseException], ...] = (Interrupted, SoftTimeLimit, MemoryError)


class Injector:
    """Counts bytecodes while it is active, and raises `kind` before number `target` (0: never).

    Attributes:
        count: bytecodes so far.
        place: where it raised, as "function:line", or "" before that.
    """

    def __init__(self, target: int, kind: type[BaseException] = Interrupted) -> None:
        self.target = target
        self.kind = kind
        self.count = 0
        self.place = ""

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_globals.get("__name__", "").startswith("tests."):
            return None
        frame.f_trace = self._opcode  # first: otherwise 3.13 does not trace this frame
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._opcode

    def _opcode(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            self.count += 1
            if self.count == self.target:
                self.place = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                sys.settrace(None)  # do not trace `raise` and its handlers; `call` restores
                raise self.kind(self.place)
        return self._opcode

    def call(self, function: Callable[[], T]) -> T:
        """Run a function under the injector, and restore the previous tracer (such as that of
        coverage) at the end."""
        before = sys.gettrace()
        # Keep a reference. CPython 3.11 calls the tracer through a borrowed reference, after it has
        # created a frame object. That may run the garbage collector, and the exception may be
        # raised in a finalizer, which removes the tracer.
        tracer = self._call
        if not self.place:
            sys.settrace(tracer)
        try:
            return function()
        finally:
            sys.settrace(before)


NEVER = Injector(0)

UNTOUCHED = "Hooks."
"""Methods in which no real signal raises: they count what the judge compares."""
AGAIN_S = 2e-5
"""Seconds until the signal is sent again."""


class Survey(Injector):
    """Raises nothing; counts the bytecodes of each activation of a Python function.

    An activation lasts from one entry of a frame (a call, or a generator that continues) to its
    next exit.

    Attributes:
        lengths: bytecodes per activation, in the order of the entries.
    """

    def __init__(self) -> None:
        super().__init__(0)
        self.lengths: list[int] = []
        self._active: dict[FrameType, int] = {}

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        local = super()._call(frame, event, argument)
        if local is not None:
            self._active[frame] = len(self.lengths)
            self.lengths.append(0)
        return local

    def _opcode(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            self.lengths[self._active[frame]] += 1
        return self._opcode

    def call(self, function: Callable[[], T]) -> T:
        try:
            return super().call(function)
        finally:
            self._active.clear()


class Aimed(Injector):
    """Raises before bytecode `target` (from 1) of activation `activation` (from 0) of a call.

    Bytecodes are traced in that activation only, which makes it many times faster than `Injector`.
    If the activation ends before `target`, the count continues in the next activations.
    """

    def __init__(self, activation: int, target: int, kind: type[BaseException]) -> None:
        super().__init__(target, kind)
        self._before = activation
        self._traced: FrameType | None = None

    def __repr__(self) -> str:
        return f"<{self.kind.__name__} at {self.place or 'no place yet'}>"

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        if self._traced is not None:
            return None
        if self._before:
            if not frame.f_globals.get("__name__", "").startswith("tests."):
                self._before -= 1
            return None
        local = super()._call(frame, event, argument)
        if local is not None:
            self._traced = frame
        return local

    def _opcode(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame is not self._traced:
            return self._opcode  # entered again, or called by the traced frame
        if event == "return":
            self._traced = None
        elif event == "opcode":
            super()._opcode(frame, event, argument)
        return self._opcode

    def call(self, function: Callable[[], T]) -> T:
        try:
            return super().call(function)
        finally:
            self._traced = None


class Alarm:
    """A signal handler that raises `kind` once, `delay` seconds after `call`; see `installed`."""

    _armed: ClassVar[Alarm | None] = None

    def __init__(self, delay: float, kind: type[BaseException] = Interrupted) -> None:
        self.delay = delay
        self.kind = kind
        self.place = ""

    def call(self, function: Callable[[], T]) -> T:
        """Run a function; the signal may come while it runs."""
        if self.place:
            return function()
        signal.setitimer(signal.ITIMER_REAL, self.delay)
        Alarm._armed = self
        try:
            return function()
        finally:
            Alarm._armed = None
            signal.setitimer(signal.ITIMER_REAL, 0)

    @staticmethod
    @contextlib.contextmanager
    def installed() -> Iterator[None]:
        """Install the handler."""
        before = signal.signal(signal.SIGALRM, _handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGALRM, before)


def _handle(number: int, frame: FrameType | None) -> None:
    alarm = Alarm._armed
    if _is_within(UNTOUCHED, frame):
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
    elif alarm is not None and frame is not None:
        Alarm._armed = None
        alarm.place = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
        raise alarm.kind(alarm.place)


def _is_within(prefix: str, frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_qualname.startswith(prefix):
            return True
        frame = frame.f_back
    return False


class Stepped:
    """Awaits a coroutine and runs its every step under an injector."""

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
