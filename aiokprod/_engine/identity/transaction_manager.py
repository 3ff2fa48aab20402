"""`TransactionManager`: the state of a transactional producer.

It decides which calls and batches the current state allows, by the table in `transaction_states`.
All methods are synchronous. `transaction_calls` has the user calls and their deadlines;
`transaction_driver` sends the requests, one after the other, in one task. Therefore a caller that
is cancelled or times out leaves the transaction in a definite state, and the same call made again
waits for the same response.

Source: KIP-98, KIP-360, KIP-447, KIP-890; Java `TransactionManager`, `TransactionalRequestResult`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from aiokprod._engine.identity.sequences import SequenceTracker
from aiokprod._engine.identity.transaction_pacing import TransactionPacing
from aiokprod._engine.identity.transaction_progress import (
    CoordinatorView,
    OffsetsJob,
    PendingEndTxn,
    Result,
    TxnProgress,
    TxnStep,
    misuse,
    resolve,
)
from aiokprod._engine.identity.transaction_states import ENDING, MAY_SEND, TRANSITIONS, TxnState
from aiokprod._log_fields import log_fields
from aiokprod.errors import (
    AbortableTransactionError,
    AuthenticationError,
    BrokerError,
    Code,
    FatalTransactionError,
    KafkaError,
    KafkaTimeout,
    Outcome,
    RecordTooLarge,
    SerializationError,
    UnsupportedVersion,
)

if TYPE_CHECKING:
    from aiokprod._consumer_groups import GroupMetadata, Offset
    from aiokprod._engine.buffer.producer_batch import ProducerBatch
    from aiokprod._engine.identity.coordinators import Coordinators
    from aiokprod._engine.identity.producer_state import StateRequest
    from aiokprod.records import TopicPartition

logger = logging.getLogger(__name__)

SECOND_PROTOCOL: Final = 2
FORGOTTEN_PARTITIONS: Final = 1000
"""If at least this number of partitions are no longer in use, the end of a transaction bumps the
epoch, so that their sequences can be dropped."""
_LAST_EXPLICIT_PRODUCE: Final = 11
"""The last Produce version with which the producer adds partitions to the transaction. From v12 on,
the partition leader adds them (KIP-890)."""
# Errors of records that were never appended to a batch, so that the transaction does not contain
# them.
_LOST_RECORDS: Final = (
    KafkaTimeout,
    RecordTooLarge,
    SerializationError,
    BrokerError,
    AuthenticationError,
    UnsupportedVersion,
)


class EngineControl(Protocol):
    """The engine operations that the transaction manager uses."""

    def set_transaction_open(self, is_open: bool) -> None:
        """Set whether records are accepted: a transaction is open and not prepared."""

    def set_completing(self, completing: bool) -> None:
        """Set whether the transaction is ending. If so, batches do not wait for `linger_ms`."""

    def wake_sender(self) -> None:
        """Wake the sender, because a batch may be sent or must be dropped."""

    def wake_driver(self) -> None:
        """Wake the driver, because there may be a new step."""

    def has_incomplete(self) -> bool:
        """Return True if a batch has no outcome."""

    def with_records(self) -> set[TopicPartition]:
        """Return the partitions that have records without an outcome, or a batch that accepts
        records."""

    def fail_unsent(self, error: KafkaError, *, with_sequence: bool, in_doubt: bool) -> None:
        """See `Sender.fail_unsent`."""

    def transaction_version(self) -> int:
        """Return the finalized level of the cluster's transaction.version, or 0 if unknown."""


