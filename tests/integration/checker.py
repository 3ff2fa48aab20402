"""History checker: compares the submitted records and their reported outcomes with the contents of
the log.

Each value identifies its record (topic, producer, sequence) and contains a hash of this identity,
the key and the padding. Each producer numbers its records in the order of submission. An
independent client, which checks CRCs, reads the log. Every record must be in the log as often as
its outcome allows, at the returned offset. The records of each producer must be in order within
each partition.
"""

from __future__ import annotations

import hashlib
import struct
import time
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from confluent_kafka import Consumer, TopicPartition

from aiokprod import Outcome, RecordMetadata

_HEAD = struct.Struct(">4sIQ16s")
_MAGIC = b"aikp"

OPEN, ABSENT, MAYBE = -1, -2, -3
"""Values in place of a partition: no outcome yet; failed as NOT_SENT or REJECTED; failed as
UNKNOWN."""

READ_TIMEOUT = 60.0

LogRecord = tuple[int, int, bytes | None, bytes | None]
"""Partition, offset, key, value."""


def _digest(topic: str, producer: int, sequence: int, key: bytes | None, padding: bytes) -> bytes:
    seed = b"%b|%d|%d|%b|" % (topic.encode(), producer, sequence, b"\x00" if key is None else key)
    return hashlib.blake2b(seed + padding, digest_size=16).digest()


