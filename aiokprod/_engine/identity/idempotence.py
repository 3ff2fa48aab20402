"""Sequences of an idempotent producer without transactions, which bumps its epoch itself.

Source: KIP-98, KIP-360; Java `TransactionManager` without a transactional id.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from aiokprod._engine.identity.producer_id_requests import ProducerIdRequests
from aiokprod._engine.identity.producer_state import FatalErrorGate, ProducerState
from aiokprod._engine.identity.sequence_errors import SequenceAction, classify_idempotent
from aiokprod._engine.identity.sequences import MAX_EPOCH, PartitionSequences, SequenceTracker
from aiokprod._log_fields import log_fields
from aiokprod._wire.record_batch import NO_PRODUCER_ID, NO_SEQUENCE
from aiokprod.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiokprod._engine.buffer.producer_batch import ProducerBatch

logger = logging.getLogger(__name__)


def idempotent_state(
    backoff: Callable[[int], float], on_ready: Callable[[], None]
) -> ProducerState:
    """Create the parts of an idempotent producer.

    Args:
        backoff: returns the seconds before the next InitProducerId request for a number of failed
            attempts (1, 2, ...).
        on_ready: wakes the sender.
    """
    tracker = SequenceTracker()
    requests = ProducerIdRequests(tracker, backoff, on_ready)
    return ProducerState(IdempotentSequences(tracker), FatalErrorGate(requests), requests)


class IdempotentSequences:
    """The `SequencePolicy` of an idempotent producer. The broker checks producer id, epoch and
    sequence, so that every record is stored once and in order.

    A gap arises if a batch fails after it got a sequence, or if the broker loses state. Then the
    epoch is bumped, and the partition restarts at sequence 0 once none of its batches is in flight.
    Invariant: until such a bump, a batch that may be in the log keeps its sequence in all retries.

    `may_drain`, `assign_sequence` and `apply` are bound methods of the tracker, which saves a call
    per batch.
    """

    def __init__(self, tracker: SequenceTracker) -> None:
        self.tracker = tracker
        self.may_drain = tracker.may_drain
        self.assign_sequence = tracker.assign_sequence
        self.apply = tracker.apply
        self._has_forgotten = False  # topics were forgotten in this epoch and need a higher epoch

    def classify(self, batch: ProducerBatch, code: int, log_start_offset: int) -> SequenceAction:
        """See `classify_idempotent`."""
        return classify_idempotent(batch, code, log_start_offset, self.tracker.of(batch))

    def on_duplicate(self, batch: ProducerBatch, base_offset: int, log_start_offset: int) -> None:
        """See `PartitionSequences.on_duplicate`."""
        self.tracker.of(batch).on_duplicate(batch, base_offset, log_start_offset)

    def on_success(self, batch: ProducerBatch, base_offset: int) -> None:
        """Advance the acknowledged sequence."""
        entry = self.tracker.of(batch)
        entry.on_success(batch, base_offset)
        if entry.unresolved:
            self._resolve(batch.topic_partition, entry)

    def on_split(self, batch: ProducerBatch, parts: list[ProducerBatch]) -> None:
        """Assign the sequences of the batch to its parts."""
        self.tracker.of(batch).replace(batch, parts)

    def on_failure(self, batch: ProducerBatch, *, unknown: bool) -> None:
        """Reuse the sequences of a failed batch if they cannot have reached a broker. Otherwise
        they leave a gap or, with `unknown`, may be in the log."""
        if not batch.has_sequence:
            return
        key, entry = batch.topic_partition, self.tracker.of(batch)
        entry.remove(batch)
        entry.lost = entry.lost or batch.lost
        if unknown:
            entry.unresolved = True
            if batch.in_doubt:
                entry.newest_written = max(entry.newest_written, batch.order)
        elif not entry.open and entry.may_reuse(batch):
            entry.next = batch.base_sequence
        else:
            self.tracker.request_epoch_bump(key)
        self._resolve(key, entry)

    def _resolve(self, key: TopicPartition, entry: PartitionSequences) -> None:
        """Once no batch is open, clear `unresolved` if later batches were acknowledged; otherwise
        there may be a gap in the sequence, so request an epoch bump (Java
        `maybeResolveSequences`)."""
        if not entry.unresolved or entry.open:
            return
        if entry.last_acked != NO_SEQUENCE and entry.is_next(entry.next):
            entry.unresolved = False
        else:
            self.tracker.request_epoch_bump(key)

    def on_topic_forgotten(self, topic: str, partitions: int) -> None:
        """Drop the sequences of the topic. Its next batch starts at 0, which brokers accept only
        under a higher epoch. The next sender pass bumps the epoch."""
        tracker = self.tracker
        for partition in range(partitions):
            key = TopicPartition(topic, partition)
            entry = tracker.partitions.get(key)
            if entry is None or entry.open:
                continue
            self._has_forgotten = self._has_forgotten or not tracker.is_stale(entry)
            del tracker.partitions[key]
            tracker.planned.discard(key)

    def on_topic_recreated(self, topic: str) -> None:
        """Restart the partitions of the topic under a higher epoch."""
        for key in self.tracker.partitions:
            if key.topic == topic:
                self.tracker.request_epoch_bump(key)

    def on_cluster_changed(self) -> bool:
        """Drop the producer id, and restart all partitions under a new one.

        The new cluster may have assigned the same id to another producer. Brokers recognise
        duplicates by id, epoch and sequence, so they would take batches of one producer for
        duplicates of the other's. Batches that may be in the log cannot get new sequences either,
        because the brokers of the new cluster may have stored them. These batches are given up.
        """
        tracker = self.tracker
        tracker.clusters += 1
        tracker.drop_producer_id()
        for key, entry in tracker.partitions.items():
            entry.foreign = True
            tracker.request_epoch_bump(key)
        return True

    def bump_epochs(self) -> None:
        """Bump the epoch if a partition needs it. Then move the `probe` of each partition to the
        head of its queue."""
        if self.tracker.planned or self._has_forgotten:
            self._bump_epochs()
        if self.tracker.probing:
            self.tracker.put_probes_first()

    def _bump_epochs(self) -> None:
        """Renumber the partitions that need a restart and may restart now. Bump the epoch at most
        once for these partitions and for forgotten ones.

        The bump is local (KIP-360): brokers accept a higher epoch that starts at sequence 0. Other
        partitions continue under their own epoch.
        """
        tracker = self.tracker
        ready = [key for key in tracker.planned if tracker.partitions[key].may_restart()]
        if not (ready or self._has_forgotten) or tracker.producer_id == NO_PRODUCER_ID:
            return
        # A partition whose sequences are of an older epoch can start at 0 in the current epoch. If
        # this holds for all of them, no bump is needed.
        if self._has_forgotten or not all(
            tracker.is_stale(tracker.partitions[key]) for key in ready
        ):
            self._has_forgotten = False
            if tracker.epoch >= MAX_EPOCH:
                # No epoch is left: `ProducerIdRequests` gets a new producer id first.
                tracker.drop_producer_id()
                return
            tracker.epoch += 1
        for key in ready:
            tracker.planned.discard(key)
            entry = tracker.partitions[key]
            logger.debug(
                "%s: restarting sequences under producer id %d, epoch %d (%d batches open)",
                key, tracker.producer_id, tracker.epoch, len(entry.open),
                extra=log_fields(
                    "sequences_restarted", topic_partition=key, producer_id=tracker.producer_id,
                    epoch=tracker.epoch,
                ),
            )  # fmt: skip
            entry.reset_sequences(tracker.producer_id, tracker.epoch)
