"""Brokers die, and topics are deleted and extended under load. No record may be lost or duplicated,
and recovery must be quick."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiokprod import Environment, Producer
from aiokprod._net.dialer import TcpDialer
from aiokprod.testing.kafka_cluster import KafkaCluster
from tests.integration.checker import History, check
from tests.integration.load import Stream
from tests.integration.probe import until_serving
from tests.integration.runner import Run
from tests.integration.spy import METADATA, SpyDialer, busiest_second

PARTITIONS = 6
RECOVERY = 2.0
METADATA_PER_SECOND = 20


@dataclass
class Outage:
    """Observations from a fault to the end of the load."""

    history: History
    stream: Stream
    spy: SpyDialer
    began: float = 0.0
    served: float = 0.0

    def assert_recovered(self) -> None:
        """Check that every partition acknowledges records within `RECOVERY` after the cluster
        serves again."""
        for partition in range(PARTITIONS):
            acks = [at for at, where in self.stream.acks if where == partition]
            after = min((at for at in acks if at >= self.served), default=float("inf"))
            late = after - self.served
            print(f"partition {partition}: {late:.2f} s after the cluster could serve")
            assert late <= RECOVERY, f"partition {partition} recovered {late:.2f} s late"

    def assert_polite(self) -> None:
        most = self.spy.most_in_a_second(METADATA)
        dials = busiest_second(self.spy.dials)
        print(f"at most {most} metadata requests and {dials} dials in a second")
        assert most <= METADATA_PER_SECOND, f"{most} metadata requests in a second"


async def under_load(
    cluster: KafkaCluster,
    topic: str,
    fault: Callable[[Outage], object],
    **settings: Any,
) -> Outage:
    """Run a steady keyed load while the coroutine function `fault` runs."""
    history, spy = History(topic), SpyDialer(TcpDialer())
    producer: Producer[bytes, bytes] = Producer(
        bootstrap_servers=cluster.bootstrap_servers,
        environment=Environment(spy),
        **settings,
    )
    async with producer, Stream(producer, history) as stream:
        outage = Outage(history, stream, spy)
        await asyncio.sleep(2.0)
        outage.began = time.monotonic()
        await fault(outage)  # type: ignore[misc]
        await asyncio.sleep(RECOVERY + 1.0)
    return outage


def assert_exact(cluster: KafkaCluster, outage: Outage) -> None:
    report = check(cluster.bootstrap_servers, outage.history)
    print(report)
    assert report.ok, str(report)
    assert not outage.stream.errors, outage.stream.errors[0]


def test_leader_killed_and_restarted_nothing_lost_or_doubled(
    kafka_cluster: KafkaCluster, run_uvloop: Run, topic: str
) -> None:
    async def fault(outage: Outage) -> None:
        leader = await kafka_cluster.leader_of(topic, 0)
        await kafka_cluster.kill(leader)
        outage.served = await until_serving(kafka_cluster, topic)
        await asyncio.sleep(3.0)
        await kafka_cluster.start_node(leader)
        await until_serving(kafka_cluster, topic, in_sync=3)

    async def scenario() -> Outage:
        await kafka_cluster.create_topic(topic, partitions=PARTITIONS)
        return await under_load(kafka_cluster, topic, fault)

    outage = run_uvloop(scenario())
    assert_exact(kafka_cluster, outage)
    outage.assert_recovered()
    outage.assert_polite()


def test_all_brokers_stopped_for_20_s_nothing_lost_or_doubled(
    kafka_cluster: KafkaCluster, run_uvloop: Run, topic: str
) -> None:
    async def fault(outage: Outage) -> None:
        await kafka_cluster.kill_all()
        await asyncio.sleep(20.0)
        await kafka_cluster.start_nodes(kafka_cluster.node_ids, wait=False)
        outage.served = await until_serving(kafka_cluster, topic)

    async def scenario() -> Outage:
        await kafka_cluster.create_topic(topic, partitions=PARTITIONS)
        outage = await under_load(kafka_cluster, topic, fault)
        await until_serving(kafka_cluster, topic, in_sync=3)
        return outage

    outage = run_uvloop(scenario())
    assert_exact(kafka_cluster, outage)
    outage.assert_recovered()
    outage.assert_polite()


def test_topic_deleted_and_recreated_new_topic_exact(
    kafka_cluster: KafkaCluster, run_uvloop: Run, topic: str
) -> None:
    """Records that were acknowledged before the deletion are lost with the old topic. Every record
    submitted after the new topic exists is in it once, in order, at the reported offset."""
    created = 0.0

    async def fault(outage: Outage) -> None:
        nonlocal created
        await kafka_cluster.delete_topic(topic)
        await asyncio.sleep(1.0)
        await kafka_cluster.create_topic(topic, partitions=PARTITIONS)
        outage.served = created = await until_serving(kafka_cluster, topic)

    async def scenario() -> Outage:
        await kafka_cluster.create_topic(topic, partitions=PARTITIONS)
        return await under_load(kafka_cluster, topic, fault, allow_auto_create_topics=False)

    outage = run_uvloop(scenario())
    report = check(kafka_cluster.bootstrap_servers, outage.history)
    print(report)
    assert not report.duplicated, str(report)
    assert not report.out_of_order, str(report)
    assert not report.unexpected, str(report)
    assert not report.corrupt, str(report)
    assert not report.wrong_offset, str(report)
    assert report.unsettled == 0
    for entry in report.lost:
        sequence = int(entry.split(" ")[0].split(":")[1])
        assert outage.stream.handed_over[sequence] < created, f"lost in the new topic: {entry}"
    assert report.in_log > 2_000
    outage.assert_recovered()
    outage.assert_polite()


def test_partitions_added_nothing_lost_and_new_ones_used(
    kafka_cluster: KafkaCluster, run_uvloop: Run, topic: str
) -> None:
    async def fault(outage: Outage) -> None:
        await kafka_cluster.create_partitions(topic, 2 * PARTITIONS)
        outage.served = await until_serving(kafka_cluster, topic)

    async def scenario() -> Outage:
        await kafka_cluster.create_topic(topic, partitions=PARTITIONS)
        return await under_load(kafka_cluster, topic, fault, metadata_max_age_ms=1_000)

    outage = run_uvloop(scenario())
    assert_exact(kafka_cluster, outage)
    outage.assert_polite()
    used = {partition for at, partition in outage.stream.acks if at > outage.served}
    assert used == set(range(2 * PARTITIONS))
    first = min(at for at, partition in outage.stream.acks if partition >= PARTITIONS)
    assert first - outage.served <= RECOVERY


def test_leader_frozen_and_resumed_nothing_lost_or_doubled(
    kafka_cluster: KafkaCluster, run_uvloop: Run, topic: str
) -> None:
    """A frozen broker keeps its sockets open, so only timeouts detect it. Records that it received
    before must not be stored twice when the requests are repeated to the new leader."""

    async def fault(outage: Outage) -> None:
        leader = await kafka_cluster.leader_of(topic, 0)
        await kafka_cluster.pause(leader)
        await asyncio.sleep(12.0)
        await kafka_cluster.resume(leader)
        outage.served = await until_serving(kafka_cluster, topic)

    async def scenario() -> Outage:
        await kafka_cluster.create_topic(topic, partitions=PARTITIONS)
        outage = await under_load(kafka_cluster, topic, fault, request_timeout_ms=3_000)
        await until_serving(kafka_cluster, topic, in_sync=3)
        return outage

    outage = run_uvloop(scenario())
    assert_exact(kafka_cluster, outage)
    outage.assert_recovered()
    outage.assert_polite()
