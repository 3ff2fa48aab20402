"""Reads a range of offsets of one partition as columns, for audits.

This is not a consumer: it has no group, no fetch session, and no position that outlives the call.

Source: the Fetch and ListOffsets APIs; KIP-98 for the batches that read_committed filters out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aiokprod._client.cluster_client import fetch
from aiokprod._client.cluster_client import list_offsets as request_offsets
from aiokprod.errors import Code, DecodeError, KafkaError, KafkaTimeout, NetworkError, error_code
from aiokprod.spark._readback import RecordColumns

if TYPE_CHECKING:
    from aiokprod._client.cluster_client import ClusterClient, FetchedPartition, RecordBatch
    from aiokprod.cluster import TopicInfo

T = TypeVar("T")

EARLIEST: Final = -2
LATEST: Final = -1
FETCH_BYTES: Final = 4 * 1024 * 1024
"""`max_bytes` of a Fetch request. A broker returns the first batch whole even if it is larger."""
PATIENCE: Final = 60.0
"""Seconds without progress after which a read fails. Leader changes and broker restarts take time.
"""

_REQUEST_SECONDS: Final = 10.0
"""Timeout of one attempt, s. The last attempt has the same timeout: a shorter one would raise a
timeout error instead of the broker's error code."""
_PAUSE: Final = 0.1
_ABORT: Final = b"\x00\x00\x00\x00"
"""Key of an abort marker: version 0, type 0."""


async def list_offsets(
    client: ClusterClient,
    partitions: Iterable[tuple[str, int]],
    *,
    timestamp: int,
    committed: bool,
) -> dict[tuple[str, int], int]:
    """Return the first offset (`EARLIEST`) or the end offset (`LATEST`) of each (topic, partition).
    With `committed`, the end offset is the last stable offset. Sends one request to each leader.

    Raises:
        KafkaError: a partition has no leader for `PATIENCE`, or a request fails.
    """
    loop = client.loop
    found: dict[tuple[str, int], int] = {}
    left = set(partitions)
    give_up = loop.time() + PATIENCE
    while True:
        groups = await _by_leader(client, left, give_up)
        deadline = loop.time() + _REQUEST_SECONDS
        responses = await asyncio.gather(
            *(
                request_offsets(
                    client, leader, part, deadline, timestamp=timestamp, committed=committed
                )
                for leader, part in groups.items()
            ),
            return_exceptions=True,
        )
        before = len(found)
        for part, response in zip(groups.values(), responses, strict=True):
            found |= _offsets_of(part, response, loop.time(), give_up)
        left -= found.keys()
        if not left:
            return found
        if len(found) > before:
            give_up = loop.time() + PATIENCE
        client.refresh()
        await asyncio.sleep(_PAUSE)


async def _by_leader(
    client: ClusterClient, partitions: Iterable[tuple[str, int]], give_up: float
) -> dict[int, list[tuple[str, int]]]:
    """Group the partitions that have a leader by leader, in order.

    Raises:
        KafkaTimeout: a partition has no leader, and the time `give_up` has passed.
    """
    wanted = sorted(partitions)
    topics = list(dict.fromkeys(topic for topic, _ in wanted))
    infos = await asyncio.gather(*(client.topic(topic, give_up) for topic in topics))
    by_topic = dict(zip(topics, infos, strict=True))
    groups: dict[int, list[tuple[str, int]]] = {}
    for topic, partition in wanted:
        leader = _leader(by_topic[topic], topic, partition)
        if leader is not None:
            groups.setdefault(leader, []).append((topic, partition))
        elif client.loop.time() > give_up:
            raise KafkaTimeout(f"{topic}-{partition}: no leader for {PATIENCE:.0f} s")
    return groups


def _leader(info: TopicInfo, topic: str, partition: int) -> int | None:
    for one in info.partitions:
        if one.partition == partition:
            return one.leader
    raise KafkaError(f"topic {topic!r} has no partition {partition}")


def _offsets_of(
    partitions: list[tuple[str, int]],
    response: dict[tuple[str, int], tuple[int, int]] | BaseException,
    now: float,
    give_up: float,
) -> dict[tuple[str, int], int]:
    """Return the offsets in a leader's response. Raise if an offset is missing and a retry cannot
    find it or is too late."""
    if isinstance(response, BaseException):
        if isinstance(response, (NetworkError, KafkaTimeout)) and now <= give_up:
            return {}
        raise response
    found = {}
    for topic, partition in partitions:
        if (topic, partition) not in response:
            _check_left_out(topic, partition, now, give_up)
            continue
        code, offset = response[topic, partition]
        if code:
            _check_retriable(topic, partition, code, now, give_up)
        else:
            found[topic, partition] = offset
    return found


