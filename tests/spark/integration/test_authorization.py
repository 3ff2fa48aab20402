"""Checks 5 and 16: credentials that may not do what the sink needs, on a broker with ACLs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import types as t

from aiokprod.spark.failures import SinkError
from aiokprod.spark.preflight import PreflightError
from aiokprod.spark.source import AiokprodDataSource
from aiokprod.testing.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.slow

ROWS = pa.RecordBatch.from_arrays([pa.array([b"v"] * 4, pa.binary())], names=["value"])
SCHEMA = t.StructType([t.StructField("value", t.BinaryType())])
Deny = Callable[[str, str, str], None]


@pytest.fixture(scope="module")
def guarded() -> Iterator[KafkaCluster]:
    """Everything is allowed that no ACL denies."""
    cluster = KafkaCluster(
        1,
        config={
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
        },
    )
    cluster.start_blocking()
    yield cluster
    cluster.stop_blocking()


@pytest.fixture
def deny(guarded: KafkaCluster) -> Deny:
    """deny(kind, name, operation) for everyone, who may still see it; the broker knows then."""
    from confluent_kafka.admin import (
        AclBinding,
        AclOperation,
        AclPermissionType,
        AdminClient,
        ResourcePatternType,
        ResourceType,
    )

    client = AdminClient({"bootstrap.servers": guarded.bootstrap_servers})

    def act(kind: str, name: str, operation: str) -> None:
        bindings = [
            AclBinding(
                ResourceType[kind], name, ResourcePatternType.LITERAL, "User:*", "*",
                AclOperation[what], permission,
            )
            for what, permission in (
                (operation, AclPermissionType.DENY), ("DESCRIBE", AclPermissionType.ALLOW),
            )
        ]  # fmt: skip
        for future in client.create_acls(bindings).values():
            future.result(10)
        asyncio.run(asyncio.sleep(1.0))

    return act


def write(guarded: KafkaCluster, topic: str, **options: str) -> object:
    context = TaskContext.__new__(TaskContext)
    context._partitionId = context._attemptNumber = 0
    context._localProperties = {}
    TaskContext._taskContext = context
    given = {"kafka.bootstrap.servers": guarded.bootstrap_servers, "topic": topic} | options
    writer = AiokprodDataSource(given).writer(SCHEMA, overwrite=False)
    return writer.write(iter([ROWS]))


def test_check_05_topic_that_may_not_be_written_fails_in_the_preflight(
    guarded: KafkaCluster, topic: str, deny: Deny
) -> None:
    asyncio.run(guarded.create_topic(topic, 1))
    deny("TOPIC", topic, "WRITE")
    with pytest.raises(PreflightError) as caught:
        write(guarded, topic)
    assert f"topic '{topic}': these credentials may not write to it; grant WRITE" in str(
        caught.value
    )
    assert "nothing was sent" in str(caught.value)


def test_check_16_topic_that_may_not_be_written_fails_in_the_task(
    guarded: KafkaCluster, topic: str, deny: Deny
) -> None:
    asyncio.run(guarded.create_topic(topic, 1))
    deny("TOPIC", topic, "WRITE")
    with pytest.raises(SinkError, match="TOPIC_AUTHORIZATION_FAILED") as caught:
        write(guarded, topic, preflight="false")
    assert "0 acknowledged, 0 unknown, 4 unsent" in str(caught.value)


def test_check_16_within_a_transaction_nothing_becomes_visible(
    guarded: KafkaCluster, topic: str, deny: Deny
) -> None:
    asyncio.run(guarded.create_topic(topic, 1))
    deny("TOPIC", topic, "WRITE")
    once = {"delivery": "transactional", "transactionalIdPrefix": "z"}
    with pytest.raises(SinkError, match="AUTHORIZATION_FAILED") as caught:
        write(guarded, topic, preflight="false", **once)
    assert "nothing of this attempt becomes visible" in str(caught.value)
