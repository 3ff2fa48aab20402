"""Measures event loop lag: how late a periodic timer runs while a client is busy."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any, Final

TICK: Final = 0.005
FINE_TICK: Final = 0.001


class CollectorTime:
    """Measures how long Python's cyclic garbage collector runs, s. Any allocation may trigger the
    collector, which traverses all young containers, including the caller's lists of handles."""

    def __init__(self) -> None:
        self.pauses: list[tuple[float, float]] = []
        self._started = 0.0

    def since(self, due: float) -> float:
        """Return the seconds that the collector has run since `due` (`time.perf_counter`)."""
        total = 0.0
        for start, end in reversed(self.pauses):
            if end <= due:
                break
            total += end - max(start, due)
        return total

    def __enter__(self) -> CollectorTime:
        gc.callbacks.append(self._note)
        return self

    def __exit__(self, *exc: object) -> None:
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, _: dict[str, Any]) -> None:
        if phase == "start":
            self._started = time.perf_counter()
        else:
            self.pauses.append((self._started, time.perf_counter()))


class LoopLag:
    """Measures the delay of a callback that should run every `tick` seconds.

    It uses `time.perf_counter`, because uvloop updates the loop's clock only once per iteration.

    Attributes:
        worst: the longest delay so far, s. It includes the time in which other programs ran.
        apart: the longest delay, s, without the time of the garbage collector after the callback
            was due.
        held: the longest CPU time of the loop's thread between two ticks, s. It excludes other
            programs. Up to `tick` seconds of it may be many short callbacks.
        ticks: number of runs of the callback.
    """

    def __init__(self, tick: float = TICK, collector: CollectorTime | None = None) -> None:
        self._collector = collector if collector is not None else CollectorTime()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._tick = tick
        self._armed = 0.0
        self._used = 0.0
        self.worst = 0.0
        self.apart = 0.0
        self.held = 0.0
        self.ticks = 0

    def __enter__(self) -> LoopLag:
        self._arm()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._note()  # a tick is overdue if the loop was blocked until now

    def _arm(self) -> None:
        self._armed = time.perf_counter()
        self._used = time.thread_time()
        self._timer = self._loop.call_later(self._tick, self._run)

    def _run(self) -> None:
        self._note()
        self.ticks += 1
        self._arm()

    def _note(self) -> None:
        due = self._armed + self._tick
        late = time.perf_counter() - due
        self.worst = max(self.worst, late)
        if late > self.apart:
            self.apart = max(self.apart, late - self._collector.since(due))
        self.held = max(self.held, time.thread_time() - self._used)
