"""Sequences of a transactional producer: batches are sent only within an open transaction, and a
gap ends with the transaction instead of a local epoch bump.

Source: KIP-98, KIP-890; Java `TransactionManager`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiokprod._engine.identity.sequence_errors import SequenceAction, classify_transactional
from aiokprod._engine.identity.transaction_states import MAY_SEND
from aiokprod.records import TopicPartition

if TYPE_CHECKING:
    from aiokprod._engine.buffer.producer_batch import ProducerBatch
    from aiokprod._engine.buffer.queues import PartitionQueue
    from aiokprod._engine.identity.transaction_manager import TransactionManager


class TransactionalSequences:
    """The `SequencePolicy` of a transactional producer."""

    def __init__(self, manager: TransactionManager) -> None:
        self._manager = manager
        self.tracker = manager.tracker

    def may_drain(self, queue: PartitionQueue, batch: ProducerBatch) -> bool:
        """Like `SequenceTracker.may_drain`, but a first attempt is allowed only within the
        transaction, and only to partitions that belong to it or may be added now."""
        if not batch.has_sequence and not self._manager.may_send(queue.topic_partition):
            return False
        return self.tracker.may_drain(queue, batch)

    def assign_sequence(self, batch: ProducerBatch) -> None:
        """Assign sequences to a batch, as part of the transaction."""
        if batch.has_sequence:
            return
        batch.transactional = True
        self._manager.on_first_attempt(batch)
        self.tracker.assign_sequence(batch)

    def classify(self, batch: ProducerBatch, code: int, log_start_offset: int) -> SequenceAction:
        """See `classify_transactional`."""
        entry = self.tracker.of(batch)
        is_open = self._manager.state in MAY_SEND
        return classify_transactional(batch, code, log_start_offset, entry, is_open=is_open)

    def apply(self, batch: ProducerBatch, action: SequenceAction) -> None:
        """See `SequenceTracker.apply`."""
        self.tracker.apply(batch, action)

    def on_duplicate(self, batch: ProducerBatch, base_offset: int, log_start_offset: int) -> None:
        """See `PartitionSequences.on_duplicate`."""
        self.tracker.of(batch).on_duplicate(batch, base_offset, log_start_offset)

    def on_success(self, batch: ProducerBatch, base_offset: int) -> None:
        """Advance the acknowledged sequence, and record that the coordinator has the
        transaction."""
        self._manager.on_acknowledged(batch)
        self.tracker.of(batch).on_success(batch, base_offset)

    def on_split(self, batch: ProducerBatch, parts: list[ProducerBatch]) -> None:
        """Assign the sequences of the batch to its parts, and mark the parts as transactional."""
        self.tracker.of(batch).replace(batch, parts)
        for part in parts:
            part.transactional = True

    def on_failure(self, batch: ProducerBatch, *, unknown: bool) -> None:
        """Remove the batch and require a new epoch. The sequence gap ends with the abort, which
        bumps the epoch, even if the abort was requested earlier. The new epoch fences a copy of the
        batch that is still in flight."""
        if batch.has_sequence:
            self.tracker.of(batch).remove(batch)
            self._manager.progress.needs_bump = True

    def bump_epochs(self) -> None:
        """Run `TransactionManager.on_sender_pass`. No epoch is bumped here: only the coordinator
        assigns epochs."""
        self._manager.on_sender_pass()

    def on_topic_forgotten(self, topic: str, partitions: int) -> None:
        """Drop the sequences of the topic as soon as there is a newer epoch."""
        for partition in range(partitions):
            self.tracker.retire(TopicPartition(topic, partition))

    def on_topic_recreated(self, topic: str) -> None:
        """Does nothing: sequences cannot restart within a transaction."""

    def on_cluster_changed(self) -> bool:
        """Does nothing: the new cluster's coordinator rejects the transactional id with this
        producer id, and this error aborts the transaction."""
        return False
