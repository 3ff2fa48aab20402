"""Compiled encoders for the structs in Kafka's messages; see encoders.pyx."""

from collections.abc import Callable, Iterable
from typing import Any, Self

class Encoder:
    def encode(self, value: Any) -> list[bytes | bytearray | memoryview]: ...

class IntEncoder(Encoder):
    def __new__(cls, code: str) -> Self: ...

class BoolEncoder(Encoder): ...
class UuidEncoder(Encoder): ...

class SizedEncoder(Encoder):
    def __new__(cls, width: int, null_error: Callable[[], Exception] | None) -> Self: ...

class TextEncoder(SizedEncoder): ...
class BytesEncoder(SizedEncoder): ...
class ChunksEncoder(SizedEncoder): ...

class ArrayEncoder(SizedEncoder):
    def __new__(
        cls, width: int, null_error: Callable[[], Exception] | None, element: Encoder
    ) -> Self: ...

class StructEncoder(Encoder):
    def __new__(
        cls,
        fields: Iterable[tuple[str, Encoder]],
        tagged: Iterable[tuple[int, str, Encoder, object]] | None,
        absent: Iterable[tuple[str, object]],
        absent_error: Callable[[Any, str], Exception],
    ) -> Self: ...
