"""Partitions join a transaction one request at a time, but nobody is held up for long."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from aiokprod import Producer
from aiokprod._engine.identity.txn_partition_gate import LEADER_PAUSE_S, PATIENCE_S
from aiokprod._errors import Code
from aiokprod.testing.fake_cluster import FakeCluster, Reaction, Request, TopicConfig, delay
from tests.scenarios.scenario_helpers import now
from tests.transactions.transaction_helpers import END, PRODUCE, committed, transactional


class Arrivals:
    """When produce requests came to each leader."""

    def __init__(self, cluster: FakeCluster, takes: dict[int, float]) -> None:
        self.began = now()
        self.first: dict[int, float] = {}
        self.count = 0
        self._takes = takes
        self.stop = cluster.control(PRODUCE, self._on_produce)

    def _on_produce(self, request: Request) -> Reaction | None:
        self.count += 1
        for topic in request.body.topic_data:
            for partition in topic.partition_data:
                self.first.setdefault(partition.index, request.time - self.began)
        takes = self._takes.get(request.broker_id, 0.0)
        return delay(takes) if takes else None

    @property
    def distances(self) -> list[float]:
        times = sorted(self.first.values())
        return [round(later - earlier, 6) for earlier, later in itertools.pairwise(times)]


async def spread(producer: Producer[Any, Any], cluster: FakeCluster, took: float) -> Arrivals:
    """One transaction over three leaders, each of whom takes so long."""
    arrivals = Arrivals(cluster, dict.fromkeys((1, 2, 3), took))
    async with producer.transaction():
        for partition in range(3):
            await producer.submit("t", b"%d" % partition, partition=partition)
    arrivals.stop()
    return arrivals


@pytest.mark.parametrize("took", [0.003, 0.015, 0.06])
@transactional(cluster={"brokers": 3})
async def test_leaders_are_asked_one_after_the_other(
    cluster: FakeCluster, producer: Producer[Any, Any], took: float, tv: int
) -> None:
    """Also if they are slow for once: they were quick in the transaction before."""
    await producer.warm(["t"])
    await spread(producer, cluster, 0.003)
    arrivals = await spread(producer, cluster, took)
    if tv == 1:
        assert max(arrivals.distances) < took, "the coordinator knows them all beforehand"
    else:
        assert all(took <= distance <= took + 0.005 for distance in arrivals.distances)
    assert sorted(committed(cluster)) == sorted(2 * [b"0", b"1", b"2"])


@transactional(cluster={"brokers": 3})
async def test_distant_leaders_are_asked_in_intervals(
    cluster: FakeCluster, producer: Producer[Any, Any], tv: int
) -> None:
    await producer.warm(["t"])
    for _ in range(2):
        arrivals = await spread(producer, cluster, 0.2)
    if tv == 2:
        assert arrivals.distances == pytest.approx([LEADER_PAUSE_S] * 2, abs=0.002)


@transactional(cluster={"brokers": 3})
async def test_silent_leader_holds_up_the_others_for_a_moment_only(
    cluster: FakeCluster, producer: Producer[Any, Any], tv: int
) -> None:
    await producer.warm(["t"])
    await spread(producer, cluster, 0.003)
    arrivals = Arrivals(cluster, dict.fromkeys((1, 2, 3), 5.0))
    async with producer.transaction(timeout=60):
        for partition in range(3):
            await producer.submit("t", b"%d" % partition, partition=partition)
        await asyncio.sleep(1)
        assert len(arrivals.first) == 3
        arrivals.stop()
    if tv == 2:
        assert arrivals.distances == pytest.approx([PATIENCE_S] * 2, abs=0.002)
    assert len(committed(cluster)) == 6


@transactional(cluster={"brokers": 3})
async def test_batch_tried_again_holds_up_the_others_for_a_moment_only(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.warm(["t"])
    home = {cluster.leader_of("t", p).broker_id: p for p in range(3)}
    reactions = [
        Reaction(process=False, error=Code.REQUEST_TIMED_OUT, after_s=0.3),
        Reaction(before_s=5.0),
    ]
    again = asyncio.Event()

    def react(request: Request) -> Reaction | None:
        if len(reactions) == 1:
            again.set()
        return reactions.pop(0) if reactions else None

    cluster.control(PRODUCE, react, broker_id=1)
    async with producer.transaction(timeout=60):
        slow = await producer.submit("t", b"slow", partition=home[1])
        await again.wait()
        before = now()
        await producer.send("t", b"other", partition=home[2])
        assert now() - before < PATIENCE_S + 0.02
        await slow
    assert sorted(committed(cluster)) == [b"other", b"slow"]


@transactional(cluster={"brokers": 3}, protocols=(2,))  # in TV1 nothing joins by being sent to
async def test_partition_that_joined_waits_for_nobody(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.warm(["t"])
    arrivals = Arrivals(cluster, {2: 0.05, 3: 0.05})
    home = {cluster.leader_of("t", p).broker_id: p for p in range(3)}
    async with producer.transaction():
        await producer.send("t", b"joined", partition=home[1])
        slow = [await producer.submit("t", b"slow", partition=home[n]) for n in (2, 3)]
        before = now()
        await asyncio.sleep(0.001)
        await producer.send("t", b"again", partition=home[1])
        assert now() - before < 0.01
        await asyncio.gather(*slow)
    assert arrivals.count == 4
    assert cluster.count(END) == 1


@transactional(cluster={"brokers": 3})
async def test_close_while_leaders_wait_leaves_no_timer(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    """The harness fails on what is left behind."""
    await producer.warm(["t"])
    Arrivals(cluster, dict.fromkeys((1, 2, 3), 0.01))
    await producer.begin_transaction()
    for partition in range(3):
        await producer.submit("t", b"x", partition=partition)
    await asyncio.sleep(0)
    await producer.close(timeout=0)
    assert committed(cluster) == []


@transactional(cluster={"brokers": 1})
async def test_topic_that_takes_no_grown_batch_costs_no_abort(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    """Also if each answer to a grown batch is lost: it is divided although it may be in the log."""
    cluster.create_topic("small", 1, config=TopicConfig(max_message_bytes=300_000))
    attempts = 0

    def lose(request: Request) -> Reaction | None:
        sizes = [len(p.records) for t in request.body.topic_data for p in t.partition_data]
        return lost() if max(sizes) > 300_000 and request.time < give_up else None

    async def body(txn: Any) -> None:
        nonlocal attempts, give_up
        attempts += 1
        give_up = now() + 0.05
        for _ in range(2000):
            await producer.submit("small", bytes(1000), partition=0)

    def lost() -> Reaction:
        return Reaction(process=False, silent=True, close=True)

    give_up = 0.0
    await producer.warm(["small"])
    cluster.control(PRODUCE, lose)
    await producer.run_transaction(body, timeout=300)
    assert attempts == 1
    assert len(committed(cluster, "small")) == 2000


@transactional(batch_size=1000, cluster={"brokers": 3})
async def test_keyless_records_of_a_transaction_keep_to_few_partitions(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.warm(["t"])
    used: list[set[int]] = []
    for _ in range(30):
        before = [cluster.committed_values("t", p) for p in range(3)]
        async with producer.transaction():
            for _ in range(60):
                await producer.submit("t", bytes(90))  # 5 400 bytes, 8 000 are the limit
        after = [cluster.committed_values("t", p) for p in range(3)]
        used.append({p for p in range(3) if len(after[p]) > len(before[p])})
    assert [len(partitions) for partitions in used] == [1] * 30
    assert {p for partitions in used for p in partitions} == {0, 1, 2}, "the next chooses anew"
