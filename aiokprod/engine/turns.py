"""Callers of `submit` that have held the loop for long enough: who goes on in which loop pass.

Were they all to go on in the next pass, thousands of tasks would make it last as long as all their
records take, and brokers would be heard and served once in that time only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

FIRST: Final = 16
MOST: Final = 1024


class Turns:
    """A line before the loop. In every pass a group goes on: half as many as before if somebody
    had to join the line meanwhile, because time was short, else twice as many.

    Invariant: a release is scheduled exactly while somebody is in the line.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._line: deque[asyncio.Future[None]] = deque()
        self._group = FIRST
        self._short = False

    def join(self) -> asyncio.Future[None]:
        """Done when it is the caller's turn. Marked as awaited: for an iterator to yield."""
        place: asyncio.Future[None] = self._loop.create_future()
        place._asyncio_future_blocking = True
        self._short = True
        if not self._line:
            self._loop.call_soon(self._release)
        self._line.append(place)
        return place

    def _release(self) -> None:
        self._group = max(1, self._group // 2) if self._short else min(MOST, self._group * 2)
        self._short = False
        for _ in range(min(self._group, len(self._line))):
            place = self._line.popleft()
            if not place.done():  # else its task was cancelled
                place.set_result(None)
        if self._line:
            self._loop.call_soon(self._release)
