"""Topics and partitions of a fake cluster: who leads what, who is in sync."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from aiokprod.testing.fake_cluster.log import PartitionLog


@dataclass(slots=True)
class TopicConfig:
    """Topic settings a producer can notice.

    Attributes:
        max_message_bytes: largest record batch.
        min_insync_replicas: needed for acks=all.
        log_append_time: brokers stamp records themselves.
        compacted: records need keys.
        max_timestamp_skew_ms: records further from the broker's clock are refused; None: any.
    """

    max_message_bytes: int = 1_048_588
    min_insync_replicas: int = 1
    log_append_time: bool = False
    compacted: bool = False
    max_timestamp_skew_ms: int | None = None


@dataclass(slots=True)
class Partition:
    """One partition. `leader` is None while nobody can lead."""

    topic: str
    index: int
    replicas: tuple[int, ...]
    leader: int | None
    isr: tuple[int, ...]
    log: PartitionLog
    leader_epoch: int = 0

    def elect(self, leader: int | None) -> None:
        """Change the leader; the epoch grows with each change."""
        if leader != self.leader:
            self.leader = leader
            self.leader_epoch += 1


@dataclass(slots=True)
class Topic:
    """A topic under one topic id."""

    name: str
    topic_id: bytes
    config: TopicConfig
    partitions: list[Partition] = field(default_factory=list)
    is_internal: bool = False


def spread(
    brokers: Sequence[int], count: int, factor: int, first: int = 0
) -> list[tuple[int, ...]]:
    """Replicas of `count` partitions from number `first` on, leaders round robin."""
    factor = min(factor, len(brokers))
    return [
        tuple(brokers[(index + step) % len(brokers)] for step in range(factor))
        for index in range(first, first + count)
    ]


def new_topic_id(seed: int) -> bytes:
    """A topic id that is the same in equal runs."""
    return uuid.uuid5(uuid.NAMESPACE_OID, f"topic-{seed}").bytes


def shrink_isr(partition: Partition, alive: Iterable[int]) -> None:
    """Replicas that are gone leave the in-sync set; the last one stays, as in Kafka."""
    living = set(alive)
    remaining = tuple(broker for broker in partition.isr if broker in living)
    if remaining:
        partition.isr = remaining


def grow_isr(partition: Partition, alive: Iterable[int]) -> None:
    """Living replicas have caught up."""
    living = set(alive)
    partition.isr = tuple(b for b in partition.replicas if b in living or b in partition.isr)
