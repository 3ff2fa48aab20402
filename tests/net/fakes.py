"""An event loop whose iterations are run by the test, and a transport that stores written bytes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from typing import Any

from aiokprod._wire.headers import RequestHeader
from aiokprod._wire.message import Message
from tests.net.wire_helpers import requests_in


class FakeTimer:
    def __init__(self, when: float, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.when = when
        self.callback = callback
        self.args = args
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class HandLoop:
    """The three methods of an event loop that a connection uses. A test sets the time by
    assignment."""

    def __init__(self) -> None:
        self.now = 100.0
        self.soon: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.timers: list[FakeTimer] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self.soon.append((callback, args))

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> FakeTimer:
        timer = FakeTimer(when, callback, args)
        self.timers.append(timer)
        return timer

    @property
    def armed(self) -> list[float]:
        """The times at which the active timers fire, in ascending order."""
        return sorted(t.when for t in self.timers if not t.is_cancelled)

    def run_pass(self) -> None:
        """Run the callbacks that are queued now, but not those that they queue."""
        queued, self.soon = self.soon, []
        for callback, args in queued:
            callback(*args)

    def settle(self) -> None:
        for _ in range(1000):
            if not self.soon:
                return
            self.run_pass()
        raise AssertionError("the loop does not come to rest")

    def fire_due_timers(self) -> None:
        due = [t for t in self.timers if not t.is_cancelled and t.when <= self.now]
        self.timers = [t for t in self.timers if t not in due and not t.is_cancelled]
        for timer in due:
            timer.callback(*timer.args)

    def advance_to(self, when: float) -> None:
        """Fire the timers up to `when` one by one. Run the resulting iterations after each
        timer."""
        while self.armed and self.armed[0] <= when:
            self.now = max(self.now, self.armed[0])
            self.fire_due_timers()
            self.settle()
        self.now = max(self.now, when)


class FakeTransport(asyncio.Transport):
    """Stores written bytes. At most `accept` bytes leave at once; the rest waits for `drain`.

    `forgets_to_pause` reproduces the defect of `writelines` in CPython 3.12.0-3.12.8 and
    3.13.0-3.13.1.
    """

    def __init__(self, protocol: asyncio.Protocol, loop: HandLoop) -> None:
        super().__init__()
        self.protocol = protocol
        self.loop = loop
        self.written = bytearray()
        self.buffer = bytearray()
        self.accept: int | None = None
        self.forgets_to_pause = False
        self.write_error: Exception | None = None
        self.paused = False
        self.high = 64 * 1024
        self.how_closed: list[str] = []
        self._closing = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None
        self.high = high
        self._maybe_pause()

    def get_write_buffer_size(self) -> int:
        return len(self.buffer)

    def _maybe_pause(self) -> None:
        if len(self.buffer) > self.high and not self.paused:
            self.paused = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        if self.write_error is not None:
            raise self.write_error
        data = b"".join(list_of_data)
        room = len(data) if self.accept is None else self.accept
        self.written += data[:room]
        self.buffer += data[room:]
        if not self.forgets_to_pause:
            self._maybe_pause()

    def drain(self) -> None:
        self.written += self.buffer
        self.buffer.clear()
        if self.paused:
            self.paused = False
            self.protocol.resume_writing()

    def is_closing(self) -> bool:
        return self._closing

    def _end(self, how: str) -> None:
        self.how_closed.append(how)
        if not self._closing:
            self._closing = True
            self.loop.call_soon(self.protocol.connection_lost, None)

    def close(self) -> None:
        self._end("close")

    def abort(self) -> None:
        self._end("abort")

    def requests(self) -> list[tuple[RequestHeader, Message]]:
        """The complete requests that were written so far."""
        return requests_in([bytes(self.written)])


class Recorder:
    """A `ConnectionOwner` that records its calls."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []

    def names(self) -> list[str]:
        return [name for name, _ in itertools.groupby(entry[0] for entry in self.log)]

    def connection_ready(self, connection: Any) -> None:
        self.log.append(("ready",))

    def connection_throttled(self, connection: Any, seconds: float) -> None:
        self.log.append(("throttled", seconds))
        connection.postpone(seconds)

    def connection_progress(self, connection: Any) -> None:
        self.log.append(("progress",))

    def connection_closed(self, connection: Any, reason: Any, error: Any) -> None:
        self.log.append(("closed", reason, error))

    def transport_closed(self, connection: Any) -> None:
        self.log.append(("gone",))

    def callback_failed(self, error: BaseException) -> None:
        self.log.append(("callback failed", error))
