"""The engine's side of a transactional producer: what may be appended and sent, and what a failed
record does to the transaction.

`transactions.TransactionManager` adds the calls of users and what the driver finds.

Source: KIP-98, KIP-890; Java `TransactionManager`.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aiokprod._engine.identity.idempotence import Idempotent
from aiokprod._engine.identity.producer_state import StateRequest
from aiokprod._engine.identity.sequence_errors import SequenceAction, classify_transactional
from aiokprod._engine.identity.transaction_states import TRANSITIONS, TxnState
from aiokprod._engine.identity.txn_marker_wait import TxnMarkerWait
from aiokprod._engine.identity.txn_partition_gate import TxnPartitionGate
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
    TransactionError,
    UnsupportedVersion,
)
from aiokprod.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiokprod._consumer_groups import GroupMetadata, Offset
    from aiokprod._engine.buffer.producer_batch import ProducerBatch
    from aiokprod._engine.buffer.queues import PartitionQueue
    from aiokprod._engine.identity.coordinators import VersionedRequest

logger = logging.getLogger(__name__)

_LAST_EXPLICIT_PRODUCE: Final = 11
"""Produce v12 and later add partitions to the transaction on their own (KIP-890)."""

OPEN: Final = frozenset({TxnState.IN_TRANSACTION, TxnState.COMMITTING})
ENDING: Final = frozenset({TxnState.COMMITTING, TxnState.ABORTING})
# Refusals of a record that never got into a batch: the transaction lacks it.
_LOST_RECORDS: Final = (
    KafkaTimeout,
    RecordTooLarge,
    SerializationError,
    BrokerError,
    AuthenticationError,
    UnsupportedVersion,
)

Result = asyncio.Future["KafkaError | None"]


class TxnStep(enum.Enum):
    """What the driver has to do next."""

    INIT = "init"
    MARKERS = "wait for markers"
    ADD = "add partitions"
    OFFSETS = "commit offsets"
    END = "end"


@dataclass(slots=True)
class OffsetsJob:
    """Offsets of a consumer group to commit with the transaction."""

    offsets: dict[TopicPartition, Offset]
    group: GroupMetadata
    done: Result


@dataclass(slots=True)
class PendingEndTxn:
    """The end of a transaction, asked for once and waited for as often as needed.

    `request`: the EndTxn, once it is due. `lost`: one was sent whose answer did not come; a copy
    of it may still arrive.
    """

    commit: bool
    done: Result
    request: VersionedRequest | None = None
    lost: bool = False

    @property
    def sent(self) -> bool:
        """An EndTxn was handed to a connection."""
        return self.request is not None and self.request.sent

    @property
    def name(self) -> str:
        """The call to repeat."""
        return "commit_transaction()" if self.commit else "abort_transaction()"


class TransactionCore(Idempotent):
    """`version()` is the finalised level of transaction.version, `on_gate(open,
    ending)` tells whether records are taken and whether linger is void, `on_work` wakes the
    driver, `incomplete()` says whether batches without outcome exist, `drop(error, stamped,
    doubtful)` is `Sender.fail_unsent`.

    Attributes:
        state: changed by `_become` only.
        error: why the transaction can only be aborted.
        tv2: the open or last transaction follows the second protocol (KIP-890).
        pending_partitions: partitions to announce to the coordinator (first protocol only).
        members: partitions the coordinator knows.
        started: the coordinator may have something to end.
        uncertain: a request that starts a transaction was sent and not answered.
        prepared: the open transaction is complete, and ended by somebody else.
        unmapped: the coordinator does not know this producer id any more.
        confirmed: the coordinator has begun the open transaction.
        can_bump: the coordinator can bump the epoch (Kafka 2.5, KIP-360).
        awaits_markers: nothing is sent before those of the transaction before are written.
    """

    def __init__(
        self,
        transactional_id: str,
        *,
        loop: asyncio.AbstractEventLoop,
        backoff: Callable[[int], float],
        on_ready: Callable[[], None],
        on_gate: Callable[[bool, bool], None],
        on_work: Callable[[], None],
        version: Callable[[], int],
        incomplete: Callable[[], bool],
        drop: Callable[[KafkaError, bool, bool], None],
        reserved: Callable[[], int | None] = lambda: None,
    ) -> None:
        super().__init__(backoff, on_ready)
        self._transactional_id = transactional_id
        self.state = TxnState.UNINITIALIZED
        self.error: AbortableTransactionError | None = None
        self.tv2 = False
        self.can_bump = False
        self.pending_partitions: dict[TopicPartition, None] = {}
        self.partitions_in_txn: set[TopicPartition] = set()
        self.offsets: deque[OffsetsJob] = deque()
        self.started = False
        self.uncertain = False
        self.unmapped = False
        self.prepared = False
        self.confirmed = False
        self.awaits_markers = False
        self._marker_wait = TxnMarkerWait()
        self._partition_gate = TxnPartitionGate(loop, on_ready)
        self._loop = loop
        self._on_gate = on_gate
        self._on_work = on_work
        self._version = version
        self._incomplete = incomplete
        self._drop = drop
        self._reserved = reserved
        self._touched: set[TopicPartition] = set()
        self._forgotten: set[TopicPartition] = set()  # of topics no longer in use
        self._needs_bump = False
        self._discard: KafkaError | None = None
        self._init: Result = loop.create_future()
        self._refusal: Result = loop.create_future()
        self.ending: PendingEndTxn | None = None

    @property
    def transactional_id(self) -> str:
        """Named in every request of the transaction."""
        return self._transactional_id

    @property
    def reserved_node(self) -> int | None:
        """The coordinator, while a request for it waits."""
        return self._reserved()

    @property
    def max_produce_version(self) -> int | None:
        """Cap of the Produce version."""
        return None if self.tv2 else _LAST_EXPLICIT_PRODUCE

    def _become(self, state: TxnState) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        logger.debug("%s: %s -> %s", self.transactional_id, self.state.value, state.value)
        self.state = state
        self._on_gate(state is TxnState.IN_TRANSACTION, state in ENDING)

    # -- hooks of the engine --------------------------------------------------------------------

    def check_open(self) -> None:
        """Raises unless records are taken now."""
        self._check_fatal()
        if self.state is TxnState.ABORTABLE_ERROR:
            raise self._abort_first()
        if self.state in ENDING or self.prepared:
            raise misuse("the transaction is being ended and takes nothing more")
        if self.state is not TxnState.IN_TRANSACTION:
            raise misuse(
                "this producer has a transactional_id: records are sent within a transaction, "
                "`async with producer.transaction()` or begin_transaction()"
            )

    def admit(self, topic_partition: TopicPartition) -> None:
        """A batch is opened; note a partition the coordinator does not know."""
        self.check_open()
        self._marker_wait.on_batch_opened(self._loop.time())
        if not self.tv2 and topic_partition not in self.partitions_in_txn:
            self.pending_partitions[topic_partition] = None
            self._on_work()

    def may_drain(self, queue: PartitionQueue, batch: ProducerBatch) -> bool:
        """As idempotent, and only within the transaction, to partitions that belong to it."""
        if not batch.has_sequence:
            if self.state not in OPEN:
                return False
            if self.awaits_markers:
                return False
            key = queue.topic_partition
            if not (
                self._partition_gate.may_send(key) if self.tv2 else key in self.partitions_in_txn
            ):
                return False
        return super().may_drain(queue, batch)

    def assign_sequence(self, batch: ProducerBatch) -> None:
        """Number a batch, as part of the transaction."""
        if not batch.has_sequence:
            batch.transactional = True
            self._touched.add(batch.topic_partition)
            # Second protocol: the broker may open the transaction for it, even if it then fails.
            self.started = True
            if self.tv2:
                self._partition_gate.sent(batch)
        super().assign_sequence(batch)

    def on_success(self, batch: ProducerBatch, base_offset: int) -> None:
        """As idempotent."""
        self._marker_wait.on_batch_acknowledged(self._loop.time())
        self._partition_gate.acknowledged(batch)
        self.confirmed = True
        super().on_success(batch, base_offset)

    def on_split(self, batch: ProducerBatch, parts: list[ProducerBatch]) -> None:
        """The parts belong to the transaction too."""
        super().on_split(batch, parts)
        for part in parts:
            part.transactional = True

    def classify(self, batch: ProducerBatch, code: int, log_start_offset: int) -> SequenceAction:
        """No bump within a transaction; a real gap aborts it."""
        entry = self._partitions[batch.topic_partition]
        is_open = self.state in OPEN
        return classify_transactional(batch, code, log_start_offset, entry, is_open=is_open)

    def on_failure(self, batch: ProducerBatch, *, unknown: bool) -> None:
        """The gap ends with the transaction: its abort makes a new epoch, also if it was asked for
        before. A copy of the batch that is still under way finds that epoch."""
        if batch.has_sequence:
            self._partitions[batch.topic_partition].remove(batch)
            self._needs_bump = True

    def on_records_failed(self, batch: ProducerBatch, error: KafkaError) -> None:
        """A transaction that lacks records is never committed."""
        if self.state not in OPEN:
            return
        if error.code is not None and error.code.fatal_transactional:
            self.fail(error)
        else:
            self.abort_with(error)

    def on_refused(self, error: KafkaError, *, raised: bool = True) -> None:
        """A record was refused before it got into a batch; `raised` is False if the caller's code
        goes on unless it looks at a result."""
        lost = not raised or isinstance(error, _LOST_RECORDS)
        if self.state is TxnState.IN_TRANSACTION and lost:
            self.abort_with(error)

    def on_topic_forgotten(self, topic: str, partitions: int) -> None:
        """Drop the sequences of a topic that is not in use any more, once they are those of an
        older epoch: until then they go on if the topic returns. Only the coordinator bumps it."""
        for partition in range(partitions):
            key = TopicPartition(topic, partition)
            if key in self._partitions and not self._drop_stale(key):
                self._forgotten.add(key)

    def _drop_stale(self, key: TopicPartition) -> bool:
        """Drop sequences that would start at 0 again; False if they go on."""
        entry = self._partitions[key]
        if entry.open or not self._stale(entry):
            return False
        del self._partitions[key]
        self._forgotten.discard(key)
        self._touched.discard(key)
        return True

    def _on_new_epoch(self) -> None:
        for key in list(self._forgotten):
            self._drop_stale(key)

    def on_topic_recreated(self, topic: str) -> None:
        """Nothing to restart: the next transaction has sequences of its own."""

    def bump_epochs(self) -> None:
        """Once per pass of the sender: drop what must not leave, and see whether all is settled."""
        if self._discard is not None:
            error, self._discard = self._discard, None
            # Under the second protocol the abort fences whatever may still be under way. Under the
            # first one a gap needs another epoch, which brokers before 2.5 cannot give: what has a
            # sequence is sent, as by Java, unless an epoch is needed anyway.
            self._drop(error, self.tv2 or self._needs_bump, self.tv2)
        if self.state in ENDING and self.settled():
            self._on_work()

    def next_request(self, now: float, pending: bool) -> StateRequest | None:
        """Never: the driver asks the coordinator."""
        return None

    def next_request_at(self, now: float, pending: bool) -> float:
        """Never."""
        return float("inf")

    def on_fatal(self, error: KafkaError) -> None:
        """The sender found that nothing can be sent any more."""
        self.fail(error)

    def close(self, error: KafkaError) -> None:
        """Nobody works for us any more: let all waiters go."""
        self._partition_gate.reset()
        self._resolve_all(error)

    # -- the end of a transaction or of the producer ---------------------------------------------

    def settled(self) -> bool:
        """Every batch has its outcome, and none is on the wire."""
        if self._discard is not None or self._incomplete():
            return False
        return not any(self._partitions[key].open for key in self._touched)

    def _abort_first(self) -> AbortableTransactionError:
        assert self.error is not None, "an abortable error has its reason"
        return self.error.copy()

    def _check_fatal(self) -> None:
        if self.fatal_error is not None:
            raise self.fatal_error.copy()

    def abort_with(self, error: KafkaError) -> None:
        """From now on the transaction can only be aborted."""
        if self.state not in (*OPEN, TxnState.ABORTING):
            return
        self.error = AbortableTransactionError(
            "the transaction cannot be committed, abort it (the producer stays usable): "
            f"{error.message}",
            code=error.code,
            outcome=Outcome.REJECTED,
        )
        self.error.__cause__ = error
        self._needs_bump = True
        if error.code is not None and error.code.number == Code.INVALID_PRODUCER_ID_MAPPING:
            self.unmapped = True
        self._discard = self.error
        self._become(TxnState.ABORTABLE_ERROR)
        if self.ending is not None:
            resolve(self.ending.done, self.error)
        self._fail_offsets(self.error)
        self._on_ready()

    def fail(self, error: KafkaError, *, answered: bool = False) -> None:
        """Nothing can be sent any more; the first reason stands.

        Args:
            answered: this is the coordinator's last word, and the outcome of `error` is that of the
                transaction. Otherwise an EndTxn that was sent may have been carried out.
        """
        if self.fatal_error is not None:
            return
        fatal = error
        if not isinstance(error, FatalTransactionError):
            fatal = FatalTransactionError(
                "the transactional producer cannot go on, close it and create a new one: "
                f"{error.message}",
                code=error.code,
                outcome=error.outcome,
            )
            fatal.__cause__ = error
        self._become(TxnState.FATAL_ERROR)
        # What is tried from now on is not sent, whatever is known of the transaction.
        self.fatal_error = fatal.copy().with_(outcome=Outcome.NOT_SENT)
        self._resolve_all(fatal, answered=answered)
        self._on_ready()

    def _resolve_all(self, error: KafkaError, *, answered: bool = False) -> None:
        resolve(self._init, error)
        ending = self.ending
        if ending is not None:
            unknown = ending.sent and not answered
            answer = error.copy().with_(outcome=Outcome.UNKNOWN) if unknown else error
            resolve(ending.done, answer)
        self._fail_offsets(error)

    def _fail_offsets(self, error: KafkaError) -> None:
        while self.offsets:
            resolve(self.offsets.popleft().done, error)


def misuse(text: str) -> TransactionError:
    return TransactionError(text, outcome=Outcome.NOT_SENT)


def resolve(result: Result, error: KafkaError | None) -> None:
    """Errors are values here: nobody may be waiting, and that is no fault."""
    if not result.done():
        result.set_result(error)
