"""Checks 5 and 16: credentials without a permission that the sink needs, on a broker with ACLs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import types as t

from aiokprod.spark.context import BATCH_ID, QUERY_ID
from aiokprod.spark.failures import SinkError
from aiokprod.spark.preflight import PreflightError
from aiokprod.spark.source import AiokprodDataSource
from aiokprod.testing.kafka_cluster import KafkaCluster
from tests.spark.integration.spark_helpers import read_back

pytestmark = pytest.mark.slow

ROWS = pa.RecordBatch.from_arrays([pa.array([b"v"] * 4, pa.binary())], names=["value"])
SCHEMA = t.StructType([t.StructField("value", t.BinaryType())])
Deny = Callable[[str, str, str], None]


@pytest.fixture(scope="module")
def guarded() -> Iterator[KafkaCluster]:
    """Start a broker that allows every operation that no ACL denies."""
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


def bind(
    guarded: KafkaCluster, kind: str, name: str, *, prefix: bool = False, **permissions: str
) -> None:
    """Create ACLs for all users, each an operation with ALLOW or DENY, and wait until the broker
    applies them."""
    from confluent_kafka.admin import (
        AclBinding,
        AclOperation,
        AclPermissionType,
        AdminClient,
        ResourcePatternType,
        ResourceType,
    )

    client = AdminClient({"bootstrap.servers": guarded.bootstrap_servers})
    pattern = ResourcePatternType.PREFIXED if prefix else ResourcePatternType.LITERAL
    bindings = [
        AclBinding(
            ResourceType[kind], name, pattern, "User:*", "*", AclOperation[operation],
            AclPermissionType[permission],
        )
        for operation, permission in permissions.items()
    ]  # fmt: skip
    for future in client.create_acls(bindings).values():
        future.result(10)
    asyncio.run(asyncio.sleep(1.0))


@pytest.fixture
def deny(guarded: KafkaCluster) -> Deny:
    """Return `deny(kind, name, operation)`, which denies the operation to all users. They may still
    describe the resource."""

    def deny(kind: str, name: str, operation: str) -> None:
        permissions: dict[str, Any] = {operation: "DENY", "DESCRIBE": "ALLOW"}
        bind(guarded, kind, name, **permissions)

    return deny


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


@pytest.mark.parametrize("may_read", [True, False])
def test_documented_permissions_suffice_for_exactly_once_and_none_is_idle(
    guarded: KafkaCluster, topic: str, may_read: bool
) -> None:
    """The ACLs are those in the table of docs/spark.md. A resource with ACLs allows nothing
    else."""
    prefix = f"once-{topic}"
    asyncio.run(guarded.create_topic(topic, 1))
    more: dict[str, Any] = {"READ": "ALLOW"} if may_read else {}
    both: dict[str, Any] = {"WRITE": "ALLOW", "DESCRIBE": "ALLOW"}
    bind(guarded, "TOPIC", topic, **both, **more)
    bind(guarded, "TRANSACTIONAL_ID", f"{prefix}.", prefix=True, **both)
    bind(guarded, "GROUP", f"{prefix}.", prefix=True, READ="ALLOW")
    given = {
        "kafka.bootstrap.servers": guarded.bootstrap_servers, "topic": topic,
        "delivery": "exactly_once", "transactionalIdPrefix": prefix,
    }  # fmt: skip
    context = TaskContext.__new__(TaskContext)
    context._partitionId = context._attemptNumber = 0
    context._localProperties = {BATCH_ID: "0", QUERY_ID: "q"}
    TaskContext._taskContext = context
    writer = AiokprodDataSource(given).streamWriter(schema=SCHEMA, overwrite=False)
    if may_read:
        writer.commit([writer.write(iter([ROWS]))], 0)
        assert len(read_back(guarded.bootstrap_servers, topic, committed=True)) == 4
    else:
        with pytest.raises(SinkError, match=r"TOPIC_AUTHORIZATION_FAILED.*also needs READ"):
            writer.write(iter([ROWS]))
