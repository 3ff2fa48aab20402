"""The records that an independent read_committed consumer reads."""

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
    """Wait for the first value of partition 0 that a read_committed consumer receives, and return
    it."""
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
    """Return the values of each partition in order, up to its last stable offset.

    Markers and aborted records occupy offsets. Only the consumer's end-of-partition event shows the
    end.
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
