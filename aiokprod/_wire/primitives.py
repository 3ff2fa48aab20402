"""Decodes Kafka's primitive types.

`Reader` decodes one complete buffer. It checks every length against the remaining bytes before it
allocates memory, and raises only `DecodeError`, whatever the input. It decodes frames and record
batches; messages have compiled decoders (`aiokprod._wire.decoders`).

All integers are big-endian two's complement. Source: Kafka protocol guide, "Protocol Primitive
Types"; Java `ByteUtils`.
"""

from __future__ import annotations

from struct import Struct as Layout
from typing import Final, TypeAlias

from aiokprod.errors import DecodeError

BytesLike: TypeAlias = bytes | bytearray | memoryview
"""A flat buffer of unsigned bytes."""

INT16: Final = Layout(">h")
INT32: Final = Layout(">i")

_MAX_VARINT: Final = 0xFFFFFFFF
_MAX_VARLONG: Final = 0xFFFFFFFFFFFFFFFF


class Reader:
    """Decodes primitive types from a buffer, one after the other.

    Attributes:
        data: the whole buffer.
        pos: index of the next byte.
        end: index after the last byte that may be read; lowered while a record is read.

    Every method raises `DecodeError` if the buffer ends too early or the bytes are invalid.
    """

    __slots__ = ("data", "end", "pos")

    def __init__(self, data: BytesLike) -> None:
        self.data = data
        self.pos = 0
        self.end = len(data)

    @property
    def remaining(self) -> int:
        """Bytes that may still be read."""
        return self.end - self.pos

    def advance(self, size: int) -> int:
        """Skip `size` bytes and return the index of the first skipped byte."""
        start = self.pos
        end = start + size
        if size < 0 or end > self.end:
            raise DecodeError(f"{size} bytes expected at byte {start}, {self.end - start} left")
        self.pos = end
        return start

    def int16(self) -> int:
        """Read an int16, -2¹⁵ to 2¹⁵-1."""
        value: int = INT16.unpack_from(self.data, self.advance(2))[0]
        return value

    def int32(self) -> int:
        """Read an int32, -2³¹ to 2³¹-1."""
        value: int = INT32.unpack_from(self.data, self.advance(4))[0]
        return value

    def uvarint(self) -> int:
        """Read an unsigned varint, 0 to 2³²-1; at most 5 bytes, lowest seven bits first."""
        pos = self.pos
        if pos < self.end:
            byte = self.data[pos]
            if byte < 0x80:
                self.pos = pos + 1
                return byte
        return self._long_uvarint(5, _MAX_VARINT)

    def varint(self) -> int:
        """Read a zig-zag varint, -2³¹ to 2³¹-1; at most 5 bytes."""
        value = self.uvarint()
        return (value >> 1) ^ -(value & 1)

    def varlong(self) -> int:
        """Read a zig-zag varlong, -2⁶³ to 2⁶³-1; at most 10 bytes."""
        value = self._long_uvarint(10, _MAX_VARLONG)
        return (value >> 1) ^ -(value & 1)

    def _long_uvarint(self, max_bytes: int, max_value: int) -> int:
        data = self.data
        start = self.pos
        value = 0
        for index in range(min(max_bytes, self.end - start)):
            byte = data[start + index]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                if value > max_value:
                    raise DecodeError(f"varint at byte {start} exceeds {max_value}")
                self.pos = start + index + 1
                return value
        if self.end - start >= max_bytes:
            raise DecodeError(f"varint at byte {start} has more than {max_bytes} bytes")
        raise DecodeError(f"varint at byte {start} is cut off")

    def blob(self, size: int) -> bytes:
        """Read `size` bytes and return a copy of them."""
        start = self.advance(size)
        return bytes(self.data[start : start + size])

    def check_count(self, count: int, min_size: int) -> None:
        """Raise if the remaining bytes are too few for `count` elements of at least `min_size`."""
        if count * min_size > self.end - self.pos:
            raise DecodeError(
                f"{count} elements announced at byte {self.pos}, {self.end - self.pos} bytes left"
            )

    def expect_end(self) -> None:
        """Raise if bytes are left after the last field."""
        if self.pos != self.end:
            raise DecodeError(f"{self.end - self.pos} bytes left over at byte {self.pos}")


__all__ = [
    "INT16",
    "INT32",
    "BytesLike",
    "Layout",
    "Reader",
]
