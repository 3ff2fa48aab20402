"""Merges Metadata responses into snapshots. Pure functions without clock or waiting.

Unlike in Java, a single response that may be stale does not remove known metadata:

- If a response omits a topic or a partition, contains a topic without partitions, or has a
  retriable topic error, the known metadata is kept until `MISSES_BEFORE_FORGETTING` consecutive
  responses have such a miss.
- A leader epoch lower than the known one is never accepted for a topic with the same id. Without
  topic ids, the epoch may belong to a new topic of the same name. Then it is accepted after the
  same number of responses, which are counted only while the metadata is known to be wrong. Until
  then, a rejection by the known leader remains valid after such responses (`Merged.contradicted`).
  Otherwise slow requests could never show that the leader is wrong.
- A response without topic ids does not remove a known id unless a broker has rejected that id.

Source: Java `Metadata.handleMetadataResponse`, `updateLatestMetadata`, `updatePartitionLeadership`,
`MetadataSnapshot.mergeWith`; KIP-951.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from aiokprod._log_fields import log_fields
from aiokprod._wire.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from aiokprod.cluster import ZERO_TOPIC_ID, ClusterSnapshot, Node, PartitionInfo, TopicInfo
from aiokprod.errors import Code, error_code
from aiokprod.records import TopicPartition

logger = logging.getLogger(__name__)

MISSES_BEFORE_FORGETTING: Final = 5
"""Number of consecutive responses without a known topic or partition after which the topic or
partition is removed. With the default backoff, they take about two seconds, which is longer than
brokers usually need to update their metadata."""

_UNKNOWN: Final = int(Code.UNKNOWN_TOPIC_OR_PARTITION)
_SPARE_PARTITIONS: Final = 64


@dataclass(slots=True)
class Merged:
    """The result of merging a response.

    Attributes:
        snapshot: the new view.
        answered: error code of each topic that was requested or is in the response, or 0 if none.
        misses: by topic, the number of consecutive responses that lacked the topic or a partition
            of it; topics without misses are absent.
        lower_epochs: by partition, the number of consecutive responses with a leader epoch below
            the known one and without a matching topic id. Only responses to requests that were made
            because the metadata was found to be wrong are counted. Partitions without such
            responses are absent.
        contradicted: by partition, the generation of the snapshot before the first of the
            consecutive responses whose leader epoch is lower than that of the known leader. The
            known leader is kept.
        stale: True if the response shows that it is outdated or incomplete, so that another request
            is needed.
    """

    snapshot: ClusterSnapshot
    answered: dict[str, int] = field(default_factory=dict)
    misses: dict[str, int] = field(default_factory=dict)
    lower_epochs: dict[TopicPartition, int] = field(default_factory=dict)
    contradicted: dict[TopicPartition, int] = field(default_factory=dict)
    stale: bool = False


class ResponseMerger:
    """Merges one response into a snapshot. Each instance is used only once.

    Args:
        old: the current snapshot.
        response: a response with at least one broker.
        retain: returns whether a topic is still in use.
        misses, lower_epochs, contradicted: see `Merged`; from the previous responses.
        reliable_epochs: False for responses below version 9, in which a leader epoch may be older
            than the leader.
        complained: True if the current metadata was found to be wrong, for example because a broker
            rejected a Produce request.
        refused_ids: topics with an id that a broker does not know.
    """

    def __init__(
        self,
        old: ClusterSnapshot,
        response: MetadataResponse,
        *,
        retain: Callable[[str], bool],
        misses: Mapping[str, int],
        lower_epochs: Mapping[TopicPartition, int],
        contradicted: Mapping[TopicPartition, int],
        reliable_epochs: bool = True,
        complained: bool = True,
        refused_ids: Collection[str] = (),
    ) -> None:
        self._old = old
        self._response = response
        self._retain = retain
        self._old_misses = misses
        self._lower_epochs = dict(lower_epochs)
        self._contradicted = contradicted
        self._reliable_epochs = reliable_epochs
        self._complained = complained
        self._refused_ids = refused_ids
        self._nodes = {b.node_id: Node(b.node_id, b.host, b.port, b.rack) for b in response.brokers}
        self._other_cluster = old.cluster_id is not None and response.cluster_id not in (
            None,
            old.cluster_id,
        )
        self._all_old_nodes_stay = old.nodes.keys() <= self._nodes.keys()
        self._topics: dict[str, TopicInfo] = {}
        self._unauthorized: set[str] = set()
        self._invalid: set[str] = set()
        self._result = Merged(old)

    def merge(self, *, partial: bool, asked: Iterable[str] = ()) -> Merged:
        """Return the next snapshot and the facts about the response.

        A partial response changes only the topics that were requested. A full response replaces all
        topics, with the exceptions in the docstring of this module.
        """
        result = self._result
        if self._other_cluster:
            logger.error(
                "the cluster id changed from %s to %s: the addresses lead to another cluster",
                self._old.cluster_id,
                self._response.cluster_id,
                extra=log_fields("cluster_id_changed", cluster_id=self._response.cluster_id),
            )
        for topic in self._response.topics:
            if topic.name is not None and self._retain(topic.name):
                self._merge_topic(topic.name, topic)
        for name in asked:
            if name not in result.answered and self._retain(name):
                self._no_verdict(name, _UNKNOWN)
        for name, info in self._old.topics.items():
            if name not in result.answered and self._retain(name):
                if partial:
                    self._topics[name] = self._with_live_leaders(info)
                    self._copy_misses(name)
                else:
                    self._no_verdict(name, _UNKNOWN)
        if partial:
            self._keep_refusals()
        result.lower_epochs = {
            key: count for key, count in self._lower_epochs.items() if key.topic in self._topics
        }
        result.snapshot = self._snapshot()
        return result

    def _snapshot(self) -> ClusterSnapshot:
        old = self._old
        controller = self._response.controller_id
        same_topics = len(self._topics) == len(old.topics) and all(
            old.topics.get(name) is info for name, info in self._topics.items()
        )
        return ClusterSnapshot(
            generation=old.generation + 1,
            cluster_id=self._response.cluster_id or old.cluster_id,
            nodes=old.nodes if self._nodes == old.nodes else self._nodes,
            controller_id=controller if controller in self._nodes else None,
            topics=old.topics if same_topics else self._topics,
            unauthorized_topics=frozenset(self._unauthorized),
            invalid_topics=frozenset(self._invalid),
        )

    def _keep_refusals(self) -> None:
        answered = self._result.answered
        for kept, known in (
            (self._unauthorized, self._old.unauthorized_topics),
            (self._invalid, self._old.invalid_topics),
        ):
            kept.update(n for n in known if n not in answered and self._retain(n))

    def _copy_misses(self, name: str) -> None:
        if name in self._old_misses:
            self._result.misses[name] = self._old_misses[name]

    def _merge_topic(self, name: str, topic: MetadataResponseTopic) -> None:
        code = topic.error_code
        info = self._topic_info(name, topic) if code == Code.NONE else None
        if info is not None:
            self._result.answered[name] = code
            self._topics[name] = info
        elif code == Code.INVALID_TOPIC_EXCEPTION:
            self._result.answered[name] = code
            self._invalid.add(name)
        elif code == Code.TOPIC_AUTHORIZATION_FAILED:
            self._result.answered[name] = code
            self._unauthorized.add(name)
        else:
            # A topic without an error and without partitions is being created or deleted (F55 in
            # docs/faults.md): treat it as an unknown topic.
            self._no_verdict(name, code or _UNKNOWN)

    def _no_verdict(self, name: str, code: int) -> None:
        self._result.answered[name] = code
        if error_code(code).refresh_metadata:
            self._result.stale = True
        misses = self._count_miss(name)
        known = self._old.topics.get(name)
        if known is None:
            return
        if misses < MISSES_BEFORE_FORGETTING:
            self._topics[name] = self._with_live_leaders(known)
        else:
            logger.warning(
                "topic %s is gone: %d responses in a row did not have it (%s)",
                name,
                misses,
                error_code(code).name,
                extra=log_fields("topic_gone", topic=name, code=error_code(code).name),
            )

    def _count_miss(self, name: str) -> int:
        misses = self._old_misses.get(name, 0) + 1
        self._result.misses[name] = misses
        return misses

    def _topic_info(self, name: str, topic: MetadataResponseTopic) -> TopicInfo | None:
        """Return the merged topic, or None if the response contains none of its partitions."""
        known = self._old.topics.get(name)
        if known is not None and self._is_another(known, topic):
            known = None
        before = known.partitions if known is not None else ()
        same_id = known is not None and bytes(topic.topic_id) == known.topic_id != ZERO_TOPIC_ID
        entries = self._entries(name, topic, before, same_id=same_id)
        if not entries:
            return None
        if self._fill_gaps(name, entries, before):
            self._result.stale = True
        partitions = tuple(entries[index] for index in range(len(entries)))
        topic_id = bytes(topic.topic_id)
        if known is not None:
            if topic_id == ZERO_TOPIC_ID:
                topic_id = known.topic_id
            same = len(partitions) == len(before) and all(map(_is, partitions, before))
            if same and known.topic_id == topic_id and known.internal == topic.is_internal:
                return known
        return TopicInfo(name, topic_id, partitions, topic.is_internal)

    def _is_another(self, known: TopicInfo, topic: MetadataResponseTopic) -> bool:
        """Return True if the response has a new topic with a known name, so that the known state of
        its partitions does not apply (F52).

        If a broker has rejected the known id and the response has no id, the id is removed, and
        Produce requests use the topic name. Otherwise they would be rejected until a metadata
        request is sent to a broker that supports topic ids. Java removes the id after every
        response without an id.
        """
        if topic.topic_id == ZERO_TOPIC_ID and known.name in self._refused_ids:
            logger.warning(
                "topic %s: a broker refused its id, the metadata has none", known.name,
                extra=log_fields("topic_recreated", topic=known.name),
            )  # fmt: skip
            return True
        if topic.topic_id in (ZERO_TOPIC_ID, known.topic_id):
            return self._other_cluster
        if known.topic_id != ZERO_TOPIC_ID:
            logger.warning(
                "topic %s was deleted and created again: its id changed", known.name,
                extra=log_fields("topic_recreated", topic=known.name),
            )  # fmt: skip
        return True

    def _entries(
        self,
        name: str,
        topic: MetadataResponseTopic,
        before: tuple[PartitionInfo, ...],
        *,
        same_id: bool,
    ) -> dict[int, PartitionInfo]:
        # Kafka numbers partitions without gaps. An index far above the number of entries is
        # invalid, and filling the gap below it would take unbounded memory.
        limit = 2 * len(topic.partitions) + len(before) + _SPARE_PARTITIONS
        entries: dict[int, PartitionInfo] = {}
        for partition in topic.partitions:
            index = partition.partition_index
            if not 0 <= index < limit:
                logger.warning(
                    "partition %s-%d makes no sense and is ignored", name, index,
                    extra=log_fields("metadata_inconsistent", topic=name, partition=index),
                )  # fmt: skip
                self._result.stale = True
                continue
            known = before[index] if index < len(before) else None
            entries[index] = self._partition_info(name, partition, known, same_id=same_id)
        return entries

    def _fill_gaps(
        self, name: str, entries: dict[int, PartitionInfo], before: tuple[PartitionInfo, ...]
    ) -> bool:
        """Add the missing partitions, so that their numbers have no gaps. Return True if any were
        missing."""
        missing = [info for info in before if info.partition not in entries]
        if missing and self._old_misses.get(name, 0) + 1 < MISSES_BEFORE_FORGETTING:
            entries.update({info.partition: self._live(info) for info in missing})
        count = max(entries) + 1
        gaps = [index for index in range(count) if index not in entries]
        for index in gaps:
            entries[index] = PartitionInfo(name, index, error=_UNKNOWN)
        if missing or gaps:
            self._count_miss(name)
        return bool(missing or gaps)

    def _partition_info(
        self,
        name: str,
        new: MetadataResponsePartition,
        known: PartitionInfo | None,
        *,
        same_id: bool,
    ) -> PartitionInfo:
        epoch = new.leader_epoch if self._reliable_epochs else -1
        if new.error_code and error_code(new.error_code).refresh_metadata:
            self._result.stale = True
        if known is not None and self._lags(known, epoch, same_id=same_id):
            key = known.topic_partition
            self._result.contradicted[key] = self._contradicted.get(key, self._old.generation)
            return self._live(known)
        leader = new.leader_id if new.leader_id in self._nodes else None
        if leader is None and new.leader_id >= 0:
            self._result.stale = True
        replicas = tuple(new.replica_nodes)
        isr = tuple(new.isr_nodes)
        offline = tuple(new.offline_replicas)
        if (
            known is not None
            and known.leader == leader
            and known.leader_epoch == epoch
            and known.error == new.error_code
            and known.isr == isr
            and known.replicas == replicas
            and known.offline == offline
        ):
            return known
        return PartitionInfo(
            name, new.partition_index, leader, epoch, replicas, isr, offline, new.error_code
        )

    def _lags(self, known: PartitionInfo, epoch: int, *, same_id: bool) -> bool:
        """Return True if the response is older than the known leader (F56 in docs/faults.md).

        - An epoch of -1 means that the response has no epoch: its leader is accepted.
        - With `same_id`, the topic is the known one. Its epochs only increase, so a lower epoch is
          never accepted, as in Java. It comes from a broker that is cut off from the controller.
          Such a broker leads no partitions, so it may be the least loaded broker, to which every
          metadata request is sent.
        - Without topic ids (Kafka below 2.8), epochs that stay lower may belong to a topic that was
          deleted and created again. Then the known leader is wrong, and requests to it fail.

        Source: Java `Metadata.updateLatestMetadata`, KIP-320.
        """
        if not 0 <= epoch < known.leader_epoch:
            if self._lower_epochs:
                self._lower_epochs.pop(known.topic_partition, None)
            return False
        if same_id or not self._complained:
            return True
        key = known.topic_partition
        count = self._lower_epochs.pop(key, 0) + 1
        if count < MISSES_BEFORE_FORGETTING:
            self._lower_epochs[key] = count
            return True
        logger.warning(
            "partition %s: leader epoch %d instead of %d in %d responses in a row; was the "
            "topic deleted and created again?",
            key,
            epoch,
            known.leader_epoch,
            count,
            extra=log_fields("topic_recreated", topic_partition=key),
        )
        return False

    def _live(self, info: PartitionInfo) -> PartitionInfo:
        """Return the known partition, without its leader if the leader is no longer among the
        brokers (F57 in docs/faults.md)."""
        if info.leader is not None and info.leader not in self._nodes:
            info = info._replace(leader=None)
        if info.leader is None:
            self._result.stale = True
        return info

    def _with_live_leaders(self, info: TopicInfo) -> TopicInfo:
        if self._all_old_nodes_stay:
            return info
        partitions = tuple(map(self._live, info.partitions))
        if all(map(_is, partitions, info.partitions)):
            return info
        return TopicInfo(info.name, info.topic_id, partitions, info.internal)


def _is(left: object, right: object) -> bool:
    return left is right


def without_leaders(old: ClusterSnapshot, nodes: Iterable[Node]) -> ClusterSnapshot:
    """Return the snapshot after a (re)bootstrap: new nodes, the same topics, no leaders.

    Java drops the topics too, which blocks every send until the cluster responds; here, records are
    still buffered. Leader epochs are dropped, because the addresses may now belong to another
    cluster.
    """
    topics = {
        name: TopicInfo(
            name,
            info.topic_id,
            tuple(p._replace(leader=None, leader_epoch=-1) for p in info.partitions),
            info.internal,
        )
        for name, info in old.topics.items()
    }
    return ClusterSnapshot(
        generation=old.generation + 1,
        cluster_id=old.cluster_id,
        nodes={node.id: node for node in nodes},
        topics=topics,
    )


def with_leaders(
    old: ClusterSnapshot,
    leaders: Mapping[TopicPartition, tuple[int, int]],
    endpoints: Iterable[Node],
) -> tuple[ClusterSnapshot, frozenset[TopicPartition]]:
    """Apply the leaders in a Produce response: broker id and leader epoch by partition.

    Unknown partitions, leaders without an address, and epochs that are not newer than the known
    ones are ignored.

    Returns:
        The new snapshot and the partitions that changed; the old snapshot if none did.

    Source: Java `Metadata.updatePartitionLeadership`, KIP-951.
    """
    nodes = dict(old.nodes)
    for node in endpoints:
        nodes[node.id] = node
    changed: dict[str, list[PartitionInfo]] = {}
    accepted = []
    for topic_partition, (leader, epoch) in leaders.items():
        topic, partition = topic_partition
        info = old.partition(topic, partition)
        if info is None or leader not in nodes or epoch < 0 or epoch <= info.leader_epoch:
            continue
        partitions = changed.setdefault(topic, list(old.topics[topic].partitions))
        partitions[partition] = info._replace(leader=leader, leader_epoch=epoch, error=0)
        accepted.append(topic_partition)
    if not accepted:
        return old, frozenset()
    topics = dict(old.topics)
    for name, partitions in changed.items():
        known = topics[name]
        topics[name] = TopicInfo(name, known.topic_id, tuple(partitions), known.internal)
    snapshot = ClusterSnapshot(
        generation=old.generation + 1,
        cluster_id=old.cluster_id,
        nodes=nodes,
        controller_id=old.controller_id,
        topics=topics,
        unauthorized_topics=old.unauthorized_topics,
        invalid_topics=old.invalid_topics,
    )
    return snapshot, frozenset(accepted)
