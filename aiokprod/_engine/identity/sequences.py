"""Sequence numbers: one `PartitionSequences` per partition, all of them in a `SequenceTracker`.

Idempotent and transactional producers share the tracker. `idempotence` and
`transactional_sequences` process error codes and decide when an epoch is bumped.

Source: KIP-98, KIP-360; Java `TransactionManager`, `TxnPartitionMap`,
`DefaultRecordBatch.incrementSequence`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiokprod._wire.record_batch import (
    MAX_SEQUENCE,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    increment_sequence,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiokprod._engine.buffer.producer_batch import ProducerBatch
    from aiokprod._engine.buffer.queues import PartitionQueue
    from aiokprod._engine.identity.sequence_errors import SequenceAction
    from aiokprod.records import TopicPartition

# Brokers remember this number of batches per producer and partition to recognise duplicates.
MAX_OPEN_BATCHES: Final = 5

MAX_EPOCH: Final = 2**15 - 1

STATE_KEPT_S: Final = 600.0
"""Seconds for which every broker is assumed to remember a producer that sends nothing to a
partition. The default of the broker's producer.id.expiration.ms is one day, but operators lower
it."""


class PartitionSequences:
    """Sequence state of one partition.

    It is kept when the topic disappears from the metadata: a topic that returns continues its
    sequence, or restarts under a higher epoch. After a restart under the same epoch, brokers would
    take new records for duplicates.

    Attributes:
        open: batches with a sequence and without a final outcome, in sequence order, queued or in
            flight.
        window: all batches numbered since the oldest open one, including those with an outcome.
        last_acked: highest acknowledged sequence, or -1 if none in this epoch.
        last_acked_offset: offset of the last acknowledged record, or -1 if unknown.
        unresolved: True if a batch was given up that may be in the log or may have left a gap.
        lost: a copy of a batch that was given up in this epoch may still arrive at a broker.
        bump_planned: the partition must restart at 0 under a higher epoch.
        probe: an open batch that is sent before all others, because its response shows whether the
            older ones may be in the log; None if batches are sent in sequence order.
        floor, floor_sequence: offset and sequence of a record in the log before all open batches;
            -1 if none is known.
        newest_written: order of the newest batch of this epoch that has its outcome and is, or may
            be, in the log.
        wrapped: the sequences of this epoch have exceeded their maximum and continued at 0.
        newest_proven: order of the newest batch of this epoch whose response proved that all
            batches before it are in the log.
        foreign: True if another cluster assigned the producer id, which must not be used any more.
    """

    __slots__ = ("bump_planned", "epoch", "floor", "floor_sequence", "foreign", "last_acked",
                 "last_acked_offset", "lost", "newest_proven", "newest_written", "next", "open",
                 "probe", "producer_id", "unresolved", "window", "wrapped")  # fmt: skip

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.open: list[ProducerBatch] = []
        self.last_acked_offset = -1
        self.bump_planned = False
        self.reset_sequences(producer_id, epoch)

    def reset_sequences(self, producer_id: int, epoch: int) -> None:
        """Restart at sequence 0 under this id and epoch, and renumber the open batches."""
        self.producer_id = producer_id
        self.epoch = epoch
        self.next = 0
        self.last_acked = NO_SEQUENCE
        self.unresolved = False
        self.lost = False
        self.bump_planned = False
        self.foreign = False
        self.probe: ProducerBatch | None = None
        self.floor = -1
        self.floor_sequence = NO_SEQUENCE
        self.wrapped = False
        self.newest_written: tuple[int, ...] = ()
        self.newest_proven: tuple[int, ...] = ()
        for batch in self.open:
            batch.sequence_reset = True
            batch.lost = batch.divided_in_doubt = False  # copies have the older epoch
            batch.proven_offset = -1
            self.number(batch)
        self.window = list(self.open)

    def number(self, batch: ProducerBatch) -> None:
        """Assign the next sequences to a batch."""
        batch.producer_id = self.producer_id
        batch.producer_epoch = self.epoch
        batch.base_sequence = self.next
        self.next = increment_sequence(self.next, batch.core.record_count)
        self.wrapped = self.wrapped or self.next < batch.base_sequence

    def is_next(self, sequence: int) -> bool:
        """Return True if `sequence` follows the last acknowledged one."""
        if self.last_acked == NO_SEQUENCE:
            return sequence == 0
        return sequence == increment_sequence(self.last_acked, 1)

    def is_gap_before(self, batch: ProducerBatch) -> bool:
        """Return True if no open batch precedes this one, so that the batch that the broker expects
        before it will not be sent."""
        oldest = bool(self.open) and self.open[0] is batch
        return oldest or self.is_next(batch.base_sequence)

    def may_restart(self) -> bool:
        """Return True if no open batch can be in the log: none is in flight, and the oldest is
        certainly not in the log, so that the batches after it cannot be in the log either."""
        return not any(batch.in_flight for batch in self.open) and not (
            self.open and self.open[0].in_doubt
        )

    def may_reuse(self, batch: ProducerBatch) -> bool:
        """Return True if the batch has the newest sequences and these cannot have reached a broker.

        A broker that responded with an error may have appended the batch nevertheless. It would
        then consider the next batch with these sequences a duplicate and acknowledge records that
        it never stored.
        """
        return (
            not batch.maybe_written
            and batch.producer_epoch == self.epoch
            and batch.producer_id == self.producer_id
            and increment_sequence(batch.base_sequence, batch.core.record_count) == self.next
        )

    def on_success(self, batch: ProducerBatch, base_offset: int) -> None:
        """Remove a batch that is in the log, at `base_offset` (-1 if unknown), and advance the
        acknowledged sequence and offset."""
        count = batch.core.record_count
        last_offset = base_offset + count - 1
        last_sequence = increment_sequence(batch.base_sequence, count - 1)
        current = batch.producer_epoch == self.epoch and batch.producer_id == self.producer_id
        if current:
            self.newest_written = max(self.newest_written, batch.order)
        if base_offset >= 0 and self.open and self.open[0] is batch:
            self.floor, self.floor_sequence = last_offset, last_sequence
        self.remove(batch)
        if current:
            self.acknowledge(last_sequence)
        if base_offset >= 0:
            self.last_acked_offset = last_offset

    def newest_in_doubt(self, after: ProducerBatch) -> ProducerBatch | None:
        """Return the newest open batch behind `after` that may be in the log, or None."""
        for batch in reversed(self.open):
            if batch.order > after.order and (batch.in_doubt or batch.in_flight):
                return batch
        return None

    def on_duplicate(self, batch: ProducerBatch, base_offset: int, log_start_offset: int) -> None:
        """Record that older open batches are in the log too, because this batch was in the log
        before it was sent again.

        A broker without state for the producer accepts any first sequence, so it may have accepted
        this batch without the older ones. The older ones are proven to be in the log only under two
        conditions: the log still contains the record at `floor`, so that the broker has kept its
        state; and the offsets between that record and this batch suffice for all records sent
        since, including acknowledged ones. If there are exactly that many offsets, the offsets of
        the older batches are known too.
        """
        if batch.producer_epoch != self.epoch or batch.producer_id != self.producer_id:
            return
        if not 0 <= log_start_offset <= self.floor or base_offset < self._least_offset(batch):
            return
        older = [each for each in self.open if each.order < batch.order]
        if not all(each.in_doubt for each in older):
            return  # an older batch was rejected and is not in the log, so the broker had no state
        self.newest_proven = max(self.newest_proven, batch.order)
        if base_offset == self._least_offset(batch):
            for each in older:
                each.proven_offset = self._least_offset(each)

    def _least_offset(self, batch: ProducerBatch) -> int:
        """Return the base offset of a batch, provided that the log contains every record between
        `floor` and the batch, and no other record."""
        return self.floor + ((batch.base_sequence - self.floor_sequence) & MAX_SEQUENCE)

    def acknowledge(self, sequence: int) -> None:
        """Record that all records up to `sequence` are in the log. Has no effect for a sequence
        that is lower than the last one."""
        ahead = (sequence - self.last_acked) & MAX_SEQUENCE
        if self.last_acked == NO_SEQUENCE or ahead <= MAX_SEQUENCE // 2:
            self.last_acked = sequence

    def replace(self, batch: ProducerBatch, parts: list[ProducerBatch]) -> None:
        """Assign the sequences of a batch to its parts, without a gap, so that each part can be
        sent separately."""
        if self.probe is batch:
            self.probe = None
        for batches in (self.open, self.window):
            position = batches.index(batch)
            batches[position : position + 1] = parts
        sequence = batch.base_sequence
        for part in parts:
            part.producer_id = batch.producer_id
            part.producer_epoch = batch.producer_epoch
            part.base_sequence = sequence
            sequence = increment_sequence(sequence, part.core.record_count)

    def remove(self, batch: ProducerBatch) -> None:
        """Remove a batch that has its final outcome from the open batches."""
        if self.probe is batch:
            self.probe = None
        if batch in self.open:
            self.open.remove(batch)
        while self.window and not (self.open and self.window[0] is self.open[0]):
            del self.window[0]


class SequenceTracker:
    """The producer id and epoch, and the sequences of every partition.

    Attributes:
        producer_id, epoch: the id and epoch for batches that get a sequence from now on. A
            partition continues under its own id and epoch until it has no open batch.
            NO_PRODUCER_ID and -1 if none was assigned.
        partitions: partitions that have sequences.
        planned: partitions that need a higher epoch.
        retired: partitions of topics that are no longer in use, whose sequences must be kept until
            there is a newer epoch.
        probing: queues of the partitions with a `probe`.
        clusters: number of times that the cluster id has changed.
        used: by producer id that is no longer used, the highest epoch used with it.
    """

    def __init__(self) -> None:
        self.producer_id = NO_PRODUCER_ID
        self.epoch = -1
        self.partitions: dict[TopicPartition, PartitionSequences] = {}
        self.planned: set[TopicPartition] = set()
        self.retired: set[TopicPartition] = set()
        self.probing: dict[TopicPartition, PartitionQueue] = {}
        self.clusters = 0
        self.used: dict[int, int] = {}

    def set_producer_id(self, producer_id: int, epoch: int) -> None:
        """Set the id and epoch for new batches. Drop the sequences of `retired` partitions, which
        were kept only until there was a newer epoch."""
        self.producer_id, self.epoch = producer_id, epoch
        for key in list(self.retired):
            self.retire(key)

    def drop_producer_id(self) -> None:
        """Drop the producer id, so that nothing is sent until there is another one."""
        if self.producer_id != NO_PRODUCER_ID:
            self.used[self.producer_id] = self.epoch
        self.producer_id, self.epoch = NO_PRODUCER_ID, -1

    def may_drain(self, queue: PartitionQueue, batch: ProducerBatch) -> bool:
        """Return True if the first batch of a queue may be sent now. Batches are sent in order, at
        most five are open, and no new batch is sent while it is unknown whether an older one is in
        the log.

        Source: Java `RecordAccumulator.shouldStopDrainBatchesForPartition`; librdkafka also waits
        for the responses of the old leader.
        """
        if self.producer_id == NO_PRODUCER_ID:
            return False
        if queue.in_flight and queue.wire_node != queue.node:
            return False
        entry = self.partitions.get(queue.topic_partition)
        if entry is None:
            return True
        if entry.probe is not None:
            return entry.probe is batch
        if batch.base_sequence != NO_SEQUENCE:
            # While a bump is planned, only a batch that may be in the log is sent again: the broker
            # recognises it by its old sequence.
            return entry.open[0] is batch and (batch.in_doubt or not entry.bump_planned)
        if entry.bump_planned:
            return False
        if not entry.open:
            return not entry.unresolved
        oldest = entry.open[0]
        if (
            entry.last_acked == NO_SEQUENCE
            or oldest.sent_at - queue.acknowledged_at > STATE_KEPT_S
            or oldest.attempts > 1
        ):
            # Send no second batch. A broker without state for this producer id accepts any first
            # sequence. If it rejected the first of two batches in flight, it could still store the
            # second, and the order would be wrong. The state may have been lost during a pause, or
            # since the last attempt to send a batch, for example because the topic was created
            # again.
            return False
        if oldest.core.settled:
            # The oldest open batch expired in flight. Send no batch after it, because a later batch
            # could not be renumbered either (see `classify_idempotent`).
            return False
        # The limit counts from the oldest open batch: if the broker had stored that batch and five
        # more, it would treat a retry of that batch as a gap.
        return not entry.unresolved and len(entry.window) < MAX_OPEN_BATCHES

    def assign_sequence(self, batch: ProducerBatch) -> None:
        """Assign sequences to a batch that is about to be sent for the first time."""
        if batch.base_sequence != NO_SEQUENCE:
            return
        key = batch.topic_partition
        entry = self.partitions.get(key)
        if entry is None:
            entry = self.partitions[key] = PartitionSequences(self.producer_id, self.epoch)
        elif not entry.open and self.is_stale(entry):
            entry.reset_sequences(self.producer_id, self.epoch)
        entry.number(batch)
        entry.open.append(batch)
        entry.window.append(batch)

    def apply(self, batch: ProducerBatch, action: SequenceAction) -> None:
        """Carry out the result of `classify_idempotent` or `classify_transactional`."""
        entry = self.of(batch)
        if action.note_unknown:
            batch.note_unknown()
        if action.clear_doubt:
            batch.in_doubt = False
            if entry.probe is batch:
                entry.probe = entry.newest_in_doubt(entry.open[0])
        if action.probe is not None:
            entry.probe = action.probe
            self.probing[batch.topic_partition] = batch.queue
        if action.bump_epoch:
            self.request_epoch_bump(batch.topic_partition)
        if action.new_producer_id and batch.producer_id == self.producer_id:
            self.drop_producer_id()
        if action.reset_sequences:
            entry.reset_sequences(self.producer_id, self.epoch)

    def put_probes_first(self) -> None:
        """Move each partition's `probe` to the head of its queue, and restore the order of queues
        that no longer have a probe."""
        for key, queue in list(self.probing.items()):
            entry = self.partitions.get(key)
            probe = None if entry is None else entry.probe
            queue.put_first(probe)
            if probe is None:
                del self.probing[key]

    def of(self, batch: ProducerBatch) -> PartitionSequences:
        """Return the sequences of the partition of a batch, which must have a sequence."""
        return self.partitions[batch.topic_partition]

    def is_stale(self, entry: PartitionSequences) -> bool:
        """Return True if the sequences belong to an older id or epoch, so that the next ones start
        at 0."""
        return entry.producer_id != self.producer_id or entry.epoch != self.epoch

    def request_epoch_bump(self, key: TopicPartition) -> None:
        """Record that the partition must restart under a higher epoch."""
        self.partitions[key].bump_planned = True
        self.planned.add(key)

    def retire(self, key: TopicPartition) -> None:
        """Drop the sequences of a partition that is no longer in use. Sequences of the current
        epoch are kept until there is a newer epoch, because they must continue if the topic
        returns."""
        entry = self.partitions.get(key)
        if entry is None:
            return
        if entry.open or not self.is_stale(entry):
            self.retired.add(key)
        else:
            del self.partitions[key]
            self.retired.discard(key)

    def any_open(self, keys: Iterable[TopicPartition]) -> bool:
        """Return True if a partition among `keys` has a batch without a final outcome."""
        entries = (self.partitions.get(key) for key in keys)
        return any(entry is not None and entry.open for entry in entries)
