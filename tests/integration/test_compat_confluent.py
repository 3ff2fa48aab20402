"""`aiokprod.compat.confluent.AIOProducer` and confluent-kafka's own producer on real brokers.
confluent-kafka's consumer reads the records back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from aiokprod.compat.confluent import AIOProducer, ProducedMessage
from aiokprod.errors import Outcome
from aiokprod.testing.kafka_cluster import KafkaCluster
from tests.integration.runner import Run

PARTITIONS = 6
RECORDS = 3_000


def create(kafka_cluster: KafkaCluster, topic: str, partitions: int = PARTITIONS) -> str:
    servers = kafka_cluster.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers})
    for created in admin.create_topics([NewTopic(topic, partitions, 3)]).values():
        created.result(30)
    return servers


def consumer_of(servers: str, group: str) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )


def read(servers: str, topic: str, partitions: int = PARTITIONS) -> list[Any]:
    """Return all committed records, ordered by partition and offset."""
    consumer = consumer_of(servers, f"reader-{topic}")
    found: list[Any] = []
    try:
        consumer.assign(
            [confluent_kafka.TopicPartition(topic, number, 0) for number in range(partitions)]
        )
        open_partitions = set(range(partitions))
        while open_partitions:
            message = consumer.poll(30)
            assert message is not None, f"no end of the partitions {open_partitions}"
            error = message.error()
            if error is None:
                found.append(message)
            else:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                open_partitions.discard(message.partition())
    finally:
        consumer.close()
    return sorted(found, key=lambda message: (message.partition(), message.offset()))


async def produce_all(
    producer: AIOProducer, topic: str, values: Sequence[bytes]
) -> list[ProducedMessage]:
    futures = [await producer.produce(topic, value, key=value[:6]) for value in values]
    return await asyncio.gather(*futures)


def test_records_keep_headers_and_timestamps_and_have_their_true_places(
    kafka_cluster: KafkaCluster, run: Run, topic: str
) -> None:
    servers = create(kafka_cluster, topic)
    called: list[tuple[Any, ProducedMessage]] = []
    start_ms = 1_700_000_000_000

    async def main() -> list[ProducedMessage]:
        async with AIOProducer({"bootstrap.servers": servers, "linger.ms": 5}) as producer:
            futures = [
                await producer.produce(
                    topic,
                    f"value {number}",
                    key=f"key {number}" if number % 3 else None,
                    on_delivery=lambda error, message: called.append((error, message)),
                    timestamp=start_ms + number,
                    headers={"number": str(number), "none": None, "bytes": bytes([number % 256])},
                )
                for number in range(RECORDS)
            ]
            assert await producer.flush() == 0
            assert len(producer) == 0
            return [future.result() for future in futures]

    sent = {(m.partition(), m.offset()): m for m in run(main())}
    assert len(sent) == len(called) == RECORDS
    assert all(error is None for error, _ in called)
    stored = read(servers, topic)
    assert len(stored) == RECORDS
    for message in stored:
        ours = sent[message.partition(), message.offset()]
        assert message.value() == ours.value()
        assert message.key() == ours.key()
        assert message.headers() == ours.headers()
        assert message.timestamp() == ours.timestamp()


def test_keys_have_the_partitions_that_librdkafka_gives_them(
    kafka_cluster: KafkaCluster, run_uvloop: Run, topic: str
) -> None:
    servers = create(kafka_cluster, topic)
    keys = [f"key {number}".encode() for number in range(500)]
    theirs: dict[bytes, int] = {}
    original = confluent_kafka.Producer({"bootstrap.servers": servers})
    for key in keys:
        original.produce(
            topic,
            b"",
            key,
            on_delivery=lambda _, message: theirs.update({message.key(): message.partition()}),
        )
    assert original.flush(60) == 0

    async def main() -> dict[bytes, int | None]:
        async with AIOProducer({"bootstrap.servers": servers}) as producer:
            futures = [await producer.produce(topic, b"", key=key) for key in keys]
            return {m.key() or b"": m.partition() for m in await asyncio.gather(*futures)}

    assert run_uvloop(main()) == theirs
    assert len(set(theirs.values())) == PARTITIONS


def test_committed_transactions_are_read_and_aborted_ones_are_not(
    kafka_cluster: KafkaCluster, run: Run, topic: str
) -> None:
    servers = create(kafka_cluster, topic)
    source = f"source-{topic}"
    create(kafka_cluster, source, 1)
    group = f"group-{topic}"
    consumer = consumer_of(servers, group)
    consumer.subscribe([source])
    consumer.poll(0)

    async def main() -> None:
        config = {"bootstrap.servers": servers, "transactional.id": f"id-{topic}"}
        async with AIOProducer(config) as producer:
            await producer.init_transactions(30)
            for number in range(4):
                await producer.begin_transaction()
                await produce_all(producer, topic, [b"%06d %d" % (n, number) for n in range(100)])
                if number % 2:
                    await producer.abort_transaction(30)
                    continue
                await producer.send_offsets_to_transaction(
                    [confluent_kafka.TopicPartition(source, 0, 10 + number)],
                    consumer.consumer_group_metadata(),
                    30,
                )
                await producer.commit_transaction(30)

    try:
        run(main())
        committed = consumer.committed([confluent_kafka.TopicPartition(source, 0)], 30)
    finally:
        consumer.close()
    assert [position.offset for position in committed] == [12]
    values = [message.value() for message in read(servers, topic)]
    assert sorted(values) == sorted(b"%06d %d" % (n, k) for n in range(100) for k in (0, 2))


def test_a_second_producer_with_the_transactional_id_fences_the_first(
    kafka_cluster: KafkaCluster, run_uvloop: Run, topic: str
) -> None:
    servers = create(kafka_cluster, topic)
    config = {"bootstrap.servers": servers, "transactional.id": f"id-{topic}"}

    async def main() -> Any:
        async with AIOProducer(config) as first, AIOProducer(config) as second:
            await first.init_transactions(30)
            await first.begin_transaction()
            await produce_all(first, topic, [b"000000 first"])
            await second.init_transactions(30)
            with pytest.raises(confluent_kafka.KafkaException) as raised:
                await first.commit_transaction(30)
            await second.begin_transaction()
            await produce_all(second, topic, [b"000000 second"])
            await second.commit_transaction(30)
            return raised.value

    error = run_uvloop(main())
    assert error.args[0].fatal()
    assert error.outcome is Outcome.REJECTED
    assert [message.value() for message in read(servers, topic)] == [b"000000 second"]


def test_metadata_name_the_brokers_and_the_partitions(
    kafka_cluster: KafkaCluster, run_uvloop: Run, topic: str
) -> None:
    servers = create(kafka_cluster, topic)
    theirs = AdminClient({"bootstrap.servers": servers}).list_topics(topic, 30)

    async def main() -> Any:
        async with AIOProducer({"bootstrap.servers": servers}) as producer:
            return await producer.list_topics(topic, 30), await producer.cluster_id(30)

    ours, cluster_id = run_uvloop(main())
    assert cluster_id == theirs.cluster_id == ours.cluster_id
    assert {(b.id, b.host, b.port) for b in ours.brokers.values()} == {
        (b.id, b.host, b.port) for b in theirs.brokers.values()
    }
    assert {
        number: (p.leader, sorted(p.replicas))
        for number, p in ours.topics[topic].partitions.items()
    } == {
        number: (p.leader, sorted(p.replicas))
        for number, p in theirs.topics[topic].partitions.items()
    }