class History:
    """The records that one producer sends to one topic."""

    def __init__(self, topic: str, producer: int = 0) -> None:
        self.topic = topic
        self.producer = producer
        self.keys: list[bytes | None] = []
        self.partitions = array("i")
        self.offsets = array("q")

    def __len__(self) -> int:
        return len(self.keys)

    def next_value(self, key: bytes | None, size: int = 100) -> tuple[int, bytes]:
        """Return the sequence number and the value (at least 32 bytes) of the next submitted
        record."""
        sequence = len(self.keys)
        self.keys.append(key)
        self.partitions.append(OPEN)
        self.offsets.append(-1)
        padding = (b"canary-payload." * (size // 15 + 1))[: max(0, size - _HEAD.size)]
        digest = _digest(self.topic, self.producer, sequence, key, padding)
        return sequence, _HEAD.pack(_MAGIC, self.producer, sequence, digest) + padding

    def acknowledged(self, sequence: int, metadata: RecordMetadata) -> None:
        self.place(sequence, metadata.partition, metadata.offset)

    def place(self, sequence: int, partition: int, offset: int | None) -> None:
        """Store the partition and offset that the producer returned (None: written, offset
        unknown)."""
        assert self.partitions[sequence] == OPEN, f"record {sequence} settled twice"
        self.partitions[sequence] = partition
        self.offsets[sequence] = -1 if offset is None else offset

    def failed(self, sequence: int, outcome: Outcome) -> None:
        assert self.partitions[sequence] == OPEN, f"record {sequence} settled twice"
        self.partitions[sequence] = MAYBE if outcome is Outcome.UNKNOWN else ABSENT

    def count(self, state: int) -> int:
        return self.partitions.count(state)


@dataclass
class Report:
    """Differences between the reported outcomes and the log. `ok` is True if there are none."""

    records: int = 0
    acknowledged: int = 0
    in_log: int = 0
    unsettled: int = 0
    unknown_present: int = 0
    unknown_absent: int = 0
    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    out_of_order: list[str] = field(default_factory=list)
    wrong_offset: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    corrupt: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        wrong = (self.lost, self.duplicated, self.out_of_order, self.wrong_offset)
        return not any((*wrong, self.unexpected, self.corrupt)) and self.unsettled == 0

    def __str__(self) -> str:
        counts = (
            f"{self.records} handed over, {self.acknowledged} acknowledged, {self.in_log} in the "
            f"log, {self.unsettled} never settled, unknown: {self.unknown_present} in the log, "
            f"{self.unknown_absent} not"
        )
        parts = [counts]
        for name in (
            "lost",
            "duplicated",
            "out_of_order",
            "wrong_offset",
            "unexpected",
            "corrupt",
        ):
            found: list[str] = getattr(self, name)
            if found:
                parts.append(f"{len(found)} {name}: {'; '.join(found[:5])}")
        return "\n".join(parts)


def read_topic(servers: str, topic: str) -> Iterator[LogRecord]:
    """Yield (partition, offset, key, value) of all current records of the topic. CRCs are
    checked."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "aiokprod-checker",
            "enable.auto.commit": False,
            "check.crcs": True,
            "fetch.wait.max.ms": 50,
            "log_level": 0,
        }
    )
    try:
        partitions = sorted(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
        remaining: dict[int, int] = {}
        for partition in partitions:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), 30)
            assert low == 0, f"{topic}-{partition} begins at {low}"
            remaining[partition] = high
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        left = sum(remaining.values())
        heard = time.monotonic()
        while left:
            messages = consumer.consume(10_000, timeout=0.5)
            now = time.monotonic()
            assert messages or now - heard < READ_TIMEOUT, f"{left} records cannot be read"
            for message in messages:
                assert message.error() is None, message.error()
                heard = now
                left -= 1
                yield message.partition(), message.offset(), message.key(), message.value()
    finally:
        consumer.close()


class _Audit:
    def __init__(self, histories: list[History]) -> None:
        self.report = Report()
        self._topic = histories[0].topic
        self._histories = {history.producer: history for history in histories}
        self._seen = {history.producer: bytearray(len(history)) for history in histories}
        self._last: dict[tuple[int, int], int] = {}

    def record(self, partition: int, offset: int, key: bytes | None, value: bytes | None) -> None:
        report, where = self.report, f"{partition}@{offset}"
        report.in_log += 1
        if value is None or len(value) < _HEAD.size or value[:4] != _MAGIC:
            report.corrupt.append(f"{where}: not one of ours")
            return
        _, producer, sequence, digest = _HEAD.unpack_from(value)
        if digest != _digest(self._topic, producer, sequence, key, value[_HEAD.size :]):
            report.corrupt.append(f"{where}: hash of {producer}:{sequence}")
            return
        history = self._histories.get(producer)
        if history is None or sequence >= len(history):
            report.unexpected.append(f"{where}: {producer}:{sequence} was never handed over")
            return
        seen = self._seen[producer]
        if seen[sequence]:
            report.duplicated.append(f"{where}: {producer}:{sequence}")
        seen[sequence] = 1
        self._order(producer, partition, sequence, where)
        self._promise(history, sequence, partition, offset, where)

    def _order(self, producer: int, partition: int, sequence: int, where: str) -> None:
        last = self._last.get((producer, partition), -1)
        if sequence < last:
            self.report.out_of_order.append(f"{where}: {producer}:{sequence} after {last}")
        self._last[producer, partition] = max(sequence, last)

    def _promise(
        self, history: History, sequence: int, partition: int, offset: int, where: str
    ) -> None:
        told, told_offset = history.partitions[sequence], history.offsets[sequence]
        name = f"{history.producer}:{sequence}"
        if told == ABSENT:
            self.report.unexpected.append(f"{where}: {name} was said not to be in the log")
        elif told >= 0 and (told != partition or told_offset not in (-1, offset)):
            self.report.wrong_offset.append(f"{where}: {name} was told {told}@{told_offset}")

    def finish(self) -> Report:
        report = self.report
        for history in self._histories.values():
            seen = self._seen[history.producer]
            report.records += len(history)
            for sequence, told in enumerate(history.partitions):
                if told >= 0:
                    report.acknowledged += 1
                    if not seen[sequence]:
                        name = f"{history.producer}:{sequence}"
                        report.lost.append(f"{name} at {told}@{history.offsets[sequence]}")
                elif told == OPEN:
                    report.unsettled += 1
                elif told == MAYBE and seen[sequence]:
                    report.unknown_present += 1
                elif told == MAYBE:
                    report.unknown_absent += 1
        return report


def compare(records: Iterable[LogRecord], *histories: History) -> Report:
    """Compare a log with histories. The records are (partition, offset, key, value) tuples, in
    order per partition."""
    assert len({history.topic for history in histories}) == 1
    audit = _Audit(list(histories))
    for partition, offset, key, value in records:
        audit.record(partition, offset, key, value)
    return audit.finish()


def check(servers: str, *histories: History) -> Report:
    """Read the topic of the histories and compare. All histories must have the same topic. This
    call blocks."""
    return compare(read_topic(servers, histories[0].topic), *histories)
