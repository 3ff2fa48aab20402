"""Does it pay to wait for the markers of one transaction before the next one sends?

Under the second protocol the leader adds the partition to the transaction. While the coordinator
still writes the markers of the transaction before, the leader asks it again after 20 ms
(`add.partitions.to.txn.retry.backoff.ms`), and again, however little was missing. Worse, a broker
without other traffic finishes the writing only as some request comes in. So the next transaction
may ask the coordinator itself, at shorter intervals, before it sends. Whether that pays depends on
brokers, load and distance: both ways are timed, from a transaction's first record to its first
acknowledgment, and the quicker one is taken. Pure logic, no clock of its own.

Source: Kafka 4.x `ReplicaManager.handleProduceAppend`, `AddPartitionsToTxnConfig`, `ActionQueue`.
"""

from __future__ import annotations

from typing import Final

BACK_TO_BACK_S: Final = 0.1
"""A transaction that begins later than this after the end of the one before finds it complete."""

REPEATED_S: Final = 0.018
"""First batches that take less do not wait for a repetition at their leader: its 20 ms, less what
clocks are worth."""
WEIGHT: Final = 0.2
"""Of the latest transaction in the average of its way."""
OUTLIER: Final = 3.0
"""Times the average; what takes longer counts as this."""
TRY_OTHER: Final = 50
"""Transactions after which the way that was slower is tried once more."""


class TxnMarkerWait:
    """Chooses for each transaction, by the moving averages of both ways."""

    def __init__(self) -> None:
        self._average: dict[bool, float] = {}  # by whether it waited; without waiting comes first
        self._since_other = 0
        self._ended_at = float("-inf")
        self._waits: bool  # from `should_wait` on; before that nothing is timed
        self._timing = False
        self._opened_at: float | None = None

    def on_transaction_ended(self, now: float) -> None:
        """The coordinator has answered EndTxn."""
        self._ended_at = now

    def should_wait(self, now: float) -> bool:
        """A transaction begins; True if it should wait for the markers of the one before."""
        self._timing = now - self._ended_at < BACK_TO_BACK_S
        self._opened_at = None
        self._waits = self._timing and self._choice()
        return self._waits

    def on_batch_opened(self, now: float) -> None:
        """A batch was opened; only the first one of a transaction counts."""
        if self._timing and self._opened_at is None:
            self._opened_at = now

    def on_batch_acknowledged(self, now: float) -> None:
        """A batch was acknowledged; only the first one of a transaction counts."""
        if self._timing and self._opened_at is not None:
            self._timing = False
            self._note(now - self._opened_at)

    def _note(self, took: float) -> None:
        average = self._average.get(self._waits)
        if average is not None:
            took = average + WEIGHT * (min(took, OUTLIER * average) - average)
        self._average[self._waits] = took

    def _choice(self) -> bool:
        without = self._average.get(False)
        if without is None or without < REPEATED_S:
            return False
        quicker = self._average.get(True, 0.0) < without
        self._since_other += 1
        if self._since_other < TRY_OTHER:
            return quicker
        self._since_other = 0
        return not quicker
