from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiokprod._core.batch import BatchCore, ByteCount, Delivery, MemoryBudget, Reservation
from aiokprod._core.bulk_tracker import BulkTracker
from aiokprod._core.yielding import YieldQueue

DELIVERY_CHARGE: int
RECORD_OVERHEAD: int

def record_size_bound(
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes | None]] | None,
) -> int: ...
def key_partition(key: bytes, partitions: int) -> int: ...
def handle_of(core: BatchCore) -> Delivery: ...

class PartitionSlot:
    core: BatchCore | None
    def __init__(self, topic: str, partition: int) -> None: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def reserved_bytes(self) -> int: ...
    @property
    def opened(self) -> int: ...
    def open(
        self,
        core: BatchCore,
        opened: int,
        batch: object,
        batches: deque[Any],
        incomplete: dict[Any, None],
    ) -> bool: ...
    def follow(self, account: ByteCount) -> None: ...
    def hold(self, core: BatchCore) -> None: ...
    def let_go(self, core: BatchCore, memory: MemoryBudget) -> int: ...

class TopicSlot:
    sticky: int
    sticky_bytes: int
    def __init__(self, topic: str) -> None: ...
    @property
    def topic(self) -> str: ...
    @property
    def slots(self) -> list[Any]: ...

class AppendResult:
    @property
    def delivery(self) -> Delivery | None: ...
    @property
    def over_quota(self) -> Any: ...

class Appender:
    enabled: bool
    def __init__(
        self,
        *,
        memory: MemoryBudget,
        open_new_batch: Callable[[TopicSlot, int, int, Any], PartitionSlot],
        slow_submit: Callable[..., Awaitable[Delivery]],
        unix_ms: Callable[[], int],
        yield_queue: YieldQueue,
        max_request_size: int,
        sticky_limit: int,
        ignore_keys: bool = False,
    ) -> None: ...
    @property
    def topics(self) -> dict[str, TopicSlot]: ...
    def submit(
        self,
        topic: object,
        value: object = None,
        *,
        key: object = None,
        partition: object = None,
        timestamp_ms: object = None,
        headers: object = None,
    ) -> Awaitable[Delivery]: ...
    def try_append(
        self,
        topic: object,
        value: object = None,
        key: object = None,
        partition: object = None,
        timestamp_ms: object = None,
        headers: object = None,
    ) -> Delivery | None: ...
    def try_append_noted(
        self,
        tracker: BulkTracker,
        topic: object,
        value: object,
        key: object,
        partition: object,
        timestamp_ms: object,
        headers: object,
    ) -> bool: ...
    def append(
        self,
        slot: TopicSlot,
        partition: int | None,
        value: bytes | None,
        key: bytes | None,
        timestamp_ms: int | None,
        headers: Sequence[tuple[str, bytes | None]] | None,
        reservation: Reservation | None = None,
        permit: object = None,
    ) -> AppendResult: ...
    def append_column(
        self,
        tracker: BulkTracker,
        topic: TopicSlot,
        values: list[Any],
        keys: list[Any] | None,
        timestamps: list[Any] | None,
        headers: list[Any] | None,
        partition: int,
        start: int,
    ) -> int: ...

def submit(
    self: Any,
    topic: object,
    value: object = None,
    *,
    key: object = None,
    partition: object = None,
    timestamp_ms: object = None,
    headers: object = None,
) -> Awaitable[Delivery]: ...
