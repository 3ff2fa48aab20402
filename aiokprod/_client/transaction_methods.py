"""The transactional calls of a producer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from aiokprod._client.lifecycle import ProducerLifecycle
from aiokprod._client.transactions import Transaction, run_transaction
from aiokprod._client.validation import check_timeout

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

R = TypeVar("R")


class TransactionMethods(ProducerLifecycle):
    """What `Producer` inherits for transactions; see `Transactions`."""

    def transaction(self, *, timeout: float | None = None) -> Transaction:
        """``async with producer.transaction() as txn``: commit at the end, abort on an exception.

        Args:
            timeout: seconds for each of begin, offsets, commit and abort; None is max_block_ms.

        Raises (on entry and exit): as `begin_transaction`, `commit_transaction` and
        `abort_transaction`; see `Transaction`.
        """
        check_timeout("transaction", timeout)
        return Transaction(self._transactions, timeout)

    async def begin_transaction(self, timeout: float | None = None) -> None:
        """Open a transaction; what is sent from now on belongs to it.

        Waits for the producer id, and for an earlier commit or abort whose call timed out.

        Raises:
            ConfigError: the producer has no transactional_id.
            TransactionError: a transaction is open, or another transactional call in progress.
            AbortableTransactionError: the transaction before failed: abort it first.
            FatalTransactionError, ProducerFenced: close the producer.
            KafkaTimeout: not within `timeout` seconds (None: max_block_ms).

        Cancellation: no transaction is open.
        """
        await self._transactions.begin(timeout)

    async def commit_transaction(self, timeout: float | None = None) -> None:
        """Flush, then commit: all records and offsets of the transaction become visible at once.

        Raises:
            AbortableTransactionError: a record failed or the coordinator refused; nothing becomes
                visible. Call `abort_transaction`.
            KafkaTimeout: no definite answer within `timeout` seconds (None: max_block_ms): the
                outcome is unknown. Call `commit_transaction` again, it goes on waiting;
                `abort_transaction` is refused. `begin_transaction` waits for the outcome too.
            FatalTransactionError, ProducerFenced: close the producer. With `.outcome` UNKNOWN the
                transaction may be committed.
            TransactionError: no transaction is open, or another call is in progress.

        Cancellation: stops waiting only, as a timeout does.
        """
        await self._transactions.end(commit=True, timeout=timeout)

    async def abort_transaction(self, timeout: float | None = None) -> None:
        """Abort: records not sent yet fail, nothing of the transaction becomes visible.

        Raises:
            KafkaTimeout: no definite answer yet; call it again, or begin the next transaction.
            Others: as `commit_transaction`.

        Cancellation: stops waiting only.
        """
        await self._transactions.end(commit=False, timeout=timeout)

    async def prepare_transaction(self) -> tuple[int, int, bool]:
        """Leave the open transaction to another process, which ends it with EndTxn.

        For layers such as the Spark sink. Flush first. Afterwards the producer takes nothing more,
        and closing it does not abort the transaction.

        Returns:
            Producer id, epoch, and True if the transaction follows transaction protocol V2
            (KIP-890).

        Raises:
            TransactionError: no transaction is open, or some records or offsets have no outcome
                yet.
            AbortableTransactionError: a record failed; abort the transaction.
        """
        return await self._transactions.prepare()

    async def send_offsets_to_transaction(
        self, offsets: Any, group_metadata: Any, timeout: float | None = None
    ) -> None:
        """Commit a consumer group's offsets with the open transaction (KIP-98, KIP-447).

        Args:
            offsets: offset of the next record to read per partition: a mapping from (topic,
                partition) to an int or to aiokafka's ``OffsetAndMetadata``, or confluent-kafka's
                list of ``TopicPartition``.
            group_metadata: a `GroupMetadata`, the started ``AIOKafkaConsumer``, confluent-kafka's
                ``consumer.consumer_group_metadata()``, or a group id (which protects less).
            timeout: seconds; None is max_block_ms.

        Raises:
            ConfigError: the arguments are something else.
            AbortableTransactionError: refused, e.g. because the group rebalanced.
            KafkaTimeout: not accepted yet; the commit waits for it.
            Others: as `commit_transaction`.

        Cancellation: stops waiting only.
        """
        await self._transactions.send_offsets(offsets, group_metadata, timeout)

    async def run_transaction(
        self,
        function: Callable[[Transaction], Awaitable[R]],
        *,
        retries: int = 3,
        timeout: float | None = None,
    ) -> R:
        """Run ``await function(txn)`` in a transaction; again, up to `retries` times, if that was
        aborted for a reason that may pass. Returns what the function returned.

        Never repeats after a commit whose outcome is unknown: that could write everything twice.

        Raises: what the function raised, and as `transaction`.
        """
        return await run_transaction(
            self._transactions, function, retries=retries, timeout=timeout, pause=self._pause
        )

    def _pause(self, attempt: int) -> float:
        return self._usable().backoff(attempt)
