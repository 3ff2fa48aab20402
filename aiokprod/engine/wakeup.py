"""An Event with a deadline, cheap to set and exact about time."""

from __future__ import annotations

import asyncio


class Wakeup:
    """One waiter, any number of setters; a set before the wait is remembered.

    `asyncio.Event` plus `wait_for` would make a task or a timeout context per pass; this makes
    one future.
    """

    __slots__ = ("_flag", "_future", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._flag = False
        self._future: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Let the waiter run in the next turn of the loop."""
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
        future = self._future = self._loop.create_future()
        timer = None
        if deadline != float("inf"):
            timer = self._loop.call_at(deadline, self.set)
        try:
            await future
        finally:
            self._future = None
            if timer is not None:
                timer.cancel()
