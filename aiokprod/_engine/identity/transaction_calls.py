"""The transactional calls of the application. Each call requests a state and waits for it until a
deadline.

A timeout or cancellation ends only the wait; `transaction_driver` continues.

Source: Java `TransactionalRequestResult`.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from aiokprod._engine.identity.transaction_progress import (
    PendingEndTxn,
    Result,
    misuse,
    resolve,
)
from aiokprod._engine.identity.transaction_states import TxnState
from aiokprod.errors import KafkaError, KafkaTimeout, Outcome, TransactionError

if TYPE_CHECKING:
    from aiokprod._consumer_groups import GroupMetadata, Offset
    from aiokprod._engine.identity.transaction_manager import TransactionManager
    from aiokprod.records import TopicPartition


class TransactionCalls:
    """The calls that change the state in `manager`. All deadlines are loop times."""

    def __init__(self, manager: TransactionManager, loop: asyncio.AbstractEventLoop) -> None:
        self.manager = manager
        self._loop = loop
        self._refusal: Result = loop.create_future()

    async def initialise(self, deadline: float) -> None:
        """Get a producer id, which fences an earlier instance and aborts its open transaction.

        Raises:
            KafkaTimeout: no producer id by `deadline`. The request continues in the background;
                call again to wait for it.
            AuthenticationError: the coordinator rejects the credentials. The request continues too.
            TransactionError, BrokerError: the coordinator rejected the request.
        """
        manager = self.manager
        if manager.state is TxnState.UNINITIALIZED:
            manager.initialise()
        if manager.state is TxnState.INITIALIZING:
            late = "the coordinator did not return a producer id"
            await self._wait(manager.init_result, deadline, late)
        manager.check_fatal()

    async def begin(self, deadline: float) -> None:
        """Begin a transaction. This sends no request, except for a producer id if there is none.

        Waits for an earlier commit or abort that timed out, so that the records of a new
        transaction never become part of one whose end is unknown.
        """
        manager = self.manager
        ending = manager.ending
        if ending is not None and not ending.done.done():
            await self._wait_for_previous(ending, deadline)
        await self.initialise(deadline)
        if manager.state is TxnState.ABORTABLE_ERROR:
            raise manager.abortable_error()
        if manager.state is not TxnState.READY:
            raise misuse("a transaction is open already: commit or abort it first")
        manager.begin()

    async def end(self, *, commit: bool, deadline: float) -> None:
        """Commit or abort the transaction.

        Raises:
            KafkaTimeout: no definite response by `deadline`; the outcome is unknown. The same call
                made again continues to wait; the opposite call is not allowed.
            AuthenticationError: the coordinator rejects the credentials; the outcome is unknown.
            AbortableTransactionError: the transaction was not committed; abort it.
            FatalTransactionError: see its `.outcome`.
        """
        manager = self.manager
        ending = manager.ending
        if ending is None or ending.commit is not commit:
            manager.check_fatal()
        ending = self._resumed(commit=commit) or manager.start_end(commit=commit)
        await self._wait(
            ending.done, deadline,
            f"no definite response to {ending.name}: the outcome of the transaction is unknown. "
            f"Call {ending.name} again, it continues to wait for the same response",
        )  # fmt: skip
        manager.ending = None

    def _resumed(self, *, commit: bool) -> PendingEndTxn | None:
        """Return the commit or abort that an earlier call requested, or None if a new one is
        needed."""
        ending = self.manager.ending
        if ending is None:
            return None
        if not commit and self.manager.state is TxnState.ABORTABLE_ERROR:
            return None
        if ending.commit is commit:
            return ending
        known = "succeeded" if ending.done.done() else "has no outcome yet"
        raise misuse(
            f"{ending.name} was called before and {known}: a commit cannot be changed to an abort, "
            f"or the reverse. Call {ending.name} again"
        )

    async def send_offsets(
        self, offsets: dict[TopicPartition, Offset], group: GroupMetadata, deadline: float
    ) -> None:
        """Commit a consumer group's offsets with the transaction (KIP-447).

        Raises:
            KafkaTimeout: the offsets were not accepted by `deadline`; the request continues in the
                background.
        """
        accepted = self.manager.add_offsets(offsets, group)
        await self._wait(
            accepted, deadline,
            "the offsets are not accepted yet; they will be, or the transaction cannot be "
            "committed",
        )  # fmt: skip

    def prepare(self) -> tuple[int, int, bool]:
        """Prepare the open transaction so that another process can end it with EndTxn. No more
        records are accepted, and closing the producer does not abort the transaction.

        Returns:
            Producer id, epoch, and True if the transaction follows the second protocol.

        Raises:
            TransactionError: records or offsets have no outcome yet, or no transaction is open.
            AbortableTransactionError: a record or an offset failed; abort the transaction.
        """
        self.manager.prepare()
        tracker = self.manager.tracker
        return tracker.producer_id, tracker.epoch, self.manager.progress.tv2

    def refused(self, error: KafkaError) -> None:
        """Fail the calls that wait now, because authentication failed to the broker for which a
        request waits. The request stays queued."""
        refusal, self._refusal = self._refusal, self._loop.create_future()
        resolve(refusal, error)

    async def _wait(self, result: Result, deadline: float, late: str) -> None:
        limit = None if deadline == math.inf else max(0.0, deadline - self._loop.time())
        refusal = self._refusal
        await asyncio.wait({result, refusal}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            error = refusal.result() if refusal.done() else None
            if error is not None:
                raise self._refused_call(error, late)
            raise KafkaTimeout(f"transactional id {self.manager.transactional_id}: {late}")
        error = result.result()
        if error is not None:
            raise error.copy()

    def _refused_call(self, refusal: KafkaError, late: str) -> KafkaError:
        ending = self.manager.ending
        sent = ending is not None and ending.sent
        name = self.manager.transactional_id
        return refusal.copy().with_(
            message=f"transactional id {name}: {late}: {refusal.message}",
            outcome=Outcome.UNKNOWN if sent else Outcome.NOT_SENT,
        )

    async def _wait_for_previous(self, ending: PendingEndTxn, deadline: float) -> None:
        """Wait for the end of an earlier transaction. Its error is ignored, unless it is fatal: the
        call that requested the end raises it."""
        try:
            await self._wait(
                ending.done, deadline,
                f"the outcome of {ending.name} of the previous transaction is still unknown",
            )  # fmt: skip
        except TransactionError:
            self.manager.check_fatal()
