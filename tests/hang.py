"""Waits in real time. Their limits only distinguish a hang from progress: on a loaded machine every
step may take seconds. Durations are tested in virtual time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

HANG_S: Final = 60.0


async def until(condition: Callable[[], object]) -> None:
    """Run the loop until the condition holds.

    Raises:
        TimeoutError: the condition did not hold within `HANG_S`.
    """
    async with asyncio.timeout(HANG_S):
        while not condition():  # noqa: ASYNC110 - other threads and the kernel set no Event
            await asyncio.sleep(0.005)


def wait_until(condition: Callable[[], object]) -> None:
    """Like `until`, but blocks and needs no event loop.

    Raises:
        TimeoutError: the condition did not hold within `HANG_S`.
    """
    give_up = time.monotonic() + HANG_S
    while not condition():
        if time.monotonic() > give_up:
            raise TimeoutError("the condition does not hold")
        time.sleep(0.005)
