"""Reads record batches of message format 2.

The producer does not read batches; the Spark sink's audit and the test suites use this module to
read the written records. Every count and length is checked against the available bytes. Source:
Java `DefaultRecordBatch`, `DefaultRecord`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from aiokprod._wire.compression import codec_by_id
from aiokprod._wire.primitives import BytesLike, Reader
from aiokprod._wire.record_batch import (
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC,
    BatchHeader,
    checksum,
    parse_header,
)
from aiokprod.errors import DecodeError

MAX_UNCOMPRESSED: Final = 256 * 1024 * 1024
"""Default limit in bytes for the uncompressed records of one batch."""

_MIN_RECORD: Final = 7
"""Smallest record: length, attributes, two deltas, key length, value length, header count."""

_MIN_HEADER: Final = 2
"""Smallest header: key length and value length."""


class Record(NamedTuple):
    """One record.

    Attributes:
        offset: offset in the partition.
        timestamp: Unix ms, -1 = none.
        key: None = null.
        value: None = null.
        headers: (key, value) pairs in order.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class RecordBatch:
    """A record batch; its records are decoded on demand.

    Attributes:
        header: the decoded batch header.
        payload: the encoded records, possibly compressed.
    """

    __slots__ = ("header", "payload")

    def __init__(self, header: BatchHeader, payload: memoryview) -> None:
        self.header = header
        self.payload = payload

    def uncompressed(self, max_bytes: int = MAX_UNCOMPRESSED) -> memoryview:
        """Return the encoded records without compression.

        Args:
            max_bytes: limit for the uncompressed size.

        Raises:
            DecodeError: the payload cannot be decompressed, or its content exceeds `max_bytes`.
            ConfigError: the codec needs a package that is not installed.
        """
        codec_id = self.header.codec_id
        if not codec_id:
            return self.payload
        return memoryview(codec_by_id(codec_id).decompress(self.payload, max_bytes))

    def records(self, max_bytes: int = MAX_UNCOMPRESSED) -> list[Record]:
        """Decompress and decode all records.

        Args:
            max_bytes: limit for the uncompressed size.

        Raises:
            DecodeError: the payload does not contain exactly the number of records in the header.
            ConfigError: the codec needs a package that is not installed.
        """
        header = self.header
        reader = Reader(self.uncompressed(max_bytes))
        reader.check_count(header.count, _MIN_RECORD)
        records = [_read_record(reader, header) for _ in range(header.count)]
        reader.expect_end()
        return records


def read_batches(
    data: BytesLike, *, verify_crc: bool = True, partial_tail: bool = False
) -> Iterator[RecordBatch]:
    """Iterate over the batches in `data`.

    Args:
        verify_crc: check each batch's CRC-32C.
        partial_tail: skip an incomplete last batch, which Fetch responses may contain.

    Raises:
        DecodeError: while iterating, at the first batch that is truncated, damaged, or not of
            format 2.
    """
    view = memoryview(data)
    while len(view):
        if partial_tail and _is_cut_off(view):
            return
        header = parse_header(view)
        _check_header(header, len(view))
        batch = view[: header.size]
        if verify_crc and checksum(batch) != header.crc:
            raise DecodeError(
                f"record batch at offset {header.base_offset}: CRC {header.crc:#010x} does not "
                f"match the content ({checksum(batch):#010x})"
            )
        yield RecordBatch(header, batch[HEADER_SIZE:])
        view = view[header.size :]


def _is_cut_off(view: memoryview) -> bool:
    if len(view) < HEADER_SIZE:
        return True
    header = parse_header(view)
    return header.magic == MAGIC and header.size > len(view)


def _check_header(header: BatchHeader, available: int) -> None:
    if header.magic != MAGIC:
        raise DecodeError(f"record batch of message format {header.magic}, only 2 is supported")
    if not HEADER_SIZE - LENGTH_OVERHEAD <= header.length <= available - LENGTH_OVERHEAD:
        raise DecodeError(f"record batch of {header.size} bytes, only {available} are available")
    if header.count < 0:
        raise DecodeError(f"record batch with an invalid record count of {header.count}")


def _read_record(reader: Reader, header: BatchHeader) -> Record:
    size = reader.varint()
    start = reader.advance(size)
    outer_end, reader.end, reader.pos = reader.end, start + size, start
    reader.advance(1)  # attributes, unused
    timestamp = header.base_timestamp + reader.varlong()
    if header.is_log_append_time:
        timestamp = header.max_timestamp
    offset = header.base_offset + reader.varint()
    key = _read_bytes(reader)
    value = _read_bytes(reader)
    count = reader.varint()
    if count < 0:
        raise DecodeError(f"invalid header count {count} before byte {reader.pos}")
    reader.check_count(count, _MIN_HEADER)
    headers = tuple([_read_header(reader) for _ in range(count)])
    reader.expect_end()
    reader.end = outer_end
    return Record(offset, timestamp, key, value, headers)


def _read_header(reader: Reader) -> tuple[str, bytes | None]:
    size = reader.varint()
    start = reader.advance(size)
    try:
        key = str(reader.data[start : start + size], "utf-8")
    except UnicodeDecodeError as exc:
        raise DecodeError(f"header key at byte {start} is not UTF-8: {exc.reason}") from None
    return key, _read_bytes(reader)


def _read_bytes(reader: Reader) -> bytes | None:
    size = reader.varint()
    return None if size == -1 else reader.blob(size)
