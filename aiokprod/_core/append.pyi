from collections.abc import Awaitable, Callable, Sequence
from typing import Any, final

from aiokprod._core.batch import Delivery
from aiokprod._core.hooks import HookCalls, HookedRecord
from aiokprod._core.memory import MemoryBudget, Reservation
from aiokprod._core.serialization import SerializedRecord, SerializerPair
from aiokprod._core.slots import PartitionSlot, TopicSlot
from aiokprod._core.yielding import YieldQueue

class AppendResult:
    @property
    def delivery(self) -> Delivery | None: ...
    @property
    def over_quota(self) -> Any: ...

@final
class Appender:
    enabled: bool  # written by `FastPathSwitch` only
    def __init__(
        self,
        *,
        memory: MemoryBudget,
        open_new_batch: Callable[[TopicSlot, int, int, Any], PartitionSlot],
        slow_submit: Callable[..., Awaitable[Delivery]],
        unix_ms: Callable[[], int],
        yield_queue: YieldQueue,
        max_request_size: int,
        ignore_keys: bool = False,
        serializers: SerializerPair | None = None,
        hooks: HookCalls | None = None,
        partitioner: Callable[..., Any] | None = None,
        check_partition: Callable[[Any, str, Any], int] | None = None,
    ) -> None: ...
    snapshot: Any  # written by `Runtime` only
    @property
    def calls_user(self) -> bool: ...
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
        on_delivery: object = None,
    ) -> Awaitable[Delivery]: ...
    def try_append(
        self,
        topic: object,
        value: object = None,
        key: object = None,
        partition: object = None,
        timestamp_ms: object = None,
        headers: object = None,
        on_delivery: object = None,
    ) -> Delivery | SerializedRecord | None: ...
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
        hooked: HookedRecord | None = None,
    ) -> AppendResult: ...

def submit(
    self: Any,
    topic: object,
    value: object = None,
    *,
    key: object = None,
    partition: object = None,
    timestamp_ms: object = None,
    headers: object = None,
    on_delivery: object = None,
) -> Awaitable[Delivery]: ...
