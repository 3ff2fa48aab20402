"""An Event with a deadline, cheap to set and exact about time."""

from __future__ import annotations

import asyncio
from typing import Final

FOREVER: Final = float("inf")


class Wakeup:
    """One waiter, any number of setters; a set before the wait is remembered.

    `asyncio.Event` plus `wait_for` would make a task or a timeout context per pass; this makes
    one future.

    Args:
        keep_timer: the timer of a wait that ends early stays, and serves the later ones: while
            things happen faster than their deadlines pass, none is made or cancelled. Call
            `close` at the end.
    """

    __slots__ = ("_deadline", "_flag", "_future", "_keep_timer", "_loop", "_timer", "_timer_at")

    def __init__(self, loop: asyncio.AbstractEventLoop, *, keep_timer: bool = False) -> None:
        self._loop = loop
        self._keep_timer = keep_timer
        self._flag = False
        self._future: asyncio.Future[None] | None = None
        self._deadline = FOREVER  # of the present wait
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = FOREVER

    def set(self) -> None:
        """Let the waiter run in the next turn of the loop."""
        if self._flag:
            return
        self._flag = True
        future = self._future
        if future is not None and not future.done():
            future.set_result(None)

    def clear(self) -> None:
        """Forget past sets. Call before inspecting state, never after."""
        self._flag = False

    async def wait(self, deadline: float) -> None:
        """Return once set, or at `deadline` (loop time, inf = never).

        Cancellation: nothing is left behind.
        """
        if self._flag:
            await asyncio.sleep(0)
            return
        self._deadline = deadline
        if deadline < self._timer_at:
            self._arm(deadline)
        future = self._future = self._loop.create_future()
        try:
            await future
        finally:
            self._future = None
            self._deadline = FOREVER
            if not self._keep_timer:
                self.close()

    def close(self) -> None:
        """Drop the timer: nobody will wait any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._timer_at = FOREVER

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._loop.call_at(when, self._ring)

    def _ring(self) -> None:
        due, self._timer, self._timer_at = self._timer_at, None, FOREVER
        if self._deadline <= due:
            self.set()
        elif self._deadline < FOREVER:
            self._arm(self._deadline)
