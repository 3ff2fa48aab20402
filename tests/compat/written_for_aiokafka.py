"""A program written for aiokafka in which only the imports were changed. `make lint` checks its
types with mypy; tests/typing checks them with pyright in strict mode.

No function of this module is called. Only the types of the calls are checked.
"""

# pyright: strict
from __future__ import annotations

import asyncio
import json
from typing import Any

from aiokprod.compat.aiokafka import (
    AIOKafkaProducer,
    OffsetAndMetadata,
    RecordMetadata,
    TopicPartition,
)


def to_json(value: Any) -> bytes:
    """Serialize a value."""
    return json.dumps(value).encode()


def by_length(key: bytes | None, partitions: list[int], available: list[int]) -> int:
    """A partitioner for aiokafka's producer."""
    return partitions[len(key or b"") % len(partitions)] if not available else available[0]


async def send(servers: list[str]) -> list[RecordMetadata]:
    """Send single records."""
    producer = AIOKafkaProducer(
        bootstrap_servers=servers,
        client_id="typed",
        acks="all",
        value_serializer=to_json,
        partitioner=by_length,
        compression_type="gzip",
        linger_ms=5,
    )
    await producer.start()
    try:
        partitions: set[int] = await producer.partitions_for("orders")
        future: asyncio.Future[RecordMetadata] = await producer.send(
            "orders", {"id": 1}, key=b"1", headers=[("source", b"web")]
        )
        metadata = await producer.send_and_wait("orders", {"id": 2}, partition=max(partitions))
        place: TopicPartition = metadata.topic_partition
        await producer.flush()
        assert place.partition == metadata.partition
        return [await future, metadata]
    finally:
        await producer.stop()


async def send_batch(producer: AIOKafkaProducer) -> int | None:
    """Send a batch."""
    batch = producer.create_batch()
    while batch.append(key=None, value={"id": batch.record_count()}, timestamp=None):
        pass
    batch.close()
    return (await (await producer.send_batch(batch, "orders", partition=0))).offset


async def copy(servers: str) -> None:
    """Send records and consumer offsets in a transaction."""
    async with AIOKafkaProducer(bootstrap_servers=servers, transactional_id="copy") as producer:
        async with producer.transaction():
            await producer.send("orders", b"value")
            offsets = {TopicPartition("in", 0): OffsetAndMetadata(5, "")}
            await producer.send_offsets_to_transaction(offsets, "group")
        await producer.begin_transaction()
        await producer.abort_transaction()
