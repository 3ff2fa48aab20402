"""How late a ticker comes: what every other user of the event loop feels of the client."""

from __future__ import annotations

import asyncio
import time
from typing import Final

TICK: Final = 0.005


class LoopLag:
    """Notes how much later than due a callback runs that wants to run every 5 ms.

    Measured by the processor's clock, not the loop's, which uvloop reads once a pass.

    Attributes:
        worst: the longest delay so far, s.
        ticks: how often it ran.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._armed = 0.0
        self.worst = 0.0
        self.ticks = 0

    def __enter__(self) -> LoopLag:
        self._arm()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._note()  # a loop that was held to the very end has a tick that is overdue by now

    def _arm(self) -> None:
        self._armed = time.perf_counter()
        self._timer = self._loop.call_later(TICK, self._tick)

    def _tick(self) -> None:
        self._note()
        self.ticks += 1
        self._arm()

    def _note(self) -> None:
        self.worst = max(self.worst, time.perf_counter() - self._armed - TICK)
