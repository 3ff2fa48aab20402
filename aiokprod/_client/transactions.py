"""The transactional calls of `Producer`.

This module rejects concurrent calls, sets deadlines, and ends the transaction of an `async with`
block. The states of a transaction are in `_engine.identity`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from aiokprod._client.validation import check_timeout
from aiokprod._consumer_groups import checked_offsets, group_metadata
from aiokprod._engine.identity.transaction_states import TxnState
from aiokprod._log_fields import log_fields
from aiokprod.errors import (
    AbortableTransactionError,
    ConfigError,
    FatalTransactionError,
    KafkaError,
    KafkaTimeout,
    Outcome,
    TransactionError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from types import TracebackType

    from aiokprod._client.thread_queue import ThreadQueue
    from aiokprod._engine.identity.transaction_calls import TransactionCalls
    from aiokprod.observer import TransactionCall

logger = logging.getLogger(__name__)

R = TypeVar("R")

_CONCURRENT: Final = ("abort_transaction", "send_offsets_to_transaction")
"""The abort may be called while offsets are being sent, for example after another task of the
transaction has failed: the wait for the offsets then ends with an error."""

_ABORTABLE: Final = frozenset({TxnState.IN_TRANSACTION, TxnState.ABORTABLE_ERROR})


class Transactions:
    """The transactional calls of one producer.

    Args:
        calls: returns the `TransactionCalls` of the started producer, or None if it is not
            transactional; raises if the producer cannot be used.
        max_block: timeout in seconds of calls without a timeout.
        on_call: `Observer.on_transaction_call`.
        queue: returns the queue for records of other threads, or None if the producer is not
            started.
    """

    def __init__(
        self,
        calls: Callable[[], TransactionCalls | None],
        max_block: float,
        on_call: Callable[[TransactionCall, float, KafkaError | None], None],
        queue: Callable[[], ThreadQueue | None],
    ) -> None:
        self._calls_of = calls
        self._max_block = max_block
        self._on_call = on_call
        self._queue_of = queue
        self._busy: tuple[str] | None = None  # name of the call; a new tuple for every call

    async def initialise(self) -> None:
        """Obtain the producer id; see `Producer.start`. Several tasks may wait for it at once."""
        calls = self._calls_of()
        if calls is not None:
            with self._measured("init") as start:
                await calls.initialise(start + self._max_block)

    async def begin(self, timeout: float | None) -> object:
        """See `Producer.begin_transaction`. Return the identity of the transaction."""
        check_timeout("begin_transaction", timeout)
        with self._alone("begin_transaction") as calls, self._measured("begin") as start:
            await calls.begin(self._deadline(timeout, start))
            return calls.manager.transaction

    async def end(self, *, commit: bool, timeout: float | None) -> None:
        """See `Producer.commit_transaction` and `abort_transaction`."""
        name = "commit_transaction" if commit else "abort_transaction"
        check_timeout(name, timeout)
        measured = self._measured("commit" if commit else "abort")
        with self._alone(name) as calls, measured as start:
            deadline = self._deadline(timeout, start)
            queue = self._queue_of()
            if commit and queue is not None and not queue.is_empty:
                await self._flush(queue, deadline)
            try:
                await calls.end(commit=commit, deadline=deadline)
            finally:
                if not commit and queue is not None and not queue.is_empty:
                    await queue.abort()

    async def _flush(self, queue: ThreadQueue, deadline: float) -> None:
        """Append the queued records of other threads, which belong to the transaction."""
        try:
            async with asyncio.timeout_at(deadline):
                await queue.flush()
        except TimeoutError:
            raise KafkaTimeout(
                "commit_transaction: records of other threads still wait for metadata or memory, "
                "so the commit was not requested; wait for these records first, or raise the "
                "timeout",
                outcome=Outcome.NOT_SENT,
            ) from None

    async def send_offsets(
        self, offsets: Any, group: Any, timeout: float | None, transaction: object | None = None
    ) -> None:
        """See `Producer.send_offsets_to_transaction`.

        Args:
            transaction: identity of the transaction that the offsets belong to; None for the open
                one.
        """
        check_timeout("send_offsets_to_transaction", timeout)
        with self._alone("send_offsets_to_transaction") as calls:
            if transaction is not None and transaction is not calls.manager.transaction:
                raise TransactionError(
                    "send_offsets: this transaction has ended, and its offsets must not become "
                    "part of the next one",
                    outcome=Outcome.NOT_SENT,
                )
            calls.manager.check_open()
            checked, member = checked_offsets(offsets), group_metadata(group)
            if checked:
                with self._measured("send_offsets") as start:
                    await calls.send_offsets(checked, member, self._deadline(timeout, start))

    async def prepare(self) -> tuple[int, int, bool]:
        """Prepare the open transaction, so that another process can end it; see `TransactionCalls`.

        The transaction is flushed, and stays open when the producer is closed.

        Returns:
            Producer id, epoch, and True for the second transaction protocol (KIP-890).
        """
        with self._alone("prepare_transaction") as calls:
            return calls.prepare()

    @property
    def needs_abort(self) -> bool:
        """True if a transaction is open or has an abortable error, so that it must be aborted."""
        calls = self._calls_of()
        return calls is not None and calls.manager.state in _ABORTABLE

    @property
    def commit_unknown(self) -> bool:
        """True if a commit was requested and its outcome is still unknown."""
        calls = self._calls_of()
        ending = None if calls is None else calls.manager.ending
        return ending is not None and ending.commit

    @contextlib.contextmanager
    def _alone(self, name: str) -> Iterator[TransactionCalls]:
        calls = self._calls_of()
        if calls is None:
            raise ConfigError(
                f"{name}: this producer has no transactions; create it with transactional_id=..., "
                "a name that is the same after a restart and different in every instance"
            )
        busy = self._busy
        if busy is not None and (name, *busy) != _CONCURRENT:
            raise TransactionError(
                f"{name}: {busy[0]} is in progress in another task; a producer allows one "
                "transactional call at a time",
                outcome=Outcome.NOT_SENT,
            )
        self._busy = mine = (name,)
        try:
            yield calls
        finally:
            if self._busy is mine:
                self._busy = None

    @contextlib.contextmanager
    def _measured(self, call: TransactionCall) -> Iterator[float]:
        """Yield the start time of a call, and report its duration and result. A cancelled call is
        not reported, because it continues without its caller."""
        clock = asyncio.get_running_loop().time
        start = clock()
        try:
            yield start
        except KafkaError as error:
            self._on_call(call, clock() - start, error)
            raise
        self._on_call(call, clock() - start, None)

    def _deadline(self, timeout: float | None, start: float) -> float:
        return start + (self._max_block if timeout is None else timeout)


class Transaction:
    """``async with producer.transaction() as txn``: commits at the end, aborts on an exception.

    Records are sent with the producer's own calls. The body must not end the transaction itself.

    An exception raised by the body is raised again after the abort. If the abort fails too, its
    error is only logged. If the commit fails and the transaction is still open, it is aborted
    before the error is raised: after AbortableTransactionError, after TransactionError because
    another task is still sending offsets, and after KafkaTimeout (outcome NOT_SENT) because records
    of other threads still waited. A requested commit without a definite response raises
    KafkaTimeout with outcome UNKNOWN, and ``await producer.commit_transaction()`` continues to wait
    for it.

    Cancellation aborts the transaction. A second cancellation ends only the wait for the abort; the
    next transaction waits until the abort has ended.
    """

    def __init__(self, transactions: Transactions, timeout: float | None) -> None:
        self._transactions = transactions
        self._timeout = timeout
        self._identity: object | None = None

    async def __aenter__(self) -> Self:
        self._identity = await self._transactions.begin(self._timeout)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc is not None:
            await self._abort_after(exc)
            return
        try:
            await self._transactions.end(commit=True, timeout=self._timeout)
        except (TransactionError, KafkaTimeout, asyncio.CancelledError) as error:
            # After a plain TransactionError (another transactional call is in progress), or a
            # timeout before the commit was requested, the transaction is still open.
            await self._abort_after(error)
            raise

    async def send_offsets(self, offsets: Any, group_metadata: Any) -> None:
        """See `Producer.send_offsets_to_transaction`. After the end of this transaction, the call
        raises TransactionError, even if another transaction is open."""
        await self._transactions.send_offsets(
            offsets, group_metadata, self._timeout, self._identity
        )

    async def _abort_after(self, reason: BaseException) -> None:
        """Abort the transaction if it is open. An error of the abort is logged."""
        if isinstance(reason, FatalTransactionError):
            return  # the coordinator aborts the transactions of fenced and failed producers
        try:
            if self._transactions.needs_abort:
                await self._transactions.end(commit=False, timeout=self._timeout)
        except KafkaError as error:
            logger.warning(
                "aborting after %r failed: %s", reason, error,
                extra=log_fields("abort_failed", error=error),
            )  # fmt: skip


async def run_transaction(
    transactions: Transactions,
    function: Callable[[Transaction], Awaitable[R]],
    *,
    retries: int,
    timeout: float | None,
    pause: Callable[[int], float],
) -> R:
    """See `Producer.run_transaction`.

    Args:
        pause: returns the backoff in seconds after a number of attempts.
    """
    attempt = 0
    while True:
        try:
            async with Transaction(transactions, timeout) as txn:
                return await function(txn)
        except KafkaError as error:
            attempt += 1
            if attempt > retries or not _repeatable(error) or transactions.commit_unknown:
                raise
            logger.info(
                "repeating a transaction after attempt %d: %s", attempt, error,
                extra=log_fields("transaction_repeated", error=error, attempt=attempt),
            )  # fmt: skip
        await asyncio.sleep(pause(attempt))


async def abort_on_close(calls: TransactionCalls, deadline: float, max_block: float) -> None:
    """Abort the open transaction of a producer that is being closed, or finish a transaction that
    is already ending. Waits at most `max_block` seconds, and at most until `deadline` (loop time).
    A prepared transaction stays open."""
    manager = calls.manager
    if manager.progress.prepared:
        return
    limit = min(deadline, asyncio.get_running_loop().time() + max_block)
    with contextlib.suppress(KafkaError):
        if manager.state in _ABORTABLE:
            await calls.end(commit=False, deadline=limit)
        elif manager.ending is not None:
            await calls.end(commit=manager.ending.commit, deadline=limit)


def _repeatable(error: KafkaError) -> bool:
    """Return True if the transaction can succeed when it is repeated."""
    if isinstance(error, TransactionError):
        return isinstance(error, AbortableTransactionError)
    return error.retriable
