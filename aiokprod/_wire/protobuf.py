"""Encodes the fields of Protocol Buffers messages. There is no decoder.

A message is the concatenation of its fields. Source:
https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

_VARINT: Final = 0
_FIXED64: Final = 1
_LENGTH: Final = 2

_double: Final = struct.Struct("<d").pack
_fixed64: Final = struct.Struct("<Q").pack


def varint(value: int) -> bytes:
    """Encode an unsigned integer of up to 64 bits, or a negative one as its two's complement."""
    if 0 <= value < len(_SMALL):
        return _SMALL[value]
    return _varint(value)


def _varint(value: int) -> bytes:
    value &= 0xFFFF_FFFF_FFFF_FFFF
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


_SMALL: Final = tuple(map(_varint, range(512)))
"""Encoded small integers: all tags and most lengths. A telemetry push has thousands of them."""


def _zigzag(value: int) -> bytes:
    return varint(value << 1 ^ value >> 63)


def integer(field: int, value: int) -> bytes:
    """Encode a field of type int32, int64, uint32, uint64, bool or of an enum type."""
    return varint(field << 3 | _VARINT) + varint(value)


def signed(field: int, value: int) -> bytes:
    """Encode a field of type sint32 or sint64."""
    return varint(field << 3 | _VARINT) + _zigzag(value)


def double(field: int, value: float) -> bytes:
    """Encode a field of type double."""
    return varint(field << 3 | _FIXED64) + _double(value)


def fixed64(field: int, value: int) -> bytes:
    """Encode a field of type fixed64."""
    return varint(field << 3 | _FIXED64) + _fixed64(value)


def message(field: int, *parts: bytes) -> bytes:
    """Encode a field with an embedded message that consists of the encoded fields `parts`."""
    body = b"".join(parts)
    return varint(field << 3 | _LENGTH) + varint(len(body)) + body


def text(field: int, value: str) -> bytes:
    """Encode a field of type string."""
    return message(field, value.encode())


def packed_unsigned(field: int, values: Iterable[int]) -> bytes:
    """Encode a packed repeated field of type uint64."""
    return message(field, *map(varint, values))


def packed_signed(field: int, values: Iterable[int]) -> bytes:
    """Encode a packed repeated field of type sint64."""
    return message(field, *map(_zigzag, values))


def delimited(body: bytes) -> bytes:
    """Return a message preceded by its length, for a stream of messages."""
    return varint(len(body)) + body
