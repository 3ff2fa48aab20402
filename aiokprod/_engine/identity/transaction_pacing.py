"""Decides when the first batches of a transaction are sent under the second protocol (KIP-890).

In this protocol, the leader of a partition adds the partition to the transaction at the
coordinator. While the coordinator is busy, the leader repeats its request only every 20 ms
(`add.partitions.to.txn.retry.backoff.ms`). Two things keep the coordinator busy:

- The addition of another partition. The coordinator accepts one at a time. On three local brokers,
  three concurrent additions took 55-105 ms, three successive ones 20-25 ms. So a batch that adds a
  partition waits for the response to the previous such batch.
- The markers of the previous transaction. Before it sends, the producer may itself poll the
  coordinator at shorter intervals. Any request also makes an otherwise idle coordinator complete
  the operations that it has written. Whether polling first is faster depends on brokers, load and
  latency, so `MarkerWait` measures both ways; docs/design/transactions.md has measurements.

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
"""Seconds until a rejected leader repeats its request to the coordinator. If responses take longer,
this is the time between two additions."""
LONGEST_HOLD_S: Final = 0.1
"""Longest wait in seconds for the response to the previous addition, if responses usually take less
than LEADER_PAUSE_S. The wait is limited because a broker may be busy or unresponsive."""
_RESPONSE_TIMES: Final = 16
"""Number of the latest additions from which the typical response time is determined."""

BACK_TO_BACK_S: Final = 0.1
"""Seconds after the end of a transaction by which its markers are assumed to be written. A
transaction that begins later does not wait for them."""
REPEATED_S: Final = 0.018
"""Time in seconds: if the first batch is acknowledged faster, its leader did not repeat its request
to the coordinator. A repetition takes 20 ms; the clock resolution is subtracted."""
WEIGHT: Final = 0.2
"""EWMA weight of the latest transaction."""
OUTLIER: Final = 3.0
"""Limit of a measured time, as a multiple of the average; longer times are replaced by the
limit."""
TRY_OTHER: Final = 50
"""Number of transactions after which the slower way is tried again."""

MARKERS_SOON_S: Final = 0.002
MARKERS_LATE_S: Final = 0.02
"""The first and the longest wait, in seconds, before a request is repeated that arrived before the
markers were written. The wait doubles each time. Java waits 20 ms (KAFKA-5477)."""
_MARKERS_LIMIT_S: Final = 0.05
"""Longest wait for markers in seconds; after that, batches are sent and the leader waits."""
_MARKERS_SHARE: Final = 0.5
"""The first request is sent after this fraction of the previous wait for markers. A later request
would delay the markers, because an idle coordinator continues only when it gets a request."""


class MarkerWait:
    """Chooses for each transaction whether to wait for the markers of the previous one.

    It compares the moving averages of the time from the first open batch to the first
    acknowledgment, with and without the wait. All times are arguments, in loop time.
    """

    def __init__(self) -> None:
        self._average: dict[bool, float] = {}  # in seconds; key: whether the transaction waited
        self._since_other = 0
        self._ended_at = -math.inf
        self._waits: bool  # set by `should_wait`, before anything is measured
        self._timing = False
        self._opened_at: float | None = None

    def on_transaction_ended(self, now: float) -> None:
        """Record the time at which the coordinator responded to EndTxn."""
        self._ended_at = now

    def should_wait(self, now: float) -> bool:
        """Start to measure a new transaction. Return True if it should wait for the markers of the
        previous one."""
        self._timing = now - self._ended_at < BACK_TO_BACK_S
        self._opened_at = None
        self._waits = self._timing and self._choice()
        return self._waits

    def on_batch_opened(self, now: float) -> None:
        """Record the time at which the first batch of a transaction was opened. Later batches are
        ignored."""
        if self._timing and self._opened_at is None:
            self._opened_at = now

    def on_batch_acknowledged(self, now: float) -> None:
        """Add the time that the first batch of a transaction took to the average. Later batches are
        ignored."""
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
    """Delays the first batches of a transaction.

    `on_ready` is called when a batch that was delayed may be sent; responses wake the sender
    anyway.

    Attributes:
        awaits_markers: True while nothing is sent, because the markers of the previous transaction
            may not be written yet.
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
        self._hold = LONGEST_HOLD_S

    def on_begin(self, *, tv2: bool) -> None:
        """Forget the previous transaction, and decide whether to wait for its markers. Only the
        second protocol (`tv2`) has this wait."""
        self.reset()
        self.awaits_markers = self._marker_wait.should_wait(self._loop.time()) and tv2

    def on_end(self) -> None:
        """Forget the transaction, and record the time at which it ended."""
        self.reset()
        self._marker_wait.on_transaction_ended(self._loop.time())

    def reset(self) -> None:
        """Forget the partitions of the transaction and cancel the timer."""
        self._added.clear()
        self._first.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_batch_opened(self) -> None:
        """See `MarkerWait.on_batch_opened`."""
        self._marker_wait.on_batch_opened(self._loop.time())

    # -- additions of partitions (second protocol) ----------------------------------------------

    def may_send(self, topic_partition: TopicPartition) -> bool:
        """Return True if a batch of this partition may be sent now. If not, `on_ready` is called
        once it may be sent. Does not check `awaits_markers`."""
        if topic_partition in self._added:
            return True
        until = self._held_until()
        if until <= self._loop.time():
            return True
        if self._timer is None:
            self._timer = self._loop.call_at(until, self._on_timer)
        return False

    def on_sent(self, batch: ProducerBatch) -> None:
        """Record a batch that is about to be sent for the first time under the second protocol. If
        its partition is not in the transaction yet, batches of further new partitions wait for the
        response."""
        if batch.topic_partition not in self._added:
            self._first.append(batch)

    def on_acknowledged(self, batch: ProducerBatch) -> None:
        """Record that the partition of an acknowledged batch belongs to the transaction, and how
        long it took to add the partition."""
        now = self._loop.time()
        self._marker_wait.on_batch_acknowledged(now)
        if batch.topic_partition not in self._added:
            self._added.add(batch.topic_partition)
            self._took.append(now - batch.sent_at)
            quick = min(self._took) < LEADER_PAUSE_S
            self._hold = LONGEST_HOLD_S if quick else LEADER_PAUSE_S

    def _held_until(self) -> float:
        """Return the time until which a batch that adds a partition must wait: `_hold` seconds
        after the last batch that adds a partition was sent; 0 if no such batch is in flight."""
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
        """Poll the coordinator at growing intervals until the markers have been written, for at
        most _MARKERS_LIMIT_S.

        Args:
            pending: sends one request; returns False if the markers have been written, or if that
                cannot be determined.
            wanted: returns False to end the wait.
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
