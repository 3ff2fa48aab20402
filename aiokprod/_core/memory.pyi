from collections.abc import Callable
from typing import Any, Self

from aiokprod._core.batch import Delivery, RecordMetadata

class MemoryBudget:
    used: int
    limit: int
    has_waiters: bool
    def __init__(self, limit: int) -> None: ...

class ByteCount:
    bytes: int
    def __init__(self) -> None: ...

class Reservation:
    on_delivery: Callable[[RecordMetadata | None, Any], object] | None
    def __new__(cls, budget: MemoryBudget) -> Self: ...
    @property
    def size(self) -> int: ...
    @property
    def delivery(self) -> Delivery | None: ...
    def grant(self, size: int) -> None: ...
    def give_back(self) -> int: ...
