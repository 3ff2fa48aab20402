"""One partition's queue of batches, and the sets of queues that wait for one broker."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from aiokprod._core.append import PartitionSlot
from aiokprod.records import TopicPartition

if TYPE_CHECKING:
    from aiokprod._engine.buffer.accumulator import RecordAccumulator
    from aiokprod._engine.buffer.producer_batch import ProducerBatch


class PartitionQueue(PartitionSlot):
    """Batches of one partition in the order they must be sent.

    Only the last one may be open (it is `core`, which the append path fills). Batches on the wire
    are not in the queue; a retry comes back to its place in order.

    Attributes:
        node: leader's broker id by the last metadata, None if there is no leader.
        warn_at: instant from which a retry is worth a warning again.
        wire_node: broker that holds the batches on the wire; meaningful while `in_flight` > 0.
    """

    __slots__ = (
        "accumulator",
        "batches",
        "in_flight",
        "last_full",
        "linger_at",
        "node",
        "topic_partition",
        "warn_at",
        "wire_node",
    )

    def __init__(self, accumulator: RecordAccumulator, topic: str, partition: int) -> None:
        super().__init__(topic, partition)
        self.accumulator = accumulator
        self.topic_partition = TopicPartition(topic, partition)
        self.batches: deque[ProducerBatch] = deque()
        self.node: int | None = None
        self.in_flight = 0
        self.warn_at = 0.0
        self.wire_node = -1
        self.last_full = False
        self.linger_at = -1.0

    @property
    def load(self) -> int:
        """Batches waiting or on the wire (Java: queue size, for the adaptive partitioner)."""
        return len(self.batches) + self.in_flight

    def insert(self, batch: ProducerBatch) -> None:
        """Put a batch back at its place: retries lie before anything younger."""
        batches = self.batches
        position = 0
        while position < len(batches) and batches[position].order < batch.order:
            position += 1
        batches.insert(position, batch)

    def put_first(self, batch: ProducerBatch | None) -> None:
        """Put a batch before all others if it is queued, and the others in sequence order."""
        batches = sorted(self.batches, key=lambda each: (each is not batch, each.order))
        if batches != list(self.batches):
            self.batches.clear()
            self.batches.extend(batches)
            self.accumulator.on_reordered(self)

    def __repr__(self) -> str:
        return f"<PartitionQueue {self.topic_partition} node={self.node} load={self.load}>"


class NodeQueues:
    """The queues led by one broker (or by none), by what they wait for.

    `ready` queues can be sent now; `lingering` queues have one open batch that may still grow. Both
    keep the order of entry: a queue that was served goes to the end, so that no partition starves.
    `undrained_since`: since when the broker has taken nothing though something was due for it; inf
    if it takes requests (loop time).
    """

    __slots__ = ("lingering", "ready", "undrained_since")

    def __init__(self) -> None:
        self.ready: dict[PartitionQueue, None] = {}
        self.lingering: dict[PartitionQueue, None] = {}
        self.undrained_since = math.inf

    def remove(self, queue: PartitionQueue) -> None:
        """Forget a queue, wherever it is."""
        self.ready.pop(queue, None)
        self.lingering.pop(queue, None)
