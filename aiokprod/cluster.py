"""The immutable view of a cluster. Readers keep one snapshot per operation, so that an update in
between cannot mix two views. Source: Java `Cluster`, `MetadataSnapshot`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from aiokprod.records import TopicPartition

ZERO_TOPIC_ID: Final = bytes(16)
"""The topic id of brokers that know none (Java `Uuid.ZERO_UUID`)."""


@dataclass(frozen=True, slots=True)
class Node:
    """A broker's address.

    `id` is the broker id; bootstrap addresses count -1, -2, … so that their connections stay
    distinct from the real brokers' ones.
    """

    id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port} (id {self.id})"


class PartitionInfo(NamedTuple):
    """What the last metadata answer said about one partition.

    Attributes:
        leader: broker id, or None if there is none or it is not among the brokers.
        leader_epoch: -1 if the broker gave none.
        replicas, isr, offline: broker ids.
        error: the partition's error code, 0 if none.

    A named tuple, because an answer can hold ten thousand of them and is taken over in one go.
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
        """Topic and partition as a key."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic with all its partitions.

    Attributes:
        topic_id: 16 bytes, all zero if unknown.
        partitions: at index i is partition i.
        available: partitions with a leader, ascending; derived.
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
        generation: grows by one at every swap.
        nodes: by id, read-only; before the first answer the bootstrap addresses with negative ids.
        topics: by name, read-only; only topics with at least one partition.
        unauthorized_topics, invalid_topics: refused by the last answer about them.
    """

    generation: int = 0
    cluster_id: str | None = None
    nodes: Mapping[int, Node] = field(default_factory=dict)
    controller_id: int | None = None
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    unauthorized_topics: frozenset[str] = frozenset()
    invalid_topics: frozenset[str] = frozenset()
    # A cache of what the frozen fields imply: empty, or one index by leader.
    _led: list[dict[int, tuple[TopicPartition, ...]]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        # Partitioners and observers get the snapshot; nothing they do may change the cache.
        for name in ("nodes", "topics"):
            mapping = getattr(self, name)
            if not isinstance(mapping, MappingProxyType):
                object.__setattr__(self, name, MappingProxyType(mapping))

    def partition_count(self, topic: str) -> int | None:
        """Number of partitions, None if the topic is not known. O(1)."""
        info = self.topics.get(topic)
        return None if info is None else len(info.partitions)

    def partition(self, topic: str, partition: int) -> PartitionInfo | None:
        """The partition's data, None if topic or partition is not known. O(1)."""
        info = self.topics.get(topic)
        if info is None or not 0 <= partition < len(info.partitions):
            return None
        return info.partitions[partition]

    def leader_of(self, topic_partition: TopicPartition) -> int | None:
        """Broker id of the leader, None if unknown or none. O(1)."""
        info = self.partition(*topic_partition)
        return None if info is None else info.leader

    def leader_epoch_of(self, topic_partition: TopicPartition) -> int:
        """The leader's epoch, -1 if unknown. O(1)."""
        info = self.partition(*topic_partition)
        return -1 if info is None else info.leader_epoch

    def available_partitions(self, topic: str) -> tuple[int, ...]:
        """Partitions with a leader, ascending; empty if the topic is not known. O(1)."""
        info = self.topics.get(topic)
        return () if info is None else info.available

    def topic_id(self, topic: str) -> bytes:
        """16 bytes, all zero if topic or id is unknown. O(1)."""
        info = self.topics.get(topic)
        return ZERO_TOPIC_ID if info is None else info.topic_id

    def partitions_led_by(self, node_id: int) -> tuple[TopicPartition, ...]:
        """The partitions this node leads. The first call per snapshot is O(partitions)."""
        if not self._led:
            led: dict[int, list[TopicPartition]] = {}
            for info in self.topics.values():
                for p in info.partitions:
                    if p.leader is not None:
                        led.setdefault(p.leader, []).append(TopicPartition(info.name, p.partition))
            self._led.append({node: tuple(tps) for node, tps in led.items()})
        return self._led[0].get(node_id, ())
