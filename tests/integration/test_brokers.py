"""One suite for every broker implementation that is independent of this producer.

It runs with Apache Kafka 4.3, 3.9 and 2.1, franz-go's kfake (also limited to the APIs of 2.4), and
the mock cluster of librdkafka. docs/brokers.md lists the tests of each broker. librdkafka, which
checks CRCs, reads the log back.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from aiokprod import KafkaError, Outcome, Producer, ProducerFenced
from aiokprod._wire.compression import CODEC_NAMES
from aiokprod.testing.kafka_cluster import KafkaCluster
from aiokprod.testing.mock_cluster import MockCluster
from tests.integration.checker import History, check
from tests.integration.kfake_cluster import KfakeCluster
from tests.integration.load import by_send, by_send_many, by_submit
from tests.integration.runner import Run
from tests.transactions.readback import read_committed

BROKERS = ("kafka-4.3", "kafka-3.9", "kafka-2.1", "kfake", "kfake-2.4", "librdkafka-mock")
EACH = 2_000
# Retriable error codes of Produce responses.
RETRIED = (3, 5, 6, 7, 9, 13, 19, 20, 56, 74, 75, 100)


@dataclass(frozen=True)
class Broker:
    """A running cluster.

    Attributes:
        reads_committed: True if its consumers do not see aborted records (the mock cluster returns
            them).
    """

    name: str
    bootstrap_servers: str
    reads_committed: bool = True


@pytest.fixture(scope="session")
def kfake() -> Iterator[KfakeCluster]:
    with KfakeCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kfake_24() -> Iterator[KfakeCluster]:
    with KfakeCluster(version="v2.4") as cluster:
        yield cluster


@pytest.fixture(params=BROKERS)
def broker(request: pytest.FixtureRequest) -> Broker:
    """Return each cluster in turn. All clusters run for the whole session."""
    name = request.param
    fixture = {
        "kafka-4.3": "kafka_cluster",
        "kafka-3.9": "kafka_3_broker",
        "kafka-2.1": "kafka_2_broker",
        "kfake": "kfake",
        "kfake-2.4": "kfake_24",
        "librdkafka-mock": "mock_cluster",
    }[name]
    cluster: KafkaCluster | KfakeCluster | MockCluster = request.getfixturevalue(fixture)
    return Broker(name, cluster.bootstrap_servers, reads_committed=name != "librdkafka-mock")


def producer_of(broker: Broker | KfakeCluster, **options: Any) -> Producer[bytes, bytes]:
    return Producer(bootstrap_servers=broker.bootstrap_servers, **options)


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_every_entry_point_delivers_once_in_order_where_told(
    broker: Broker, run_uvloop: Run, topic: str, codec: str
) -> None:
    async def scenario() -> list[History]:
        histories = [History(topic, number) for number in range(3)]
        drives = (by_send, by_submit, by_send_many)
        async with producer_of(broker, compression_type=codec) as producer:
            await producer.warm([topic])
        for history, drive in zip(histories, drives, strict=True):
            async with producer_of(broker, compression_type=codec) as producer:
                await drive(producer, history, EACH, keyed=history.producer != 1)
        return histories

    report = check(broker.bootstrap_servers, *run_uvloop(scenario()))
    assert report.ok, str(report)
    assert report.acknowledged == report.in_log == 3 * EACH


@pytest.mark.parametrize("acks", [1, "all"])
def test_without_idempotence_every_record_arrives(
    broker: Broker, run: Run, topic: str, acks: int | str
) -> None:
    async def scenario() -> History:
        history = History(topic)
        async with producer_of(broker, acks=acks, enable_idempotence=False) as producer:
            await by_submit(producer, history, EACH, keyed=True)
        return history

    history = run(scenario())
    await_high_watermarks(broker, topic, EACH)
    report = check(broker.bootstrap_servers, history)
    assert report.ok, str(report)
    assert report.acknowledged == report.in_log == EACH


def await_high_watermarks(broker: Broker, topic: str, total: int) -> None:
    """Wait until readers see all records. With acks=1 this happens after the acknowledgment, when
    the followers have replicated the records."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "w"})
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        give_up = time.monotonic() + 30
        while time.monotonic() < give_up:
            ends = [
                consumer.get_watermark_offsets(TopicPartition(topic, partition), 30)[1]
                for partition in partitions
            ]
            if sum(ends) >= total:
                return
            time.sleep(0.05)
        raise AssertionError(f"{topic}: {sum(ends)} of {total} records replicated after 30 s")
    finally:
        consumer.close()


def test_keys_values_headers_and_timestamps_are_read_back_as_sent(
    broker: Broker, run: Run, topic: str
) -> None:
    sent: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]] = [
        (b"k", b"v", [("a", b"1"), ("a", None), ("é", b"")], 1_700_000_000_000),
        (None, b"", [], 1_700_000_000_001),
        (b"", None, [("x", b"y" * 300)], 1_700_000_000_002),
    ]

    async def scenario() -> list[int | None]:
        async with producer_of(broker) as producer:
            return [
                (
                    await producer.send(
                        topic, value, key=key, headers=headers, timestamp_ms=stamp, partition=0
                    )
                ).offset
                for key, value, headers, stamp in sent
            ]

    offsets = run(scenario())
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "r"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = []
        for _ in range(60):
            found += consumer.consume(10, timeout=0.5)
            if len(found) >= len(sent):
                break
        read = [
            (m.key(), m.value(), m.headers() or [], m.timestamp()[1], m.offset()) for m in found
        ]
    finally:
        consumer.close()
    assert read == [(*entry, offset) for entry, offset in zip(sent, offsets, strict=True)]


