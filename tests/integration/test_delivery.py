"""A million records by each entry point: no record may be lost, duplicated, out of order or in a
wrong partition."""

from __future__ import annotations

import asyncio
import statistics
import time

import pytest

from aiokprod import Producer, ProducerConfig
from aiokprod._wire.compression import CODEC_NAMES
from aiokprod.testing.kafka_cluster import KafkaCluster
from tests.integration.checker import History, check
from tests.integration.load import by_send, by_send_many, by_submit
from tests.integration.runner import Run

EACH = 100_000  # with 5 codecs, keyed and unkeyed: a million per entry point
OLD_EACH = 20_000
LONE = 200
LONE_ROUNDS = 5


async def through_all(
    cluster: KafkaCluster, topic: str, codec: str, keyed: bool, each: int
) -> tuple[list[History], str]:
    """Send with each entry point and a separate producer. Return the three histories of the topic,
    and the rates."""
    await cluster.create_topic(topic, partitions=6)
    histories = [History(topic, number) for number in range(3)]
    rates = []
    for history, drive in zip(histories, (by_send, by_submit, by_send_many), strict=True):
        async with Producer(
            ProducerConfig(bootstrap_servers=cluster.bootstrap_servers, compression_type=codec)
        ) as producer:
            started = time.perf_counter()
            await drive(producer, history, each, keyed=keyed)
            rates.append(f"{drive.__name__} {each / (time.perf_counter() - started):,.0f}/s")
    return histories, ", ".join(rates)


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "unkeyed"])
@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_delivery_three_nodes_every_record_once_in_order_where_told(
    kafka_cluster: KafkaCluster, run_uvloop: Run, topic: str, codec: str, keyed: bool
) -> None:
    histories, rates = run_uvloop(through_all(kafka_cluster, topic, codec, keyed, EACH))
    report = check(kafka_cluster.bootstrap_servers, *histories)
    print(rates)
    assert report.ok, str(report)
    assert report.acknowledged == report.in_log == 3 * EACH
    run_uvloop(kafka_cluster.delete_topic(topic))


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_delivery_old_broker_every_record_once_in_order_where_told(
    kafka_3_broker: KafkaCluster, run: Run, topic: str, codec: str
) -> None:
    histories, _ = run(through_all(kafka_3_broker, topic, codec, codec != "none", OLD_EACH))
    report = check(kafka_3_broker.bootstrap_servers, *histories)
    assert report.ok, str(report)
    assert report.acknowledged == report.in_log == 3 * OLD_EACH


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_delivery_acks_without_idempotence_all_arrive(
    kafka_cluster: KafkaCluster, run: Run, topic: str, acks: int | str
) -> None:
    async def scenario() -> list[History]:
        servers = kafka_cluster.bootstrap_servers
        await kafka_cluster.create_topic(topic, partitions=3)
        first, history = History(topic), History(topic, 1)
        # Metadata may name a leader before that broker has taken over. It then rejects the first
        # requests, and with acks=0 no response reports that. Start when each partition has stored a
        # record.
        async with Producer(bootstrap_servers=servers) as producer:
            for partition in range(3):
                sequence, value = first.next_value(None)
                metadata = await producer.send(topic, value, partition=partition)
                first.acknowledged(sequence, metadata)
        async with Producer(
            ProducerConfig(bootstrap_servers=servers, acks=acks, enable_idempotence=False)
        ) as producer:
            await by_submit(producer, history, 20_000, keyed=True)
        await asyncio.sleep(1.0)  # with acks=0 no response confirms the append
        return [first, history]

    report = check(kafka_cluster.bootstrap_servers, *run(scenario()))
    assert report.ok, str(report)
    assert report.in_log == 20_000 + 3


@pytest.mark.slow  # measures time, so it needs an idle machine
def test_lone_send_within_a_round_trip_and_a_millisecond(
    kafka_cluster: KafkaCluster, run: Run, topic: str
) -> None:
    """Compare the median of awaited single sends with bare Produce requests on the same broker.

    The measurements alternate, because the speed of the brokers drifts. The quietest round is
    judged, because other load on the machine can only add time.
    """
    from tests.integration.roundtrip import measure

    servers = kafka_cluster.bootstrap_servers

    async def lone(producer: Producer[bytes, bytes]) -> list[float]:
        seconds = []
        for _ in range(LONE):
            started = time.perf_counter()
            await producer.send(topic, b"v" * 100, partition=0)
            seconds.append(time.perf_counter() - started)
        return seconds

    async def scenario() -> list[float]:
        above = []
        await kafka_cluster.create_topic(topic, partitions=1)
        async with Producer(bootstrap_servers=servers) as producer:
            await producer.send(topic, b"warm-up", partition=0)
            for _ in range(LONE_ROUNDS):
                bare = await asyncio.to_thread(measure, servers, topic, b"v" * 100, LONE)
                ours = await lone(producer)
                floor, p50 = statistics.median(bare), statistics.median(ours)
                print(f"bare round trip {floor * 1000:.3f} ms, lone send {p50 * 1000:.3f} ms")
                above.append(p50 - floor)
        return above

    assert min(run(scenario())) <= 0.001
