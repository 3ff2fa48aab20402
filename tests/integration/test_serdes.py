"""Records of aiokprod's serializers on real brokers. The deserializers of confluent-kafka read them
back. Both use srfake of franz-go as the registry."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import SerializationContext

from aiokprod import Credentials, Producer, Secret, SerializationError
from aiokprod.serdes import (
    AvroSerializer,
    Framing,
    JsonSchemaSerializer,
    ProtobufSerializer,
    Registry,
)
from aiokprod.testing.kafka_cluster import KafkaCluster
from tests.integration.runner import Run
from tests.integration.schema_registry import SrfakeRegistry
from tests.serdes.schemas import USER, USER_JSON, Place, Stamp, User

RECORDS = 500


@pytest.fixture(scope="module")
def srfake() -> Iterator[SrfakeRegistry]:
    with SrfakeRegistry() as registry:
        yield registry


@pytest.fixture
def contexts() -> Iterator[contextlib.ExitStack]:
    """Yield a stack that exits its context managers at the end of the test."""
    with contextlib.ExitStack() as stack:
        yield stack


def read(bootstrap_servers: str, topic: str, count: int) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "serdes"})
    try:
        partitions = consumer.list_topics(topic, 30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        found: list[Any] = []
        while len(found) < count:
            message = consumer.poll(30)
            assert message is not None, f"only {len(found)} of {count} records"
            assert message.error() is None
            found.append(message)
        return found
    finally:
        consumer.close()


def values(kind: str) -> list[Any]:
    if kind == "protobuf":
        return [User(name=str(n), age=n, home=Place(town="x" * n)) for n in range(RECORDS)]
    if kind == "protobuf-nested":
        return [Stamp(x=n) for n in range(RECORDS)]
    return [{"name": f"user {n}", "age": n if n % 3 else None} for n in range(RECORDS)]


@pytest.mark.parametrize("framing", ["prefix", "header"])
@pytest.mark.parametrize("kind", ["avro", "json", "protobuf", "protobuf-nested"])
def test_records_are_read_by_the_deserializers_of_confluent(
    kafka_cluster: KafkaCluster,
    srfake: SrfakeRegistry,
    contexts: contextlib.ExitStack,
    run_uvloop: Run,
    topic: str,
    kind: str,
    framing: Framing,
) -> None:
    registry = Registry(srfake.url)
    client = contexts.enter_context(SchemaRegistryClient({"url": srfake.url}))
    ours: Any
    theirs: Any
    if kind == "avro":
        ours = AvroSerializer(registry, USER, register=True, framing=framing)
        theirs = AvroDeserializer(client)
    elif kind == "json":
        ours = JsonSchemaSerializer(registry, USER_JSON, register=True, framing=framing)
        theirs = JSONDeserializer(json.dumps(USER_JSON), schema_registry_client=client)
    else:
        message = User if kind == "protobuf" else Stamp
        ours = ProtobufSerializer(registry, message, register=True, framing=framing)
        theirs = ProtobufDeserializer(message, {}, client)
    sent = values(kind)

    async def scenario() -> None:
        async with Producer(
            bootstrap_servers=kafka_cluster.bootstrap_servers, value_serializer=ours
        ) as producer:
            (await producer.send_many(topic, sent, partition=0)).raise_for_errors()

    run_uvloop(scenario())
    found = [
        theirs(record.value(), SerializationContext(topic, "value", record.headers()))
        for record in read(kafka_cluster.bootstrap_servers, topic, len(sent))
    ]
    assert found == sent


def test_schema_that_is_not_registered_is_refused_until_it_is(
    kafka_cluster: KafkaCluster, srfake: SrfakeRegistry, run_uvloop: Run, topic: str
) -> None:
    async def scenario() -> None:
        registry = Registry(srfake.url)
        options: dict[str, Any] = {"bootstrap_servers": kafka_cluster.bootstrap_servers}
        async with Producer(**options, value_serializer=AvroSerializer(registry, USER)) as producer:
            with pytest.raises(SerializationError, match=f"{topic}-value.*status 404, code 40401"):
                await producer.send(topic, {"name": "canary", "age": None})
        registering = AvroSerializer(registry, USER, register=True)
        async with Producer(**options, value_serializer=registering) as producer:
            await producer.warm([topic])
            producer.try_submit(topic, {"name": "bob", "age": None})

    run_uvloop(scenario())
    (record,) = read(kafka_cluster.bootstrap_servers, topic, 1)
    assert record.value()[:1] == b"\x00"


def test_credentials_that_the_registry_refuses(run_uvloop: Run) -> None:
    async def scenario(auth: Any) -> None:
        serializer = AvroSerializer(Registry(registry.url, auth=auth), USER, register=True)
        await serializer.warm("users")

    with SrfakeRegistry("Bearer canary-token") as registry:
        run_uvloop(scenario(Secret("canary-token")))
        for auth, status in ((None, 401), (Credentials("me", "canary-password"), 403)):
            with pytest.raises(Exception, match=f"status {status}"):
                run_uvloop(scenario(auth))