def _check_left_out(topic: str, partition: int, now: float, give_up: float) -> None:
    if now > give_up:
        raise KafkaTimeout(
            f"{topic}-{partition}: the leader has sent responses without the partition for "
            f"{PATIENCE:.0f} s"
        )


async def _ask_leader(
    client: ClusterClient,
    topic: str,
    partition: int,
    send: Callable[[int, float], Awaitable[T | None]],
    give_up: float,
) -> T | None:
    """Call `send(leader, deadline)` once. Return None if the partition has no leader, if the leader
    cannot be reached, or if its response does not contain the partition."""
    leader = _leader(await client.topic(topic, give_up), topic, partition)
    if leader is None:
        if client.loop.time() > give_up:
            raise KafkaTimeout(f"{topic}-{partition}: no leader for {PATIENCE:.0f} s")
        return None
    try:
        response = await send(leader, client.loop.time() + _REQUEST_SECONDS)
    except (NetworkError, KafkaTimeout):
        if client.loop.time() > give_up:
            raise
        return None
    if response is None:
        _check_left_out(topic, partition, client.loop.time(), give_up)
    return response


def _check_retriable(topic: str, partition: int, code: int, now: float, give_up: float) -> None:
    """Raise an error unless the code is retriable and there is time for another attempt."""
    found = error_code(code)
    if code == Code.OFFSET_OUT_OF_RANGE:
        raise KafkaError(
            f"{topic}-{partition}: records of the range were deleted meanwhile (retention)",
            code=found,
        )
    if not found.retriable or now > give_up:
        raise KafkaError(f"{topic}-{partition}: {found.text}", code=found)


class RangeReader:
    """Reads the offsets `start` to `end` - 1 of one partition."""

    def __init__(
        self,
        client: ClusterClient,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        committed: bool,
        values: bool,
        headers: bool,
    ) -> None:
        self._client = client
        self._topic = topic
        self._partition = partition
        self._start = start
        self._next = start
        self._end = end
        self._committed = committed
        self._columns = RecordColumns(values=values, headers=headers)

    async def read(self) -> dict[str, Any] | None:
        """Return the next records in the form of `RecordColumns.take`, or None at the end.

        Raises:
            KafkaError: the records cannot be read, or a batch is damaged.
        """
        client, loop = self._client, self._client.loop
        give_up = loop.time() + PATIENCE
        while self._next < self._end:
            before = self._next
            data = await _ask_leader(client, self._topic, self._partition, self._fetch, give_up)
            if data is None or data.error_code:
                if data is not None:
                    now = loop.time()
                    _check_retriable(self._topic, self._partition, data.error_code, now, give_up)
                client.refresh()
                await asyncio.sleep(_PAUSE)
                continue
            self._take(data)
            if self._columns.count:
                return self._columns.take()
            if self._next > before:
                give_up = loop.time() + PATIENCE
            elif loop.time() > give_up:
                raise KafkaTimeout(
                    f"{self._topic}-{self._partition}: no record could be read at offset "
                    f"{self._next}, although the log ends at {self._end}"
                )
        return None

    async def _fetch(self, leader: int, deadline: float) -> FetchedPartition | None:
        return await fetch(
            self._client,
            leader,
            self._topic,
            self._partition,
            deadline,
            offset=self._next,
            max_bytes=FETCH_BYTES,
            committed=self._committed,
        )

    def _take(self, data: FetchedPartition) -> None:
        aborted = _Aborted(data.aborted)
        for batch in data.batches:
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
        payload: Any = batch.uncompressed()
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
    """Determines which batches of one Fetch response belong to aborted transactions.

    Args:
        transactions: (first offset, producer id), ordered by offset.
    """

    def __init__(self, transactions: list[tuple[int, int]]) -> None:
        self._coming = transactions
        self._active: set[int] = set()

    def visible(self, batch: RecordBatch) -> bool:
        """Return True if a read_committed consumer receives this batch. Must be called for every
        batch, in order."""
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
