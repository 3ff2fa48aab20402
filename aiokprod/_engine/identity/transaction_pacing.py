"""When the first batches of a transaction are sent under the second protocol (KIP-890).

In this protocol, the leader of a partition adds it to the transaction at the coordinator. While the
coordinator is busy, the leader asks again only every 20 ms
(`add.partitions.to.txn.retry.backoff.ms`). Two things keep the coordinator busy:

- The addition of another partition. It accepts one at a time, and three leaders that asked at the
  same time took 55-105 ms on three local brokers, one after the other 20-25 ms. So a batch that
  adds a partition waits for the response to the one before it.
- The markers of the previous transaction. The next one may ask the coordinator itself before it
  sends, at shorter intervals. Any request also makes an otherwise idle coordinator continue with
  what it has written. Whether asking first is faster depends on brokers, load and distance, so
  `MarkerWait` times both ways; docs/design/transactions.md has measurements.

Source: Kafka 4.x `TransactionCoordinator.handleAddPartitionsToTransaction`,
`ReplicaManager.handleProduceAppend`, `AddPartitionsToTxnConfig`, `ActionQueue`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiokprod._engine.buffer.producer_batch import ProducerBatch
    from aiokprod.records import TopicPartition

LEADER_PAUSE_S: Final = 0.02
"""Seconds until a leader that was refused asks again. Where responses take longer, this is the time
between two additions."""
PATIENCE_S: Final = 0.1
"""Seconds a batch waits for the response to the addition before it, where responses are quicker
than LEADER_PAUSE_S: a broker may be busy or unresponsive."""
_RESPONSE_TIMES: Final = 16
"""Number of latest additions that are looked at for that."""

BACK_TO_BACK_S: Final = 0.1
"""A transaction that begins more seconds than this after the end of the previous one finds its
markers written."""
REPEATED_S: Final = 0.018
"""First batches acknowledged in fewer seconds did not wait for a repetition at their leader: its
20 ms minus clock resolution."""
WEIGHT: Final = 0.2
"""EWMA weight of the newest transaction."""
OUTLIER: Final = 3.0
"""A time of more than this many averages counts as this many."""
TRY_OTHER: Final = 50
"""Transactions after which the slower way is tried once more."""

MARKERS_SOON_S: Final = 0.002
MARKERS_LATE_S: Final = 0.02
"""Seconds until a request is repeated that came before the markers were written, at first and at
most (Java waits 20 ms, KAFKA-5477). The wait doubles each time."""
_MARKERS_LIMIT_S: Final = 0.05
"""Seconds; waiting for markers that take longer is left to the leader."""
_MARKERS_SHARE: Final = 0.5
"""The first request comes after this share of the time that the last markers took. Not later:
an idle coordinator continues only when asked, so polling later delays the markers themselves."""


class MarkerWait:
    """Chooses for each transaction whether to wait for the markers of the previous one.

    It compares the moving averages of the time from the first open batch to the first
    acknowledgment, with and without the wait. All times are arguments, in loop time.
    """

    def __init__(self) -> None:
        self._average: dict[bool, float] = {}  # seconds, with and without waiting
        self._since_other = 0
        self._ended_at = -math.inf
        self._waits: bool  # set by `should_wait`, before anything is timed
        self._timing = False
        self._opened_at: float | None = None

    def on_transaction_ended(self, now: float) -> None:
        """The coordinator has answered EndTxn."""
        self._ended_at = now

    def should_wait(self, now: float) -> bool:
        """A transaction begins; True if it should wait for the markers of the previous one."""
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


class TransactionPacing:
    """Holds back first batches of a transaction.

    `on_ready` is called when a batch that was held back may be sent; responses wake the sender
    anyway.

    Attributes:
        awaits_markers: nothing is sent before the markers of the previous transaction are written.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_ready: Callable[[], None]) -> None:
        self.awaits_markers = False
        self._loop = loop
        self._on_ready = on_ready
        self._marker_wait = MarkerWait()
        self._markers_took = 0.0
        self._added: set[TopicPartition] = set()
        self._first: list[ProducerBatch] = []
        self._timer: asyncio.TimerHandle | None = None
        self._took: deque[float] = deque(maxlen=_RESPONSE_TIMES)
        self._hold = PATIENCE_S

    def on_begin(self, *, tv2: bool) -> None:
        """A transaction begins; `tv2`: under the second protocol."""
        self.reset()
        self.awaits_markers = self._marker_wait.should_wait(self._loop.time()) and tv2

    def on_end(self) -> None:
        """The transaction has ended."""
        self.reset()
        self._marker_wait.on_transaction_ended(self._loop.time())

    def reset(self) -> None:
        """No transaction is open. Leaves no timer behind."""
        self._added.clear()
        self._first.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_batch_opened(self) -> None:
        """A batch of the transaction was opened."""
        self._marker_wait.on_batch_opened(self._loop.time())

    # -- one addition at a time -----------------------------------------------------------------

    def may_send(self, topic_partition: TopicPartition) -> bool:
        """True if a batch of this partition may be sent now, markers aside."""
        if topic_partition in self._added:
            return True
        until = self._held_until()
        if until <= self._loop.time():
            return True
        if self._timer is None:
            self._timer = self._loop.call_at(until, self._on_timer)
        return False

    def on_sent(self, batch: ProducerBatch) -> None:
        """A batch is about to be sent for the first time, under the second protocol."""
        if batch.topic_partition not in self._added:
            self._first.append(batch)

    def on_acknowledged(self, batch: ProducerBatch) -> None:
        """A batch is in the log: its partition belongs to the transaction."""
        now = self._loop.time()
        self._marker_wait.on_batch_acknowledged(now)
        if batch.topic_partition not in self._added:
            self._added.add(batch.topic_partition)
            self._took.append(now - batch.sent_at)
            quick = min(self._took) < LEADER_PAUSE_S
            self._hold = PATIENCE_S if quick else LEADER_PAUSE_S

    def _held_until(self) -> float:
        """By the latest batch in flight; those before it in the list were sent earlier."""
        first = self._first
        while first and not first[-1].in_flight:
            first.pop()
        return first[-1].sent_at + self._hold if first else 0.0

    def _on_timer(self) -> None:
        self._timer = None
        self._on_ready()  # `may_send` sets the timer again if a batch still has to wait

    # -- markers of the previous transaction ----------------------------------------------------

    async def wait_for_markers(
        self, pending: Callable[[], Awaitable[bool]], wanted: Callable[[], bool]
    ) -> None:
        """Ask at growing intervals until the markers are written, for _MARKERS_LIMIT_S at most.

        Args:
            pending: asks the coordinator once; False if the markers are written or it cannot tell.
            wanted: False ends the wait.
        """
        pause, began = MARKERS_SOON_S, self._loop.time()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_MARKERS_LIMIT_S):
                await asyncio.sleep(max(0.0, self._markers_took * _MARKERS_SHARE - pause))
                while wanted():
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, MARKERS_LATE_S)
                    if not await pending():
                        break
        self._markers_took = self._loop.time() - began
        self.awaits_markers = False
        self._on_ready()
