import asyncio
from collections.abc import Callable
from typing import Final

from aiokprod._core.memory import MemoryBudget

FIRST: Final[int]
MOST: Final[int]
ROUND: Final[int]
LONG: Final[float]

class YieldQueue:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        stopwatch: Callable[[], float],
        memory: MemoryBudget,
        slice_length: float = 0.001,
    ) -> None: ...
    @property
    def waiting(self) -> int: ...
    def slice_is_over(self) -> bool: ...
    def close_pass(self) -> None: ...
    def join(self) -> asyncio.Future[None]: ...
    def begin(self) -> None: ...
    def release(self) -> None: ...
