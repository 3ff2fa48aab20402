"""Kafka's primitive types between bytes and Python values.

`Reader` walks over one complete buffer and checks every length against what is really left, before
it allocates anything; whatever the bytes are, it returns a value or raises `DecodeError`. `Writer`
collects bytes and keeps large chunks apart, so that record batches are never copied.

All integers are big-endian two's complement. Source: Kafka protocol guide, "Protocol Primitive
Types"; Java `ByteUtils`.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct as Layout
from struct import error as layout_error
from typing import Final, TypeAlias

from aiokprod.errors import DecodeError

BytesLike: TypeAlias = bytes | bytearray | memoryview
"""A flat buffer of unsigned bytes."""

MAX_STRING: Final = 0x7FFF
"""Longest string in bytes, in the compact form too. Source: Java message generator."""

INT8: Final = Layout(">b")
INT16: Final = Layout(">h")
INT32: Final = Layout(">i")
INT64: Final = Layout(">q")

_MAX_VARINT: Final = 0xFFFFFFFF
_MAX_VARLONG: Final = 0xFFFFFFFFFFFFFFFF


class Reader:
    """A cursor over one buffer.

    Attributes:
        data: the whole buffer.
        pos: index of the next byte.
        end: index after the last byte that may be read; lowered while a tagged field is read.

    Every method raises `DecodeError` if the bytes are missing or not allowed.
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
        """Move over `size` bytes; returns the index of the first of them."""
        start = self.pos
        end = start + size
        if size < 0 or end > self.end:
            raise DecodeError(f"{size} bytes expected at byte {start}, {self.end - start} left")
        self.pos = end
        return start

    def fixed(self, layout: Layout) -> tuple[int | bool | bytes, ...]:
        """Several fixed-width values at once."""
        start = self.pos
        end = start + layout.size
        if end > self.end:
            raise DecodeError(
                f"{layout.size} bytes expected at byte {start}, {self.end - start} left"
            )
        self.pos = end
        return layout.unpack_from(self.data, start)

    def int8(self) -> int:
        """-2⁷ to 2⁷-1."""
        value: int = INT8.unpack_from(self.data, self.advance(1))[0]
        return value

    def int16(self) -> int:
        """-2¹⁵ to 2¹⁵-1."""
        value: int = INT16.unpack_from(self.data, self.advance(2))[0]
        return value

    def int32(self) -> int:
        """-2³¹ to 2³¹-1."""
        value: int = INT32.unpack_from(self.data, self.advance(4))[0]
        return value

    def int64(self) -> int:
        """-2⁶³ to 2⁶³-1."""
        value: int = INT64.unpack_from(self.data, self.advance(8))[0]
        return value

    def uvarint(self) -> int:
        """0 to 2³²-1 in groups of seven bits, lowest first; at most 5 bytes."""
        pos = self.pos
        if pos < self.end:
            byte = self.data[pos]
            if byte < 0x80:
                self.pos = pos + 1
                return byte
        return self._long_uvarint(5, _MAX_VARINT)

    def varint(self) -> int:
        """-2³¹ to 2³¹-1, zig-zag; at most 5 bytes."""
        value = self.uvarint()
        return (value >> 1) ^ -(value & 1)

    def varlong(self) -> int:
        """-2⁶³ to 2⁶³-1, zig-zag; at most 10 bytes."""
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

    def compact_length(self) -> int:
        """Length of a compact string, bytes or array; -1 = null."""
        return self.uvarint() - 1

    def text(self, size: int) -> str:
        """`size` bytes of UTF-8."""
        if size > MAX_STRING:
            raise DecodeError(f"string of {size} bytes at byte {self.pos}, limit {MAX_STRING}")
        start = self.advance(size)
        try:
            return str(self.data[start : start + size], "utf-8")
        except UnicodeDecodeError as exc:
            raise DecodeError(f"string at byte {start} is not UTF-8: {exc.reason}") from None

    def blob(self, size: int) -> bytes:
        """A copy of `size` bytes."""
        start = self.advance(size)
        return bytes(self.data[start : start + size])

    def view(self, size: int) -> memoryview:
        """`size` bytes without copying them; keeps the whole buffer alive."""
        start = self.advance(size)
        return memoryview(self.data)[start : start + size]

    def check_count(self, count: int, min_size: int) -> None:
        """Refuse `count` elements of at least `min_size` bytes if they cannot all be there."""
        if count * min_size > self.end - self.pos:
            raise DecodeError(
                f"{count} elements announced at byte {self.pos}, {self.end - self.pos} bytes left"
            )

    def expect_end(self) -> None:
        """Refuse bytes after the last field."""
        if self.pos != self.end:
            raise DecodeError(f"{self.end - self.pos} bytes left over at byte {self.pos}")


class Writer:
    """Collects encoded bytes.

    Attributes:
        buffer: the open chunk; fixed-width values are appended to it directly.

    Values out of range raise `ValueError` (`struct.error` for fixed-width integers).
    """

    __slots__ = ("_chunks", "buffer")

    def __init__(self) -> None:
        self.buffer = bytearray()
        self._chunks: list[BytesLike] = []

    def int8(self, value: int) -> None:
        """-2⁷ to 2⁷-1."""
        self.buffer += INT8.pack(value)

    def int16(self, value: int) -> None:
        """-2¹⁵ to 2¹⁵-1."""
        self.buffer += INT16.pack(value)

    def int32(self, value: int) -> None:
        """-2³¹ to 2³¹-1."""
        self.buffer += INT32.pack(value)

    def int64(self, value: int) -> None:
        """-2⁶³ to 2⁶³-1."""
        self.buffer += INT64.pack(value)

    def uvarint(self, value: int) -> None:
        """0 to 2³²-1."""
        if not 0 <= value <= _MAX_VARINT:
            raise ValueError(f"{value} does not fit into an unsigned varint")
        self._uvarint(value)

    def varint(self, value: int) -> None:
        """-2³¹ to 2³¹-1, zig-zag."""
        if not -(2**31) <= value < 2**31:
            raise ValueError(f"{value} does not fit into a varint")
        self._uvarint((value << 1) ^ (value >> 31))

    def varlong(self, value: int) -> None:
        """-2⁶³ to 2⁶³-1, zig-zag."""
        if not -(2**63) <= value < 2**63:
            raise ValueError(f"{value} does not fit into a varlong")
        self._uvarint((value << 1) ^ (value >> 63))

    def _uvarint(self, value: int) -> None:
        buffer = self.buffer
        while value > 0x7F:
            buffer.append(value & 0x7F | 0x80)
            value >>= 7
        buffer.append(value)

    def compact_length(self, size: int) -> None:
        """Length of a compact string, bytes or array; -1 = null."""
        if size < 0x7F:
            self.buffer.append(size + 1)
        else:
            self.uvarint(size + 1)

    def append(self, chunk: BytesLike) -> None:
        """Add bytes as a chunk of their own, without copying them."""
        if self.buffer:
            self._chunks.append(bytes(self.buffer))
            self.buffer = bytearray()
        self._chunks.append(chunk)

    def chunks(self) -> list[BytesLike]:
        """Everything written so far, in order; the small values between chunks are joined."""
        if self.buffer:
            self._chunks.append(bytes(self.buffer))
            self.buffer = bytearray()
        return self._chunks


def total_size(chunks: Iterable[BytesLike]) -> int:
    """Sum of the lengths in bytes."""
    return sum(map(len, chunks))


__all__ = [
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "MAX_STRING",
    "BytesLike",
    "Layout",
    "Reader",
    "Writer",
    "layout_error",
    "total_size",
]
