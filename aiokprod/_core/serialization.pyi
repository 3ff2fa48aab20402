from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiokprod._core.hooks import HookedRecord

class FieldSerializer:
    @property
    def passthrough(self) -> bool: ...
    def __init__(
        self,
        call: Callable[..., Any],
        *,
        takes_topic: bool,
        passthrough: bool,
        second: Any = None,
        third: Any = None,
    ) -> None: ...
    def __call__(
        self, topic: str, headers: Sequence[tuple[str, bytes | None]], data: Any
    ) -> bytes | Awaitable[bytes | None] | None: ...

class SerializedRecord:
    @property
    def key(self) -> bytes | Awaitable[bytes | None] | None: ...
    @property
    def value(self) -> bytes | Awaitable[bytes | None] | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]] | None: ...
    @property
    def has_value(self) -> bool: ...
    @property
    def is_started(self) -> bool: ...
    hooked: HookedRecord | None
    def take_failure(self) -> Exception | None: ...

class SerializerPair:
    @property
    def key(self) -> FieldSerializer: ...
    @property
    def value(self) -> FieldSerializer: ...
    @property
    def plain(self) -> bool: ...
    def __init__(self, key: FieldSerializer, value: FieldSerializer) -> None: ...
    def serialize(
        self,
        topic: str,
        headers: Sequence[tuple[str, bytes | None]] | None,
        value: Any,
        key: Any,
        record: SerializedRecord | None = None,
    ) -> SerializedRecord: ...
