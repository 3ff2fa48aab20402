"""A writer for Kafka's primitive types, for tests of the decoders."""

from __future__ import annotations

from struct import Struct as Layout
from typing import Final

INT16: Final = Layout(">h")
INT32: Final = Layout(">i")

_MAX_VARINT: Final = 0xFFFFFFFF


class Writer:
    """Appends values to `buffer`. Values out of range raise `ValueError` (`struct.error` for
    integers)."""

    def __init__(self) -> None:
        self.buffer = bytearray()

    def int16(self, value: int) -> None:
        """Write an int from -2¹⁵ to 2¹⁵-1."""
        self.buffer += INT16.pack(value)

    def int32(self, value: int) -> None:
        """Write an int from -2³¹ to 2³¹-1."""
        self.buffer += INT32.pack(value)

    def uvarint(self, value: int) -> None:
        """Write an int from 0 to 2³²-1."""
        if not 0 <= value <= _MAX_VARINT:
            raise ValueError(f"{value} does not fit into an unsigned varint")
        self._uvarint(value)

    def varint(self, value: int) -> None:
        """Write an int from -2³¹ to 2³¹-1 in zig-zag encoding."""
        if not -(2**31) <= value < 2**31:
            raise ValueError(f"{value} does not fit into a varint")
        self._uvarint((value << 1) ^ (value >> 31))

    def varlong(self, value: int) -> None:
        """Write an int from -2⁶³ to 2⁶³-1 in zig-zag encoding."""
        if not -(2**63) <= value < 2**63:
            raise ValueError(f"{value} does not fit into a varlong")
        self._uvarint((value << 1) ^ (value >> 63))

    def _uvarint(self, value: int) -> None:
        buffer = self.buffer
        while value > 0x7F:
            buffer.append(value & 0x7F | 0x80)
            value >>= 7
        buffer.append(value)
