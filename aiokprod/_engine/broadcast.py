"""`Broadcast` notifies all waiting tasks, each exactly once per notification."""

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
    """Wakes all tasks that are waiting when `notify_all` is called. Unlike an `asyncio.Event`, it
    does not have to be cleared, so a task cannot be woken twice by one notification."""

    __slots__ = ("_current",)

    def __init__(self) -> None:
        self._current = _Notification()

    def notify_all(self, error: KafkaError | None = None) -> None:
        """Wake all waiters. With `error`, each waiter raises a copy of it."""
        passed = self._current
        self._current = _Notification()
        passed.error = error
        passed.event.set()

    async def wait(self, deadline: float) -> None:
        """Wait for the next notification, at most until `deadline` (loop time). Raises a copy of
        the notification's error, if it has one.

        Callers must check their condition before and after the call.
        """
        current = self._current
        try:
            async with asyncio.timeout_at(deadline if deadline < math.inf else None):
                await current.event.wait()
        except TimeoutError:
            return
        if current.error is not None:
            raise current.error.copy()
