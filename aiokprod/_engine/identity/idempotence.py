"""Idempotence: a producer id, and a sequence number for every batch, given out once and changed
only here.

Source: KIP-98, KIP-360; Java `TransactionManager` (its non-transactional half),
`TxnPartitionMap`, `DefaultRecordBatch.incrementSequence`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from aiokprod._engine.identity.producer_state import BaseProducerState, StateRequest
from aiokprod._engine.sender.retry_policy import SequenceAdvice
from aiokprod._wire.messages.init_producer_id import InitProducerIdRequest
from aiokprod._wire.record_batch import (
    MAX_SEQUENCE,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    increment_sequence,
)
from aiokprod.errors import Code, KafkaError, ProducerFailed, broker_error, error_code
from aiokprod.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiokprod._engine.buffer.producer_batch import ProducerBatch
    from aiokprod._engine.buffer.queues import PartitionQueue

logger = logging.getLogger(__name__)

MAX_EPOCH: Final = 2**15 - 1
# Brokers remember this many batches per partition to recognise duplicates.
MAX_OPEN_BATCHES: Final = 5


class PartitionSequences:
    """Sequence state of one partition. Outlives metadata: a topic that vanishes and returns goes
    on where it was, or restarts under a higher epoch; else its records would be taken for
    duplicates.

    Attributes:
        open: stamped batches without a final outcome, in sequence order, queued or on the wire.
        window: all batches stamped since the oldest open one, those with an outcome included.
        last_acked: highest acknowledged sequence, -1 if none in this epoch.
        unresolved: a batch was given up whose fate the broker alone knows, or that left a gap.
        lost: a copy of a batch that was given up in this epoch may still be under way.
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


