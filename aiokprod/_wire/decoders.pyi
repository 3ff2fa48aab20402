"""Compiled decoders for the structs in Kafka's messages; see decoders.pyx."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

class Decoder:
    @property
    def min_size(self) -> int: ...
    def decode(
        self,
        data: bytes | bytearray | memoryview,
        start: int,
        error: Callable[[str], Exception],
    ) -> tuple[Any, int]: ...

class IntDecoder(Decoder):
    def __new__(cls, code: str) -> Self: ...

class BoolDecoder(Decoder): ...
class UuidDecoder(Decoder): ...

class SizedDecoder(Decoder):
    def __init__(self, width: int, nullable: bool) -> None: ...

class TextDecoder(SizedDecoder): ...
class BytesDecoder(SizedDecoder): ...
class ViewDecoder(SizedDecoder): ...

class ArrayDecoder(SizedDecoder):
    def __init__(self, width: int, nullable: bool, element: Decoder) -> None: ...

class StructDecoder(Decoder):
    def __init__(
        self,
        cls: type,
        fields: Iterable[tuple[str, Decoder]],
        defaults: Iterable[tuple[str, object]],
        tagged: Mapping[int, tuple[str, Decoder]] | None,
    ) -> None: ...
