"""Waiting for "something newer": every turn lets all present waiters through, once."""

from __future__ import annotations

import asyncio
import math

from aiokprod.errors import KafkaError


class _Notification:
    __slots__ = ("error", "event")

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.error: KafkaError | None = None


class Broadcast:
    """A swapped Event. A waiter that arrives after a turn waits for the next one, so that no
    set/clear race exists and nobody is woken twice."""

    __slots__ = ("_current",)

    def __init__(self) -> None:
        self._current = _Notification()

    def notify_all(self, error: KafkaError | None = None) -> None:
        """Wake all waiters; with `error`, each of them raises a copy of it."""
        passed = self._current
        self._current = _Notification()
        passed.error = error
        passed.event.set()

    async def wait(self, deadline: float) -> None:
        """Return at the next turn or at the deadline (`loop.time()`); raises what the turn says.

        Callers check their condition before and after.
        """
        current = self._current
        try:
            async with asyncio.timeout_at(deadline if deadline < math.inf else None):
                await current.event.wait()
        except TimeoutError:
            return
        if current.error is not None:
            raise current.error.copy()
