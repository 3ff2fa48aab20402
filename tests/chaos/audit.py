"""Compares the log with the reported outcomes, for millions of records.

The log is read with confluent-kafka (CRCs checked) and compared as arrays. It has one topic and any
number of producers.
"""

from __future__ import annotations

import operator
import time
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from confluent_kafka import Consumer, KafkaError, TopicPartition
from numpy.typing import NDArray

from aiokprod._core.record_fields import murmur2
from tests.chaos.values import SIZE, read
from tests.chaos.worker import (
    ABORTED,
    ABSENT,
    ACKNOWLEDGED,
    KEYS,
    NO_TRANSACTION,
    OPEN,
    STAMPS,
    UNKNOWN,
    headers_of,
)

READ_TIMEOUT = 60.0
UNKNOWN_OFFSETS = 0.001
"""Maximum share of the acknowledged records without an offset: a broker that already had a batch
does not always return its offset."""
PROBE = b"probe"

Array: TypeAlias = NDArray[Any]


@dataclass
class Log:
    """All records of a topic, by partition in order of offsets: arrays of equal length.

    Attributes:
        first: added to a sequence, gives the sequence of the worker.
    """

    partition: Array
    offset: Array
    producer: Array
    sequence: Array
    asked: Array
    true: Array
    strange: int = 0
    probes: int = 0
    first: int = 0

    def part(self, first: int, stop: int) -> Log:
        """Return the records with these sequences, counted from 0."""
        chosen = (self.sequence >= first) & (self.sequence < stop)
        return Log(
            self.partition[chosen],
            self.offset[chosen],
            self.producer[chosen],
            self.sequence[chosen] - first,
            self.asked[chosen],
            self.true[chosen],
            first=self.first + first,
        )


def read_log(servers: str, topic: str, *, bare: bool = False) -> Log:
    """Read all records of a topic that begins at offset 0, without those of aborted transactions.

    Args:
        bare: the records were written without headers and timestamps.

    Raises:
        AssertionError: a partition cannot be read to its end, for example because a transaction was
            left open.
    """
    reader = _Reader(topic, bare=bare)
    ends = _end_offsets(servers, topic)
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "chaos-audit",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            # This event marks the end: records cannot be counted up to an end offset, because
            # control records take offsets as well.
            "enable.partition.eof": True,
            "check.crcs": True,
            "fetch.wait.max.ms": 20,
            "fetch.min.bytes": 1,
            "queued.max.messages.kbytes": 65536,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
        heard = time.monotonic()
        while ends:
            messages = consumer.consume(20_000, timeout=0.5)
            now = time.monotonic()
            assert messages or now - heard < READ_TIMEOUT, (
                f"{topic} cannot be read up to offsets {ends}"
            )
            for message in messages:
                if _is_end(message) and message.offset() >= ends.get(message.partition(), 0):
                    ends.pop(message.partition(), None)
            records = [message for message in messages if not _is_end(message)]
            if records:
                heard = now
                reader.take(records)
    finally:
        consumer.close()
    return reader.log()


