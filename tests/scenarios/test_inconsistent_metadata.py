"""Metadata that no broker should send, but some do: leader epochs that are missing or restart,
topics without ids, brokers with less information than others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from aiokprod._wire.messages.metadata import MetadataResponse
from aiokprod._wire.messages.produce import ProduceResponse
from aiokprod.producer import Producer
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.fake_cluster.control import Reaction, edit
from tests.scenarios.scenario_helpers import History, now, scenario

METADATA = 3
PRODUCE = 0


def each_partition(**fields: Any) -> Callable[[MetadataResponse], MetadataResponse]:
    """Return a function that changes fields of every partition of a response."""

    def change(body: MetadataResponse) -> MetadataResponse:
        return replace(
            body,
            topics=[
                replace(t, partitions=[replace(p, **fields) for p in t.partitions])
                for t in body.topics
            ],
        )

    return change


def each_topic(**fields: Any) -> Callable[[MetadataResponse], MetadataResponse]:
    return lambda body: replace(body, topics=[replace(t, **fields) for t in body.topics])


def without_leader_hints(body: ProduceResponse) -> ProduceResponse:
    """Remove the leader hints, which brokers before 3.7 do not send (KIP-951)."""
    return replace(
        body,
        node_endpoints=[],
        responses=[
            replace(
                topic,
                partition_responses=[
                    replace(p, current_leader=type(p.current_leader)())
                    for p in topic.partition_responses
                ],
            )
            for topic in body.responses
        ],
    )


@scenario(partitions=1, delivery_timeout_ms=20_000, request_timeout_ms=5_000, linger_ms=0)
async def test_epochs_that_are_no_longer_told_do_not_pin_the_old_leader(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    """A KIP-951 hint, or a broker of a mixed cluster, has set an epoch; later responses lack it."""
    silent = [False]
    strip = edit(each_partition(leader_epoch=-1))
    cluster.control(METADATA, lambda request: strip if silent[0] else None)
    await history.send()
    cluster.move_leader("t", 0)
    await history.send()
    silent[0] = True
    cluster.control(PRODUCE, edit(without_leader_hints))
    cluster.move_leader("t", 0)
    start, before = now(), cluster.count(METADATA)
    await history.send()
    history.all_acked(refusals=True)
    assert now() - start < 2.0
    assert cluster.count(METADATA) - before < 10


@pytest.mark.parametrize("idempotent", [True, False])
def test_topic_created_anew_without_topic_ids_is_found_again(idempotent: bool) -> None:
    """Kafka 2.4 to 2.7, and gateways with zero ids (KAFKA-12257 needs ids)."""

    @scenario(
        partitions=1,
        delivery_timeout_ms=30_000,
        linger_ms=0,
        enable_idempotence=idempotent,
    )
    async def play(cluster: FakeCluster, producer: Producer[Any, Any], history: History) -> None:
        cluster.control(METADATA, edit(each_topic(topic_id=bytes(16))))
        cluster.control(PRODUCE, edit(without_leader_hints))
        await history.send()
        for _ in range(3):
            cluster.move_leader("t", 0)
        await history.send()
        old = cluster.topics["t"].partitions[0].leader
        cluster.recreate_topic("t")
        created = cluster.topics["t"].partitions[0]
        created.leader = next(node for node in created.isr if node != old)
        start, before = now(), cluster.count(METADATA)
        for _ in range(2):
            assert (await history.send()).acked
        assert now() - start < 10.0
        assert cluster.count(METADATA) - before < 20
        stored = cluster.values("t", 0)
        assert stored == [attempt.value for attempt in history.attempts[-2:]]

    play()


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("max_age_ms", [1_000, 300_000])
def test_topic_created_anew_without_topic_ids_is_found_again_by_slow_requests(
    idempotent: bool, max_age_ms: int
) -> None:
    """Metadata is fetched between each Produce request and its response, because of its age, or
    because the broker has not responded for a second. It contains the lower epoch, so the client
    keeps the old leader. Such metadata must not invalidate the refusals of the old leader."""

    @scenario(
        partitions=1,
        delivery_timeout_ms=60_000,
        request_timeout_ms=5_000,
        linger_ms=0,
        metadata_max_age_ms=max_age_ms,
        enable_idempotence=idempotent,
    )
    async def play(cluster: FakeCluster, producer: Producer[Any, Any], history: History) -> None:
        cluster.control(METADATA, edit(each_topic(topic_id=bytes(16))))
        await history.send()
        for _ in range(3):
            cluster.move_leader("t", 0)
        await history.send()
        old = cluster.topics["t"].partitions[0].leader
        cluster.control(PRODUCE, Reaction(edit=without_leader_hints, after_s=1.5))
        cluster.recreate_topic("t")
        created = cluster.topics["t"].partitions[0]
        created.leader = next(node for node in created.isr if node != old)
        start, before = now(), cluster.count(METADATA)
        assert (await history.send()).acked
        # Five responses with the lower epoch, each after a refusal, and the successful attempt.
        assert now() - start < 6 * 1.5 + 6.0
        assert cluster.count(METADATA) - before < 30
        assert cluster.values("t", 0) == [history.attempts[-1].value]

    play()


@pytest.mark.parametrize("idempotent", [True, False])
def test_topic_created_anew_is_named_if_the_metadata_no_longer_have_ids(idempotent: bool) -> None:
    """The old topic id is from a broker that was replaced by one without topic ids, or from a
    broker that gets no further metadata request because it is busier. The leader supports ids, and
    has only the new topic."""

    @scenario(partitions=1, delivery_timeout_ms=30_000, linger_ms=0, enable_idempotence=idempotent)
    async def play(cluster: FakeCluster, producer: Producer[Any, Any], history: History) -> None:
        await history.send()
        for _ in range(3):
            cluster.move_leader("t", 0)
        await history.send()
        cluster.control(METADATA, edit(each_topic(topic_id=bytes(16))))
        cluster.control(PRODUCE, edit(without_leader_hints))
        cluster.recreate_topic("t")
        start = now()
        for _ in range(2):
            assert (await history.send()).acked
        assert now() - start < 2.0
        stored = cluster.values("t", 0)
        assert stored == [attempt.value for attempt in history.attempts[-2:]]

    play()


@scenario(
    partitions=1,
    brokers=2,
    delivery_timeout_ms=20_000,
    request_timeout_ms=5_000,
    linger_ms=0,
    metadata_max_age_ms=1_000,
)
async def test_old_answers_of_one_broker_do_not_bring_the_old_leader_back(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    """The broker is cut off from the controller and returns outdated metadata. It leads no
    partition, so it is idle and always gets the metadata request first."""
    await history.send()
    before = cluster.topics["t"].partitions[0]
    old, epoch = before.leader, before.leader_epoch
    assert old is not None
    cluster.move_leader("t", 0)
    await history.send()
    cluster.control(PRODUCE, Reaction(edit=without_leader_hints, after_s=0.3))
    asked = cluster.count(METADATA, broker_id=old)
    what_it_knew = edit(each_partition(leader_id=old, leader_epoch=epoch))
    cluster.control(METADATA, what_it_knew, broker_id=old)
    await history.submit_many(100, every=0.1)
    await history.settle()
    history.all_acked(refusals=True)
    assert len(cluster.refusals) == 1
    assert cluster.count(METADATA, broker_id=old) - asked > 5


@scenario(
    partitions=2,
    brokers=2,
    delivery_timeout_ms=20_000,
    request_timeout_ms=5_000,
    linger_ms=0,
    metadata_max_age_ms=1_000,
)
async def test_old_epochs_are_not_believed_while_another_partition_has_no_leader(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    """Every response then causes another request, and the broker that is cut off from the
    controller answers all of them. Its epoch of the other partition stays lower than the cached
    epoch (Java `Metadata.updateLatestMetadata`)."""
    await history.send()
    before = cluster.topics["t"].partitions[0]
    old, epoch = before.leader, before.leader_epoch
    assert old is not None
    cluster.move_leader("t", 0)
    await history.send()
    cluster.control(PRODUCE, Reaction(edit=without_leader_hints, after_s=0.3))

    def what_it_knew(body: MetadataResponse) -> MetadataResponse:
        def known(p: Any) -> Any:
            if p.partition_index == 0:
                return replace(p, leader_id=old, leader_epoch=epoch)
            return replace(p, error_code=5, leader_id=-1)

        topics = [replace(t, partitions=list(map(known, t.partitions))) for t in body.topics]
        return replace(body, topics=topics)

    asked = cluster.count(METADATA)
    cluster.control(METADATA, edit(what_it_knew))
    await history.submit_many(100, every=0.1)
    await history.settle()
    history.all_acked(refusals=True)
    assert len(cluster.refusals) == 1
    assert cluster.count(METADATA) - asked > 5


@scenario(
    partitions=1,
    cluster={"replication_s": 1.3},
    bootstrap_servers="broker1:9092",
    linger_ms=0,
)
async def test_slow_broker_is_asked_although_others_cannot_be_reached(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    """The other brokers are in the metadata, but behind a firewall: connecting to them never
    completes."""
    await history.send()
    for broker in (cluster.brokers[2], cluster.brokers[3]):
        cluster.network.blackhole(broker.host, broker.port)

    async def load() -> None:
        while True:
            await producer.submit("t", b"x", partition=0)
            await asyncio.sleep(0.1)

    loading = asyncio.ensure_future(load())
    await asyncio.sleep(10)
    for number in range(3):
        cluster.create_topic(f"new{number}", 1)
        start, before = now(), cluster.count(METADATA)
        await producer.partitions_for(f"new{number}")
        # The request waits for a metadata request in flight, and each of the two waits for four
        # Produce requests of 1.3 s.
        assert now() - start < 12.0
        assert cluster.count(METADATA) - before < 10
        await asyncio.sleep(5)
    loading.cancel()
