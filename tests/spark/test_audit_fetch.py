"""Reads of ranges from the fake cluster: the returned records, and the time after which a read
fails."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import struct
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from aiokprod._client.cluster_client import ClusterClient
from aiokprod._wire.compression import CODEC_NAMES
from aiokprod._wire.messages.fetch import FetchResponse
from aiokprod._wire.messages.list_offsets import ListOffsetsResponse
from aiokprod.config import ProducerConfig
from aiokprod.errors import Code, DecodeError, KafkaError, KafkaTimeout, NetworkError
from aiokprod.spark.audit_fetch import (
    EARLIEST,
    FETCH_BYTES,
    LATEST,
    PATIENCE,
    RangeReader,
    list_offsets,
)
from aiokprod.testing.fake_cluster.control import (
    Reaction,
    answer,
    close,
    lose_request,
)
from aiokprod.testing.fake_cluster.framing import Request
from aiokprod.testing.virtual import run
from tests.spark.logs import (
    FETCH,
    FIRST,
    LIST_OFFSETS,
    NEXT,
    WHEN,
    ReadableCluster,
    fetch_answer,
    offsets_answer,
)
from tests.virtual_time import in_virtual_time

MAX_REQUEST_S = 10.0
"""Seconds that one request waits for its response."""


class World:
    """A fake cluster with one readable partition, and a `ClusterClient` that is connected to the
    cluster."""

    def __init__(self, **versions: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.cluster = ReadableCluster(**versions)
        self.log = self.cluster.make_log()

    async def __aenter__(self) -> World:
        config = ProducerConfig.from_mapping({"bootstrap.servers": self.cluster.bootstrap_servers})
        self.session = ClusterClient(config, self.cluster.environment())
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.session.close(1.0)
        assert self.cluster.violations == []

    def reader(self, start: int = 0, end: int | None = None, **how: Any) -> RangeReader:
        how = {"committed": True, "values": True, "headers": True} | how
        return RangeReader(self.session, "t", 0, start, self.log.end if end is None else end, **how)

    async def columns(
        self, start: int = 0, end: int | None = None, **how: Any
    ) -> list[dict[str, Any]]:
        """Return the columns that each call reads."""
        reader = self.reader(start, end, **how)
        found = []
        while (columns := await reader.read()) is not None:
            found.append(columns)
        assert await reader.read() is None, "the end stays the end"
        return found

    async def read(self, start: int = 0, end: int | None = None, **how: Any) -> list[str]:
        """Return "offset:value" for each record."""
        return [text for one in await self.columns(start, end, **how) for text in texts(one)]

    async def offset(self, timestamp: int, *, committed: bool = True, partition: int = 0) -> int:
        found = await list_offsets(
            self.session, [("t", partition)], timestamp=timestamp, committed=committed
        )
        return found["t", partition]


def longs(data: bytes) -> list[int]:
    return list(struct.unpack(f"={len(data) // 8}q", data))


def ints(data: bytes) -> list[int]:
    return list(struct.unpack(f"={len(data) // 4}i", data))


def strings(column: tuple[bytes, bytes, bytes, int]) -> list[str]:
    _, offsets, data, nulls = column
    assert nulls == 0
    ends = ints(offsets)
    return [data[a:b].decode() for a, b in itertools.pairwise(ends)]


def texts(columns: dict[str, Any]) -> list[str]:
    offsets, values = longs(columns["offset"]), strings(columns["value"])
    assert columns["count"] == len(offsets)
    assert strings(columns["key"]) == [f"k-{value}" for value in values]
    return [f"{offset}:{value}" for offset, value in zip(offsets, values, strict=True)]


# -- returned records ------------------------------------------------------------------------------


@pytest.mark.parametrize("case", range(len(CODEC_NAMES)), ids=CODEC_NAMES)
@in_virtual_time
async def test_records_of_every_codec_are_read(case: int) -> None:
    async with World() as harness:
        harness.log.write("a", "b", codec=case)
        harness.log.write("c")
        harness.log.write("d", "e", codec=case)
        assert await harness.read() == ["0:a", "1:b", "2:c", "3:d", "4:e"]


@in_virtual_time
async def test_columns_tell_what_the_batch_says() -> None:
    async with World() as harness:
        harness.log.write("a", "b", producer=7, epoch=3, sequence=40, codec=1)
        (found,) = await harness.columns()
        assert longs(found["timestamp"]) == [WHEN, WHEN + 1]
        assert longs(found["producerId"]) == [7, 7]
        assert ints(found["producerEpoch"]) == [3, 3]
        assert ints(found["sequence"]) == [40, 41]
        assert ints(found["attributes"]) == [1, 1]
        offsets, keys, values = found["headers"]
        assert (ints(offsets), strings(keys), strings(values)) == ([0, 1, 2], ["h"] * 2, ["a", "b"])


@in_virtual_time
async def test_time_of_the_append_is_that_of_every_record() -> None:
    async with World() as harness:
        harness.log.write("a", "b", append_time=WHEN + 500)
        harness.log.write("c", "d")
        (found,) = await harness.columns()
        assert longs(found["timestamp"]) == [WHEN + 500, WHEN + 500, WHEN, WHEN + 1]


@in_virtual_time
async def test_columns_that_are_not_wanted_are_left_out() -> None:
    async with World() as harness:
        harness.log.write("a")
        (plain,) = await harness.columns(values=False, headers=False)
        assert plain.keys().isdisjoint({"value", "headers"})
        (values,) = await harness.columns(headers=False)
        assert "value" in values
        assert "headers" not in values
        (headers,) = await harness.columns(values=False)
        assert "headers" in headers
        assert "value" not in headers


@pytest.mark.parametrize(
    "case",
    [(0, 6), (0, 1), (1, 2), (1, 5), (2, 3), (2, 6), (3, 4), (5, 6), (2, 2), (4, 5)],
    ids=lambda case: f"{case[0]}-{case[1]}",
)
@in_virtual_time
async def test_range_begins_and_ends_within_batches(case: tuple[int, int]) -> None:
    """The broker sends complete batches, starting with the one that contains the first offset."""
    async with World() as harness:
        for batch in ("ab", "c", "def"):
            harness.log.write(*batch)
        expected = [f"{offset}:{'abcdef'[offset]}" for offset in range(*case)]
        for limit in (1, 1 << 20):
            harness.log.limit = limit
            assert await harness.read(*case) == expected


@pytest.mark.parametrize("case", [1, 2, 3])
@in_virtual_time
async def test_batches_before_the_range_are_passed_over(case: int) -> None:
    """Responses from tiered storage and old segments may begin before the requested offset."""
    async with World() as harness:
        for batch in ("ab", "cd", "ef", "gh"):
            harness.log.write(*batch)
        harness.log.early = case
        harness.log.limit = 1
        assert await harness.read(3, 7) == ["3:d", "4:e", "5:f", "6:g"]


@in_virtual_time
async def test_records_of_several_answers_come_call_by_call() -> None:
    async with World() as harness:
        for batch in ("ab", "cd", "ef"):
            harness.log.write(*batch)
        harness.log.limit = 1
        found = [texts(one) for one in await harness.columns()]
        assert found == [["0:a", "1:b"], ["2:c", "3:d"], ["4:e", "5:f"]]
        assert [offset for _, _, offset, _ in harness.cluster.fetched] == [0, 2, 4]


@in_virtual_time
async def test_batch_that_is_cut_off_is_fetched_again() -> None:
    async with World() as harness:
        for batch in ("ab", "cd"):
            harness.log.write(*batch)
        harness.log.limit = len(harness.log.batches[0].data) + 30
        assert [texts(one) for one in await harness.columns()] == [["0:a", "1:b"], ["2:c", "3:d"]]
        assert [offset for _, _, offset, _ in harness.cluster.fetched] == [0, 2]


@in_virtual_time
async def test_offsets_that_compaction_took_are_no_reason_to_wait() -> None:
    """This also holds at the end of the range, if the next batch lies behind it."""
    async with World() as harness:
        harness.log.write("a")
        harness.log.skip(3)
        harness.log.write("b", "c")
        harness.log.skip(5)
        harness.log.write("d")
        assert await harness.read(0, 2) == ["0:a"]
        assert await harness.read(0, 4) == ["0:a"]
        assert await harness.read(1, 11) == ["4:b", "5:c"]
        assert await harness.read() == ["0:a", "4:b", "5:c", "11:d"]
        assert harness.loop.time() < 1001.0
        harness.log.limit = 1
        harness.cluster.fetched.clear()
        assert await harness.read(6, 10) == []
        assert len(harness.cluster.fetched) == 1, "the batch behind the range ends it"


@in_virtual_time
async def test_requests_name_the_isolation_and_the_sizes() -> None:
    async with World() as harness:
        seen: list[Any] = []

        def look(request: Request) -> None:
            seen.append((request.version, request.body))

        harness.cluster.control(FETCH, look)
        harness.log.write("a")
        await harness.read(committed=True)
        await harness.read(committed=False)
        assert [body.isolation_level for _, body in seen] == [1, 0]
        for version, body in seen:
            assert version == 12, "the last one that names topics"
            assert (body.replica_id, body.min_bytes, body.max_bytes) == (-1, 1, FETCH_BYTES)
            assert 0 < body.max_wait_ms < 1000 * MAX_REQUEST_S
            assert body.topics[0].partitions[0].partition_max_bytes == FETCH_BYTES


# -- transactions ----------------------------------------------------------------------------------


def transactions(harness: World) -> None:
    """Write transactions of the producers 5, 6 and 7 between other records.

    Offset 0 is plain. Producer 5 commits offsets 1-2, producer 6 aborts 3 and 5, and producer 7
    commits 4. Afterwards producer 5 aborts and producer 6 commits.
    """
    log = harness.log
    log.write("plain")
    log.write("a1", "a2", producer=5, transactional=True)
    log.write("x1", producer=6, transactional=True)
    log.write("b1", producer=7, transactional=True)
    log.write("x2", producer=6, transactional=True)
    log.mark(5, commit=True)  # offset 6
    log.mark(6, commit=False)  # offset 7
    log.write("between", producer=6)  # offset 8, in no transaction
    log.mark(7, commit=True)  # offset 9
    log.write("c1", producer=6, transactional=True)  # offset 10
    log.write("y1", "y2", producer=5, transactional=True)  # offsets 11-12
    log.mark(6, commit=True)  # offset 13
    log.write("y3", producer=5, transactional=True)  # offset 14
    log.mark(5, commit=False)  # offset 15
    log.write("d1", producer=5, transactional=True)  # offset 16
    log.mark(5, commit=True)  # offset 17
    log.write("last")  # offset 18


COMMITTED = ["0:plain", "1:a1", "2:a2", "4:b1", "8:between", "10:c1", "16:d1", "18:last"]
ALL = ["0:plain", "1:a1", "2:a2", "3:x1", "4:b1", "5:x2", "8:between", "10:c1", "11:y1", "12:y2",
       "14:y3", "16:d1", "18:last"]  # fmt: skip


@pytest.mark.parametrize("case", [1, 1 << 20], ids=["batch by batch", "at once"])
@in_virtual_time
async def test_records_of_aborted_transactions_are_for_read_uncommitted_only(case: int) -> None:
    async with World() as harness:
        transactions(harness)
        harness.log.limit = case
        assert await harness.read(committed=True) == COMMITTED
        assert await harness.read(committed=False) == ALL
        for start in range(19):
            expected = [one for one in COMMITTED if int(one.split(":")[0]) >= start]
            assert await harness.read(start, committed=True) == expected


@in_virtual_time
async def test_read_committed_ends_before_open_transactions() -> None:
    async with World() as harness:
        harness.log.write("a")
        harness.log.write("open", producer=5, transactional=True)
        harness.log.write("b")
        assert await harness.offset(LATEST, committed=True) == 1
        assert await harness.offset(LATEST, committed=False) == 3
        assert await harness.read(0, 1) == ["0:a"]
        assert await harness.read(0, 3, committed=False) == ["0:a", "1:open", "2:b"]


@in_virtual_time
async def test_range_of_nothing_but_aborted_records_and_markers_is_empty() -> None:
    async with World() as harness:
        for _ in range(3):
            harness.log.write("x", producer=5, transactional=True)
            harness.log.mark(5, commit=False)
        harness.log.limit = 1
        assert await harness.read() == []
        assert len(harness.cluster.fetched) == 6


@in_virtual_time
async def test_answers_without_records_for_the_reader_count_as_progress() -> None:
    """Each of the eleven responses takes 9 s. Together they exceed the patience of 60 s."""
    async with World() as harness:
        for _ in range(5):
            harness.log.write("x", producer=5, transactional=True)
            harness.log.mark(5, commit=False)
        harness.log.write("a")
        harness.log.limit = 1
        delayed = slow(harness.cluster, MAX_REQUEST_S - 1.0)
        started = harness.loop.time()
        assert await harness.read() == ["10:a"]
        assert harness.loop.time() - started > PATIENCE
        assert delayed() == 11


def slow(cluster: ReadableCluster, seconds: float) -> Callable[[], int]:
    """Delay all Fetch responses. Return a function that returns the number of responses."""
    plain = cluster.serving[FETCH]
    count = 0

    def serve(request: Request) -> Any:
        nonlocal count
        count += 1
        reply: Any = plain(request)
        assert not isinstance(reply, Reaction) or reply.after_s == 0.0
        message = reply.answer if isinstance(reply, Reaction) else reply
        return Reaction(process=False, answer=message, after_s=seconds)

    cluster.serving[FETCH] = serve
    return lambda: count


# -- damage ----------------------------------------------------------------------------------------


@in_virtual_time
async def test_batch_with_a_wrong_checksum_is_no_data() -> None:
    async with World() as harness:
        harness.log.write("a")
        (batch,) = harness.log.batches
        spoilt = batch.data[:-1] + bytes([batch.data[-1] ^ 1])
        harness.log.batches[0] = dataclasses.replace(batch, data=spoilt)
        with pytest.raises(DecodeError, match="CRC"):
            await harness.read()


@in_virtual_time
async def test_records_that_are_none_are_told_with_the_place() -> None:
    async with World() as harness:
        harness.log.write("a")
        harness.log.write("b", "c", payload=b"\x02\x00")
        with pytest.raises(DecodeError, match=r"^t-0: batch at offset 1: "):
            await harness.read()


@in_virtual_time
async def test_payload_that_cannot_be_decompressed_is_an_error() -> None:
    async with World() as harness:
        harness.log.write("a", codec=1, payload=b"no gzip")
        with pytest.raises(DecodeError, match="gzip"):
            await harness.read()


# -- errors and lost responses ---------------------------------------------------------------------


async def offset_of(harness: World) -> object:
    return await harness.offset(LATEST)


async def range_of(harness: World) -> object:
    return len(await harness.read(0, 1))


def refuse_with(harness: World, code: int, *, times: int | None) -> None:
    harness.cluster.control(FETCH, answer(fetch_answer("t", 0, code)), times=times)
    harness.cluster.control(LIST_OFFSETS, answer(offsets_answer("t", 0, code)), times=times)


Reading = Callable[[World], Awaitable[object]]
BOTH = pytest.mark.parametrize("case", [offset_of, range_of], ids=["list_offsets", "read"])
PASSING = (Code.LEADER_NOT_AVAILABLE, Code.NOT_LEADER_OR_FOLLOWER, Code.FENCED_LEADER_EPOCH,
           Code.UNKNOWN_TOPIC_OR_PARTITION, Code.OFFSET_NOT_AVAILABLE)  # fmt: skip


@BOTH
@in_virtual_time
async def test_refusal_that_passes_is_outlasted(case: Reading) -> None:
    async with World() as harness:
        harness.log.write("a")
        for code in PASSING:
            refuse_with(harness, code, times=2)
            started = harness.loop.time()
            assert await case(harness) == 1
            assert 0.2 <= harness.loop.time() - started < 2.0


@BOTH
@in_virtual_time
async def test_refusal_that_does_not_pass_ends_after_the_patience(case: Reading) -> None:
    async with World() as harness:
        harness.log.write("a")
        refuse_with(harness, Code.LEADER_NOT_AVAILABLE, times=None)
        started = harness.loop.time()
        with pytest.raises(KafkaError, match=r"^t-0: ") as caught:
            await case(harness)
        assert caught.value.code is not None
        assert caught.value.code.number == Code.LEADER_NOT_AVAILABLE
        assert PATIENCE <= harness.loop.time() - started < PATIENCE + 1.0


def leave_out(harness: World, *, times: int | None, code: int = 0) -> None:
    """Respond without the partition, with an empty list and with null in turn. Null is read as an
    empty list."""
    without = itertools.cycle([(), None])

    def emptied(request: Request) -> Reaction:
        if request.api_key == FETCH:
            return answer(FetchResponse(error_code=code, responses=next(without)))  # type: ignore[arg-type]
        return answer(ListOffsetsResponse(topics=next(without)))  # type: ignore[arg-type]

    harness.cluster.control(FETCH, emptied, times=times)
    harness.cluster.control(LIST_OFFSETS, emptied, times=times)


@BOTH
@in_virtual_time
async def test_partition_left_out_of_answers_is_asked_for_again(case: Reading) -> None:
    async with World() as harness:
        harness.log.write("a")
        leave_out(harness, times=4)
        assert await case(harness) == 1


@BOTH
@in_virtual_time
async def test_partition_left_out_of_all_answers_is_given_up(case: Reading) -> None:
    async with World() as harness:
        harness.log.write("a")
        leave_out(harness, times=None)
        started = harness.loop.time()
        with pytest.raises(KafkaTimeout, match=r"^t-0: .*without the partition"):
            await case(harness)
        assert PATIENCE <= harness.loop.time() - started < PATIENCE + 1.0


@in_virtual_time
async def test_error_of_a_whole_fetch_is_told() -> None:
    async with World() as harness:
        harness.log.write("a")
        leave_out(harness, times=None, code=Code.CLUSTER_AUTHORIZATION_FAILED)
        with pytest.raises(KafkaError, match=r"^t-0: ") as caught:
            await range_of(harness)
        assert caught.value.code is not None
        assert caught.value.code.number == Code.CLUSTER_AUTHORIZATION_FAILED


@BOTH
@in_virtual_time
async def test_refusal_for_good_is_told_at_once(case: Reading) -> None:
    async with World() as harness:
        harness.log.write("a")
        refuse_with(harness, Code.TOPIC_AUTHORIZATION_FAILED, times=1)
        started = harness.loop.time()
        with pytest.raises(KafkaError, match=r"^t-0: ") as caught:
            await case(harness)
        assert caught.value.code is not None
        assert caught.value.code.number == Code.TOPIC_AUTHORIZATION_FAILED
        assert harness.loop.time() - started < 1.0


@in_virtual_time
async def test_range_that_retention_took_is_told_as_deleted() -> None:
    async with World() as harness:
        harness.log.write("a", "b")
        harness.log.start = 1
        assert await harness.offset(EARLIEST) == 1
        with pytest.raises(KafkaError, match=r"^t-0: .*deleted meanwhile \(retention\)") as caught:
            await harness.read()
        assert caught.value.code is not None
        assert caught.value.code.number == Code.OFFSET_OUT_OF_RANGE


@BOTH
@in_virtual_time
async def test_leader_that_moved_is_found(case: Reading) -> None:
    async with World() as harness:
        harness.log.write("a")
        assert await case(harness) == 1
        old = harness.cluster.leader_of("t", 0).broker_id
        new = harness.cluster.move_leader("t", 0)
        assert new != old
        assert await case(harness) == 1
        harness.cluster.kill(new)
        assert await case(harness) == 1


@BOTH
@in_virtual_time
async def test_connection_that_ends_is_replaced(case: Reading) -> None:
    async with World() as harness:
        harness.log.write("a")
        for api_key in (FETCH, LIST_OFFSETS):
            harness.cluster.control(api_key, close(), times=2)
        assert await case(harness) == 1
        assert harness.loop.time() < 1000.0 + MAX_REQUEST_S


@BOTH
@in_virtual_time
async def test_lost_request_is_repeated_after_ten_seconds(case: Reading) -> None:
    async with World() as harness:
        harness.log.write("a")
        for api_key in (FETCH, LIST_OFFSETS):
            harness.cluster.control(api_key, lose_request(), times=1)
        started = harness.loop.time()
        assert await case(harness) == 1
        assert MAX_REQUEST_S <= harness.loop.time() - started < MAX_REQUEST_S + 2.0


@BOTH
@in_virtual_time
async def test_leader_that_never_answers_is_given_up(case: Reading) -> None:
    async with World() as harness:
        harness.log.write("a")
        for api_key in (FETCH, LIST_OFFSETS):
            harness.cluster.control(api_key, lose_request())
        started = harness.loop.time()
        with pytest.raises((NetworkError, KafkaTimeout)):
            await case(harness)
        assert PATIENCE <= harness.loop.time() - started < PATIENCE + MAX_REQUEST_S + 2.0


@in_virtual_time
async def test_partition_that_does_not_exist_is_named() -> None:
    async with World() as harness:
        with pytest.raises(KafkaError, match="topic 't' has no partition 7"):
            await harness.offset(EARLIEST, partition=7)


@in_virtual_time
async def test_log_that_ends_before_the_range_is_given_up() -> None:
    """The reason is an unclean election. The reader first returns the existing records."""
    async with World() as harness:
        harness.log.write("a", "b")
        reader = harness.reader(0, 9)
        first = await reader.read()
        assert first is not None
        assert texts(first) == ["0:a", "1:b"]
        started = harness.loop.time()
        with pytest.raises(
            KafkaTimeout,
            match=r"^t-0: no record could be read at offset 2, although the log ends at 9$",
        ):
            await reader.read()
        assert PATIENCE <= harness.loop.time() - started < PATIENCE + 2.0


# -- offsets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [1, 2, 11])
@in_virtual_time
async def test_first_and_next_offset_of_a_partition(case: int) -> None:
    """Brokers before ListOffsets v2 have no last stable offset, because they have no
    transactions."""
    async with World(list_offsets=case) as harness:
        seen: list[Any] = []
        harness.cluster.control(LIST_OFFSETS, lambda request: seen.append(request))
        for batch in ("abc", "de"):
            harness.log.write(*batch)
        harness.log.start = 2
        for committed in (True, False):
            assert await harness.offset(EARLIEST, committed=committed) == 2
            assert await harness.offset(LATEST, committed=committed) == 5
        wanted = [one.body.topics[0].partitions[0].timestamp for one in seen]
        assert wanted == [FIRST, NEXT] * 2
        assert {one.body.replica_id for one in seen} == {-1}
        assert max(one.version for one in seen) == min(case, 6)
        if case >= 2:
            assert [one.body.isolation_level for one in seen] == [1, 1, 0, 0]


class Leaderless:
    """A client of a cluster whose topic has permanently lost its leader."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.refreshed = 0

    async def topic(self, name: str, deadline: float) -> Any:
        return SimpleNamespace(partitions=[SimpleNamespace(partition=0, leader=None)])

    def refresh(self) -> None:
        self.refreshed += 1


async def read_offset(client: Any) -> None:
    await list_offsets(client, [("t", 0)], timestamp=EARLIEST, committed=True)


async def read_range(client: Any) -> None:
    await RangeReader(client, "t", 0, 0, 9, committed=True, values=True, headers=True).read()


@pytest.mark.parametrize("read", [read_offset, read_range])
def test_partition_without_a_leader_is_given_up(read: Callable[[Any], Awaitable[None]]) -> None:
    async def main() -> None:
        client: Any = Leaderless()
        started = client.loop.time()
        with pytest.raises(KafkaTimeout, match="t-0: no leader"):
            await read(client)
        assert PATIENCE <= client.loop.time() - started < PATIENCE + 1
        assert client.refreshed > 1

    run(main, limit_s=600.0)
