"""Decodes and validates record batches like a broker's log validator.

The code is independent of `aiokprod._wire.batch_reader`, so that the two cannot share the same
misunderstanding of the format. Source: Kafka documentation, "Record Batch"; Java
`DefaultRecordBatch`, `LogValidator`.
"""

from __future__ import annotations

import functools
import gzip
import struct
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

import crc32c

from aiokprod._errors import Code

Header = tuple[str, bytes | None]

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
CRC_START: Final = 21
_CODECS: Final = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
PRODUCE_SINCE: Final = {"zstd": 7}
"""Lowest Produce version that may use a codec (KIP-110). All versions may use other codecs."""
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"


class BatchRefused(Exception):
    """A broker would reject the batch.

    Attributes:
        code: error code of the broker's response.
        record_errors: (index in the batch, text) of each invalid record.
    """

    def __init__(self, code: Code, text: str, record_errors: tuple[tuple[int, str], ...] = ()):
        super().__init__(text)
        self.code = code
        self.record_errors = record_errors


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A record in a batch."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """A valid record batch. `oddities` lists properties that brokers accept but that clients should
    not write."""

    codec: str
    producer_id: int
    epoch: int
    base_sequence: int
    is_transactional: bool
    max_timestamp_ms: int
    size: int
    records: tuple[BatchRecord, ...]
    oddities: tuple[str, ...] = field(default=())

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, or -1 without a producer id. It wraps from 2³¹-1 to 0."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + len(self.records) - 1) % 2**31


@functools.lru_cache(maxsize=1024)
def read_batch(data: bytes, *, produce_version: int) -> Batch:
    """Parse the records field of one partition of a Produce request. Recent results are cached,
    because checks read the same batches again.

    Raises:
        BatchRefused: the batch is invalid. The error contains the code of the broker's response.
    """
    if len(data) < HEADER.size:
        raise BatchRefused(Code.CORRUPT_MESSAGE, f"{len(data)} bytes are not a record batch")
    fields = HEADER.unpack_from(data)
    base_offset, length, leader_epoch, magic, crc, attributes, last_delta = fields[:7]
    base_timestamp, max_timestamp, producer_id, epoch, base_sequence, count = fields[7:]
    if magic != 2:
        raise BatchRefused(Code.INVALID_RECORD, f"magic {magic}, Produce v3+ needs 2")
    if length + 12 < HEADER.size or length + 12 > len(data):
        raise BatchRefused(Code.CORRUPT_MESSAGE, f"batch length {length} of {len(data)} bytes")
    if length + 12 < len(data):
        raise BatchRefused(Code.INVALID_RECORD, "more than one record batch for a partition")
    if crc32c.crc32c(data[CRC_START:]) != crc:
        raise BatchRefused(Code.CORRUPT_MESSAGE, "CRC-32C does not match")
    _check_attributes(attributes, produce_version, producer_id, epoch, base_sequence)
    if count <= 0 or last_delta != count - 1:
        raise BatchRefused(Code.INVALID_RECORD, f"{count} records, last offset delta {last_delta}")
    codec = _CODECS[attributes & 0x07]
    records = _read_records(_decompress(data[HEADER.size :], codec), count, base_timestamp)
    return Batch(
        codec=codec,
        producer_id=producer_id,
        epoch=epoch,
        base_sequence=base_sequence,
        is_transactional=bool(attributes & 0x10),
        max_timestamp_ms=max_timestamp,
        size=len(data),
        records=records,
        oddities=_oddities(base_offset, leader_epoch, base_timestamp, max_timestamp, records),
    )


def _check_attributes(
    attributes: int, produce_version: int, producer_id: int, epoch: int, base_sequence: int
) -> None:
    if attributes & 0x20:
        raise BatchRefused(Code.INVALID_RECORD, "a client may not write control batches")
    if attributes & 0xFF80 or attributes & 0x08:
        raise BatchRefused(Code.INVALID_RECORD, f"attributes {attributes:#06x}")
    codec = _CODECS.get(attributes & 0x07)
    if codec is None:
        raise BatchRefused(Code.UNSUPPORTED_COMPRESSION_TYPE, f"codec {attributes & 0x07}")
    lowest = PRODUCE_SINCE.get(codec, 0)
    if produce_version < lowest:
        raise BatchRefused(Code.UNSUPPORTED_COMPRESSION_TYPE, f"{codec} needs Produce v{lowest}")
    if producer_id >= 0 and (epoch < 0 or base_sequence < 0):
        text = f"producer id {producer_id} with epoch {epoch}, sequence {base_sequence}"
        raise BatchRefused(Code.INVALID_RECORD, text)
    if producer_id < 0 and attributes & 0x10:
        raise BatchRefused(Code.INVALID_RECORD, "transactional batch without a producer id")


def _oddities(
    base_offset: int,
    leader_epoch: int,
    base_timestamp: int,
    max_timestamp: int,
    records: tuple[BatchRecord, ...],
) -> tuple[str, ...]:
    found: list[str] = []
    if base_offset != 0:
        found.append(f"base offset {base_offset}, clients write 0")
    if leader_epoch != -1:
        found.append(f"partition leader epoch {leader_epoch}, clients write -1")
    if base_timestamp != records[0].timestamp_ms:
        found.append(f"base timestamp {base_timestamp}, first {records[0].timestamp_ms}")
    newest = max(record.timestamp_ms for record in records)
    if max_timestamp != newest:
        found.append(f"max timestamp {max_timestamp}, newest record {newest}")
    return tuple(found)


def _decompress(data: bytes, codec: str) -> bytes:
    try:
        if codec == "gzip":
            return gzip.decompress(data)
        if codec == "lz4":
            return _unlz4(data)
        if codec == "zstd":
            return _unzstd(data)
        if codec == "snappy":
            return _unsnappy(data)
    except Exception as error:
        raise BatchRefused(Code.CORRUPT_MESSAGE, f"{codec}: {error}") from error
    return data


def _unlz4(data: bytes) -> bytes:
    try:
        import lz4.frame
    except ImportError:
        import cramjam

        return bytes(cramjam.lz4.decompress(data))
    return bytes(lz4.frame.decompress(data))


def _unzstd(data: bytes) -> bytes:
    try:
        standard: Any = import_module("compression.zstd")
    except ImportError:
        import zstandard

        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    return bytes(standard.decompress(data))


def _unsnappy(data: bytes) -> bytes:
    """Decompress raw Snappy, or blocks in snappy-java's framing."""
    import cramjam

    if not data.startswith(_XERIAL_MAGIC):
        return bytes(cramjam.snappy.decompress_raw(data))
    parts: list[bytes] = []
    at = 16
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        parts.append(bytes(cramjam.snappy.decompress_raw(data[at + 4 : at + 4 + size])))
        at += 4 + size
    return b"".join(parts)


