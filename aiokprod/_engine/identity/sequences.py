"""Sequence numbers of one partition: which batches have one, and what was acknowledged.

Source: KIP-98, KIP-360; Java `TxnPartitionMap`, `DefaultRecordBatch.incrementSequence`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiokprod._wire.record_batch import MAX_SEQUENCE, NO_SEQUENCE, increment_sequence

if TYPE_CHECKING:
    from aiokprod._engine.buffer.producer_batch import ProducerBatch


class PartitionSequences:
    """Sequence state of one partition. Outlives metadata: a topic that vanishes and returns goes
    on where it was, or restarts under a higher epoch; else its records would be taken for
    duplicates.

    Attributes:
        open: stamped batches without a final outcome, in sequence order, queued or on the wire.
        window: all batches stamped since the oldest open one, those with an outcome included.
        last_acked: highest acknowledged sequence, -1 if none in this epoch.
        unresolved: a batch was given up whose fate the broker alone knows, or that left a gap.
        lost: a copy of a batch that was given up in this epoch may still arrive at a broker.
        bump_planned: the partition must restart at 0 under a higher epoch.
    """

    __slots__ = ("bump_planned", "epoch", "last_acked", "last_acked_offset", "lost", "next",
                 "open", "producer_id", "unresolved", "window")  # fmt: skip

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.open: list[ProducerBatch] = []
        self.last_acked_offset = -1
        self.bump_planned = False
        self.reset_sequences(producer_id, epoch)

    def reset_sequences(self, producer_id: int, epoch: int) -> None:
        """Number from 0 under this id and epoch, open batches first."""
        self.producer_id = producer_id
        self.epoch = epoch
        self.next = 0
        self.last_acked = NO_SEQUENCE
        self.unresolved = False
        self.lost = False
        self.bump_planned = False
        for batch in self.open:
            batch.sequence_reset = True
            batch.lost = batch.divided_in_doubt = False  # copies are of the older epoch
            self.number(batch)
        self.window = list(self.open)

    def number(self, batch: ProducerBatch) -> None:
        """Give a batch the next sequences."""
        batch.producer_id = self.producer_id
        batch.producer_epoch = self.epoch
        batch.base_sequence = self.next
        self.next = increment_sequence(self.next, batch.core.record_count)

    def is_next(self, sequence: int) -> bool:
        """True if `sequence` follows the last acknowledged one."""
        if self.last_acked == NO_SEQUENCE:
            return sequence == 0
        return sequence == increment_sequence(self.last_acked, 1)

    def is_gap_before(self, batch: ProducerBatch) -> bool:
        """True if no open batch precedes this one: what the broker misses will not be sent."""
        oldest = bool(self.open) and self.open[0] is batch
        return oldest or self.is_next(batch.base_sequence)

    def may_restart(self) -> bool:
        """True if no open batch can be in the log: nothing is on the wire, and the oldest is
        certainly not there, so that nothing numbered after it can be either."""
        return not any(batch.in_flight for batch in self.open) and not (
            self.open and self.open[0].in_doubt
        )

    def acknowledge(self, sequence: int) -> None:
        """Everything up to `sequence` is in the log; an older one changes nothing."""
        ahead = (sequence - self.last_acked) & MAX_SEQUENCE
        if self.last_acked == NO_SEQUENCE or ahead <= MAX_SEQUENCE // 2:
            self.last_acked = sequence

    def remove(self, batch: ProducerBatch) -> None:
        """The batch has its final outcome."""
        if batch in self.open:
            self.open.remove(batch)
        while self.window and not (self.open and self.window[0] is self.open[0]):
            del self.window[0]
