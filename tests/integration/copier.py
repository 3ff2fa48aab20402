"""The copier of Kafka's transactions_test, as a process that may be killed at any moment.

    python -m tests.integration.copier SERVERS SOURCE TARGET SIZE ABORT_PERCENT SEED EACH

It copies each partition in order, in transactions of SIZE records together with the consumer's
offsets. It aborts some transactions on purpose. Before the end of each transaction of N records it
prints "sent N". It exits when the group has read EACH records of every partition.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from aiokprod import AbortableTransactionError, KafkaTimeout, Producer
from examples.consume_transform_produce import rewind

PARTITIONS = 3


class Deliberate(Exception):
    """Raised to abort a transaction on purpose."""


def done(consumer: Any, source: str, each: int) -> bool:
    """Return True if the group has committed the end offsets of all partitions."""
    places = [TopicPartition(source, partition) for partition in range(PARTITIONS)]
    return all(place.offset == each for place in consumer.committed(places, timeout=30))


async def patiently(call: Callable[..., Any], *arguments: Any) -> Any:
    """Repeat a call that confluent-kafka's consumer does not repeat itself while brokers
    restart."""
    while True:
        try:
            return await asyncio.to_thread(call, *arguments)
        except KafkaException as error:
            print(f"again after {error}", flush=True)
            await asyncio.sleep(0.5)


async def copy(
    servers: str, source: str, target: str, size: int, percent: int, seed: int, each: int
) -> None:
    dice = random.Random(seed)
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"copy-{source}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "session.timeout.ms": 6_000,
        }
    )
    consumer.subscribe([source])
    async with Producer(
        bootstrap_servers=servers,
        transactional_id=f"copy-{source}",
        transaction_timeout_ms=20_000,
        max_block_ms=120_000,
    ) as producer:
        while True:
            records = await asyncio.to_thread(consumer.consume, size, 1.0)
            records = [record for record in records if record.error() is None]
            if not records:
                if await patiently(done, consumer, source, each):
                    break
                continue
            try:
                async with producer.transaction() as txn:
                    for record in records:
                        await producer.submit(target, record.value(), partition=record.partition())
                    print(f"sent {len(records)}", flush=True)
                    offsets = {(r.topic(), r.partition()): r.offset() + 1 for r in records}
                    await txn.send_offsets(offsets, consumer.consumer_group_metadata())
                    if dice.randrange(100) < percent:
                        raise Deliberate
            except (Deliberate, AbortableTransactionError, KafkaTimeout) as error:
                print(f"aborted: {error!r}", flush=True)
                await patiently(rewind, consumer)
    consumer.close()


if __name__ == "__main__":
    _, _servers, _source, _target, *_numbers = sys.argv
    asyncio.run(copy(_servers, _source, _target, *map(int, _numbers)))