class TransactionManager:
    """The state machine, and the `AdmissionGate` of a transactional producer.

    Attributes:
        state: changed only by `_become`.
        progress: the open or last transaction.
        ending: the last requested end, until its caller has the result.
        offsets: offsets to commit with the transaction, in order.
        fatal_error: the error that every call raises in FATAL_ERROR.
        can_bump: the coordinator can bump the epoch (Kafka 2.5, KIP-360).
        init_result: the result of the InitProducerId request in the current INITIALIZING state.
        pacing: delays the first batches of a transaction.
    """

    def __init__(
        self, transactional_id: str, *, loop: asyncio.AbstractEventLoop, control: EngineControl
    ) -> None:
        self.transactional_id = transactional_id
        self.tracker = SequenceTracker()
        self.state = TxnState.UNINITIALIZED
        self.progress = TxnProgress()
        self.ending: PendingEndTxn | None = None
        self.offsets: deque[OffsetsJob] = deque()
        self.fatal_error: KafkaError | None = None
        self.can_bump = False
        self.init_result: Result = loop.create_future()
        self.pacing = TransactionPacing(loop, control.wake_sender)
        self._loop = loop
        self._control = control

    def _become(self, state: TxnState) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        logger.debug(
            "%s: %s -> %s", self.transactional_id, self.state.value, state.value,
            extra=log_fields(
                "transaction_state", transactional_id=self.transactional_id, state=state.value
            ),
        )  # fmt: skip
        self.state = state
        self._control.set_transaction_open(state is TxnState.IN_TRANSACTION)
        self._control.set_completing(state in ENDING)

    # -- admission ------------------------------------------------------------------------------

    @property
    def transaction(self) -> object | None:
        """The identity of the open or last transaction."""
        return self.progress.identity

    def check_same(self, transaction: object | None) -> None:
        """Raises if another transaction has begun since `transaction`."""
        if transaction is not None and transaction is not self.progress.identity:
            raise misuse(
                "the transaction in which the record was sent ended before the record was in a "
                "batch; it was not sent"
            )

    def check_open(self) -> None:
        """Raise an error unless records are accepted now."""
        self.check_fatal()
        if self.state is TxnState.ABORTABLE_ERROR:
            raise self.abortable_error()
        if self.state in ENDING or self.progress.prepared:
            raise misuse("the transaction is being ended and accepts nothing more")
        if self.state is not TxnState.IN_TRANSACTION:
            raise misuse(
                "this producer has a transactional_id: records are sent within a transaction, "
                "`async with producer.transaction()` or begin_transaction()"
            )

    def maybe_add_partition(self, topic_partition: TopicPartition) -> None:
        """Queue the partition of a batch that is being opened for AddPartitionsToTxn (first
        protocol), unless it was already added. Raises an error if no transaction is open."""
        self.check_open()
        self.pacing.on_batch_opened()
        progress = self.progress
        if not progress.tv2 and topic_partition not in progress.partitions:
            progress.pending_partitions[topic_partition] = None
            self._control.wake_driver()

    def on_refused(
        self, error: KafkaError, *, raised: bool = True, transaction: object | None = None
    ) -> None:
        """Set ABORTABLE_ERROR if the transaction lacks a record that failed before it was in a
        batch. `raised` is False if the error is returned in a result, which the caller may not
        check before the commit. A record of an earlier `transaction` does not count."""
        lost = not raised or isinstance(error, _LOST_RECORDS)
        own = transaction is None or transaction is self.progress.identity
        if self.state is TxnState.IN_TRANSACTION and lost and own:
            self.abort_with(error)

    def on_records_failed(self, batch: ProducerBatch, error: KafkaError) -> None:
        """Set ABORTABLE_ERROR, because the transaction lacks the failed records, or fail the
        producer if the error code is fatal."""
        if self.state not in MAY_SEND:
            return
        if error.code is not None and error.code.fatal_transactional:
            self.fail(error)
        else:
            self.abort_with(error)

    def check_fatal(self) -> None:
        """Raise the fatal error, if there is one."""
        if self.fatal_error is not None:
            raise self.fatal_error.copy()

    def abortable_error(self) -> AbortableTransactionError:
        """Return the error that calls raise in ABORTABLE_ERROR."""
        error = self.progress.error
        assert error is not None, "an abortable error has its reason"
        return error.copy()

    # -- batches --------------------------------------------------------------------------------

    def may_send(self, topic_partition: TopicPartition) -> bool:
        """Return True if a batch of this partition may be sent for the first time now."""
        if self.state not in MAY_SEND or self.pacing.awaits_markers:
            return False
        if self.progress.tv2:
            return self.pacing.may_send(topic_partition)
        return topic_partition in self.progress.partitions

    def on_first_attempt(self, batch: ProducerBatch) -> None:
        """Record the partition of a batch that is about to be sent for the first time, and that the
        transaction has started."""
        self.progress.touched.add(batch.topic_partition)
        # In the second protocol, the broker may start the transaction for this batch even if the
        # batch then fails.
        self.progress.note(CoordinatorView.STARTED)
        if self.progress.tv2:
            self.pacing.on_sent(batch)

    def on_acknowledged(self, batch: ProducerBatch) -> None:
        """Record that the coordinator has the transaction, because one of its batches was
        acknowledged."""
        self.pacing.on_acknowledged(batch)
        self.progress.note(CoordinatorView.CONFIRMED)

    def on_sender_pass(self) -> None:
        """Drop batches that must not be sent any more, and wake the driver to end the transaction
        once all batches have their outcome."""
        error, self.progress.discard = self.progress.discard, None
        if error is not None:
            # Under the second protocol, the abort fences all batches that may still be in flight.
            # Under the first one, a sequence gap requires a new epoch, which brokers before 2.5
            # cannot assign. Therefore, as in Java, batches with a sequence are sent unless a new
            # epoch is needed anyway.
            tv2 = self.progress.tv2
            with_sequence = tv2 or self.progress.needs_bump
            self._control.fail_unsent(error, with_sequence=with_sequence, in_doubt=tv2)
        if self.state in ENDING and self.settled():
            self._control.wake_driver()

    def settled(self) -> bool:
        """Return True if every batch has its outcome, and none is in flight."""
        if self.progress.discard is not None or self._control.has_incomplete():
            return False
        return not self.tracker.any_open(self.progress.touched)

    # -- user calls -----------------------------------------------------------------------------

    def initialise(self) -> None:
        """Request a producer id. The coordinator then aborts the open transaction of an earlier
        instance with this transactional id, and fences that instance."""
        self.init_result = self._loop.create_future()
        self._become(TxnState.INITIALIZING)
        self._control.wake_driver()

    def begin(self) -> None:
        """Begin a transaction. This sends no request."""
        self.ending = None
        tv2 = self._control.transaction_version() >= SECOND_PROTOCOL
        self.progress = TxnProgress(tv2)
        self.pacing.on_begin(tv2=tv2)
        self._become(TxnState.IN_TRANSACTION)
        if self.pacing.awaits_markers:
            self._control.wake_driver()

    def start_end(self, *, commit: bool) -> PendingEndTxn:
        """Request the commit or abort of the open transaction."""
        if self.state is TxnState.ABORTABLE_ERROR and commit:
            raise self.abortable_error()
        if self.state not in (TxnState.IN_TRANSACTION, TxnState.ABORTABLE_ERROR):
            raise misuse("no transaction is open: call begin_transaction() first")
        self.ending = PendingEndTxn(commit, self._loop.create_future())
        self._become(TxnState.COMMITTING if commit else TxnState.ABORTING)
        if not commit:
            aborted = misuse("the transaction was aborted before the record was sent")
            self.progress.pending_partitions.clear()
            self.progress.discard = aborted
            self._fail_offsets(aborted)
        self._control.wake_sender()
        self._control.wake_driver()
        return self.ending

    def add_offsets(self, offsets: dict[TopicPartition, Offset], group: GroupMetadata) -> Result:
        """Request that a consumer group's offsets are committed with the transaction (KIP-447)."""
        self.check_open()
        job = OffsetsJob(offsets, group, self._loop.create_future())
        self.offsets.append(job)
        self._control.wake_driver()
        return job.done

    def prepare(self) -> None:
        """Prepare the open transaction so that another process can end it; no more records are
        accepted."""
        self.check_open()
        if self.offsets or not self.settled():
            raise misuse("records or offsets of the transaction have no outcome yet: flush first")
        self.progress.prepared = True
        self._control.set_transaction_open(False)

    # -- called by the driver -------------------------------------------------------------------

    def next_step(self) -> TxnStep | None:
        """Return the next step of the driver, or None if there is none."""
        if self.state is TxnState.INITIALIZING:
            return TxnStep.INIT
        if self.state in MAY_SEND and self.pacing.awaits_markers:
            return TxnStep.MARKERS
        if self.state in MAY_SEND and self.progress.pending_partitions:
            self.drop_unused_partitions()
            if self.progress.pending_partitions:
                return TxnStep.ADD
        if self.state in MAY_SEND and self.offsets:
            return TxnStep.OFFSETS
        return TxnStep.END if self.state in ENDING and self.settled() else None

    def drop_unused_partitions(self) -> bool:
        """Drop the pending partitions whose records were all withdrawn, because their topic may no
        longer exist, and the transaction would wait for it forever. Return True if there were
        any."""
        pending, used = self.progress.pending_partitions, self._control.with_records()
        unused = [partition for partition in pending if partition not in used]
        for partition in unused:
            del pending[partition]
        return bool(unused)

    def wants(self, step: TxnStep) -> bool:
        """Return True while a step that was begun is still wanted."""
        if step is TxnStep.INIT:
            return self.state is TxnState.INITIALIZING
        return self.state in (ENDING if step is TxnStep.END else MAY_SEND)

    def initialised(self, producer_id: int, epoch: int) -> None:
        """Record the id and epoch that the coordinator assigned."""
        self.tracker.set_producer_id(producer_id, epoch)
        self._become(TxnState.READY)
        resolve(self.init_result, None)

    def init_refused(self, error: KafkaError) -> None:
        """Record that InitProducerId was refused; a later call sends it again."""
        self._become(TxnState.UNINITIALIZED)
        resolve(self.init_result, error)

    def added(self, partitions: list[TopicPartition]) -> None:
        """Record the partitions that the coordinator has added."""
        progress = self.progress
        for partition in partitions:
            progress.pending_partitions.pop(partition, None)
            progress.partitions.add(partition)
        if partitions:
            progress.note(CoordinatorView.STARTED)
        self._control.wake_sender()

    def offsets_accepted(self, job: OffsetsJob) -> None:
        """Record that the group coordinator accepted the offsets."""
        self.progress.note(CoordinatorView.CONFIRMED)
        if self.offsets and self.offsets[0] is job:
            self.offsets.popleft()
        resolve(job.done, None)

    def ended(self, producer_id: int = -1, epoch: int = -1) -> None:
        """End the transaction. `producer_id` and `epoch` are for the next transaction, or -1 if the
        response had none."""
        ending, progress = self.ending, self.progress
        assert ending is not None, "only an ending ends"
        if producer_id >= 0:
            self.tracker.set_producer_id(producer_id, epoch)
            bump = progress.unmapped
        else:
            bump = progress.unmapped or self._needs_new_epoch(ending)
        self.pacing.on_end()
        if bump:
            self.initialise()
        else:
            self._become(TxnState.READY)
        resolve(ending.done, None)
        self._control.wake_sender()

    def _needs_new_epoch(self, ending: PendingEndTxn) -> bool:
        """Return True if the next transaction needs a newer epoch: a copy of EndTxn, of a batch, or
        of a request that starts a transaction may still arrive and must be fenced, or the sequences
        of too many unused partitions are kept."""
        progress = self.progress
        # Bump the epoch from time to time. Without that, the first protocol would have to keep the
        # sequences of every topic that was ever used.
        many = self.can_bump and len(self.tracker.retired) >= FORGOTTEN_PARTITIONS
        stray = ending.lost or progress.needs_bump or many
        return progress.possibly_started or (progress.started and stray)

    # -- errors ---------------------------------------------------------------------------------

    def abort_with(self, error: KafkaError) -> None:
        """Set ABORTABLE_ERROR: the transaction can only be aborted."""
        if self.state not in (*MAY_SEND, TxnState.ABORTING):
            return
        reason = AbortableTransactionError(
            "the transaction cannot be committed, abort it (the producer stays usable): "
            f"{error.message}",
            code=error.code,
            outcome=Outcome.REJECTED,
        )
        reason.__cause__ = error
        progress = self.progress
        progress.error = progress.discard = reason
        progress.needs_bump = True
        if error.code is not None and error.code.number == Code.INVALID_PRODUCER_ID_MAPPING:
            progress.unmapped = True
        self._become(TxnState.ABORTABLE_ERROR)
        if self.ending is not None:
            resolve(self.ending.done, reason)
        self._fail_offsets(reason)
        self._control.wake_sender()

    def fail(self, error: KafkaError, *, answered: bool = False) -> None:
        """Set FATAL_ERROR: no more requests are sent. The first error is kept.

        Args:
            answered: the coordinator gave a definite response, and the outcome of `error` is the
                outcome of the transaction. Otherwise an EndTxn that was sent may have been carried
                out.
        """
        if self.fatal_error is not None:
            return
        fatal = error
        if not isinstance(error, FatalTransactionError):
            fatal = FatalTransactionError(
                "the transactional producer cannot continue, close it and create a new one: "
                f"{error.message}",
                code=error.code,
                outcome=error.outcome,
            )
            fatal.__cause__ = error
        self._become(TxnState.FATAL_ERROR)
        # Later calls send nothing, so their outcome is NOT_SENT, even if the outcome of the
        # transaction is unknown.
        self.fatal_error = fatal.copy().with_(outcome=Outcome.NOT_SENT)
        self._resolve_all(fatal, answered=answered)
        self._control.wake_sender()

    def close(self, error: KafkaError) -> None:
        """End all waits with `error`, because the driver has stopped."""
        self.pacing.reset()
        self._resolve_all(error)

    def _resolve_all(self, error: KafkaError, *, answered: bool = False) -> None:
        resolve(self.init_result, error)
        ending = self.ending
        if ending is not None:
            unknown = ending.sent and not answered
            answer = error.copy().with_(outcome=Outcome.UNKNOWN) if unknown else error
            resolve(ending.done, answer)
        self._fail_offsets(error)

    def _fail_offsets(self, error: KafkaError) -> None:
        while self.offsets:
            resolve(self.offsets.popleft().done, error)


