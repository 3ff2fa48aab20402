"""Topics with different profiles in one producer: what is sent, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from aiokprod import (
    BufferFull,
    DeliveryTimeout,
    Outcome,
    Producer,
    ProducerRecord,
    RecordRejected,
    StringSerializer,
    TopicProfile,
)
from aiokprod.errors import BrokerError, Code
from aiokprod.testing.fake_cluster import FakeCluster, lose_request
from aiokprod.testing.memory import MemoryNetwork
from tests.scenarios.scenario_helpers import make_producer, now, play, runtime_of

PROFILES = {
    "logs.*": TopicProfile(
        linger_ms=50, batch_size=400_000, compression_type="zstd", compression_level=6
    ),
    "orders": TopicProfile(linger_ms=0, compression_type="lz4", delivery_timeout_ms=31_000),
}
TOPICS = ("logs.app", "orders", "plain")
VALUES = [b"%d/" % number * 100 for number in range(20)]


def scenario(
    main: Callable[[FakeCluster, Producer[Any, Any]], Coroutine[Any, Any, None]],
    *,
    cluster: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    async def prepared() -> None:
        made = FakeCluster(network=MemoryNetwork(), **(cluster or {}))
        for topic in TOPICS:
            made.create_topic(topic, 1)
        options.setdefault("topic_profiles", PROFILES)
        producer = make_producer(made, **options)
        try:
            await main(made, producer)
        finally:
            await producer.close(5.0)

    play(prepared)


def codecs(cluster: FakeCluster, topic: str) -> set[str]:
    batches = cluster.topics[topic].partitions[0].log.batches
    return {stored.batch.codec for stored in batches if stored.marker is None}


def stored(cluster: FakeCluster, topic: str) -> list[bytes | None]:
    return [each.value for each in cluster.topics[topic].partitions[0].log.records()]


async def by_submit(producer: Producer[Any, Any], topic: str) -> None:
    for value in VALUES:
        await producer.submit(topic, value)


async def by_try_submit(producer: Producer[Any, Any], topic: str) -> None:
    await producer.warm([topic])
    for value in VALUES:
        producer.try_submit(topic, value)


async def by_send_many(producer: Producer[Any, Any], topic: str) -> None:
    await producer.send_many(topic, values=VALUES)


async def by_records(producer: Producer[Any, Any], topic: str) -> None:
    await producer.send_many([ProducerRecord(topic, value) for value in VALUES])


async def by_table(producer: Producer[Any, Any], topic: str) -> None:
    pa = pytest.importorskip("pyarrow")
    await producer.send_table(topic, pa.record_batch({"value": pa.array(VALUES, pa.binary())}))


@pytest.mark.parametrize(
    "way",
    [by_submit, by_try_submit, by_send_many, by_records, by_table],
    ids=lambda way: way.__name__,
)
@pytest.mark.parametrize("slow", [False, True], ids=["fast path", "slow path"])
def test_each_way_of_sending_uses_the_codec_of_the_topic(way: Any, slow: bool) -> None:
    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        if slow:
            await producer.start()
            runtime_of(producer).appender.enabled = False
        for topic in TOPICS:
            if slow and way is by_table:
                return  # a table has no slow path
            await way(producer, topic)
        await producer.flush()
        assert [codecs(cluster, topic) for topic in TOPICS] == [{"zstd"}, {"lz4"}, {"gzip"}]
        for topic in TOPICS:
            assert stored(cluster, topic) == VALUES

    scenario(main, compression_type="gzip")


def test_level_of_the_profile_is_used() -> None:
    ratios: list[float] = []
    text = b"".join(b"%d " % (number * number % 977) for number in range(3_000))

    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        await producer.start()
        compressor = runtime_of(producer).accumulator._compressor
        for _ in range(200):  # the estimate improves in steps
            await producer.send("logs.app", text)
        ratios.append(compressor.ratio("logs.app"))

    for level in (-50, 19):
        profile = TopicProfile(compression_type="zstd", compression_level=level)
        scenario(main, topic_profiles={"logs.*": profile})
    assert ratios[1] < ratios[0] - 0.1


def test_topics_leave_after_their_own_linger() -> None:
    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        await producer.warm(TOPICS)
        start = now()
        handles = {topic: await producer.submit(topic, b"x") for topic in TOPICS}
        took = {}
        for topic in ("orders", "plain", "logs.app"):
            await handles[topic]
            took[topic] = now() - start
        assert took["orders"] < 0.01
        assert took["plain"] < 0.01  # sent with the request for the orders
        assert took["logs.app"] == pytest.approx(0.05, abs=0.01)

    scenario(main, adaptive_linger=False, linger_ms=1_000)


@pytest.mark.parametrize("adaptive", [True, False])
def test_busy_topic_does_not_make_the_batches_of_another_one_small(adaptive: bool) -> None:
    """Orders arrive continuously, 2 ms apart; the logs of 50 ms are sent together."""

    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        await producer.warm(TOPICS)
        for _ in range(100):
            await producer.submit("orders", b"order")
            await producer.submit("logs.app", b"line")
            await asyncio.sleep(0.002)
        await producer.flush()
        orders, logs = (
            cluster.topics[topic].partitions[0].log.batches for topic in ("orders", "logs.app")
        )
        assert len(orders) >= 90
        assert len(logs) <= 6

    scenario(main, adaptive_linger=adaptive)


@pytest.mark.parametrize("options", [{}, {"adaptive_linger": False}], ids=["adaptive", "Java"])
@pytest.mark.parametrize("profiles", [{"logs.*": TopicProfile(linger_ms=3_000)}, {}])
def test_refused_record_ends_the_linger_of_the_batches_that_use_up_the_memory(
    profiles: dict[str, TopicProfile], options: dict[str, Any]
) -> None:
    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        await producer.warm(TOPICS)
        runtime = runtime_of(producer)
        for _ in range(3):
            while runtime.memory.used < 19_000:
                producer.try_submit("logs.app", b"line" * 10)
            for _ in range(5):
                with pytest.raises(BufferFull):
                    producer.try_submit("orders", b"order" * 200)
            start = now()
            await asyncio.sleep(0.05)
            assert not runtime.memory.refused
            assert runtime.memory.used == 0
            delivery = producer.try_submit("plain", b"x")
            assert not runtime.accumulator.flush_pending
            await delivery
            assert now() - start < 3.2

    scenario(main, topic_profiles=profiles, linger_ms=3_000, buffer_memory=20_000, **options)


def test_sticky_partition_is_chosen_again_after_the_batch_size_of_the_profile() -> None:
    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        await producer.warm(TOPICS)
        slots = runtime_of(producer).topic_slots
        for topic, size, chosen in (
            ("logs.app", 600, False), ("logs.app", 600, True), ("plain", 1_200, False)
        ):  # fmt: skip
            await producer.send(topic, b"x" * size)
            slots.choose_sticky_anew()
            assert (slots._slots[topic].sticky == -1) is chosen

    profiles = {"logs.*": TopicProfile(batch_size=1_000)}
    scenario(main, topic_profiles=profiles, transactional_id=None, batch_size=100_000)


def test_batch_that_waits_for_a_long_linger_is_healthy() -> None:
    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        await producer.warm(TOPICS)
        await producer.submit("logs.app", b"x")
        await asyncio.sleep(50)
        health = producer.health()
        assert health.ok
        assert health.oldest_record_age_s == pytest.approx(50.0)
        cluster.pause(1)
        await producer.submit("plain", b"x")  # its linger ends long before that of the first
        await asyncio.sleep(4)
        assert producer.health().ok
        await asyncio.sleep(2)
        assert not producer.health().ok
        assert producer.health().partitions_stalled == 1
        cluster.resume(1)

    scenario(main, topic_profiles={"logs.*": TopicProfile(linger_ms=100_000)})


def test_each_topic_expires_after_its_own_delivery_timeout() -> None:
    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        await producer.warm(TOPICS)
        cluster.control(0, lose_request())
        start = now()
        handles = {topic: await producer.submit(topic, b"x") for topic in ("plain", "orders")}
        took = {}
        for topic in ("orders", "plain"):
            with pytest.raises(DeliveryTimeout) as found:
                await handles[topic]
            assert found.value.outcome is Outcome.UNKNOWN
            took[topic] = now() - start
        assert took["orders"] == pytest.approx(31.0, abs=0.1)
        assert took["plain"] == pytest.approx(90.0, abs=0.1)

    scenario(main, delivery_timeout_ms=90_000)


def test_codec_that_old_brokers_lack_fails_only_its_own_topic() -> None:
    """zstd requires Produce v7 (KIP-110)."""

    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        await producer.warm(TOPICS)
        handles = {topic: await producer.submit(topic, b"x" * 500) for topic in TOPICS}
        await handles["orders"]
        await handles["plain"]
        with pytest.raises((RecordRejected, BrokerError)) as found:
            await handles["logs.app"]
        assert found.value.code is not None
        assert found.value.code.number == Code.UNSUPPORTED_COMPRESSION_TYPE
        assert (await producer.send("plain", b"y")).offset == 1

    scenario(main, cluster={"version_profile": "1.0"})


def test_transaction_flushes_topics_with_a_long_linger() -> None:
    profiles = {"logs.*": TopicProfile(linger_ms=20_000, compression_type="zstd")}

    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        await producer.warm(TOPICS)
        for number in range(3):
            start = now()
            async with producer.transaction():
                for topic in TOPICS:
                    await producer.submit(topic, b"%d" % number)
            assert now() - start < 5.0
        assert codecs(cluster, "logs.app") == {"zstd"}
        for topic in TOPICS:
            log = cluster.topics[topic].partitions[0].log
            assert [record.value for record in log.committed()] == [b"0", b"1", b"2"]

    scenario(main, topic_profiles=profiles, transactional_id="t", adaptive_linger=False)


def test_failed_record_of_a_short_timeout_aborts_the_transaction() -> None:
    profiles = {"orders": TopicProfile(delivery_timeout_ms=1_500)}

    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        await producer.warm(TOPICS)
        await producer.begin_transaction()
        remove = cluster.control(0, lose_request())
        await producer.submit("plain", b"x")
        handle = await producer.submit("orders", b"x")
        with pytest.raises(DeliveryTimeout):
            await handle
        remove()
        with pytest.raises(Exception, match="abort"):
            await producer.commit_transaction()
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.submit("orders", b"y")
        log = cluster.topics["orders"].partitions[0].log
        assert [record.value for record in log.committed()] == [b"y"]

    scenario(main, topic_profiles=profiles, transactional_id="t", request_timeout_ms=1_000)


def test_serializer_and_profile() -> None:
    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        for topic in TOPICS:
            await producer.send(topic, "text")
        assert [codecs(cluster, topic) for topic in TOPICS] == [{"zstd"}, {"lz4"}, {"none"}]

    scenario(main, value_serializer=StringSerializer())


def test_topic_that_is_forgotten_gets_its_profile_again() -> None:
    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        for _ in range(2):
            await producer.send("logs.app", b"x" * 500)
            settings = runtime_of(producer).accumulator.settings
            assert set(settings._by_topic) == {"logs.app"}
            while settings._by_topic:  # noqa: ASYNC110
                await asyncio.sleep(5.0)
        assert codecs(cluster, "logs.app") == {"zstd"}

    scenario(main, metadata_max_idle_ms=10_000, metadata_max_age_ms=10_000)
