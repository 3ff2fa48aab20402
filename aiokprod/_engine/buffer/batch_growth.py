"""Elastic batches: a full batch that has to wait grows beyond `batch_size`.

Each batch costs time on the broker and in this process, so under load one large batch is better
than several small ones. A batch that waits behind another batch of its partition could not be sent
earlier anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiokprod._engine.buffer.topic_settings import buffered_limit
from aiokprod._wire.record_batch import HEADER_SIZE

if TYPE_CHECKING:
    from aiokprod._core.batch import BatchCore
    from aiokprod._engine.buffer.producer_batch import ProducerBatch
    from aiokprod.config import ProducerConfig

_GROWING_AGE: Final = 1 / 16
"""Fraction of the delivery timeout after which a batch no longer grows, because new records would
expire together with its oldest one."""


class BatchGrowth:
    """Decides whether and how far a full batch may grow.

    The accumulator calls `next_limit` only for a batch that waits behind another batch, and only
    while the broker is within its memory quota.

    """

    def __init__(self, config: ProducerConfig) -> None:
        self._buffered_limit = buffered_limit(config)
        self._disabled: set[str] = set()

    def next_limit(self, batch: ProducerBatch, now: float) -> int:
        """Return the new maximum size of a full batch's records section, in bytes: one `batch_size`
        more than the current limit but at most `growth_limit`, or the current limit if the batch
        may not grow."""
        core: BatchCore = batch.core
        settings = batch.queue.settings
        if (
            batch.queue.topic in self._disabled
            or now - batch.created_at > settings.delivery_timeout * _GROWING_AGE
            or core.buffered_bytes > self._buffered_limit
        ):
            return core.limit
        return max(
            core.limit, min(core.limit + settings.batch_size, settings.growth_limit - HEADER_SIZE)
        )

    def disable(self, topic: str) -> None:
        """Stop the growth of the topic's batches, because a broker rejected one as too large."""
        self._disabled.add(topic)

    def forget(self, topic: str) -> None:
        """Allow growth again for a topic that is no longer in use."""
        self._disabled.discard(topic)