class Idempotent(BaseProducerState):
    """One copy of every record, in order: the broker checks producer id, epoch and sequence.

    A gap (a batch given up after it had a sequence, or state lost by the broker) is healed by
    bumping the epoch and renumbering that partition from 0, once nothing of it is on the wire.
    Invariant: a batch whose fate is open keeps its sequence for all retries until such a bump.
    """

    def __init__(self, backoff: Callable[[int], float], on_ready: Callable[[], None]) -> None:
        super().__init__()
        self.producer_id = NO_PRODUCER_ID
        self.epoch = -1
        self._backoff = backoff
        self._on_ready = on_ready
        self._attempts = 0
        self._request_at = 0.0
        self._requesting = False
        self._failure: KafkaError | None = None
        self._partitions: dict[TopicPartition, PartitionSequences] = {}
        self._planned: set[TopicPartition] = set()
        self._has_forgotten = False  # sequences of the present epoch: it must not be used for them

    # -- sequences ------------------------------------------------------------------------------

    def may_drain(self, queue: PartitionQueue, batch: ProducerBatch) -> bool:
        """In order, at most five open, and nothing new while the fate of something older is open.

        Source: Java `RecordAccumulator.shouldStopDrainBatchesForPartition`; waiting for the old
        leader's answers as librdkafka does.
        """
        if self.producer_id == NO_PRODUCER_ID:
            return False
        if queue.in_flight and queue.wire_node != queue.node:
            return False
        entry = self._partitions.get(queue.topic_partition)
        if entry is None:
            return True
        if batch.has_sequence:
            # While a bump is planned, only who may be in the log asks once more, by its sequence.
            return entry.open[0] is batch and (batch.in_doubt or not entry.bump_planned)
        if entry.bump_planned:
            return False
        if entry.open and entry.last_acked == NO_SEQUENCE:
            # A broker without state for this id takes any first sequence: were a second batch on
            # its way and the first one refused, they would be stored in the wrong order.
            return False
        if entry.open and entry.open[0].core.settled:
            # Given up while on the wire: whatever follows would share its doubt (see
            # `classify_sequence_error`).
            return False
        # Counted from the oldest open one: had the broker stored it and five more, a retry of it
        # would look like a gap.
        return not entry.unresolved and len(entry.window) < MAX_OPEN_BATCHES

    def _stale(self, entry: PartitionSequences) -> bool:
        return entry.producer_id != self.producer_id or entry.epoch != self.epoch

    def assign_sequence(self, batch: ProducerBatch) -> None:
        """Number a batch at its first drain."""
        if batch.has_sequence:
            return
        key = batch.topic_partition
        entry = self._partitions.get(key)
        if entry is None:
            entry = self._partitions[key] = PartitionSequences(self.producer_id, self.epoch)
        elif not entry.open and self._stale(entry):
            entry.reset_sequences(self.producer_id, self.epoch)
        entry.number(batch)
        entry.open.append(batch)
        entry.window.append(batch)

    def classify_sequence_error(
        self, batch: ProducerBatch, code: int, log_start_offset: int
    ) -> SequenceAdvice:
        """Java `TransactionManager.canRetry` for the idempotent producer."""
        if code == Code.DUPLICATE_SEQUENCE_NUMBER:
            return SequenceAdvice.DUPLICATE
        if code == Code.INVALID_PRODUCER_EPOCH:
            self._request_epoch_bump(batch.topic_partition)  # whatever follows needs a higher one
            # A broker that knows a higher epoch does not look for copies under this one: it says
            # nothing about earlier attempts, which under a new number would be stored twice.
            return SequenceAdvice.NONE if batch.in_doubt else SequenceAdvice.RETRY
        if code not in (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.UNKNOWN_PRODUCER_ID):
            return SequenceAdvice.NONE
        entry = self._partitions[batch.topic_partition]
        if batch.divided_in_doubt:
            # The log may have the batch that it is a part of: under a new number it would be stored
            # twice.
            self._request_epoch_bump(batch.topic_partition)
            return SequenceAdvice.NONE
        batch.in_doubt = False  # the broker would have known it
        if code == Code.UNKNOWN_PRODUCER_ID:
            # At sequence 0 a second bump would change nothing.
            if log_start_offset != -1 and (batch.base_sequence or not batch.sequence_reset):
                self._request_epoch_bump(batch.topic_partition)
        elif entry.is_next(batch.base_sequence) or (entry.open and entry.open[0] is batch):
            # Nothing older is open, so what is missing before this batch will not be sent again.
            self._request_epoch_bump(batch.topic_partition)
            if entry.lost and batch.lost:
                # But it may still arrive from a connection that was given up, and the lost copy of
                # this batch right behind it: under a new number it would be stored twice. Attempts
                # that were answered leave no such copies.
                return SequenceAdvice.NONE
        return SequenceAdvice.RETRY

    def on_success(self, batch: ProducerBatch, base_offset: int) -> None:
        """Advance the acknowledged sequence."""
        entry = self._partitions[batch.topic_partition]
        entry.remove(batch)
        if batch.producer_epoch == entry.epoch and batch.producer_id == entry.producer_id:
            entry.acknowledge(increment_sequence(batch.base_sequence, batch.core.record_count - 1))
        if base_offset >= 0:
            entry.last_acked_offset = base_offset + batch.core.record_count - 1
        if entry.unresolved:
            self._resolve(batch.topic_partition, entry)

    def on_split(self, batch: ProducerBatch, parts: list[ProducerBatch]) -> None:
        """The parts share out the batch's sequences: no gap, and they leave one by one."""
        entry = self._partitions[batch.topic_partition]
        for batches in (entry.open, entry.window):
            position = batches.index(batch)
            batches[position : position + 1] = parts
        sequence = batch.base_sequence
        for part in parts:
            part.producer_id = batch.producer_id
            part.producer_epoch = batch.producer_epoch
            part.base_sequence = sequence
            sequence = increment_sequence(sequence, part.core.record_count)

    def on_failure(self, batch: ProducerBatch, *, unknown: bool) -> None:
        """A numbered batch was given up: its sequences are a gap, or nobody knows."""
        if not batch.has_sequence:
            return
        key = batch.topic_partition
        entry = self._partitions[key]
        entry.remove(batch)
        entry.lost = entry.lost or batch.lost
        if unknown:
            entry.unresolved = True
        elif not entry.open and self._may_reuse(entry, batch):
            entry.next = batch.base_sequence
        else:
            self._request_epoch_bump(key)
        self._resolve(key, entry)

    def _may_reuse(self, entry: PartitionSequences, batch: ProducerBatch) -> bool:
        """True if the batch holds the newest sequences and no broker can have seen them. A broker
        that answered an error may have appended the batch all the same: it would take the next
        batch with these sequences for a duplicate and acknowledge records that it never stored."""
        return (
            not batch.seen
            and batch.producer_epoch == entry.epoch
            and batch.producer_id == entry.producer_id
            and increment_sequence(batch.base_sequence, batch.core.record_count) == entry.next
        )

    def _resolve(self, key: TopicPartition, entry: PartitionSequences) -> None:
        """Once nothing is open: either later batches were acknowledged, or the gap is real
        (Java `maybeResolveSequences`)."""
        if not entry.unresolved or entry.open:
            return
        if entry.last_acked != NO_SEQUENCE and entry.is_next(entry.next):
            entry.unresolved = False
        else:
            self._request_epoch_bump(key)

    # -- epochs ---------------------------------------------------------------------------------

    def on_topic_forgotten(self, topic: str, partitions: int) -> None:
        """Drop the sequences of a topic that is not in use any more. Its next batch starts at 0,
        which brokers take only under a higher epoch, so the next pass bumps it."""
        for partition in range(partitions):
            key = TopicPartition(topic, partition)
            entry = self._partitions.get(key)
            if entry is None or entry.open:
                continue
            self._has_forgotten = self._has_forgotten or not self._stale(entry)
            del self._partitions[key]
            self._planned.discard(key)

    def on_topic_recreated(self, topic: str) -> None:
        """Restart the topic's partitions under a bumped epoch."""
        for key in self._partitions:
            if key.topic == topic:
                self._request_epoch_bump(key)

    def _request_epoch_bump(self, key: TopicPartition) -> None:
        self._partitions[key].bump_planned = True
        self._planned.add(key)

    def bump_epochs(self) -> None:
        """Renumber the planned partitions that may be, and bump the epoch for them, and for those
        that were forgotten, at most once. The bump is local (KIP-360): brokers take a higher epoch
        that starts at sequence 0. Partitions that need none go on under the epoch they have."""
        if not self._planned and not self._has_forgotten:
            return
        ready = [key for key in self._planned if self._partitions[key].may_restart()]
        if not (ready or self._has_forgotten) or self.producer_id == NO_PRODUCER_ID:
            return
        # A partition that was not numbered under the present epoch yet can start at 0 under it.
        if self._has_forgotten or not all(self._stale(self._partitions[key]) for key in ready):
            self._has_forgotten = False
            if self.epoch >= MAX_EPOCH:
                self.producer_id = NO_PRODUCER_ID  # epochs are used up: a new id, then bump
                self.epoch = -1
                return
            self.epoch += 1
        for key in ready:
            self._planned.discard(key)
            entry = self._partitions[key]
            logger.info(
                "%s: restarting sequences under producer id %d, epoch %d (%d batches open)",
                key, self.producer_id, self.epoch, len(entry.open),
            )  # fmt: skip
            entry.reset_sequences(self.producer_id, self.epoch)

    # -- producer id ----------------------------------------------------------------------------

    def next_request(self, now: float, pending: bool) -> StateRequest | None:
        """InitProducerId while there is no id; after a failure only if records wait for it."""
        if self.producer_id != NO_PRODUCER_ID or self._requesting or now < self._request_at:
            return None
        if self.fatal_error is not None or (self._attempts and not pending):
            return None
        self._requesting = True
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=MAX_SEQUENCE)
        return StateRequest(request, self._on_body, self._on_error)

    def next_request_at(self, now: float, pending: bool) -> float:
        """End of the backoff after a failed InitProducerId."""
        if self.producer_id != NO_PRODUCER_ID or self._requesting or self.fatal_error is not None:
            return float("inf")
        return self._request_at if pending or not self._attempts else float("inf")

    def take_failure(self) -> KafkaError | None:
        """A refused InitProducerId fails what is pending; a later send may try again."""
        error, self._failure = self._failure, None
        return error

    def _on_body(self, body: Any, now: float) -> None:
        code = error_code(body.error_code)
        if code.number == Code.NONE and body.producer_id < 0:
            self._again(now)  # neither an id nor an error
        elif code.number == Code.NONE:
            self._requesting = False
            self._attempts = 0
            self.producer_id = body.producer_id
            self.epoch = body.producer_epoch
            self._on_ready()
        elif code.retriable:
            self._again(now)
        else:
            self._again(now)
            self._failure = broker_error(
                code.number,
                "the broker refuses a producer id (idempotence needs one); grant IdempotentWrite "
                "on the cluster or Write on a topic, or set enable_idempotence=False",
            )
            self._on_ready()

    def _on_error(self, error: KafkaError, now: float) -> None:
        if error.code is not None and error.code.number == Code.UNSUPPORTED_VERSION:
            self._requesting = False
            self.fatal_error = ProducerFailed(
                "the broker does not know InitProducerId: it is older than Kafka 0.11; set "
                "enable_idempotence=False"
            )
            self.fatal_error.__cause__ = error
            self._on_ready()
        else:
            self._again(now)

    def _again(self, now: float) -> None:
        self._requesting = False
        self._attempts += 1
        self._request_at = now + self._backoff(self._attempts)
