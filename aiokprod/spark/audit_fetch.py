"""Reading a range of offsets of one partition back, as columns. A client for audits, no consumer:
no groups, no sessions, no positions that outlive the call.

Source: Kafka's Fetch and ListOffsets, KIP-98 for what read_committed leaves out.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from aiokprod._engine.identity.coordinators import VersionedRequest
from aiokprod._wire.batch_reader import MAX_UNCOMPRESSED, read_batches
from aiokprod._wire.compression import codec_by_id
from aiokprod._wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from aiokprod._wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from aiokprod.errors import Code, DecodeError, KafkaError, KafkaTimeout, NetworkError, error_code
from aiokprod.spark._readback import RecordColumns

if TYPE_CHECKING:
    from aiokprod._wire.batch_reader import RecordBatch
    from aiokprod._wire.messages.fetch import PartitionData
    from aiokprod.spark.session import Session

EARLIEST: Final = -2
LATEST: Final = -1
FETCH_BYTES: Final = 4 * 1024 * 1024
"""Asked for at once; a larger batch comes all the same."""
PATIENCE: Final = 60.0
"""Seconds without progress after which the next failure ends reading: leaders move, brokers
restart."""
_REQUEST_SECONDS: Final = 10.0
"""For one request, also for the last one: with less, the error would be that of its timeout and not
the broker's reason."""

_NAMES_UNTIL: Final = 12  # Fetch by topic name
_MAX_WAIT_MS: Final = 500
_PAUSE: Final = 0.1
_ABORT: Final = b"\x00\x00\x00\x00"
"""Key of an abort marker: version 0, type 0."""


async def list_offset(
    session: Session, topic: str, partition: int, *, timestamp: int, committed: bool
) -> int:
    """The first (`EARLIEST`) or next (`LATEST`) offset; with `committed` the next one is the last
    stable offset.

    Raises:
        KafkaError: it cannot be told.
    """
    wanted = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
    topics = [ListOffsetsTopic(name=topic, partitions=[wanted])]
    isolation = int(committed)

    def build(version: int) -> ListOffsetsRequest:
        if version < 2:
            return ListOffsetsRequest(replica_id=-1, topics=topics)
        return ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=topics)

    request = VersionedRequest(ListOffsetsRequest.api_key, build, 6)
    give_up = session.loop.time() + PATIENCE
    while True:
        body = await _ask_leader(session, topic, partition, request, give_up)
        if body is not None:
            now = session.loop.time()
            found = _only(body.topics, topic, partition, now, give_up)
            if found is not None and not found.error_code:
                return int(found.offset)
            if found is not None:
                _check_passing(topic, partition, found.error_code, now, give_up)
        session.refresh()
        await asyncio.sleep(_PAUSE)


async def _ask_leader(
    session: Session, topic: str, partition: int, request: Any, give_up: float
) -> Any:
    """One try; None if there is no leader or its connection ended."""
    found = await session.topic(topic, give_up)
    leaders = [one.leader for one in found.partitions if one.partition == partition]
    if not leaders:
        raise KafkaError(f"topic {topic!r} has no partition {partition}")
    if leaders[0] is None:
        if session.loop.time() > give_up:
            raise KafkaTimeout(f"{topic}-{partition}: no leader for {PATIENCE:.0f} s")
        return None
    try:
        deadline = session.loop.time() + _REQUEST_SECONDS
        response = await session.ask(leaders[0], request, deadline)
    except (NetworkError, KafkaTimeout):
        if session.loop.time() > give_up:
            raise
        return None
    return response.body


def _check_passing(topic: str, partition: int, code: int, now: float, give_up: float) -> None:
    found = error_code(code)
    if code == Code.OFFSET_OUT_OF_RANGE:
        raise KafkaError(
            f"{topic}-{partition}: records of the range were deleted meanwhile (retention)",
            code=found,
        )
    if not found.retriable or now > give_up:
        raise KafkaError(f"{topic}-{partition}: {found.text}", code=found)


