"""Structs of Kafka's messages from objects to bytes; see encoders.pyx."""

from collections.abc import Callable, Iterable
from typing import Any

class Encoder:
    def encode(self, value: Any) -> list[bytes | bytearray | memoryview]: ...

class IntEncoder(Encoder):
    def __init__(self, code: str) -> None: ...

class BoolEncoder(Encoder): ...
class UuidEncoder(Encoder): ...

class SizedEncoder(Encoder):
    def __init__(self, width: int, null_error: Callable[[], Exception] | None) -> None: ...

class TextEncoder(SizedEncoder): ...
class BytesEncoder(SizedEncoder): ...
class ChunksEncoder(SizedEncoder): ...

class ArrayEncoder(SizedEncoder):
    def __init__(
        self, width: int, null_error: Callable[[], Exception] | None, element: Encoder
    ) -> None: ...

class StructEncoder(Encoder):
    def __init__(
        self,
        fields: Iterable[tuple[str, Encoder]],
        tagged: Iterable[tuple[int, str, Encoder, object]] | None,
        absent: Iterable[tuple[str, object]],
        absent_error: Callable[[Any, str], Exception],
    ) -> None: ...
