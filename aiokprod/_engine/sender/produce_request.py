"""Builds Produce requests from batches, and assigns the parts of the response to the batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aiokprod._wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from aiokprod.cluster import ZERO_TOPIC_ID

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiokprod._engine.buffer.producer_batch import ProducerBatch
    from aiokprod.cluster import ClusterSnapshot

TOPIC_ID_VERSION: Final = 13
_LAST_NAME_VERSION: Final = TOPIC_ID_VERSION - 1


class ProduceCall:
    """One Produce request to one broker, with at most one batch per partition.

    Calling the object with the negotiated version returns the message. Topic ids (v13) are used if
    all topics of the request have an id. Each call encodes new batch headers, which are never
    shared between attempts.
    """

    __slots__ = ("_acks", "_by_topic", "_timeout_ms", "_transactional_id", "batches",
                 "generation", "max_version", "topic_ids", "topic_names")  # fmt: skip

    api_key: Final = ProduceRequest.api_key

    def __init__(
        self,
        batches: Sequence[ProducerBatch],
        snapshot: ClusterSnapshot,
        *,
        acks: int,
        timeout_ms: int,
        transactional_id: str | None = None,
        max_version: int | None = None,
    ) -> None:
        self.batches: dict[tuple[str, int], ProducerBatch] = {}
        self.generation = snapshot.generation
        self._acks = acks
        self._timeout_ms = timeout_ms
        self._transactional_id = transactional_id
        self._by_topic: dict[str, list[ProducerBatch]] = {}
        self.topic_ids: dict[str, bytes] = {}
        self.topic_names: dict[bytes, str] = {}
        for batch in batches:
            self.batches[batch.topic_partition] = batch
            topic = batch.queue.topic
            group = self._by_topic.get(topic)
            if group is not None:
                group.append(batch)
                continue
            self._by_topic[topic] = [batch]
            topic_id = self.topic_ids[topic] = snapshot.topic_id(topic)
            self.topic_names[topic_id] = topic
        self.max_version = max_version
        if ZERO_TOPIC_ID in self.topic_names:
            self.max_version = min(_LAST_NAME_VERSION, max_version or _LAST_NAME_VERSION)

    def __call__(self, version: int) -> ProduceRequest:
        """Return the message for an API version."""
        topics = []
        for topic, group in self._by_topic.items():
            partitions = [PartitionProduceData(b.queue.partition, b.chunks()) for b in group]
            if version >= TOPIC_ID_VERSION:
                topics.append(TopicProduceData("", self.topic_ids[topic], partitions))
            else:
                topics.append(TopicProduceData(topic, ZERO_TOPIC_ID, partitions))
        return ProduceRequest(self._transactional_id, self._acks, self._timeout_ms, topics)


def partition_responses(
    call: ProduceCall, body: Any, version: int
) -> list[tuple[ProducerBatch, Any]]:
    """Return each batch with its part of the response, or with None if the response omits the
    partition.

    Partitions that were not in the request, and repeated entries, are ignored.
    """
    found: list[tuple[ProducerBatch, Any]] = []
    left = dict(call.batches)
    for topic in body.responses:
        name = call.topic_names.get(topic.topic_id) if version >= TOPIC_ID_VERSION else topic.name
        if name is None:
            continue
        for answer in topic.partition_responses:
            batch = left.pop((name, answer.index), None)
            if batch is not None:
                found.append((batch, answer))
    if left:
        found += [(batch, None) for batch in left.values()]
    return found
