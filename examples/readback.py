"""Reads a topic with confluent-kafka and compares its records with the records that were sent.

The check is independent of aiokprod: librdkafka parses the batches and checks their CRC.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator

SILENCE = 30.0
"""Seconds without a record after which the read fails."""


def read_back(servers: str, topic: str) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Yield the key and value of every record in the topic, in order within each partition.

    Raises RuntimeError if a partition lacks its first records, or if records do not arrive.
    """
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "aiokprod-demo",
            "enable.auto.commit": False,
            "check.crcs": True,
            "log_level": 0,
        }
    )
    try:
        partitions = sorted(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
        left: dict[int, int] = {}
        for partition in partitions:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), 30)
            if low != 0:
                raise RuntimeError(f"the broker dropped {low} records of {topic}-{partition}")
            left[partition] = high
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        remaining = sum(left.values())
        heard = time.monotonic()
        while remaining:
            messages = consumer.consume(10_000, timeout=1.0)
            if not messages and time.monotonic() - heard > SILENCE:
                raise RuntimeError(f"{remaining} records of {topic} did not arrive")
            for message in messages:
                if message.error() is not None:
                    raise RuntimeError(f"reading {topic}: {message.error()}")
                heard = time.monotonic()
                remaining -= 1
                yield message.key(), message.value()
    finally:
        consumer.close()


class Fingerprint:
    """The number and content of many records. It depends on the order of the records of each key,
    but not on the order of records without a key."""

    def __init__(self) -> None:
        self.records = 0
        self._keyed: dict[bytes, hashlib.blake2b] = {}
        self._counts: dict[bytes, int] = {}
        self._keyless = 0

    def add(self, key: bytes | None, value: bytes | None) -> None:
        content = b"\x00" if value is None else b"\x01" + len(value).to_bytes(4, "big") + value
        self.records += 1
        if key is None:
            # Add the hashes, because records without a key may be in several partitions, so that
            # their order is undefined.
            self._keyless += int.from_bytes(
                hashlib.blake2b(content, digest_size=16).digest(), "big"
            )
            return
        seen = self._keyed.get(key)
        if seen is None:
            seen = self._keyed[key] = hashlib.blake2b(digest_size=16)
        seen.update(content)
        self._counts[key] = self._counts.get(key, 0) + 1

    def differences(self, found: Fingerprint) -> list[str]:
        """Return the differences of `found` from this fingerprint as lines of text."""
        words = []
        if self.records != found.records:
            words.append(f"{self.records:,} records were sent, {found.records:,} are in the topic")
        if self._keyless != found._keyless:
            words.append("the records without a key differ")
        if self._keyed.keys() != found._keyed.keys():
            words.append(f"keys: {len(self._keyed):,} sent, {len(found._keyed):,} found")
        wrong = [
            key
            for key, digest in self._keyed.items()
            if key in found._keyed and found._keyed[key].digest() != digest.digest()
        ]
        words += [
            f"key {key!r}: {self._counts[key]} records sent, {found._counts[key]} found, "
            "order or bytes differ"
            for key in wrong[:10]
        ]
        if len(wrong) > 10:
            words.append(f"… and {len(wrong) - 10} keys more")
        return words
