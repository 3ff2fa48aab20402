"""Updates the topics and partitions of the append path from the metadata."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from aiokprod._core.slots import TopicSlot
from aiokprod._log_fields import log_fields

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiokprod._engine.buffer.accumulator import RecordAccumulator
    from aiokprod._engine.identity.producer_state import SequencePolicy
    from aiokprod.cluster import ClusterSnapshot

logger = logging.getLogger(__name__)


class TopicSlots:
    """The topics that records can be appended to, each with the queues of its partitions.

    Attributes:
        topic_ids: the id of each topic, from the latest metadata that contains an id.
        vanished: topics that are no longer in the metadata, in the order of their removal. A topic
            is kept here until none of its batches is queued or in flight.
    """

    def __init__(
        self,
        slots: dict[str, TopicSlot],
        accumulator: RecordAccumulator,
        sequences: SequencePolicy,
        clock: Callable[[], float],
    ) -> None:
        self._slots = slots
        self._accumulator = accumulator
        self._sequences = sequences
        self._clock = clock
        self.topic_ids: dict[str, bytes] = {}
        self.vanished: dict[str, None] = {}

    def slot_of(self, topic: str, snapshot: ClusterSnapshot) -> TopicSlot:
        """Return the slot of a topic in the snapshot. The first call creates it."""
        slot = self._slots.get(topic)
        if slot is None:
            made = TopicSlot(topic, self._accumulator.settings.of(topic).sticky_limit)
            self._refresh(snapshot, topic, made)
            now = self._clock()
            for queue in made.slots:
                self._accumulator.follow_leader(queue, snapshot, now)
            # Publish the slot only when it is complete, because a signal handler may raise or send
            # a record at any earlier point.
            slot = self._slots.setdefault(topic, made)
        return slot

    def on_snapshot(self, snapshot: ClusterSnapshot) -> None:
        """Update partition counts and topic ids, and forget topics that were removed."""
        for topic, slot in list(self._slots.items()):
            self._refresh(snapshot, topic, slot)
        self._forget_vanished()

    def choose_sticky_anew(self) -> None:
        """Reset the sticky partition of every topic whose sticky partition has received at least
        `batch_size` bytes."""
        for slot in self._slots.values():
            if slot.sticky_bytes >= self._accumulator.settings.of(slot.topic).batch_size:
                slot.sticky = -1

    def _refresh(self, snapshot: ClusterSnapshot, topic: str, slot: TopicSlot) -> None:
        count = snapshot.partition_count(topic)
        if count is None:
            # Remove the slot, so that the next send waits for metadata.
            del self._slots[topic]
            self.vanished[topic] = None
            return
        self._note_topic_id(snapshot, topic)
        if count < len(slot.slots):
            del slot.slots[count:]
            slot.sticky = -1
        for partition in range(len(slot.slots), count):
            slot.slots.append(self._accumulator.queue(topic, partition))

    def _forget_vanished(self) -> None:
        for topic in list(self.vanished):
            if topic in self._slots:  # the topic is in the metadata again
                del self.vanished[topic]
                continue
            partitions = self._accumulator.forget(topic)
            if partitions is not None:
                del self.vanished[topic]
                self.topic_ids.pop(topic, None)
                self._sequences.on_topic_forgotten(topic, partitions)

    def _note_topic_id(self, snapshot: ClusterSnapshot, topic: str) -> None:
        topic_id = snapshot.topic_id(topic)
        known = self.topic_ids.get(topic)
        if any(topic_id):
            self.topic_ids[topic] = topic_id
            if known is not None and known != topic_id:
                logger.warning(
                    "topic %s was recreated: its new log gets new sequences", topic,
                    extra=log_fields("topic_recreated", topic=topic),
                )  # fmt: skip
                self._sequences.on_topic_recreated(topic)
