"""Consumes, transforms and produces exactly once: offsets and output are committed together.

    python -m examples.consume_transform_produce localhost:9092 orders invoices

The consumer's offsets are part of the producer's transaction. After a crash, an abort or a
rebalance, the same records are read again. The earlier output for them is invisible to consumers
with isolation level read_committed. The group metadata makes the broker reject offsets of a
consumer that has lost its partitions (KIP-447).

`with_aiokafka` uses aiokafka's consumer. `with_confluent` uses confluent-kafka's consumer in a
worker thread.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from aiokprod import AbortableTransactionError, Producer

Transform = Callable[[bytes], bytes]

AT_ONCE = 500
"""Maximum number of records per transaction. Larger transactions cost less per record, but increase
the latency."""


async def with_aiokafka(
    servers: str, source: str, target: str, transform: Transform, *, until: int | None = None
) -> int:
    """Copy `source` to `target` until `until` records are copied, or forever if it is None. Return
    the number of copied records."""
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(
        source,
        bootstrap_servers=servers,
        group_id=f"{source}-to-{target}",
        enable_auto_commit=False,  # the transaction commits the offsets
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    done = 0
    async with (
        # The id must not change at a restart, and every instance needs a different id.
        Producer(bootstrap_servers=servers, transactional_id=f"{source}-to-{target}-0") as producer,
        consumer,
    ):
        while until is None or done < until:
            batches = await consumer.getmany(timeout_ms=1_000, max_records=AT_ONCE)
            if not batches:
                continue
            try:
                async with producer.transaction() as txn:
                    for records in batches.values():
                        for record in records:
                            await producer.submit(target, transform(record.value), key=record.key)
                    offsets = {where: found[-1].offset + 1 for where, found in batches.items()}
                    await txn.send_offsets(offsets, consumer)
            except AbortableTransactionError:
                # The transaction was aborted. Read the same records again.
                await consumer.seek_to_committed(*batches)
                continue
            done += sum(map(len, batches.values()))
    return done


async def with_confluent(
    servers: str, source: str, target: str, transform: Transform, *, until: int | None = None
) -> int:
    """Do the same as `with_aiokafka` with confluent-kafka's consumer, whose calls block."""
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"{source}-to-{target}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([source])
    done = 0
    try:
        async with Producer(
            bootstrap_servers=servers, transactional_id=f"{source}-to-{target}-0"
        ) as producer:
            while until is None or done < until:
                records = await asyncio.to_thread(consumer.consume, AT_ONCE, 1.0)
                records = [record for record in records if record.error() is None]
                if not records:
                    continue
                try:
                    async with producer.transaction() as txn:
                        for record in records:
                            value = transform(record.value())
                            await producer.submit(target, value, key=record.key())
                        offsets = {(r.topic(), r.partition()): r.offset() + 1 for r in records}
                        await txn.send_offsets(offsets, consumer.consumer_group_metadata())
                except AbortableTransactionError:
                    await asyncio.to_thread(rewind, consumer)
                    continue
                done += len(records)
    finally:
        await asyncio.to_thread(consumer.close)
    return done


def rewind(consumer: Any) -> None:
    """Continue from the offsets of the group's last committed transaction."""
    from confluent_kafka import OFFSET_BEGINNING

    for place in consumer.committed(consumer.assignment(), timeout=30):
        if place.offset < 0:
            place.offset = OFFSET_BEGINNING
        consumer.seek(place)


if __name__ == "__main__":
    _, _servers, _source, _target = sys.argv
    asyncio.run(with_aiokafka(_servers, _source, _target, bytes.upper))
