"""Who the producer is to the brokers: nobody, an idempotent producer, later a transaction.

One protocol, one implementation per kind, chosen once in `Producer`; the engine never asks which.
The idempotent one is in `idempotence`, the transactional one in `transactions`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from aiokprod._engine.identity.sequence_errors import NO_ACTION, SequenceAction
from aiokprod.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiokprod._engine.buffer.producer_batch import ProducerBatch
    from aiokprod._engine.buffer.queues import PartitionQueue
    from aiokprod.records import TopicPartition

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class StateRequest:
    """A request the producer state wants sent to any broker."""

    request: Any
    on_body: Callable[[Any, float], None]
    on_error: Callable[[KafkaError, float], None]


class ProducerState(Protocol):
    """The hooks of the engine; see design notes "Idempotence and transactions"."""

    @property
    def fatal_error(self) -> KafkaError | None:
        """Set once nothing can be sent any more."""

    def admit(self, topic_partition: TopicPartition) -> None:
        """A batch is opened; raises if records are not accepted now."""

    def may_drain(self, queue: PartitionQueue, batch: ProducerBatch) -> bool:
        """May the head batch of a queue be sent now?"""

    def assign_sequence(self, batch: ProducerBatch) -> None:
        """Give id, epoch and sequence to a batch that is about to be sent, unless it has them."""

    def classify(self, batch: ProducerBatch, code: int, log_start_offset: int) -> SequenceAction:
        """What an error code says about the sequence of a batch; changes nothing."""

    def apply(self, batch: ProducerBatch, action: SequenceAction) -> None:
        """Carry out what `classify` found."""

    def on_success(self, batch: ProducerBatch, base_offset: int) -> None:
        """The batch is in the log."""

    def on_split(self, batch: ProducerBatch, parts: list[ProducerBatch]) -> None:
        """The batch was refused as too large and is replaced by `parts`."""

    def on_failure(self, batch: ProducerBatch, *, unknown: bool) -> None:
        """The batch is given up; `unknown`: it may be in the log."""

    def on_topic_forgotten(self, topic: str, partitions: int) -> None:
        """The topic is not in use any more, and nothing of it is queued or on the wire."""

    def on_topic_recreated(self, topic: str) -> None:
        """The topic has a new id: its log knows nothing of our sequences."""

    def next_request(self, now: float, pending: bool) -> StateRequest | None:
        """A request to send now, before any produce request. `pending`: records wait for it."""

    def next_request_at(self, now: float, pending: bool) -> float:
        """When `next_request` may have one by time alone."""

    def bump_epochs(self) -> None:
        """Carry out planned epoch bumps whose partitions have nothing on the wire."""

    def on_fatal(self, error: KafkaError) -> None:
        """Nothing can be sent any more; `error` is what every later call raises."""

    def take_failure(self) -> KafkaError | None:
        """An error that fails all pending batches without ending the producer, once."""

    @property
    def transactional_id(self) -> str | None:
        """Named in Produce requests; None without transactions."""

    @property
    def max_produce_version(self) -> int | None:
        """Cap of the Produce version; None: the newest."""

    @property
    def reserved_node(self) -> int | None:
        """A broker whose next free place in flight belongs to a request of the state."""

    def check_open(self) -> None:
        """Raises if records are not accepted now, also into a batch that is open already."""

    def on_records_failed(self, batch: ProducerBatch, error: KafkaError) -> None:
        """The records of a batch failed with `error`, whatever becomes of its sequence."""

    def on_refused(self, error: KafkaError, *, raised: bool = True) -> None:
        """A record was refused before it got into a batch; `raised` is False if the caller's code
        goes on unless it looks at a result."""

    def close(self, error: KafkaError) -> None:
        """The producer is closed or failed: nobody may wait for the state any more."""


class BaseProducerState:
    """What producers without transactions have in common: a fatal error stays, and the hooks that
    concern transactions do nothing."""

    def __init__(self) -> None:
        self.fatal_error: KafkaError | None = None

    def admit(self, topic_partition: TopicPartition) -> None:
        """Raises the fatal error, if there is one."""
        if self.fatal_error is not None:
            raise self.fatal_error.copy()

    def on_fatal(self, error: KafkaError) -> None:
        """The first one stands."""
        self.fatal_error = self.fatal_error or error

    @property
    def transactional_id(self) -> str | None:
        """None."""
        return None

    @property
    def max_produce_version(self) -> int | None:
        """No cap."""
        return None

    @property
    def reserved_node(self) -> int | None:
        """None."""
        return None

    def check_open(self) -> None:
        """Always open."""

    def on_records_failed(self, batch: ProducerBatch, error: KafkaError) -> None:
        """The records' own business."""

    def on_refused(self, error: KafkaError, *, raised: bool = True) -> None:
        """The record's own business."""

    def close(self, error: KafkaError) -> None:
        """Nobody waits."""


class NonIdempotent(BaseProducerState):
    """No producer id: retries may duplicate, and reorder with several requests in flight."""

    def __init__(self, *, guarantee_order: bool) -> None:
        super().__init__()
        self._guarantee_order = guarantee_order

    def may_drain(self, queue: PartitionQueue, batch: ProducerBatch) -> bool:
        """One batch per partition on the wire, if only that keeps order (Java: mute)."""
        return not (self._guarantee_order and queue.in_flight)

    def on_fatal(self, error: KafkaError) -> None:
        """Nothing: what ends a producer id fails only the batch of a producer without one (Java
        `TransactionManager.handleFailedBatch`)."""

    def assign_sequence(self, batch: ProducerBatch) -> None:
        """Nothing to give."""

    def classify(self, batch: ProducerBatch, code: int, log_start_offset: int) -> SequenceAction:
        """Nothing known."""
        return NO_ACTION

    def apply(self, batch: ProducerBatch, action: SequenceAction) -> None:
        """Nothing kept."""

    def on_success(self, batch: ProducerBatch, base_offset: int) -> None:
        """Nothing kept."""

    def on_split(self, batch: ProducerBatch, parts: list[ProducerBatch]) -> None:
        """Nothing kept."""

    def on_failure(self, batch: ProducerBatch, *, unknown: bool) -> None:
        """Nothing kept."""

    def on_topic_forgotten(self, topic: str, partitions: int) -> None:
        """Nothing kept."""

    def on_topic_recreated(self, topic: str) -> None:
        """Nothing kept."""

    def next_request(self, now: float, pending: bool) -> StateRequest | None:
        """Never."""
        return None

    def next_request_at(self, now: float, pending: bool) -> float:
        """Never."""
        return float("inf")

    def bump_epochs(self) -> None:
        """Never any."""

    def take_failure(self) -> KafkaError | None:
        """Never any."""
        return None
