"""Waits of threads for what the event loop does, without a lock.

A signal handler runs within the call that it interrupts. If that call has a lock which the event
loop takes too, and the handler waits for the loop (`Blocking.close` on SIGTERM), both wait forever.
The locks of `threading.Condition`, and so of `concurrent.futures.Future`, are such locks.
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
    """The threads that wait for one condition."""

    __slots__ = ("_turns",)

    def __init__(self) -> None:
        self._turns: deque[threading.Lock] = deque()

    def __bool__(self) -> bool:
        """True if a thread waits."""
        return bool(self._turns)

    def wait(self, has_ended: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until `has_ended` returns True, at most `timeout` seconds; returns its last result.

        Args:
            has_ended: called at once, after each `wake` and at the end, in the thread that waits.
            timeout: seconds; None or math.inf for no limit.
        """
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            turn = threading.Lock()
            turn.acquire()
            self._turns.append(turn)  # before the condition is read: a later change calls `wake`
            try:
                if has_ended():
                    return True
                left = -1.0 if deadline is None else deadline - monotonic()
                if deadline is not None and left <= 0:
                    return False
                # `acquire` refuses a longer timeout, such as math.inf.
                if not turn.acquire(timeout=min(left, threading.TIMEOUT_MAX)):
                    return has_ended()
            finally:
                with contextlib.suppress(ValueError):  # `wake` has taken it
                    self._turns.remove(turn)

    def wake(self) -> None:
        """Let all threads that wait look again. Does not block."""
        for _ in range(len(self._turns)):  # excludes those that begin to wait again
            try:
                turn = self._turns.popleft()
            except IndexError:  # a wait has ended by itself
                return
            turn.release()
