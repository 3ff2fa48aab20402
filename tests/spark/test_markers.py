"""Markers of exactly-once streams: how they are read from old and new brokers, and how long a read
waits."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from aiokprod._client.cluster_client import ClusterClient
from aiokprod._wire.messages.offset_fetch import OffsetFetchResponsePartitions
from aiokprod.config import ProducerConfig
from aiokprod.errors import Code, KafkaError, KafkaTimeout
from aiokprod.spark.markers import Marker, UnstableMarker, is_task_id, marked_topics, read_marker
from aiokprod.testing.fake_cluster.control import Reaction, answer
from aiokprod.testing.fake_cluster.framing import Request
from aiokprod.testing.fake_cluster.transactions import CommittedOffset
from tests.spark.cluster import OFFSET_FETCH, SparkCluster, offsets_answer
from tests.virtual_time import in_virtual_time

GROUP = "p.q.0"


class World:
    """A fake cluster, and a `ClusterClient` that is connected to the cluster."""

    def __init__(self, versions: tuple[int, int] = (1, 9)) -> None:
        self.loop = asyncio.get_running_loop()
        self.cluster = SparkCluster()
        for broker in self.cluster.brokers.values():
            ranges = broker.profile.ranges | {OFFSET_FETCH: versions}
            broker.profile = dataclasses.replace(broker.profile, ranges=ranges)

    async def __aenter__(self) -> World:
        config = ProducerConfig.from_mapping({"bootstrap.servers": self.cluster.bootstrap_servers})
        self.session = ClusterClient(config, self.cluster.environment())
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.session.close(1.0)
        assert self.cluster.violations == []

    def commit(self, topic: str, marker: Marker, *, offset: int | None = None) -> None:
        """Store the offset that a committed transaction leaves behind."""
        (found,) = marker.offsets([topic]).values()
        kept = CommittedOffset(found.offset if offset is None else offset, found.metadata)
        offsets = self.cluster.transactions.committed_offsets.setdefault(GROUP, {})
        offsets[topic, 0] = kept

    async def read(self, seconds: float = 30.0, unstable_for: float | None = None) -> Any:
        return await read_marker(self.session, GROUP, self.loop.time() + seconds, unstable_for)


def code_of(error: KafkaError) -> int:
    assert error.code is not None
    return error.code.number


def refused(request: Request, code: int, *, of: str) -> Reaction:
    """Return a response with the error code for the group, or for a partition."""
    if of == "group":
        return answer(offsets_answer(GROUP, {}, code=code, version=request.version))
    one = OffsetFetchResponsePartitions(
        partition_index=0, committed_offset=-1, metadata="", error_code=code
    )
    return answer(offsets_answer(GROUP, {"t": one}, version=request.version))


@pytest.mark.parametrize("case", [2, 6, 7, 8, 9, 10])
@in_virtual_time
async def test_marker_is_read_from_brokers_of_any_age(case: int) -> None:
    async with World((1, case)) as harness:
        seen: list[Any] = []
        harness.cluster.control(OFFSET_FETCH, lambda request: seen.append(request))
        assert await harness.read() is None
        assert await marked_topics(harness.session, GROUP, harness.loop.time() + 30.0) == []
        marker = Marker(7, 3, 0xABC, 2, 5)
        harness.commit("t", marker)
        harness.commit("a", Marker(6, 9, 9, 9))
        harness.commit("none", marker, offset=0)
        assert await harness.read() == marker
        assert await marked_topics(harness.session, GROUP, harness.loop.time() + 30.0) == ["a", "t"]
        assert {one.version for one in seen} == {min(case, 9)}, "10 has no names of topics"
        stable = [one.body.require_stable for one in seen]
        assert stable == ([True, False] * 2 if case >= 7 else [False] * 4)


@in_virtual_time
async def test_newest_batch_and_of_it_the_highest_version_is_the_marker() -> None:
    async with World() as harness:
        for topic, marker in {
            "a": Marker(3, 1, 1, 1, 9), "b": Marker(4, 2, 2, 1, 0), "c": Marker(4, 3, 3, 1, 2),
            "d": Marker(4, 4, 4, 1, 1),
        }.items():  # fmt: skip
            harness.commit(topic, marker)
        for harness.cluster.order in (1, -1):
            assert await harness.read() == Marker(4, 3, 3, 1, 2)


@pytest.mark.parametrize("case", ["", "1 2", "a b c", "1 zz 2", "1 ff 2 3 4", None])
@in_virtual_time
async def test_offset_of_another_writer_is_refused(case: str | None) -> None:
    async with World() as harness:
        harness.commit("t", Marker(3, 1, 1, 1))
        harness.cluster.transactions.committed_offsets[GROUP]["t", 0].metadata = case
        with pytest.raises(KafkaError, match="an offset that this sink did not write"):
            await harness.read()


def test_marker_of_the_first_version_has_three_numbers() -> None:
    assert Marker.of(1, "5 00000000000000ff 2") == Marker(0, 5, 255, 2, 0)
    marker = Marker(0, 5, 2**64 - 1, 2, 4)
    (offset,) = marker.offsets(["t"]).values()
    assert offset.offset == 1, "batch 0 differs from nothing"
    assert Marker.of(offset.offset, offset.metadata) == marker
    assert list(marker.offsets({"b", "a"})) == [("a", 0), ("b", 0)]


@pytest.mark.parametrize("case", ["group", "partition"])
@in_virtual_time
async def test_refusal_that_passes_is_outlasted(case: str) -> None:
    codes = [Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE, Code.UNSTABLE_OFFSET_COMMIT,
             Code.COORDINATOR_LOAD_IN_PROGRESS]  # fmt: skip
    for versions in ((8, 9), (2, 7)):
        async with World(versions) as harness:
            harness.commit("t", Marker(3, 1, 1, 1))
            left = iter(codes)

            def refuse(request: Request, left: Any = left) -> Reaction | None:
                code = next(left, None)
                return None if code is None else refused(request, int(code), of=case)

            harness.cluster.control(OFFSET_FETCH, refuse)
            assert await harness.read() == Marker(3, 1, 1, 1)
            assert next(left, None) is None


@pytest.mark.parametrize("case", ["group", "partition"])
@in_virtual_time
async def test_refusal_for_good_names_the_group(case: str) -> None:
    async with World() as harness:
        code = int(Code.GROUP_AUTHORIZATION_FAILED)
        harness.cluster.control(OFFSET_FETCH, lambda request: refused(request, code, of=case))
        for read in (
            harness.read(),
            marked_topics(harness.session, GROUP, harness.loop.time() + 30.0),
        ):
            with pytest.raises(KafkaError, match=r"^marker group p\.q\.0: ") as caught:
                await read
            assert code_of(caught.value) == code
        assert harness.loop.time() < 1001.0


@pytest.mark.parametrize("case", [1.0, 1.9, 6.0, 100.0])
@in_virtual_time
async def test_open_transaction_is_waited_for_as_long_as_was_asked(case: float) -> None:
    """The time starts with the first response that reports the open transaction. Errors before that
    have a separate limit."""
    async with World() as harness:
        harness.commit("t", Marker(3, 1, 1, 1))
        began = harness.loop.time()
        begins, ends = began + 5.0, began + 5.0 + case

        def unstable(request: Request) -> Reaction | None:
            if request.time < begins:
                return refused(request, int(Code.COORDINATOR_LOAD_IN_PROGRESS), of="group")
            if request.time < ends:
                return refused(request, int(Code.UNSTABLE_OFFSET_COMMIT), of="partition")
            return None

        harness.cluster.control(OFFSET_FETCH, unstable)
        if case < 2.0:
            assert await harness.read(30.0, 2.0) == Marker(3, 1, 1, 1)
            return
        with pytest.raises(UnstableMarker, match=r"^marker group p\.q\.0: a transaction of it"):
            await harness.read(30.0, 2.0)
        assert 7.0 <= harness.loop.time() - began < 10.0
        if case < 30.0:
            assert await harness.read(30.0, None) == Marker(3, 1, 1, 1)
        else:
            with pytest.raises(KafkaTimeout, match="UNSTABLE_OFFSET_COMMIT"):
                await harness.read(30.0, None)


def test_ids_of_tasks_are_told_from_those_of_other_queries() -> None:
    assert is_task_id("p.q.0", "p.q")
    assert is_task_id("p.q.17", "p.q")
    for name in ("p.q", "p.q.", "p.q.driver", "p.q.1.0", "p.qq.0", "x.p.q.0", "p.q.-1", "p.q.٣"):
        assert not is_task_id(name, "p.q")
