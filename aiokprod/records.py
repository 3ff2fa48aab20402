"""Values that callers pass to the producer or receive from it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from aiokprod._core.batch import RecordMetadata
from aiokprod.errors import ConfigError, Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "DrainReport",
    "Header",
    "ProducerRecord",
    "RecordMetadata",
    "TopicDrain",
    "TopicPartition",
    "UndeliveredBatch",
    "validate_partition",
    "validate_timestamp_ms",
    "validate_topic",
]

K = TypeVar("K")
V = TypeVar("V")

Header: TypeAlias = tuple[str, bytes | None]
"""Key (UTF-8 on the wire, not null) and value (None for null)."""

MAX_TIMESTAMP_MS: Final = 2**63 - 1
MAX_PARTITION: Final = 2**31 - 1

_LEGAL_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)


class TopicPartition(NamedTuple):
    """A topic and one of its partitions."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class ProducerRecord(Generic[K, V]):
    """A record before serialization.

    Attributes:
        topic: name of the topic.
        value: None is a tombstone on compacted topics.
        key: None means no key; an empty key is a key.
        partition: 0 to 2³¹-1, or None to let the partitioner choose.
        timestamp_ms: Unix time in milliseconds, 0 to 2⁶³-1, or None for the time of the append.
        headers: pairs of str and bytes (or None), kept in order.

    Raises:
        ConfigError: topic, partition or timestamp is out of range.

    Source: Java `ProducerRecord`.
    """

    topic: str
    value: V | None = None
    key: K | None = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Sequence[Header] = ()

    def __post_init__(self) -> None:
        validate_topic(self.topic)
        if type(self.topic) is not str:  # for instance a member of a StrEnum
            object.__setattr__(self, "topic", str.__str__(self.topic))
        if self.partition is not None:
            validate_partition(self.partition)
        if self.timestamp_ms is not None:
            validate_timestamp_ms(self.timestamp_ms)


@dataclass(frozen=True, slots=True)
class UndeliveredBatch:
    """A number of records of one partition that were not delivered, and their outcome."""

    topic_partition: TopicPartition
    records: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class TopicDrain:
    """The records of one topic that had no outcome when `close()` was called.

    Attributes:
        delivered: number of records that were acknowledged after that call.
        not_sent, rejected, unknown: number of records that failed, by `Outcome`.
    """

    topic: str
    delivered: int = 0
    not_sent: int = 0
    rejected: int = 0
    unknown: int = 0

    @property
    def failed(self) -> int:
        """Number of records that failed, with any outcome."""
        return self.not_sent + self.rejected + self.unknown

    def __str__(self) -> str:
        counts = {
            "delivered": self.delivered,
            "not sent": self.not_sent,
            "rejected": self.rejected,
            "unknown": self.unknown,
        }
        return f"{self.topic}: " + ", ".join(f"{n} {name}" for name, n in counts.items() if n)


@dataclass(frozen=True, slots=True)
class DrainReport:
    """The result of `close()`. `str()` of it shows all numbers in one line.

    Attributes:
        delivered: number of records acknowledged after the call of `close()`.
        failed: number of records that failed after that call, including undelivered records.
        undelivered: batches without an outcome when the timeout passed. Records of other threads
            that were not in a batch by then are only in `by_topic`, as not sent.
        elapsed_s: duration of the close in seconds.
        complete: True if every record had its outcome in time.
        by_topic: the same records by topic and outcome, sorted by topic name.
    """

    delivered: int
    failed: int
    undelivered: tuple[UndeliveredBatch, ...]
    elapsed_s: float
    complete: bool
    by_topic: tuple[TopicDrain, ...] = ()

    def __str__(self) -> str:
        if not (self.delivered or self.failed or self.undelivered) and self.complete:
            return f"no record was pending ({self.elapsed_s:.3f} s)"
        late = sum(batch.records for batch in self.undelivered)
        text = f"{self.delivered} records delivered and {self.failed} failed"
        if late:
            text += f", {late} of them because the timeout expired,"
        text += f" in {self.elapsed_s:.3f} s"
        return "; ".join([text, *map(str, self.by_topic)])


def validate_topic(name: object) -> str:
    """Check a topic name: 1 to 249 characters of ``a-z A-Z 0-9 . _ -``, not ``.`` or ``..``.

    Raises:
        ConfigError: the name is not legal.

    Source: Java `Topic.validate`.
    """
    if type(name) is str and _LEGAL_TOPIC.fullmatch(name) and name not in (".", ".."):
        return name
    if not isinstance(name, str):
        raise ConfigError(f"topic must be a str, not {type(name).__name__}")
    if _LEGAL_TOPIC.fullmatch(name) and name not in (".", ".."):
        return name
    shown = name if len(name) <= 60 else name[:60] + "…"
    raise ConfigError(
        f"topic {shown!r} ({len(name)} characters) is not legal: use 1 to 249 characters out of "
        "ASCII letters, digits, '.', '_' and '-', and neither '.' nor '..'"
    )


def checked_headers(headers: Any) -> Sequence[Header]:
    """Convert headers to (str, bytes | None) tuples. None means no headers; a dict is accepted.

    Raises:
        ConfigError: a header is invalid. The message names the header and the fix, but never shows
            its value.
    """
    if headers is None:
        return ()
    if isinstance(headers, dict):
        headers = headers.items()
    checked: list[Header] = []
    try:
        pairs = [tuple(pair) for pair in headers]
    except TypeError:
        pairs = None
    if pairs is None or isinstance(headers, (str, bytes)):
        raise ConfigError(
            f"headers must be a list of (str, bytes) pairs, not {type(headers).__name__}"
        )
    for number, pair in enumerate(pairs):
        if len(pair) != 2 or not isinstance(pair[0], str):
            raise ConfigError(f"headers[{number}] must be a pair of str and bytes (or None)")
        name, value = pair
        if isinstance(value, (bytearray, memoryview)):
            try:
                value = bytes(value)
            except ValueError as error:
                raise ConfigError(
                    f"headers[{number}] ({name!r}) has a value that cannot be read: {error}"
                ) from error
        if isinstance(value, bytes):
            value = bytes(value)  # also converts subclasses to plain bytes
        elif value is not None:
            raise ConfigError(
                f"headers[{number}] ({name!r}) has a value of type {type(value).__name__}; "
                "encode it to bytes"
            )
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"headers[{number}]: the name cannot be encoded as UTF-8 (lone surrogate at "
                f"{error.start}); remove it"
            ) from error
        checked.append((str.__str__(name), value))
    return checked


def validate_partition(partition: object) -> int:
    """Check that a partition is an int from 0 to 2³¹-1.

    Raises:
        ConfigError: the partition has another type or is out of range.
    """
    if isinstance(partition, bool) or not isinstance(partition, int):
        raise ConfigError(f"partition must be an int, not {type(partition).__name__}")
    if not 0 <= partition <= MAX_PARTITION:
        raise ConfigError(f"partition {partition} is not in the range 0 to {MAX_PARTITION}")
    return partition


def validate_timestamp_ms(timestamp_ms: object) -> int:
    """Check that a timestamp is an int from 0 to 2⁶³-1 (Unix ms).

    Raises:
        ConfigError: the timestamp has another type or is out of range.
    """
    if isinstance(timestamp_ms, bool) or not isinstance(timestamp_ms, int):
        raise ConfigError(f"timestamp_ms must be an int, not {type(timestamp_ms).__name__}")
    if not 0 <= timestamp_ms <= MAX_TIMESTAMP_MS:
        raise ConfigError(f"timestamp_ms {timestamp_ms} is not in the range 0 to 2**63 - 1")
    return timestamp_ms
