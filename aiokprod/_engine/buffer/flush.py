"""Waits for the outcomes of batches, for `flush()` and the drain of `close()`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiokprod._engine.buffer.producer_batch import ProducerBatch


class FlushTracker:
    """Flushes in progress. Each waits for the batches that were incomplete when it began; a batch
    that is split is replaced by its parts. Source: Java `IncompleteBatches`."""

    def __init__(self) -> None:
        self._flushes: list[tuple[set[ProducerBatch], asyncio.Future[None]]] = []

    @property
    def active(self) -> bool:
        """True while a flush is in progress, which ignores `linger_ms`."""
        return bool(self._flushes)

    def settled(self, batch: ProducerBatch) -> None:
        """A batch has its outcome."""
        for pending, future in list(self._flushes):
            pending.discard(batch)
            if not pending and not future.done():
                future.set_result(None)

    def replace(self, batch: ProducerBatch, parts: Iterable[ProducerBatch]) -> None:
        """A batch was split: waits for it become waits for its parts."""
        for pending, _ in self._flushes:
            if batch in pending:
                pending.update(parts)

    def give_up(self) -> None:
        """End all waits as if their batches had outcomes."""
        for _, future in self._flushes:
            if not future.done():
                future.set_result(None)

    async def wait(self, batches: Iterable[ProducerBatch]) -> None:
        """Return once all of `batches` have an outcome, good or bad.

        Cancellation: only the wait ends.
        """
        pending = set(batches)
        if not pending:
            return
        entry = (pending, asyncio.get_running_loop().create_future())
        try:
            self._flushes.append(entry)
            await entry[1]
        finally:
            self._flushes.remove(entry)
