"""Waits for the outcomes of batches, for `flush()` and the drain of `close()`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiokprod._engine.buffer.producer_batch import ProducerBatch


class FlushTracker:
    """Flushes in progress. Each waits for the batches that were incomplete when it began; a batch
    that is split is replaced by its parts. Source: Java `IncompleteBatches`.

    Attributes:
        active: True while a flush is in progress. Batches then do not wait for `linger_ms`.
    """

    def __init__(self) -> None:
        self.active = False
        self._flushes: list[tuple[set[ProducerBatch], asyncio.Future[None], bool]] = []

    def on_batch_done(self, batch: ProducerBatch) -> None:
        """Record that a batch has its outcome, and end the waits that have no other batch."""
        for pending, future, _ in list(self._flushes):
            pending.discard(batch)
            if not pending and not future.done():
                future.set_result(None)

    def replace(self, batch: ProducerBatch, parts: Iterable[ProducerBatch]) -> None:
        """Make waits for a batch that was split wait for its parts."""
        for pending, _, _ in self._flushes:
            if batch in pending:
                pending.update(parts)

    def give_up(self) -> None:
        """End the waits with `until_given_up` as if their batches had outcomes."""
        for _, future, until_given_up in self._flushes:
            if until_given_up and not future.done():
                future.set_result(None)

    async def wait(self, batches: Iterable[ProducerBatch], *, until_given_up: bool = False) -> None:
        """Return once each of `batches` was acknowledged or has failed.

        Args:
            until_given_up: also return when `give_up` is called.

        Cancellation: only the wait ends.
        """
        pending = set(batches)
        if not pending:
            return
        entry = (pending, asyncio.get_running_loop().create_future(), until_given_up)
        try:
            self._flushes.append(entry)
            self.active = True
            await entry[1]
        finally:
            self._flushes.remove(entry)
            self.active = bool(self._flushes)
