"""A plain encoder for the records of a batch (message format 2): the reference for the compiled
one.

It is simple rather than fast. Source: Kafka protocol guide, "Record"; Java `DefaultRecord.writeTo`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

NO_TIMESTAMP = -1


class PlainRecord(NamedTuple):
    """A record to encode.

    The timestamp is in Unix ms. None as key or value is null. Headers are (str, bytes or None)
    pairs.
    """

    timestamp: int
    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()


def zigzag_varint(value: int) -> bytes:
    """Encode a signed varint of up to 64 bits."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _nullable(data: bytes | None) -> bytes:
    return zigzag_varint(-1) if data is None else zigzag_varint(len(data)) + data


def encode_record(record: PlainRecord, offset_delta: int, base_timestamp: int) -> bytes:
    """Encode one record, including its length."""
    body = bytearray(b"\0")  # attributes
    body += zigzag_varint(record.timestamp - base_timestamp)
    body += zigzag_varint(offset_delta)
    body += _nullable(record.key)
    body += _nullable(record.value)
    body += zigzag_varint(len(record.headers))
    for key, value in record.headers:
        body += _nullable(key.encode())
        body += _nullable(value)
    return zigzag_varint(len(body)) + bytes(body)


def encode_records(records: Iterable[PlainRecord], base_timestamp: int) -> bytes:
    """Encode the records of a batch, with offset deltas from 0."""
    return b"".join(
        encode_record(record, delta, base_timestamp) for delta, record in enumerate(records)
    )


def with_offset(batch: bytes, base_offset: int, leader_epoch: int) -> bytes:
    """Return the batch with the two fields that the leader of its partition sets."""
    return (
        struct.pack(">q", base_offset) + batch[8:12] + struct.pack(">i", leader_epoch) + batch[16:]
    )