def _only(topics: Any, topic: str, partition: int, now: float, give_up: float) -> Any:
    """What an answer says of the only partition asked for; None if it was left out."""
    for found in topics:
        for entry in found.partitions:
            return entry
    if now > give_up:
        raise KafkaTimeout(
            f"{topic}-{partition}: the leader has answered without the partition for "
            f"{PATIENCE:.0f} s"
        )
    return None


class RangeReader:
    """Reads offsets `start` to `end` - 1 of one partition."""

    def __init__(
        self,
        session: Session,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        committed: bool,
        values: bool,
        headers: bool,
    ) -> None:
        self._session = session
        self._topic = topic
        self._partition = partition
        self._start = start
        self._next = start
        self._end = end
        self._committed = committed
        self._columns = RecordColumns(values=values, headers=headers)

    async def read(self) -> dict[str, Any] | None:
        """The next records as `RecordColumns.take` gives them, None at the end.

        Raises:
            KafkaError: they cannot be read, or what was read is damaged.
        """
        give_up = self._session.loop.time() + PATIENCE
        while self._next < self._end:
            before = self._next
            body = await _ask_leader(
                self._session, self._topic, self._partition, self._request(), give_up
            )
            data, now = None, self._session.loop.time()
            if body is not None:
                if body.error_code:
                    _check_passing(self._topic, self._partition, body.error_code, now, give_up)
                data = _only(body.responses, self._topic, self._partition, now, give_up)
            if data is None or data.error_code:
                if data is not None:
                    _check_passing(self._topic, self._partition, data.error_code, now, give_up)
                self._session.refresh()
                await asyncio.sleep(_PAUSE)
                continue
            self._take(data)
            if self._columns.count:
                return self._columns.take()
            if self._next > before:
                give_up = self._session.loop.time() + PATIENCE
            elif self._session.loop.time() > give_up:
                raise KafkaTimeout(
                    f"{self._topic}-{self._partition}: nothing at offset {self._next}, although "
                    f"the log goes on to {self._end}"
                )
        return None

    def _request(self) -> VersionedRequest:
        wanted = FetchPartition(
            partition=self._partition, fetch_offset=self._next, partition_max_bytes=FETCH_BYTES
        )
        message = FetchRequest(
            max_wait_ms=_MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            isolation_level=int(self._committed),
            topics=[FetchTopic(topic=self._topic, partitions=[wanted])],
        )
        return VersionedRequest(message.api_key, lambda version: message, _NAMES_UNTIL)

    def _take(self, data: PartitionData) -> None:
        aborted = _Aborted(data)
        records: Any = data.records or b""
        for batch in read_batches(records, partial_tail=True):
            header = batch.header
            if header.last_offset < self._next:
                continue
            if header.base_offset >= self._end:
                self._next = self._end
                return
            if aborted.visible(batch) or not self._committed:
                self._decode(batch)
            self._next = header.last_offset + 1

    def _decode(self, batch: RecordBatch) -> None:
        header = batch.header
        if header.is_control:
            return
        payload: Any = batch.payload
        if header.codec_id:
            payload = codec_by_id(header.codec_id).decompress(payload, MAX_UNCOMPRESSED)
        try:
            self._columns.add(
                payload,
                header.count,
                header.base_offset,
                header.base_timestamp,
                header.max_timestamp if header.is_log_append_time else -1,
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.attributes,
                max(self._start, self._next),
                self._end,
            )
        except ValueError as error:
            raise DecodeError(
                f"{self._topic}-{self._partition}: batch at offset {header.base_offset}: {error}"
            ) from None


class _Aborted:
    """Which batches of one answer belong to aborted transactions."""

    def __init__(self, data: PartitionData) -> None:
        found = data.aborted_transactions or ()
        self._coming = sorted((one.first_offset, one.producer_id) for one in found)
        self._active: set[int] = set()

    def visible(self, batch: RecordBatch) -> bool:
        """To read_committed; to be asked for every batch in order."""
        header = batch.header
        while self._coming and self._coming[0][0] <= header.last_offset:
            self._active.add(self._coming.pop(0)[1])
        if not header.is_transactional:
            return True
        if header.is_control:
            (marker,) = batch.records()
            if marker.key == _ABORT:
                self._active.discard(header.producer_id)
            return True
        return header.producer_id not in self._active