class TransactionalIdentity:
    """The `IdentitySource` of a transactional producer: the driver requests the producer id.

    `pending_failure` is always None: the call that waits for InitProducerId raises its error.
    """

    pending_failure: KafkaError | None = None

    def __init__(self, manager: TransactionManager, coordinators: Coordinators) -> None:
        self._manager = manager
        self._coordinators = coordinators

    @property
    def fatal_error(self) -> KafkaError | None:
        """The fatal error of the transaction manager, or None if there is none."""
        return self._manager.fatal_error

    @property
    def transactional_id(self) -> str:
        """The id in every request of the transaction."""
        return self._manager.transactional_id

    @property
    def max_produce_version(self) -> int | None:
        """The highest Produce version that the protocol of the open transaction allows."""
        return None if self._manager.progress.tv2 else _LAST_EXPLICIT_PRODUCE

    @property
    def reserved_node(self) -> int | None:
        """The broker for which a coordinator request waits, or None."""
        return self._coordinators.waiting_for

    def on_fatal(self, error: KafkaError) -> None:
        """See `TransactionManager.fail`."""
        self._manager.fail(error)

    def next_request(self, now: float, pending: bool) -> StateRequest | None:
        """Returns None: the driver requests the producer id from the coordinator."""
        return None

    def next_request_at(self, now: float, pending: bool) -> float:
        """Returns inf: there is never a request."""
        return math.inf

    def close(self, error: KafkaError) -> None:
        """See `TransactionManager.close`."""
        self._manager.close(error)
