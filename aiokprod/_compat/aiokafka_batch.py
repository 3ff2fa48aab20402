"""`BatchBuilder`: collects records that the application sends with `send_batch`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiokprod.errors import KafkaError, SerializationError
from aiokprod.records import Header, RecordMetadata, checked_headers, validate_timestamp_ms

HEADER_SIZE: Final = 61
"""Bytes of a record batch before its records (message format v2)."""

Serialize = Callable[[Any, Any], tuple[Any, Any]]
Settle = Callable[["asyncio.Future[Any]", RecordMetadata | None, KafkaError | None], None]


def whole_ms(timestamp: Any) -> Any:
    """Truncate a timestamp to whole ms, because aiokafka accepts ``time.time() * 1000``."""
    return int(timestamp) if isinstance(timestamp, float) else timestamp


@dataclass(frozen=True, slots=True)
class BatchRecordMetadata:
    """The result of `BatchBuilder.append`.

    Attributes:
        offset: number of records before this record in the batch.
        size: upper bound of the record's size in the batch, in bytes.
        timestamp: Unix time in ms.
        crc: None; records of message format v2 have no separate checksum.
    """

    offset: int
    size: int
    timestamp: int
    crc: None = None


@dataclass(frozen=True, slots=True)
class CollectedRecord:
    """A serialized record of a batch."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Sequence[Header]


class BatchBuilder:
    """Records for one partition, sent together by `AIOKafkaProducer.send_batch`.

    Args:
        limit: maximum size of the batch in bytes; the first record may be larger.
        serialize: called once for each record with its key and value.
        unix_ms: the wall clock, for records without a timestamp.

    aiokafka sends these records as one record batch. Here they are appended to the partition's
    batches in the same order, so they may be in more than one record batch, and records of other
    tasks may come between them.
    """

    def __init__(self, limit: int, serialize: Serialize, unix_ms: Callable[[], int]) -> None:
        self._unix_ms = unix_ms
        self._limit = limit
        self._serialize = serialize
        self._records: list[CollectedRecord] = []
        self._size = HEADER_SIZE
        self._closed = False

    def append(
        self,
        *,
        timestamp: float | None,
        key: Any,
        value: Any,
        headers: Sequence[Header] | None = (),
    ) -> BatchRecordMetadata | None:
        """Add a record.

        Args:
            timestamp: Unix time in ms; None for now.

        Returns:
            None if the batch is closed, or if the record does not fit, which closes the batch.

        Raises: the exceptions of the serializers; TypeError if a key or value is not bytes;
            ConfigError if the timestamp or a header is invalid. The record is not in the batch.
        """
        if self._closed:
            return None
        key_bytes, value_bytes = self._serialize(key, value)
        for name, data in (("key", key_bytes), ("value", value_bytes)):
            if data is not None and not isinstance(data, (bytes, bytearray, memoryview)):
                raise type("SerializationError", (SerializationError, TypeError), {})(
                    f"{name} is {type(data).__name__}: pass bytes or set {name}_serializer"
                )
        kept = tuple(checked_headers(headers))
        when = self._unix_ms() if timestamp is None else validate_timestamp_ms(whole_ms(timestamp))
        size = record_size(key_bytes, value_bytes, kept)
        if self._records and self._size + size > self._limit:
            self.close()
            return None
        metadata = BatchRecordMetadata(len(self._records), size, when)
        # Copy the data, because the application may change its buffers before the batch is sent.
        self._records.append(
            CollectedRecord(
                None if key_bytes is None else bytes(key_bytes),
                None if value_bytes is None else bytes(value_bytes),
                when,
                kept,
            )
        )
        self._size += size
        return metadata

    def close(self) -> None:
        """Accept no more records."""
        self._closed = True

    def closed(self) -> bool:
        """Return True if no more records are accepted."""
        return self._closed

    def size(self) -> int:
        """Return an upper bound of the batch's size before compression, in bytes."""
        return self._size

    def record_count(self) -> int:
        """Return the number of records."""
        return len(self._records)

    @property
    def records(self) -> Sequence[CollectedRecord]:
        """The records in the order in which they were appended."""
        return self._records


def record_size(key: Any, value: Any, headers: Sequence[Header]) -> int:
    """Return an upper bound of a record's size in a batch, in bytes."""
    # The overhead consists of length, attributes, timestamp delta, offset delta, two lengths and
    # the number of headers, each with the longest varint that a batch of this size can have.
    size = 21 + (0 if key is None else len(key)) + (0 if value is None else len(value))
    for name, data in headers:
        size += 10 + len(name.encode()) + (0 if data is None else len(data))
    return size


class BatchOutcome:
    """Sets the result of a batch's future once all records of the batch have their outcome.

    The result is the metadata of the first record, or the error of the first record that failed.
    """

    def __init__(self, future: asyncio.Future[Any], count: int, settle: Settle) -> None:
        self._future = future
        self._waiting = count
        self._settle = settle
        self._first: RecordMetadata | None = None
        self._error: KafkaError | None = None

    def on_delivery(self, metadata: RecordMetadata | None, error: KafkaError | None) -> None:
        """Count the outcome of one record, and settle the batch with the last one."""
        self._waiting -= 1
        if error is not None:
            self._error = self._error or error
        elif metadata is not None and (
            self._first is None or (metadata.offset or 0) < (self._first.offset or 0)
        ):
            self._first = metadata
        if not self._waiting:
            self._settle(self._future, None if self._error else self._first, self._error)
