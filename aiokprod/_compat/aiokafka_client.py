"""The parts of aiokafka's client and cluster that applications and instrumentations use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, NamedTuple

from aiokprod.cluster import ClusterSnapshot
from aiokprod.partitioners import key_partition
from aiokprod.records import TopicPartition

Snapshot = Callable[[], ClusterSnapshot]
TheirPartitioner = Callable[[bytes | None, list[int], list[int]], int]


class BrokerMetadata(NamedTuple):
    """A broker, like aiokafka's `BrokerMetadata`."""

    nodeId: int
    host: str
    port: int
    rack: str | None


class ClusterMetadataView:
    """The part of aiokafka's `ClusterMetadata` that applications use. It always returns current
    metadata."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def brokers(self) -> set[BrokerMetadata]:
        """Return all brokers of the last Metadata response."""
        nodes = self._snapshot().nodes.values()
        return {BrokerMetadata(n.id, n.host, n.port, n.rack) for n in nodes if n.id >= 0}

    def broker_metadata(self, broker_id: int) -> BrokerMetadata | None:
        """Return the broker with this id, or None."""
        node = self._snapshot().nodes.get(broker_id)
        return None if node is None else BrokerMetadata(node.id, node.host, node.port, node.rack)

    def topics(self, exclude_internal_topics: bool = True) -> set[str]:
        """Return the names of the topics for which this producer has metadata."""
        topics = self._snapshot().topics
        return {n for n, t in topics.items() if not (exclude_internal_topics and t.internal)}

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the numbers of the topic's partitions; None if its metadata is not known."""
        found = self._snapshot().topics.get(topic)
        return None if found is None else set(range(len(found.partitions)))

    def available_partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the partitions that have a leader; otherwise like `partitions_for_topic`."""
        found = self._snapshot().topics.get(topic)
        return None if found is None else set(found.available)

    def leader_for_partition(self, partition: TopicPartition) -> int | None:
        """Return the broker id of the leader, -1 if there is no leader, or None if the partition is
        not known."""
        found = self._snapshot().topics.get(partition.topic)
        if found is None or not 0 <= partition.partition < len(found.partitions):
            return None
        leader = found.partitions[partition.partition].leader
        return -1 if leader is None else leader


class ClientView:
    """The attributes of `AIOKafkaProducer.client` that instrumentation packages read."""

    def __init__(
        self,
        servers: str | list[str],
        client_id: str,
        cluster: ClusterMetadataView,
        wait_on_metadata: Callable[[str], Any],
    ) -> None:
        self._bootstrap_servers = servers
        self._client_id = client_id
        self.cluster = cluster
        self._wait_on_metadata = wait_on_metadata
        self._topics: set[str] = set()

    def add_topic(self, topic: str) -> None:
        """Add a topic whose metadata `force_metadata_update` fetches."""
        self._topics.add(topic)

    async def force_metadata_update(self) -> bool:
        """Fetch the metadata of the topics of `add_topic`. Return True once it is known."""
        for topic in self._topics:
            await self._wait_on_metadata(topic)
        return True

    @property
    def hosts(self) -> str | list[str]:
        """The bootstrap servers as they were given."""
        return self._bootstrap_servers


class KeyPartitioner:
    """A partitioner of aiokafka: `f(key_bytes, all_partitions, available_partitions)`."""

    def __init__(self, function: TheirPartitioner) -> None:
        self._function = function

    def partition(
        self,
        topic: str,
        key: Any,
        key_bytes: bytes | None,
        value: Any,
        value_bytes: bytes | None,
        cluster: ClusterSnapshot,
    ) -> int:
        """Call the function with lists of the topic's partitions."""
        return self.of(topic, key_bytes, cluster.topics)

    def of(self, topic: str, key_bytes: bytes | None, topics: Mapping[str, Any]) -> int:
        """See `partition`."""
        found = topics[topic]
        return self._function(key_bytes, list(range(len(found.partitions))), list(found.available))


def murmur2_or_random(rng: Random) -> TheirPartitioner:
    """Return aiokafka's default partitioner: the partition of the key, or a random partition with a
    leader for records without a key."""

    def choose(key_bytes: bytes | None, partitions: list[int], available: list[int]) -> int:
        if key_bytes is None:
            return rng.choice(available or partitions)
        return key_partition(key_bytes, len(partitions))

    return choose
