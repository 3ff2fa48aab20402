"""Does it pay to wait for the markers of one transaction before the next one sends?

Under the second protocol the leader adds the partition to the transaction. While the coordinator
still writes the markers of the transaction before, the leader asks it again after 20 ms
(`add.partitions.to.txn.retry.backoff.ms`), and again, however little was missing. Worse, a broker
without other traffic finishes the writing only as some request comes in. Where that is seen to
happen, the next transactions ask the coordinator themselves, at shorter intervals, before they
send; where brokers are quick or busy, nobody asks. Pure logic, no clock of its own.

Source: Kafka 4.x `ReplicaManager.handleProduceAppend`, `AddPartitionsToTxnConfig`, `ActionQueue`.
"""

from __future__ import annotations

from typing import Final

BACK_TO_BACK_S: Final = 0.1
"""A transaction that begins later than this after the end of the one before finds it complete."""

SLOW_S: Final = 0.018
"""A first batch that took so long has probably waited for a repetition at its leader."""

TERM: Final = 50
"""Transactions for which a finding holds; a slow one counts twice while we wait."""
SLOW_WEIGHT: Final = 2
REST: Final = 10
"""Transactions without waiting once it did not help: the leader has to wait just as long."""


class MarkerPace:
    """Learns from how long the first batch of each transaction takes."""

    def __init__(self) -> None:
        self._waiting = False
        self._left = 0
        self._ended_at = float("-inf")
        self._sent_at: float | None = None
        self._judging = False

    def ended(self, now: float) -> None:
        """The coordinator has answered EndTxn."""
        self._ended_at = now

    def begins(self, now: float) -> bool:
        """A transaction begins; True if it should wait for the markers of the one before."""
        self._sent_at = None
        self._judging = now - self._ended_at < BACK_TO_BACK_S
        return self._judging and self._waiting

    def sent(self, now: float) -> None:
        """A batch leaves; only the first one of a transaction counts."""
        if self._sent_at is None:
            self._sent_at = now

    def answered(self, now: float) -> None:
        """A batch was acknowledged; only the first one of a transaction counts."""
        if not self._judging or self._sent_at is None:
            return
        self._judging = False
        slow = now - self._sent_at >= SLOW_S
        if self._waiting:
            self._left -= SLOW_WEIGHT if slow else 1
            if self._left <= 0:
                # Slow although we waited: perhaps for other reasons, see how it is without.
                self._waiting, self._left = False, REST if slow else 0
        elif self._left > 0:
            self._left -= 1
        elif slow:
            self._waiting, self._left = True, TERM
