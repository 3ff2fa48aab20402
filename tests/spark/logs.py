"""Readable logs: leaders that respond to Fetch and ListOffsets with batches built byte by byte.

The behaviour follows Java's `UnifiedLog.read`, `TransactionIndex.collectAbortedTxns` and
`ReplicaManager.fetchMessages`.
"""

from __future__ import annotations

import dataclasses
import struct
from dataclasses import dataclass, field

import crc32c

from aiokprod._wire.compression import codec_by_id
from aiokprod._wire.message import Message
from aiokprod._wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from aiokprod._wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from aiokprod._wire.record_batch import batch_header
from aiokprod.errors import Code
from aiokprod.testing.fake_cluster.control import Reaction
from aiokprod.testing.fake_cluster.framing import Request
from tests.reference.records import PlainRecord, encode_records, with_offset
from tests.spark.cluster import SparkCluster

FETCH, LIST_OFFSETS = 1, 2
FIRST, NEXT = -2, -1
"""Timestamps in ListOffsets requests for the first and the next offset."""
READ_COMMITTED = 1
BY_ID_FROM = 13
"""From this version on, Fetch identifies topics by id (KIP-516)."""
WHEN = 1_700_000_000_000


@dataclass(frozen=True)
class Stored:
    """A batch in the log. `marker` is set for control batches: True commits, False aborts."""

    base: int
    count: int
    data: bytes
    producer: int = -1
    transactional: bool = False
    marker: bool | None = None

    @property
    def last(self) -> int:
        return self.base + self.count - 1


