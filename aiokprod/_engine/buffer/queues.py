"""`PartitionQueue` has the batches of one partition, `NodeQueues` the queues of one broker, grouped
by readiness."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final

from aiokprod._core.slots import PartitionSlot
from aiokprod.records import TopicPartition

if TYPE_CHECKING:
    from aiokprod._engine.buffer.accumulator import RecordAccumulator
    from aiokprod._engine.buffer.producer_batch import ProducerBatch
    from aiokprod._engine.buffer.topic_settings import TopicSettings


OUTAGE_KEPT_S: Final = 10.0
"""Seconds without waiting records after which an outage is assumed to have ended, because without
records this cannot be observed."""

_IDLE_SHARE: Final = 3
"""An idle time counts as part of an outage up to this multiple of the time for which records have
waited. A record that was given up after milliseconds says little about the following seconds."""


class PartitionQueue(PartitionSlot):
    """The batches of one partition in the order in which they must be sent.

    Only the last batch may be open. Its `BatchCore` is `core`, to which the append path writes.
    Batches in flight are not in the queue; a retry returns to its position in sequence order.

    Attributes:
        settings: the settings of its topic.
        node: broker id of the leader in the metadata, or None if there is no leader.
        acknowledged_at: loop time of the last acknowledgment of one of its batches; -inf before the
            first.
        given_up_at: loop time at which records that had waited longer than their linger were last
            given up (expired or withdrawn); -inf if that never happened.
        unacknowledged_since: start of the period without acknowledgments that lasted until
            `given_up_at`.
        wire_node: broker to which the batches in flight were sent; valid while `in_flight` > 0.
        linger_at: linger deadline that was last put into the deadline heap (see
            `RecordAccumulator.next_due`); -1 if none.
    """

    __slots__ = (
        "accumulator",
        "acknowledged_at",
        "batches",
        "given_up_at",
        "in_flight",
        "last_full",
        "linger_at",
        "node",
        "settings",
        "topic_partition",
        "unacknowledged_since",
        "wire_node",
    )

    def __init__(
        self, accumulator: RecordAccumulator, topic: str, partition: int, settings: TopicSettings
    ) -> None:
        super().__init__(topic, partition)
        self.accumulator = accumulator
        self.settings = settings
        self.topic_partition = TopicPartition(topic, partition)
        self.batches: deque[ProducerBatch] = deque()
        self.node: int | None = None
        self.in_flight = 0
        self.acknowledged_at = -math.inf
        self.given_up_at = -math.inf
        self.unacknowledged_since = -math.inf
        self.wire_node = -1
        self.last_full = False
        self.linger_at = -1.0

    @property
    def load(self) -> int:
        """Number of batches queued or in flight. In Java, this is the queue size that the adaptive
        partitioner uses."""
        return len(self.batches) + self.in_flight

    def on_given_up(self, batch: ProducerBatch, now: float) -> None:
        """Record that the records of a batch have expired or were withdrawn. The time for which
        they waited also counts for the next records (see `waits_since`)."""
        since = self.waits_since(batch)
        if since < now:
            self.unacknowledged_since, self.given_up_at = since, now

    def waits_since(self, batch: ProducerBatch) -> float:
        """Return the loop time since which this partition has waited for an acknowledgment.

        This is the end of the linger of `batch`, the oldest batch, or the last acknowledgment if
        that is later. If earlier records were given up at most `OUTAGE_KEPT_S` before `batch` was
        opened, and nothing was acknowledged since, the time for which they waited counts too. The
        idle time after that also counts, up to `_IDLE_SHARE` times their waiting time.
        """
        since = max(batch.created_at + self.settings.linger, self.acknowledged_at)
        if (
            self.given_up_at > self.acknowledged_at
            and batch.created_at - self.given_up_at <= OUTAGE_KEPT_S
        ):
            waited = self.given_up_at - self.unacknowledged_since
            idle = max(0.0, since - self.given_up_at - _IDLE_SHARE * waited)
            return min(since, self.unacknowledged_since + idle)
        return since

    def insert(self, batch: ProducerBatch) -> None:
        """Insert a batch at its position in sequence order, so that a retry precedes all newer
        batches."""
        batches = self.batches
        position = 0
        while position < len(batches) and batches[position].order < batch.order:
            position += 1
        batches.insert(position, batch)

    def put_first(self, batch: ProducerBatch | None) -> None:
        """Sort the queue in sequence order, except that `batch` comes first if it is queued."""
        queued = list(self.batches)
        ordered = sorted(queued, key=lambda each: (each is not batch, each.order))
        if ordered != queued:
            for position, each in enumerate(ordered):
                # Replace the batches one by one. In the meantime, a signal handler or a finalizer
                # may have opened a batch, which must stay at the end of the queue.
                self.batches[position] = each
            self.accumulator.on_reordered(self)

    def __repr__(self) -> str:
        return f"<PartitionQueue {self.topic_partition} node={self.node} load={self.load}>"


class NodeQueues:
    """The queues of the partitions led by one broker, or of the partitions without a leader.

    A queue that was drained is moved to the end, so that no partition starves.

    Attributes:
        ready: queues with a batch that can be sent now.
        lingering: queues with one open batch, which may still receive records.
        held: like `lingering`, for topics whose profile sets a linger. A sender pass ignores these
            queues until the linger has elapsed, or until batches are sent without waiting for it.
        undrained_since: loop time since which batches have been due for the broker but it has
            accepted no request; inf if it accepts requests.
    """

    __slots__ = ("held", "lingering", "ready", "undrained_since")

    def __init__(self) -> None:
        self.ready: dict[PartitionQueue, None] = {}
        self.lingering: dict[PartitionQueue, None] = {}
        self.held: dict[PartitionQueue, None] = {}
        self.undrained_since = math.inf

    def remove(self, queue: PartitionQueue) -> None:
        """Remove a queue from its set."""
        self.ready.pop(queue, None)
        self.lingering.pop(queue, None)
        self.held.pop(queue, None)
