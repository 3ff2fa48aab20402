"""Lets threads wait for results of the event loop without a shared lock.

A signal handler runs inside the call that it interrupts. If that call holds a lock that the event
loop takes too, and the handler waits for the loop (`Blocking.close` on SIGTERM), both wait forever.
`threading.Condition`, and therefore `concurrent.futures.Future`, has such a lock.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING

from aiokprod.environment import monotonic

if TYPE_CHECKING:
    from collections.abc import Callable


class ThreadWaits:
    """The threads that wait for a condition."""

    __slots__ = ("_turns",)

    def __init__(self) -> None:
        self._turns: deque[threading.Lock] = deque()

    def __bool__(self) -> bool:
        """Return True if a thread waits."""
        return bool(self._turns)

    def wait(self, has_ended: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until `has_ended` returns True, at most `timeout` seconds. Return its last result.

        Args:
            has_ended: called at the start, after each `wake` and at the end, in the waiting thread.
            timeout: seconds; None or math.inf for no limit.
        """
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            turn = threading.Lock()
            turn.acquire()
            self._turns.append(turn)  # before `has_ended()`, because a later change calls `wake`
            try:
                if has_ended():
                    return True
                left = -1.0 if deadline is None else deadline - monotonic()
                if deadline is not None and left <= 0:
                    return False
                # `acquire` rejects longer timeouts, such as math.inf.
                if not turn.acquire(timeout=min(left, threading.TIMEOUT_MAX)):
                    return has_ended()
            finally:
                with contextlib.suppress(ValueError):  # `wake` has already removed it
                    self._turns.remove(turn)

    def wake(self) -> None:
        """Make all waiting threads check their condition again. Does not block."""
        for _ in range(len(self._turns)):  # excludes threads that begin a new wait during the loop
            try:
                turn = self._turns.popleft()
            except IndexError:  # in the meantime, a waiting thread has removed its lock
                return
            turn.release()
