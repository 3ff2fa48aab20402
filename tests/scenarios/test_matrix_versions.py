"""Every version of Produce with every version of Metadata, acks and codecs: the stored records are
the sent records."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from aiokprod._engine.sender.produce_request import TOPIC_ID_VERSION
from aiokprod._wire.compression import CODEC_NAMES
from aiokprod._wire.versions import CLIENT_RANGES
from aiokprod.errors import DeliveryTimeout, KafkaError, Outcome
from aiokprod.producer import Producer
from aiokprod.records import RecordMetadata
from aiokprod.testing import fake_cluster as faults
from aiokprod.testing.fake_cluster import FakeCluster, TopicConfig
from aiokprod.testing.fake_cluster.profiles import profile_named
from tests.scenarios.scenario_helpers import (
    RECOVERY,
    TICK,
    History,
    error_of,
    harness,
    now,
    play,
    scenario,
)

API_KEYS = {"produce": 0, "metadata": 3, "api_versions": 18, "init_producer_id": 22}
TOPIC_IDS_IN_METADATA = 10


def versions_of(api: str) -> range:
    oldest, newest = CLIENT_RANGES[API_KEYS[api]]
    return range(oldest, newest + 1)


def only_version(cluster: FakeCluster, broker_id: int | None = None, **versions: Any) -> None:
    """Let brokers offer exactly one version of some APIs."""
    for broker in cluster.brokers.values():
        if broker_id in (None, broker.broker_id):
            pinned = {API_KEYS[name]: (version, version) for name, version in versions.items()}
            profile = profile_named("4.3")
            broker.profile = dataclasses.replace(profile, ranges=profile.ranges | pinned)


async def round_trip(producer: Producer[Any, Any], cluster: FakeCluster, **options: Any) -> Any:
    """Send records with every feature of a record, and compare them field by field."""
    records: list[dict[str, Any]] = [
        {"value": b"plain"},
        {"value": None, "key": b"tombstone"},
        {"value": b"", "key": b""},
        {"value": b"\x00" * 5_000, "key": b"big", "timestamp_ms": 0},
        {"value": b"h", "headers": [("a", None), ("a", b""), ("ü", b"\xff")]},
        {"value": b"t", "timestamp_ms": 1_234_567_890_123},
    ]
    found = [await producer.send("t", partition=0, **record) for record in records]
    stored = cluster.log("t", 0)
    assert len(stored) == len(records)
    for record, was, metadata in zip(records, stored, found, strict=True):
        assert (was.key, was.value) == (record.get("key"), record["value"])
        assert list(was.headers) == record.get("headers", [])
        assert was.timestamp_ms == record.get("timestamp_ms", metadata.timestamp_ms)
        assert metadata.timestamp_ms == was.timestamp_ms
        assert metadata.offset in (was.offset, None)
    return found


@pytest.mark.parametrize("metadata", versions_of("metadata"))
@pytest.mark.parametrize("produce", versions_of("produce"))
def test_versions_of_produce_and_metadata_in_any_pair(produce: int, metadata: int) -> None:
    async def main() -> None:
        async with harness() as (cluster, producer, _):
            only_version(cluster, metadata=metadata)
            only_version(cluster, produce=produce, metadata=metadata)
            if produce >= TOPIC_ID_VERSION and metadata < TOPIC_IDS_IN_METADATA:
                # Topic ids are required and no broker returns any. No such broker exists, but the
                # client must not hang.
                with pytest.raises(KafkaError) as info:
                    await producer.send("t", b"v", timeout=5)
                assert info.value.outcome is Outcome.NOT_SENT
                return
            await round_trip(producer, cluster)
            assert cluster.violations == []
            assert {n.version for n in cluster.requests if n.api_key == 0} == {produce}

    play(main)


@pytest.mark.parametrize("version", versions_of("api_versions"))
def test_versions_of_api_versions(version: int) -> None:
    async def main() -> None:
        async with harness() as (cluster, producer, _):
            for broker in cluster.brokers.values():
                ranges = broker.profile.ranges | {18: (0, version)}
                broker.profile = dataclasses.replace(broker.profile, ranges=ranges)
            await round_trip(producer, cluster)

    play(main)


@pytest.mark.parametrize("version", versions_of("init_producer_id"))
def test_versions_of_init_producer_id(version: int) -> None:
    async def main() -> None:
        async with harness() as (cluster, producer, _):
            only_version(cluster, init_producer_id=version)
            await round_trip(producer, cluster)
            assert cluster.log("t", 0)[0].producer_id >= 0

    play(main)


@pytest.mark.parametrize("codec", CODEC_NAMES)
@pytest.mark.parametrize("acks", ["all", 1, 0])
def test_codecs_with_every_acks(codec: str, acks: int | str) -> None:
    async def main() -> None:
        async with harness(compression_type=codec, acks=acks) as (cluster, producer, _):
            found = await round_trip_later(producer, cluster)
            assert all((metadata.offset is None) == (acks == 0) for metadata in found)

    play(main)


async def round_trip_later(
    producer: Producer[Any, Any], cluster: FakeCluster
) -> list[RecordMetadata]:
    """`round_trip`, but with acks=0 the log may still be empty when the call returns."""
    values = [b"%d" % number * 100 for number in range(50)]
    found = [await producer.send("t", value, partition=0) for value in values]
    await asyncio.sleep(1)
    assert cluster.values("t", 0) == values
    return found


@pytest.mark.parametrize("profile", ["1.0", "2.1", "2.8", "3.9", "4.0"])
def test_metadata_from_an_old_broker_and_produce_to_a_new_one(profile: str) -> None:
    """During an upgrade, metadata may lack topic ids although the leader supports Produce 13. The
    records must be delivered."""

    async def main() -> None:
        async with harness(partitions=3, bootstrap_servers="broker1:9092") as (cluster, _, history):
            cluster.brokers[1].profile = profile_named(profile)
            await history.submit_many(30, partitions=(0, 1, 2))
            await history.settle()
            history.all_acked()

    play(main)


@scenario(partitions=1, acks=0)
async def test_acks_zero_resolves_without_an_offset_and_survives_closes(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    first = await history.send()
    assert first.metadata.offset is None
    cluster.move_leader("t", 0, 2)
    for _ in range(50):
        await history.send()
    await producer.flush()
    start = now()
    while now() - start < 5:
        attempt = await history.send()
        assert attempt.acked
        await producer.flush(5)
        await asyncio.sleep(0.1)
    stored = cluster.values("t", 0)
    assert attempt.value in stored, "the new leader is found after the broker hung up"
    assert len(stored) == len(set(stored))


@scenario(partitions=1, acks=0, delivery_timeout_ms=5_000, request_timeout_ms=1_000)
async def test_acks_zero_with_no_broker_expires_definite(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.kill(1, failover_s=10_000)
    attempt = await history.send()
    if not attempt.acked:  # the first write after a kill may still find the socket open
        assert error_of(attempt, DeliveryTimeout).outcome.definite
    later = await history.send()
    assert error_of(later, DeliveryTimeout).outcome is Outcome.NOT_SENT
    assert later.settled_at - later.started_at <= 5 + TICK


@scenario(partitions=1, acks=1)
async def test_acks_one_does_not_wait_for_replicas(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    cluster.replication_s = 10.0
    attempt = await history.send()
    assert attempt.settled_at - attempt.started_at < 0.1
    history.all_acked()


@scenario(partitions=1)
async def test_acks_all_waits_for_replicas(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    cluster.replication_s = 1.0
    attempt = await history.send()
    assert 1.0 <= attempt.settled_at - attempt.started_at < 1.0 + RECOVERY
    history.all_acked()


@scenario(partitions=1, topic=None)
async def test_log_append_time_is_reported(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    cluster.create_topic("t", 1, config=TopicConfig(log_append_time=True))
    cluster.control(0, faults.delay(2.0))
    metadata = await producer.send("t", b"v", timestamp_ms=5, partition=0)
    assert metadata.timestamp_ms == cluster.log("t", 0)[0].timestamp_ms > 5
