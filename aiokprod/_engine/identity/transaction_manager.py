"""`TransactionManager`: the producer state of a transactional producer.

Decides what may be appended, sent and ended, by the table in `transaction_states`. It awaits
nothing but its own futures: the requests are carried out by `transaction_driver`, one after the
other, in a task of their own. So a caller that is cancelled or times out leaves the transaction in
one definite state, and the same call made again goes on waiting for the same answer.

Source: KIP-98, KIP-360, KIP-447, KIP-890; Java `TransactionManager`, `TransactionalRequestResult`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from aiokprod._engine.identity.transaction_core import (
    ENDING,
    OPEN,
    OffsetsJob,
    PendingEndTxn,
    Result,
    TransactionCore,
    TxnStep,
    misuse,
    resolve,
)
from aiokprod._engine.identity.transaction_states import TxnState
from aiokprod.errors import (
    KafkaError,
    KafkaTimeout,
    Outcome,
    TransactionError,
)

if TYPE_CHECKING:
    from aiokprod._consumer_groups import GroupMetadata, Offset
    from aiokprod.records import TopicPartition

logger = logging.getLogger(__name__)

TRANSACTION_FEATURE: Final = "transaction.version"
SECOND_PROTOCOL: Final = 2
FORGOTTEN_PARTITIONS: Final = 1000
"""Partitions no longer in use whose sequences are kept at most until a transaction ends."""


class TransactionManager(TransactionCore):
    """The whole state; see the module and `TransactionCore`."""

    # -- calls of the user ----------------------------------------------------------------------

    async def initialise(self, deadline: float) -> None:
        """Get a producer id, which ends what an earlier instance left open and fences it.

        Raises:
            KafkaTimeout: not by `deadline`; it goes on in the background, call again.
            AuthenticationError: the coordinator refuses us; it goes on as well, call again.
            TransactionError, BrokerError: refused.
        """
        if self.state is TxnState.UNINITIALIZED:
            self._initialise()
        if self.state is TxnState.INITIALIZING:
            await self._wait(self._init, deadline, "the coordinator did not give a producer id")
        self._check_fatal()

    async def begin(self, deadline: float) -> None:
        """Open a transaction; nothing is sent for that.

        Waits for an earlier commit or abort that timed out, so that no transaction ever joins one
        whose end is unknown.
        """
        ending = self.ending
        if ending is not None and not ending.done.done():
            await self._wait_quietly(ending, deadline)
        await self.initialise(deadline)
        if self.state is TxnState.ABORTABLE_ERROR:
            raise self._abort_first()
        if self.state is not TxnState.READY:
            raise misuse("a transaction is open already: commit or abort it first")
        self.ending = None
        self.tv2 = self._version() >= SECOND_PROTOCOL
        self.error = None
        self.started = self.uncertain = self._needs_bump = self.prepared = False
        self.confirmed = self.unmapped = False
        self._discard = None
        self.partitions_in_txn.clear()
        self._partition_gate.reset()
        self.pending_partitions.clear()
        self._touched.clear()
        self.awaits_markers = self._marker_wait.should_wait(self._loop.time()) and self.tv2
        self._become(TxnState.IN_TRANSACTION)
        if self.awaits_markers:
            self._on_work()

    async def end(self, *, commit: bool, deadline: float) -> None:
        """Commit or abort.

        Raises:
            KafkaTimeout: no definite answer by `deadline`; the outcome is unknown. The same call
                made again goes on waiting; the other verdict is refused.
            AuthenticationError: the coordinator refuses us; likewise.
            AbortableTransactionError: not committed, abort it.
            FatalTransactionError: see its `.outcome`.
        """
        ending = self.ending
        if ending is None or ending.commit is not commit:
            self._check_fatal()
        ending = self._resumed(commit=commit) or self._start_end(commit=commit)
        await self._wait(
            ending.done, deadline,
            f"no definite answer to {ending.name}: whether the transaction ended is unknown. Call "
            f"{ending.name} again, it goes on waiting for the same answer",
        )  # fmt: skip
        self.ending = None

    def _resumed(self, *, commit: bool) -> PendingEndTxn | None:
        ending = self.ending
        if ending is None or (not commit and self.state is TxnState.ABORTABLE_ERROR):
            return None
        if ending.commit is commit:
            return ending
        known = "succeeded" if ending.done.done() else "has no outcome yet"
        raise misuse(
            f"{ending.name} was called before and {known}: its verdict cannot be changed. Call "
            f"{ending.name} again"
        )

    def _start_end(self, *, commit: bool) -> PendingEndTxn:
        if self.state is TxnState.ABORTABLE_ERROR and commit:
            raise self._abort_first()
        if self.state not in (TxnState.IN_TRANSACTION, TxnState.ABORTABLE_ERROR):
            raise misuse("no transaction is open: call begin_transaction() first")
        self.ending = PendingEndTxn(commit, self._loop.create_future())
        self._become(TxnState.COMMITTING if commit else TxnState.ABORTING)
        if not commit:
            self.pending_partitions.clear()
            aborted = misuse("the transaction was aborted before the record was sent")
            self._discard = aborted
            self._fail_offsets(aborted)
        self._on_ready()
        self._on_work()
        return self.ending

    async def send_offsets(
        self, offsets: dict[TopicPartition, Offset], group: GroupMetadata, deadline: float
    ) -> None:
        """Commit offsets of a consumer group with the transaction (KIP-447)."""
        self.check_open()
        job = OffsetsJob(offsets, group, self._loop.create_future())
        self.offsets.append(job)
        self._on_work()
        await self._wait(job.done, deadline, "the offsets are not accepted yet; they will be, or "
                         "the transaction cannot be committed")  # fmt: skip

    def prepare(self) -> tuple[int, int, bool]:
        """Leave the end of the open transaction to somebody else, who sends EndTxn with what this
        returns: producer id, epoch, and whether it follows the second protocol. Nothing more is
        taken, and closing the producer aborts nothing.

        Raises:
            TransactionError: records or offsets have no outcome yet, or none is open.
            AbortableTransactionError: one failed; abort instead.
        """
        self.check_open()
        if self.offsets or not self.settled():
            raise misuse("records or offsets of the transaction have no outcome yet: flush first")
        self.prepared = True
        self._on_gate(False, False)
        return self.producer_id, self.epoch, self.tv2

    async def _wait(self, result: Result, deadline: float, late: str) -> None:
        limit = None if deadline == float("inf") else max(0.0, deadline - self._loop.time())
        refusal = self._refusal
        await asyncio.wait({result, refusal}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            error = refusal.result() if refusal.done() else None
            if error is not None:
                raise self._refused_call(error, late)
            raise KafkaTimeout(f"transactional id {self.transactional_id}: {late}")
        error = result.result()
        if error is not None:
            raise error.copy()

    def _refused_call(self, refusal: KafkaError, late: str) -> KafkaError:
        sent = self.ending is not None and self.ending.sent
        return refusal.copy().with_(
            message=f"transactional id {self.transactional_id}: {late}: {refusal.message}",
            outcome=Outcome.UNKNOWN if sent else Outcome.NOT_SENT,
        )

    async def _wait_quietly(self, ending: PendingEndTxn, deadline: float) -> None:
        """The end of an earlier transaction; how it went was its caller's business."""
        try:
            await self._wait(
                ending.done, deadline,
                f"the outcome of {ending.name} of the transaction before is still unknown",
            )  # fmt: skip
        except TransactionError:
            self._check_fatal()

    def refused(self, error: KafkaError) -> None:
        """The broker that a request waits for refuses us: who waits now is told. The request stays
        wanted."""
        refusal, self._refusal = self._refusal, self._loop.create_future()
        resolve(refusal, error)

    # -- what the driver does and finds ---------------------------------------------------------

    def work(self) -> TxnStep | None:
        """The next thing to do, None if there is nothing."""
        if self.state is TxnState.INITIALIZING:
            return TxnStep.INIT
        if self.state in OPEN and self.awaits_markers:
            return TxnStep.MARKERS
        if self.state in OPEN and self.pending_partitions:
            return TxnStep.ADD
        if self.state in OPEN and self.offsets:
            return TxnStep.OFFSETS
        return TxnStep.END if self.state in ENDING and self.settled() else None

    def wants(self, work: TxnStep) -> bool:
        """Is this work, once begun, still to be gone on with?"""
        if work is TxnStep.INIT:
            return self.state is TxnState.INITIALIZING
        return self.state in (ENDING if work is TxnStep.END else OPEN)

    def _initialise(self) -> None:
        self._init = self._loop.create_future()
        self._become(TxnState.INITIALIZING)
        self._on_work()

    def initialised(self, producer_id: int, epoch: int) -> None:
        """The coordinator gave id and epoch."""
        self.producer_id, self.epoch = producer_id, epoch
        self._on_new_epoch()
        self._become(TxnState.READY)
        resolve(self._init, None)

    def init_refused(self, error: KafkaError) -> None:
        """Not now; a later call asks again."""
        self._become(TxnState.UNINITIALIZED)
        resolve(self._init, error)

    def markers_written(self) -> None:
        """Those of the transaction before are, or enough was waited for them."""
        self.awaits_markers = False
        self._on_ready()

    def added(self, partitions: list[TopicPartition]) -> None:
        """The coordinator knows these partitions."""
        for partition in partitions:
            self.pending_partitions.pop(partition, None)
            self.partitions_in_txn.add(partition)
        self.started = self.started or bool(partitions)
        self._on_ready()

    def offsets_accepted(self, job: OffsetsJob) -> None:
        """The group's coordinator has them."""
        self.confirmed = True
        if self.offsets and self.offsets[0] is job:
            self.offsets.popleft()
        resolve(job.done, None)

    def ended(self, producer_id: int = -1, epoch: int = -1) -> None:
        """The coordinator's definite answer; id and epoch of the next transaction, if it told."""
        ending = self.ending
        assert ending is not None, "only an ending ends"
        # Without a bump the first protocol has to keep the sequences of every topic ever used.
        many = self.can_bump and len(self._forgotten) >= FORGOTTEN_PARTITIONS
        bump = self.started and (ending.lost or self._needs_bump or many)
        if producer_id >= 0:
            self.producer_id, self.epoch = producer_id, epoch
            self._on_new_epoch()
            bump = False
        if self.uncertain:
            bump = bump or producer_id < 0
        bump = bump or self.unmapped
        self.partitions_in_txn.clear()
        self._partition_gate.reset()
        self._marker_wait.on_transaction_ended(self._loop.time())
        if bump:
            # A copy of EndTxn or of a batch may still arrive: it must find an older epoch.
            self._initialise()
        else:
            self._become(TxnState.READY)
        resolve(ending.done, None)
        self._on_ready()
