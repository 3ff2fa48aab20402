"""Idempotence: a producer id, and a sequence number for every batch, given out once and changed
only here.

Source: KIP-98, KIP-360; Java `TransactionManager` (its non-transactional half),
`TxnPartitionMap`, `DefaultRecordBatch.incrementSequence`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from aiokprod._engine.identity.producer_state import BaseProducerState, StateRequest
from aiokprod._engine.identity.sequence_errors import SequenceAction, classify_idempotent
from aiokprod._engine.identity.sequences import PartitionSequences
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
            # `classify_idempotent`).
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

    def classify(self, batch: ProducerBatch, code: int, log_start_offset: int) -> SequenceAction:
        """What an error code says about the sequence of a batch; changes nothing."""
        return classify_idempotent(
            batch, code, log_start_offset, self._partitions[batch.topic_partition]
        )

    def apply(self, batch: ProducerBatch, action: SequenceAction) -> None:
        """Carry out what `classify` found."""
        if action.clear_doubt:
            batch.in_doubt = False
        if action.bump_epoch:
            self._request_epoch_bump(batch.topic_partition)
        if action.reset_sequences:
            entry = self._partitions[batch.topic_partition]
            entry.reset_sequences(self.producer_id, self.epoch)

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
