"""What an independent read_committed consumer sees."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

READ_TIMEOUT = 60.0


def _settings(servers: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": servers,
        "group.id": "aiokprod-readback",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "log_level": 0,
    }


def first_committed(servers: str, topic: str) -> bytes:
    """The first value of partition 0 that a reader gets to see; waits for it."""
    consumer = Consumer(_settings(servers))
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        give_up = time.monotonic() + READ_TIMEOUT
        while time.monotonic() < give_up:
            for message in consumer.consume(1, timeout=0.2):
                if message.error() is None:
                    return bytes(message.value())
        raise AssertionError(f"readers of {topic} hang")
    finally:
        consumer.close()


def read_committed(servers: str, topic: str) -> dict[int, list[bytes]]:
    """Values per partition, in order, up to the last stable offset of every partition.

    Markers and aborted records take offsets, so the end is known only when the consumer reaches it.
    """
    consumer = Consumer(_settings(servers))
    try:
        partitions = sorted(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
        found: dict[int, list[bytes]] = {partition: [] for partition in partitions}
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        unfinished = set(partitions)
        heard = time.monotonic()
        while unfinished:
            for message in consumer.consume(10_000, timeout=0.5):
                heard = time.monotonic()
                error = message.error()
                if error is None:
                    found[message.partition()].append(message.value())
                elif error.code() == KafkaError._PARTITION_EOF:
                    unfinished.discard(message.partition())
            assert time.monotonic() - heard < READ_TIMEOUT, f"no end of {topic} {unfinished}"
        return found
    finally:
        consumer.close()