def _end_offsets(servers: str, topic: str) -> dict[int, int]:
    """Return the high watermark of each partition. With `read_committed` a consumer gets the last
    stable offset instead, which would hide an open transaction."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "chaos-audit", "log_level": 0})
    try:
        ends = {}
        for partition in sorted(consumer.list_topics(topic, timeout=30).topics[topic].partitions):
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), 30)
            assert low == 0, f"{topic}-{partition} begins at {low}"
            ends[partition] = high
        return ends
    finally:
        consumer.close()


def _is_end(message: Any) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF


class _Reader:
    def __init__(self, topic: str, *, bare: bool = False) -> None:
        self._topic = topic
        self._bare = bare
        self._parts: list[tuple[Array, ...]] = []
        self._strange = self._probes = 0

    def take(self, messages: list[Any]) -> None:
        bad = next((m.error() for m in messages if m.error() is not None), None)
        assert bad is None, f"the reader got an error: {bad}"
        values = [m.value() for m in messages]
        kept = [n for n, value in enumerate(values) if value is not None and len(value) == SIZE]
        if len(kept) < len(values):
            probes = sum(value is not None and value.startswith(PROBE) for value in values)
            self._probes += probes
            self._strange += len(values) - len(kept) - probes
        rows, true = read(self._topic, [values[n] for n in kept])
        keys = (messages[n].key() for n in kept)
        true &= np.fromiter(map(operator.eq, keys, _keys_of(rows)), bool, len(kept))
        if not self._bare:
            headers = (messages[n].headers() or [] for n in kept)
            true &= np.fromiter(map(operator.eq, headers, _headers_of(rows)), bool, len(kept))
            stamps = np.array([messages[n].timestamp()[1] for n in kept], np.int64)
            true &= stamps % STAMPS == rows["sequence"].astype(np.int64) % STAMPS
        where = np.array([messages[n].partition() for n in kept], np.int32)
        offset = np.array([messages[n].offset() for n in kept], np.int64)
        self._parts.append((where, offset, rows["producer"], rows["sequence"], rows["asked"], true))

    def log(self) -> Log:
        if not self._parts:
            none: Array = np.zeros(0, np.int64)
            return Log(none, none, none, none, none, none.astype(bool), self._strange, self._probes)
        columns = [np.concatenate(column) for column in zip(*self._parts, strict=True)]
        order = np.lexsort((columns[1], columns[0]))
        where, offset, producer, sequence, asked, true = (column[order] for column in columns)
        return Log(
            where,
            offset,
            producer,
            sequence.astype(np.int64),
            asked,
            true,
            self._strange,
            self._probes,
        )


def _keys_of(rows: Array) -> list[bytes | None]:
    """Return the keys that the worker uses for records without a requested partition."""
    numbers = zip((rows["sequence"] % len(KEYS)).tolist(), rows["asked"].tolist(), strict=True)
    return [KEYS[number] if asked < 0 else None for number, asked in numbers]


def _headers_of(rows: Array) -> list[list[tuple[str, bytes]]]:
    """Return the headers that the worker adds to its records."""
    return [list(headers_of(number)) for number in rows["sequence"].tolist()]


@dataclass
class Verdict:
    """Counts of one producer. `examples` contains some of the violations, `torn` counts
    transactions of which readers see only a part."""

    records: int = 0
    acknowledged: int = 0
    in_log: int = 0
    lost: int = 0
    duplicates: int = 0
    inversions: int = 0
    wrong_place: int = 0
    wrong_offset: int = 0
    definite_but_present: int = 0
    corrupt: int = 0
    unsettled: int = 0
    unknown_present: int = 0
    unknown_absent: int = 0
    rejected: int = 0
    aborted: int = 0
    torn: int = 0
    offset_unknown: int = 0
    gone_with_the_topic: int = 0
    examples: list[str] = field(default_factory=list)

    def wrong(self, *, duplicates_allowed: bool = False) -> list[str]:
        """Return the names of the broken promises."""
        checked = ["lost", "inversions", "wrong_place", "wrong_offset"]
        checked += ["definite_but_present", "corrupt", "unsettled", "torn"]
        if not duplicates_allowed:
            checked.append("duplicates")
        wrong = [name for name in checked if getattr(self, name)]
        if self.offset_unknown > UNKNOWN_OFFSETS * self.acknowledged:
            wrong.append("offset_unknown")
        return wrong


def judge(
    log: Log,
    producer: int,
    told: dict[str, Array],
    *,
    topic_made_at: float | None = None,
    grown: bool = False,
    partitions: int,
) -> Verdict:
    """Check one producer's promises (arrays of its ledger) against the log.

    Args:
        topic_made_at: the topic was deleted and recreated at this time: records acknowledged before
            may be lost with the old topic.
        grown: its partitions were doubled: a key may be in a second partition.
        partitions: initial number of partitions. A key is where murmur2 puts it among those, or
            among twice as many once they were doubled.
    """
    verdict = Verdict(records=len(told["state"]))
    state = told["state"]
    own = log.producer == producer
    good = own & log.true & (log.sequence < len(state))
    verdict.corrupt = int(np.count_nonzero(own & ~good)) + log.strange
    where, offset = log.partition[good], log.offset[good]
    sequence, asked = log.sequence[good], log.asked[good]
    copies = np.bincount(sequence, minlength=len(state))
    verdict.in_log = len(sequence)
    acked = state == ACKNOWLEDGED
    verdict.acknowledged = int(np.count_nonzero(acked))
    verdict.unsettled = int(np.count_nonzero(state == OPEN))
    verdict.rejected = int(np.count_nonzero(state == ABSENT))
    verdict.aborted = int(np.count_nonzero(state == ABORTED))
    verdict.unknown_present = int(np.count_nonzero((state == UNKNOWN) & (copies > 0)))
    verdict.unknown_absent = int(np.count_nonzero((state == UNKNOWN) & (copies == 0)))
    missing = acked & (copies == 0)
    gone: Array = np.zeros(len(state), bool)
    if topic_made_at is not None:
        gone = missing & (told["settled"] < topic_made_at)
        verdict.gone_with_the_topic = int(np.count_nonzero(gone))
        missing &= ~gone
    _count(verdict, "lost", np.flatnonzero(missing))
    verdict.duplicates = int(np.maximum(copies - 1, 0).sum())
    _example(verdict, "duplicates", np.flatnonzero(copies > 1))
    absent = (state == ABSENT) | (state == ABORTED)
    _count(verdict, "definite_but_present", np.flatnonzero(absent & (copies > 0)))
    if "transaction" in told:
        _count(verdict, "torn", _torn(told["transaction"][~gone], copies[~gone]))
    _count(verdict, "wrong_place", sequence[(asked >= 0) & (asked != where)])
    keyed = asked < 0
    counts = (partitions, 2 * partitions) if grown else (partitions,)
    verdict.wrong_place += _strayed_keys(where[keyed], log.first + sequence[keyed], counts)
    _offsets(verdict, told, acked & (copies > 0), (where, offset, sequence))
    _order(verdict, acked, where, sequence)
    return verdict


def _count(verdict: Verdict, name: str, found: Array) -> None:
    setattr(verdict, name, len(found))
    _example(verdict, name, found)


def _example(verdict: Verdict, name: str, found: Array) -> None:
    if len(found):
        verdict.examples.append(f"{name}: {len(found)}, first {found[:5].tolist()}")


def _torn(transaction: Array, copies: Array) -> Array:
    """Return the numbers of the transactions of which only some records are in the log, whatever
    their end was."""
    present = np.unique(transaction[copies > 0])
    both = np.intersect1d(present, transaction[copies == 0])
    torn: Array = both[both != NO_TRANSACTION]
    return torn


def _strayed_keys(where: Array, sequence: Array, counts: tuple[int, ...]) -> int:
    """Count the records in another partition than that of their key, for each number of partitions
    that the producer may have cached."""
    hashes = np.array([murmur2(key) & 0x7FFFFFFF for key in KEYS], np.int64)[sequence % len(KEYS)]
    fits: Array = np.zeros(len(where), bool)
    for count in counts:
        fits |= hashes % count == where
    return int(np.count_nonzero(~fits))


def _offsets(
    verdict: Verdict, told: dict[str, Array], present: Array, log: tuple[Array, Array, Array]
) -> None:
    """Check that a copy of each acknowledged record is where its metadata says: at the offset, or
    in the partition if there is no offset."""
    where, offset, sequence = log
    claims = np.flatnonzero(present & (told["offset"] >= 0))
    vague = present & (told["offset"] < 0)
    verdict.offset_unknown = int(np.count_nonzero(vague))
    astray = vague[sequence] & (told["partition"][sequence] != where)
    verdict.wrong_place += int(np.count_nonzero(astray))
    true: Array = np.zeros(len(claims), bool)
    for partition in np.unique(told["partition"][claims]):
        here = where == partition
        top = 1 + max(offset[here].max(initial=0), told["offset"][claims].max())
        holds = np.full(top, -1, np.int64)
        holds[offset[here]] = sequence[here]
        of_partition = told["partition"][claims] == partition
        there = claims[of_partition]
        true[of_partition] = holds[told["offset"][there]] == there
    _count(verdict, "wrong_offset", claims[~true])


def _order(verdict: Verdict, acked: Array, where: Array, sequence: Array) -> None:
    """Check that the first copies of acknowledged records are in the order of submission in each
    partition."""
    for partition in np.unique(where):
        of_partition = sequence[where == partition]
        of_partition = of_partition[acked[of_partition]]
        _, first = np.unique(of_partition, return_index=True)
        firsts = of_partition[np.sort(first)]
        back = firsts[1:][np.diff(firsts) < 0]
        verdict.inversions += len(back)
        _example(verdict, f"inversions in {partition}", back)