def test_transactions_are_read_whole_or_not_at_all(broker: Broker, run: Run, topic: str) -> None:
    async def scenario() -> list[bytes]:
        committed = []
        async with producer_of(broker, transactional_id=topic) as producer:
            for number in range(12):
                values = [b"%d-%d" % (number, part) for part in range(20)]
                await producer.begin_transaction()
                for value in values:
                    await producer.submit(topic, value, partition=0)
                if number % 4 == 3 and broker.reads_committed:
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()
                    committed += values
        return committed

    committed = run(scenario())
    assert read_committed(broker.bootstrap_servers, topic)[0] == committed


def test_second_producer_of_a_transactional_id_fences_the_first(
    broker: Broker, run: Run, topic: str
) -> None:
    if broker.name == "librdkafka-mock":
        pytest.skip("the mock cluster of librdkafka does not fence older producers")

    async def scenario() -> Outcome:
        name = f"x-{uuid.uuid4().hex}"
        async with producer_of(broker, transactional_id=name) as first:
            await first.begin_transaction()
            await first.send(topic, b"first", partition=0)
            async with producer_of(broker, transactional_id=name) as second:
                async with second.transaction():
                    await second.send(topic, b"second", partition=0)
                with pytest.raises(ProducerFenced) as refused:
                    await first.commit_transaction()
        return refused.value.outcome

    assert run(scenario()).definite
    assert read_committed(broker.bootstrap_servers, topic)[0] == [b"second"]


# kfake returns codes 7 and 20 after the append, and the other codes before it.
@pytest.mark.parametrize("code", RETRIED)
@pytest.mark.parametrize("version", [None, "v2.4"], ids=["newest", "2.4"])
def test_kfake_refusals_cost_no_record(
    request: pytest.FixtureRequest, run_uvloop: Run, topic: str, code: int, version: str | None
) -> None:
    """The errors interrupt a load, with the effects that kfake implements for each code."""
    kfake: KfakeCluster = request.getfixturevalue("kfake" if version is None else "kfake_24")
    kfake.command("topic", topic, 3)

    async def scenario() -> History:
        history = History(topic)
        async with producer_of(kfake, linger_ms=0, batch_size=4096) as producer:
            load = asyncio.ensure_future(by_submit(producer, history, EACH, keyed=True))
            for _ in range(5):
                await asyncio.sleep(0.05)
                kfake.command("fault", 0, code, 2)
            await load
            await by_send(producer, history, 100, keyed=False)
        return history

    report = check(kfake.bootstrap_servers, run_uvloop(scenario()))
    assert report.ok, str(report)
    assert report.acknowledged == report.in_log == EACH + 100


def test_kfake_moving_leaders_and_cut_connections_cost_no_record(
    kfake: KfakeCluster, run_uvloop: Run, topic: str
) -> None:
    kfake.command("topic", topic, 6)

    async def scenario() -> History:
        history = History(topic)
        async with producer_of(kfake, linger_ms=0, batch_size=4096) as producer:
            load = asyncio.ensure_future(by_send(producer, history, 40_000, keyed=True))
            for _ in range(20):
                await asyncio.sleep(0.1)
                kfake.command("shuffle")
                kfake.command("cut", 0, 1)
            await load
        return history

    report = check(kfake.bootstrap_servers, run_uvloop(scenario()))
    assert report.ok, str(report)
    assert report.acknowledged == report.in_log == 40_000


@pytest.mark.parametrize("version", [None, "v2.4"], ids=["newest", "2.4"])
def test_kfake_transactions_survive_moving_coordinators_and_refusals(
    request: pytest.FixtureRequest, run: Run, topic: str, version: str | None
) -> None:
    kfake: KfakeCluster = request.getfixturevalue("kfake" if version is None else "kfake_24")
    kfake.command("topic", topic, 3)
    # The codes mean that the coordinator is not available, moved or loading, or that transactions
    # are concurrent. The APIs are AddPartitionsToTxn and EndTxn.
    faults = [(key, code) for key in (24, 26) for code in (14, 15, 16, 51)]

    async def scenario() -> list[bytes]:
        committed = []
        async with producer_of(kfake, transactional_id=topic) as producer:
            for number, (key, code) in enumerate(faults):
                value = b"%d" % number
                if number % 3 == 0:
                    kfake.command("coordinators")
                kfake.command("fault", key, code, 1)
                try:
                    async with producer.transaction():
                        await producer.send(topic, value, partition=0)
                except KafkaError as error:
                    raise AssertionError(f"fault {code} of API {key} lost a transaction") from error
                committed.append(value)
        return committed

    committed = run(scenario())
    assert read_committed(kfake.bootstrap_servers, topic)[0] == committed
