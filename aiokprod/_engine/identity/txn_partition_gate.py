"""Under the second protocol, partitions join a transaction one request at a time.

The first batch of a partition makes its leader add the partition at the coordinator. That takes
one addition at a time and refuses the others meanwhile; a leader so refused asks again after 20 ms
(`add.partitions.to.txn.retry.backoff.ms`), by when another one's addition may be in its way again.
Three leaders asked at once took 55-105 ms on three local brokers, one after the other 20-25 ms.

So a request that adds partitions waits for the answer to the one before, if answers come sooner
than a refused leader asks again. Where none did lately, because brokers are distant, requests
follow each other at that distance in time, which keeps them apart at the coordinator as well.

Source: KIP-890; Kafka 4.x `TransactionCoordinator.handleAddPartitionsToTransaction`,
`AddPartitionsToTxnConfig`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiokprod._engine.buffer.producer_batch import ProducerBatch
    from aiokprod.records import TopicPartition

LEADER_PAUSE_S: Final = 0.02
"""When a refused leader asks again; how long a request keeps others back if answers take longer."""
PATIENCE_S: Final = 0.1
"""How long it keeps them back if they are quicker: brokers may be busy, or silent."""
_MEMORY: Final = 16


class TxnPartitionGate:
    """First batches on their way. `on_ready` is called when one no longer holds up the others;
    answers wake the sender anyway."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_ready: Callable[[], None]) -> None:
        self._loop = loop
        self._on_ready = on_ready
        self._joined: set[TopicPartition] = set()
        self._first: list[ProducerBatch] = []
        self._timer: asyncio.TimerHandle | None = None
        self._took: deque[float] = deque(maxlen=_MEMORY)
        self._hold = PATIENCE_S

    def reset(self) -> None:
        """A new transaction, or none any more."""
        self._joined.clear()
        self._first.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def may_send(self, topic_partition: TopicPartition) -> bool:
        """May a batch of this partition leave now?"""
        if topic_partition in self._joined:
            return True
        until = self._held_until()
        if until <= self._loop.time():
            return True
        if self._timer is None:
            self._timer = self._loop.call_at(until, self._look)
        return False

    def sent(self, batch: ProducerBatch) -> None:
        """A batch is about to leave."""
        if batch.topic_partition not in self._joined:
            self._first.append(batch)

    def acknowledged(self, batch: ProducerBatch) -> None:
        """Its partition belongs to the transaction."""
        if batch.topic_partition not in self._joined:
            self._joined.add(batch.topic_partition)
            self._took.append(self._loop.time() - batch.sent_at)
            quick = min(self._took) < LEADER_PAUSE_S
            self._hold = PATIENCE_S if quick else LEADER_PAUSE_S

    def _held_until(self) -> float:
        """By the latest batch on the wire; those behind it in the list were sent before."""
        first = self._first
        while first and not first[-1].in_flight:
            first.pop()
        return first[-1].sent_at + self._hold if first else 0.0

    def _look(self) -> None:
        self._timer = None
        self._on_ready()  # who still has to wait sets it anew
