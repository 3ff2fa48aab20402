"""Immutable cluster metadata. Readers use one snapshot per operation, so that an update during the
operation cannot mix two states. Source: Java `Cluster`, `MetadataSnapshot`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from aiokprod.records import TopicPartition

ZERO_TOPIC_ID: Final = bytes(16)
"""The topic id used for brokers that do not support topic ids (Java `Uuid.ZERO_UUID`)."""


@dataclass(frozen=True, slots=True)
class Node:
    """A broker's address.

    `id` is the broker id; bootstrap addresses have the ids -1, -2, …, so that their connections are
    separate from those of brokers.
    """

    id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port} (id {self.id})"


class PartitionInfo(NamedTuple):
    """A partition in the last Metadata response.

    Attributes:
        leader: broker id; None if there is no leader or it is not among the brokers.
        leader_epoch: -1 if unknown.
        replicas, isr, offline: broker ids.
        error: the partition's error code, or 0 if none.

    A named tuple, because it is cheap to create: a response may have 10 000 partitions.
    """

    topic: str
    partition: int
    leader: int | None = None
    leader_epoch: int = -1
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()
    error: int = 0

    @property
    def topic_partition(self) -> TopicPartition:
        """The topic and partition."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic with all its partitions.

    Attributes:
        topic_id: 16 bytes, all zero if unknown.
        partitions: partition i is at index i.
        available: partitions with a leader, ascending; derived from `partitions`.
    """

    name: str
    topic_id: bytes
    partitions: tuple[PartitionInfo, ...]
    internal: bool = False
    available: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        available = tuple(p.partition for p in self.partitions if p.leader is not None)
        object.__setattr__(self, "available", available)


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """One version of the cluster's metadata.

    Attributes:
        generation: incremented with every new snapshot.
        nodes: by id, read-only; bootstrap addresses until the first Metadata response.
        topics: by name, read-only; only topics with at least one partition.
        unauthorized_topics, invalid_topics: names of topics with this error in the last Metadata
            response.
    """

    generation: int = 0
    cluster_id: str | None = None
    nodes: Mapping[int, Node] = field(default_factory=dict)
    controller_id: int | None = None
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    unauthorized_topics: frozenset[str] = frozenset()
    invalid_topics: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        # Read-only copies: partitioners and observers get the snapshot and must not change it.
        for name in ("nodes", "topics"):
            mapping = getattr(self, name)
            if not isinstance(mapping, MappingProxyType):
                object.__setattr__(self, name, MappingProxyType(mapping))

    def partition_count(self, topic: str) -> int | None:
        """Return the number of partitions, or None if the topic is unknown. O(1)."""
        info = self.topics.get(topic)
        return None if info is None else len(info.partitions)

    def partition(self, topic: str, partition: int) -> PartitionInfo | None:
        """Return the partition's metadata, or None if topic or partition is unknown. O(1)."""
        info = self.topics.get(topic)
        if info is None or not 0 <= partition < len(info.partitions):
            return None
        return info.partitions[partition]

    def leader_of(self, topic_partition: TopicPartition) -> int | None:
        """Return the broker id of the leader, or None if the leader is unknown or missing. O(1)."""
        info = self.partition(*topic_partition)
        return None if info is None else info.leader

    def leader_epoch_of(self, topic_partition: TopicPartition) -> int:
        """Return the leader's epoch, or -1 if unknown. O(1)."""
        info = self.partition(*topic_partition)
        return -1 if info is None else info.leader_epoch

    def available_partitions(self, topic: str) -> tuple[int, ...]:
        """Return the partitions with a leader, ascending; empty if the topic is unknown. O(1)."""
        info = self.topics.get(topic)
        return () if info is None else info.available

    def topic_id(self, topic: str) -> bytes:
        """Return the topic id: 16 bytes, all zero if topic or id is unknown. O(1)."""
        info = self.topics.get(topic)
        return ZERO_TOPIC_ID if info is None else info.topic_id