class _ByteReader:
    """Reads the fields of records. A read past the end raises CORRUPT_MESSAGE."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def varint(self, most: int = 5) -> int:
        value = shift = 0
        for _ in range(most * 2):
            if self.at >= len(self.data):
                break
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return (value >> 1) ^ -(value & 1)
            if shift >= 7 * most:
                break
        raise BatchRefused(Code.CORRUPT_MESSAGE, f"bad varint at byte {self.at}")

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise BatchRefused(Code.CORRUPT_MESSAGE, f"{size} bytes wanted at byte {self.at}")
        self.at += size
        return self.data[self.at - size : self.at]

    def nullable(self) -> bytes | None:
        size = self.varint()
        return None if size == -1 else self.take(size)


def _read_records(data: bytes, count: int, base_timestamp: int) -> tuple[BatchRecord, ...]:
    cursor = _ByteReader(data)
    records = tuple(_read_record(cursor, index, base_timestamp) for index in range(count))
    if cursor.at != len(data):
        text = f"{len(data) - cursor.at} bytes after the last record"
        raise BatchRefused(Code.INVALID_RECORD, text)
    return records


def _read_record(cursor: _ByteReader, index: int, base_timestamp: int) -> BatchRecord:
    size = cursor.varint()
    end = cursor.at + size
    cursor.take(1)
    timestamp = base_timestamp + cursor.varint(10)
    delta = cursor.varint()
    if delta != index:
        raise BatchRefused(Code.INVALID_RECORD, f"record {index} has offset delta {delta}")
    key, value = cursor.nullable(), cursor.nullable()
    headers: list[Header] = []
    header_count = cursor.varint()
    if header_count < 0:
        raise BatchRefused(Code.INVALID_RECORD, f"record {index} has {header_count} headers")
    for _ in range(header_count):
        name = cursor.take(cursor.varint())
        headers.append((name.decode("utf-8"), cursor.nullable()))
    if cursor.at != end:
        raise BatchRefused(Code.INVALID_RECORD, f"record {index} is not {size} bytes long")
    return BatchRecord(timestamp, key, value, tuple(headers))
