"""Producer identity (none, idempotent, transactional) and the hooks that the engine calls.

The hooks are three protocols. `ProducerState` has one implementation of each, chosen when the
producer starts, so that the engine does not distinguish the kinds.

| kind | sequences | gate | source |
|---|---|---|---|
| none | `NoSequences` | `FatalErrorGate` | `NoProducerId` |
| idempotent | `IdempotentSequences` | `FatalErrorGate` | `ProducerIdRequests` |
| transactional | `TransactionalSequences` | `TransactionManager` | `TransactionalIdentity` |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from aiokprod._engine.identity.sequence_errors import NO_ACTION, SequenceAction

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiokprod._engine.buffer.producer_batch import ProducerBatch
    from aiokprod._engine.buffer.queues import PartitionQueue
    from aiokprod.errors import KafkaError
    from aiokprod.records import TopicPartition


@dataclass(slots=True)
class StateRequest:
    """A request of the identity source, which may be sent to any broker."""

    request: Any
    on_body: Callable[[Any, float], None]
    on_error: Callable[[KafkaError, float], None]


class SequencePolicy(Protocol):
    """Decides which batches may be sent, and assigns their sequence numbers."""

    def may_drain(self, queue: PartitionQueue, batch: ProducerBatch) -> bool:
        """Return True if the first batch of a queue may be sent now."""

    def assign_sequence(self, batch: ProducerBatch) -> None:
        """Assign the producer id, epoch and sequence to a batch that is about to be sent, unless it
        already has them."""

    def classify(self, batch: ProducerBatch, code: int, log_start_offset: int) -> SequenceAction:
        """Return the action that an error code requires for the sequence of a batch. Has no side
        effects."""

    def apply(self, batch: ProducerBatch, action: SequenceAction) -> None:
        """Carry out the action that `classify` returned."""

    def on_success(self, batch: ProducerBatch, base_offset: int) -> None:
        """Release the sequence of a batch that is in the log, at `base_offset` (-1 if unknown)."""

    def on_duplicate(self, batch: ProducerBatch, base_offset: int, log_start_offset: int) -> None:
        """Update the state of older batches, because this batch was certainly in the log before its
        last attempt. `on_success` is called next.

        Args:
            log_start_offset: from the response, or -1 if it has none.
        """

    def on_split(self, batch: ProducerBatch, parts: list[ProducerBatch]) -> None:
        """Assign the sequences of a batch that was rejected as too large to its `parts`."""

    def on_failure(self, batch: ProducerBatch, *, unknown: bool) -> None:
        """Release the sequence of a batch that is given up and not in flight. `unknown` means that
        the batch may be in the log."""

    def bump_epochs(self) -> None:
        """Bump the epoch if necessary. Called at the beginning of each sender pass."""

    def on_topic_forgotten(self, topic: str, partitions: int) -> None:
        """Drop the sequences of a topic that is no longer in use and has no batch queued or in
        flight."""

    def on_topic_recreated(self, topic: str) -> None:
        """Restart the sequences of a topic that has a new id, because its new log contains none of
        them."""

    def on_cluster_changed(self) -> bool:
        """Adapt the state after the cluster id has changed. Return True if batches that have a
        sequence and may be in the log must be given up."""


class AdmissionGate(Protocol):
    """Decides whether records are accepted, and how their failures affect the transaction."""

    @property
    def transaction(self) -> object | None:
        """Identifies the open or last transaction; None without transactions."""

    def check_open(self) -> None:
        """Raise an error if no records are accepted now, not even into an open batch."""

    def check_same(self, transaction: object | None) -> None:
        """Raises if another transaction has begun since `transaction`, in which a record was sent:
        the record must not become part of it. None stands for any transaction."""

    def maybe_add_partition(self, topic_partition: TopicPartition) -> None:
        """Add the partition of a batch that is being opened to the transaction, if there is one.

        Raises an error if records are not accepted now. Source: Java
        `TransactionManager.maybeAddPartition`.
        """

    def on_refused(
        self, error: KafkaError, *, raised: bool = True, transaction: object | None = None
    ) -> None:
        """Decide whether the transaction must be aborted because a record failed before it was in a
        batch.

        Args:
            raised: False if the error is not raised but returned in a result.
            transaction: the transaction in which the record was sent; None for the open one.
        """

    def on_records_failed(self, batch: ProducerBatch, error: KafkaError) -> None:
        """Decide how the failure of a batch's records with `error` affects the transaction. The
        sequence of the batch is released separately."""


class IdentitySource(Protocol):
    """Obtains the producer id, and provides the errors and the limits of requests that depend on
    it."""

    pending_failure: KafkaError | None
    """An error that fails all pending batches without ending the producer. The sender sets it to
    None."""

    @property
    def fatal_error(self) -> KafkaError | None:
        """The error that ended the producer; None while it works."""

    def on_fatal(self, error: KafkaError) -> None:
        """Make every later call raise `error`, because the sender can send nothing any more."""

    def next_request(self, now: float, pending: bool) -> StateRequest | None:
        """Return a request to send now, before any Produce request, or None. `pending` means that
        records wait for it."""

    def next_request_at(self, now: float, pending: bool) -> float:
        """Return the loop time at which `next_request` returns a request, or inf if an event must
        occur first."""

    @property
    def transactional_id(self) -> str | None:
        """The id in Produce requests; None without transactions."""

    @property
    def max_produce_version(self) -> int | None:
        """Highest Produce version to use, or None for no limit."""

    @property
    def reserved_node(self) -> int | None:
        """A broker whose next free in-flight slot is reserved for a coordinator request, or
        None."""

    def close(self, error: KafkaError) -> None:
        """End every wait for the producer id with `error`, because the producer was closed or has
        failed."""


@dataclass(frozen=True, slots=True)
class ProducerState:
    """The parts of one producer; see the table in the module docstring."""

    sequences: SequencePolicy
    gate: AdmissionGate
    source: IdentitySource


class FatalErrorGate:
    """The gate of a producer without transactions: records are accepted until there is a fatal
    error."""

    transaction: object | None = None

    def __init__(self, source: IdentitySource) -> None:
        self._source = source

    def check_open(self) -> None:
        """Does nothing: `maybe_add_partition` raises the fatal error when the next batch is
        opened."""

    def check_same(self, transaction: object | None) -> None:
        """Does nothing: there are no transactions."""

    def maybe_add_partition(self, topic_partition: TopicPartition) -> None:
        """Raises the fatal error, if there is one."""
        error = self._source.fatal_error
        if error is not None:
            raise error.copy()

    def on_refused(
        self, error: KafkaError, *, raised: bool = True, transaction: object | None = None
    ) -> None:
        """Does nothing: the error concerns that record only."""

    def on_records_failed(self, batch: ProducerBatch, error: KafkaError) -> None:
        """Does nothing: the error concerns those records only."""


def non_idempotent_state(*, guarantee_order: bool) -> ProducerState:
    """Create the parts of a producer without a producer id. Retries may duplicate records.

    Args:
        guarantee_order: allow only one batch per partition in flight. Otherwise retries may reorder
            batches.
    """
    source = NoProducerId()
    return ProducerState(NoSequences(guarantee_order), FatalErrorGate(source), source)


class NoSequences:
    """The `SequencePolicy` of a producer without a producer id: batches have no sequences."""

    def __init__(self, guarantee_order: bool) -> None:
        self._guarantee_order = guarantee_order

    def may_drain(self, queue: PartitionQueue, batch: ProducerBatch) -> bool:
        """Return True unless `guarantee_order` is set and a batch of the partition is in flight
        (Java: muted partitions)."""
        return not (self._guarantee_order and queue.in_flight)

    def classify(self, batch: ProducerBatch, code: int, log_start_offset: int) -> SequenceAction:
        """Returns no action: the error code alone decides."""
        return NO_ACTION

    def assign_sequence(self, batch: ProducerBatch) -> None: ...
    def apply(self, batch: ProducerBatch, action: SequenceAction) -> None: ...
    def on_success(self, batch: ProducerBatch, base_offset: int) -> None: ...
    def on_duplicate(
        self, batch: ProducerBatch, base_offset: int, log_start_offset: int
    ) -> None: ...
    def on_split(self, batch: ProducerBatch, parts: list[ProducerBatch]) -> None: ...
    def on_failure(self, batch: ProducerBatch, *, unknown: bool) -> None: ...
    def bump_epochs(self) -> None: ...
    def on_topic_forgotten(self, topic: str, partitions: int) -> None: ...
    def on_topic_recreated(self, topic: str) -> None: ...

    def on_cluster_changed(self) -> bool:
        """Does nothing: there is no producer id."""
        return False


class NoProducerId:
    """The `IdentitySource` of a producer without a producer id: it sends no requests."""

    fatal_error: KafkaError | None = None
    pending_failure: KafkaError | None = None
    transactional_id: str | None = None
    max_produce_version: int | None = None
    reserved_node: int | None = None

    def on_fatal(self, error: KafkaError) -> None:
        """Does nothing. An error that would end an idempotent producer fails only its batch here.
        Source: Java `TransactionManager.handleFailedBatch`."""

    def next_request(self, now: float, pending: bool) -> StateRequest | None:
        """Returns None: there is never a request."""
        return None

    def next_request_at(self, now: float, pending: bool) -> float:
        """Returns inf: there is never a request."""
        return math.inf

    def close(self, error: KafkaError) -> None: ...
