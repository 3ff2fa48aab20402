"""The 61-byte header of a record batch (message format 2).

A batch is ``batch_header(payload, ...) + payload``; the two are sent as separate chunks and never
joined. Source: Java `DefaultRecordBatch`, KIP-98.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aiokprod._wire.crc import crc32c
from aiokprod._wire.primitives import BytesLike, Layout
from aiokprod.errors import DecodeError

MAGIC: Final = 2
HEADER_SIZE: Final = 61
LENGTH_OVERHEAD: Final = 12
"""Bytes of the base offset and length fields, which the length field does not include."""

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
MAX_SEQUENCE: Final = 2**31 - 1

# `_HEAD`: base offset, length, leader epoch, magic, CRC. `_TAIL`, which the CRC covers: attributes,
# last offset delta, base timestamp, max timestamp, producer id, producer epoch, base sequence,
# count.
_HEAD: Final = Layout(">qiibI")
_TAIL: Final = Layout(">hiqqqhii")


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The decoded header of a record batch.

    Attributes:
        base_offset: offset of the first record; a producer sends 0.
        length: bytes of the batch after this field.
        leader_epoch: set by the leader, -1 from a producer; not covered by the CRC.
        magic: message format, 2.
        crc: CRC-32C of everything after this field.
        attributes: codec and flags.
        last_offset_delta: offset of the last record minus base_offset.
        base_timestamp: Unix ms; the records' timestamps are relative to it.
        max_timestamp: Unix ms; highest timestamp of the records, or the log append time.
        producer_id: -1 = not idempotent.
        producer_epoch: -1 = not idempotent.
        base_sequence: sequence number of the first record, -1 = not idempotent.
        count: number of records.
    """

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    @property
    def size(self) -> int:
        """Size of the batch in bytes, including the header."""
        return LENGTH_OVERHEAD + self.length

    @property
    def codec_id(self) -> int:
        """Id of the compression codec, 0 = none."""
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        """True if all records have the timestamp `max_timestamp`."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        """True if the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """True if the batch is a control batch: its records are transaction markers."""
        return bool(self.attributes & CONTROL)

    @property
    def last_offset(self) -> int:
        """Offset of the last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record, -1 = not idempotent."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return increment_sequence(self.base_sequence, self.last_offset_delta)


def batch_header(
    payload: BytesLike,
    *,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    codec_id: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    leader_epoch: int = -1,
) -> bytes:
    """Encode the header of a batch.

    Args:
        payload: the encoded, possibly compressed records.
        count: number of records, 1 to 2³¹-1.
        base_timestamp: Unix ms; the timestamp deltas in `payload` are relative to it.
        max_timestamp: Unix ms; highest timestamp of the records.
        codec_id: codec that compressed `payload`, 0 = none.
        producer_id, epoch, base_sequence: identity for idempotence; all -1 = not idempotent.
        transactional: the batch is part of a transaction.
        control: the records are transaction markers; only brokers write them.
        leader_epoch: -1 from a producer.

    Complexity: one pass over the payload for the CRC, no copy of it.
    """
    attributes = codec_id | (TRANSACTIONAL * transactional) | (CONTROL * control)
    tail = _TAIL.pack(
        attributes,
        count - 1,
        base_timestamp,
        max_timestamp,
        producer_id,
        epoch,
        base_sequence,
        count,
    )
    crc = crc32c(payload, crc32c(tail))
    length = HEADER_SIZE - LENGTH_OVERHEAD + len(payload)
    return _HEAD.pack(0, length, leader_epoch, MAGIC, crc) + tail


def parse_header(data: BytesLike) -> BatchHeader:
    """Decode the header at the start of `data` without validating its values.

    Raises:
        DecodeError: fewer than 61 bytes.
    """
    if len(data) < HEADER_SIZE:
        raise DecodeError(f"record batch of {len(data)} bytes; its header alone has {HEADER_SIZE}")
    return BatchHeader(*_HEAD.unpack_from(data), *_TAIL.unpack_from(data, _HEAD.size))


def checksum(batch: BytesLike) -> int:
    """Return the CRC-32C of a complete batch, computed over the bytes after the CRC field."""
    return crc32c(memoryview(batch)[_HEAD.size :])


def increment_sequence(sequence: int, increment: int) -> int:
    """Return the sequence number `increment` records later; 0 follows 2³¹-1.

    Args:
        sequence: 0 to 2³¹-1.
        increment: 0 to 2³¹-1.

    Source: Java `DefaultRecordBatch.incrementSequence`.
    """
    return (sequence + increment) % (MAX_SEQUENCE + 1)
