"""Topics and partitions of a fake cluster, with their leaders and in-sync replicas."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from aiokprod.testing.fake_cluster.log import PartitionLog


@dataclass(slots=True)
class TopicConfig:
    """Topic settings that affect a producer.

    Attributes:
        max_message_bytes: maximum size of a record batch.
        min_insync_replicas: number of in-sync replicas required for acks=all.
        log_append_time: True if records get the time of the append as timestamp.
        compacted: True if records need keys.
        max_timestamp_skew_ms: maximum difference of a timestamp from the broker's clock, or None
            for no limit.
    """

    max_message_bytes: int = 1_048_588
    min_insync_replicas: int = 1
    log_append_time: bool = False
    compacted: bool = False
    max_timestamp_skew_ms: int | None = None


@dataclass(slots=True)
class Partition:
    """One partition. `leader` is None while no broker can lead it."""

    topic: str
    index: int
    replicas: tuple[int, ...]
    leader: int | None
    isr: tuple[int, ...]
    log: PartitionLog
    leader_epoch: int = 0

    def elect(self, leader: int | None) -> None:
        """Change the leader and increment the leader epoch."""
        if leader != self.leader:
            self.leader = leader
            self.leader_epoch += 1


@dataclass(slots=True)
class Topic:
    """A topic with one topic id. A recreated topic is another object."""

    name: str
    topic_id: bytes
    config: TopicConfig
    partitions: list[Partition] = field(default_factory=list)
    is_internal: bool = False


def spread(
    brokers: Sequence[int], count: int, factor: int, first: int = 0
) -> list[tuple[int, ...]]:
    """Return the replicas of `count` partitions, starting with partition `first`. Leaders are
    assigned round robin."""
    factor = min(factor, len(brokers))
    return [
        tuple(brokers[(index + step) % len(brokers)] for step in range(factor))
        for index in range(first, first + count)
    ]


def new_topic_id(seed: int) -> bytes:
    """Return a topic id, which is the same in every run for the same seed."""
    return uuid.uuid5(uuid.NAMESPACE_OID, f"topic-{seed}").bytes


def shrink_isr(partition: Partition, alive: Iterable[int]) -> None:
    """Remove dead replicas from the in-sync set. The last replica stays, as in Kafka."""
    living = set(alive)
    remaining = tuple(broker for broker in partition.isr if broker in living)
    if remaining:
        partition.isr = remaining


def grow_isr(partition: Partition, alive: Iterable[int]) -> None:
    """Add live replicas, which have caught up, to the in-sync set."""
    living = set(alive)
    partition.isr = tuple(b for b in partition.replicas if b in living or b in partition.isr)