@dataclass
class Log:
    """The log of one partition.

    Attributes:
        start: first offset that retention has not deleted.
        limit: maximum bytes of a response. The first batch is always complete (KIP-74), and the
            last one is truncated, because a broker sends a section of its file.
        early: number of additional batches before the requested one.
    """

    batches: list[Stored] = field(default_factory=list)
    start: int = 0
    limit: int = 1 << 20
    early: int = 0
    _next: int = 0

    @property
    def end(self) -> int:
        """The high watermark."""
        return self._next

    @property
    def stable(self) -> int:
        """The last stable offset."""
        first: dict[int, int] = {}
        for one in self.batches:
            if one.marker is not None:
                first.pop(one.producer, None)
            elif one.transactional:
                first.setdefault(one.producer, one.base)
        return min([self.end, *first.values()])

    def write(
        self,
        *values: str,
        codec: int = 0,
        producer: int = -1,
        epoch: int = -1,
        sequence: int = -1,
        transactional: bool = False,
        append_time: int | None = None,
        payload: bytes | None = None,
    ) -> None:
        """Append a batch of records with these values. Each value is also the key and a header.

        If `payload` is given, it replaces the encoded records, with a correct CRC.
        """
        records = [
            PlainRecord(WHEN + number, f"k-{value}".encode(), value.encode(),
                        [("h", value.encode())])
            for number, value in enumerate(values)
        ]  # fmt: skip
        packed = encode_records(records, WHEN)
        if codec:
            packed = codec_by_id(codec).compress(packed)
        if payload is not None:
            packed = payload
        latest = WHEN + len(values) - 1 if append_time is None else append_time
        head = batch_header(
            packed, count=len(values), base_timestamp=WHEN, max_timestamp=latest, codec_id=codec,
            producer_id=producer, epoch=epoch, base_sequence=sequence, transactional=transactional,
        )  # fmt: skip
        if append_time is not None:
            head = _with_append_time(head, packed)
        self._put(head + packed, len(values), producer, transactional, None)

    def mark(self, producer: int, *, commit: bool) -> None:
        """Append the control batch that ends a producer's transaction."""
        key, value = struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, 0)
        payload = encode_records([PlainRecord(WHEN, key, value, [])], WHEN)
        head = batch_header(
            payload, count=1, base_timestamp=WHEN, max_timestamp=WHEN, producer_id=producer,
            epoch=0, transactional=True, control=True,
        )  # fmt: skip
        self._put(head + payload, 1, producer, True, commit)

    def skip(self, offsets: int) -> None:
        """Skip offsets, as if compaction had removed their records."""
        self._next += offsets

    def _put(
        self, data: bytes, count: int, producer: int, transactional: bool, marker: bool | None
    ) -> None:
        stored = with_offset(data, self._next, 3)
        self.batches.append(Stored(self._next, count, stored, producer, transactional, marker))
        self._next += count

    # -- responses ------------------------------------------------------------------------------

    def offset(self, timestamp: int, isolation: int) -> int:
        """Return the offset in the response to ListOffsets."""
        if timestamp == FIRST:
            return self.start
        assert timestamp == NEXT, f"the model looks nothing up by time {timestamp}"
        return self.stable if isolation == READ_COMMITTED else self.end

    def read(self, offset: int, room: int, isolation: int) -> PartitionData:
        """Return the partition data of the response to Fetch."""
        end = self.stable if isolation == READ_COMMITTED else self.end
        if not self.start <= offset <= self.end:
            code = int(Code.OFFSET_OUT_OF_RANGE)
            return PartitionData(partition_index=0, error_code=code, high_watermark=-1, records=b"")
        found = [one for one in self.batches if one.last >= offset and one.base < end]
        if found:
            place_of = self.batches.index(found[0])
            found = self.batches[max(0, place_of - self.early) : place_of] + found
        data = b"".join(one.data for one in found)
        first = sum(len(one.data) for one in found[: self.early + 1])
        data = data[: max(first, min(room, self.limit))]
        return PartitionData(
            partition_index=0,
            error_code=0,
            high_watermark=self.end,
            last_stable_offset=self.stable,
            aborted_transactions=self._aborted(offset, end) if isolation else None,
            records=data,
        )

    def _aborted(self, offset: int, end: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that overlap the range, in the order of their markers."""
        first: dict[int, int] = {}
        found = []
        for one in self.batches:
            if one.marker is None and one.transactional:
                first.setdefault(one.producer, one.base)
            elif one.marker is not None:
                begun = first.pop(one.producer, one.base)
                if not one.marker and one.base >= offset and begun < end:
                    found.append(AbortedTransaction(producer_id=one.producer, first_offset=begun))
        return found


def _with_append_time(head: bytes, payload: bytes) -> bytes:
    """Return the header of a batch for a topic with message.timestamp.type=LogAppendTime."""
    changed = bytearray(head)
    changed[22] |= 1 << 3
    struct.pack_into(">I", changed, 17, crc32c.crc32c(bytes(changed[21:]) + payload))
    return bytes(changed)


class ReadableCluster(SparkCluster):
    """A cluster whose leaders respond to Fetch and ListOffsets from `readable`, by topic and
    partition.

    Attributes:
        fetched: (loop time, broker, offset, isolation) of every Fetch.
    """

    def __init__(self, brokers: int = 3, *, fetch: int = 18, list_offsets: int = 11) -> None:
        super().__init__(brokers)
        self.readable: dict[tuple[str, int], Log] = {}
        self.fetched: list[tuple[float, int, int, int]] = []
        for broker in self.brokers.values():
            ranges = broker.profile.ranges | {FETCH: (4, fetch), LIST_OFFSETS: (1, list_offsets)}
            broker.profile = dataclasses.replace(broker.profile, ranges=ranges)
        self.serving |= {FETCH: self._fetch, LIST_OFFSETS: self._list_offsets}

    def make_log(self, topic: str = "t", partition: int = 0) -> Log:
        """Return an empty log. Create its topic if necessary."""
        if topic not in self.topics:
            self.create_topic(topic, partition + 1)
        return self.readable.setdefault((topic, partition), Log())

    def _log(self, request: Request, topic: str, partition: int) -> Log | int:
        """Return the log, or the error code of the rejection."""
        log = self.readable.get((topic, partition))
        if log is None:
            return int(Code.UNKNOWN_TOPIC_OR_PARTITION)
        if self.leader_of(topic, partition).broker_id != request.broker_id:
            return int(Code.NOT_LEADER_OR_FOLLOWER)
        return log

    def _list_offsets(self, request: Request) -> Message:
        isolation = request.body.isolation_level if request.version >= 2 else 0
        found = []
        for topic in request.body.topics:
            partitions = []
            for wanted in topic.partitions:
                log = self._log(request, topic.name, wanted.partition_index)
                if isinstance(log, int):
                    code, offset = log, -1
                else:
                    code, offset = 0, log.offset(wanted.timestamp, isolation)
                partitions.append(_offset(wanted.partition_index, code, offset))
            found.append(ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
        return ListOffsetsResponse(topics=found)

    def _fetch(self, request: Request) -> Message | Reaction:
        body = request.body
        if request.version >= BY_ID_FROM:
            return FetchResponse(error_code=int(Code.UNKNOWN_TOPIC_ID), responses=[])
        (topic,) = body.topics
        (wanted,) = topic.partitions
        self.fetched.append(
            (self.loop.time(), request.broker_id, wanted.fetch_offset, body.isolation_level)
        )
        log = self._log(request, topic.topic, wanted.partition)
        if isinstance(log, int):
            return fetch_answer(topic.topic, wanted.partition, log)
        room = min(body.max_bytes, wanted.partition_max_bytes)
        data = log.read(wanted.fetch_offset, room, body.isolation_level)
        data = dataclasses.replace(data, partition_index=wanted.partition)
        waits = not data.error_code and len(data.records or b"") < body.min_bytes
        return Reaction(
            process=False,
            answer=_fetched(topic.topic, data),
            after_s=body.max_wait_ms / 1000 if waits else 0.0,
        )


def offsets_answer(topic: str, partition: int, code: int, offset: int = -1) -> Message:
    """Return a ListOffsets response with one partition."""
    found = ListOffsetsTopicResponse(name=topic, partitions=[_offset(partition, code, offset)])
    return ListOffsetsResponse(topics=[found])


def _offset(partition: int, code: int, offset: int) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=partition, error_code=code, offset=offset)


def fetch_answer(topic: str, partition: int, code: int) -> Message:
    """Return a Fetch response with an error for one partition."""
    data = PartitionData(partition_index=partition, error_code=code, high_watermark=-1, records=b"")
    return _fetched(topic, data)


def _fetched(topic: str, data: PartitionData) -> Message:
    return FetchResponse(responses=[FetchableTopicResponse(topic=topic, partitions=[data])])
