"""Elastic batches: a full batch that has to wait grows beyond `batch_size`.

Under load one large batch is better than several small ones: the broker and this process pay for
each of them, and a batch behind another one of its partition could not be sent earlier anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiokprod._wire.record_batch import HEADER_SIZE

if TYPE_CHECKING:
    from aiokprod._core.batch import BatchCore
    from aiokprod._engine.buffer.producer_batch import ProducerBatch
    from aiokprod.config import ProducerConfig

_LEAST_BATCHES: Final = 16
"""No batch grows so far that fewer would fill the buffer."""
_GROWING_AGE: Final = 1 / 16
"""Of the delivery timeout, which young records share with the oldest of their batch."""


class BatchGrowth:
    """Whether and how far a full batch may grow. Brokers are not known here: the accumulator asks
    only while another batch waits before it and the broker is within its memory quota.

    Args:
        step: bytes by which a batch grows at a time.

    Attributes:
        limit: bytes of the largest batch, header included (`elastic_batch_size`).
    """

    def __init__(self, config: ProducerConfig, step: int) -> None:
        self._step = step
        self._buffered_limit = config.buffer_memory // _LEAST_BATCHES
        self.limit = min(config.elastic_batch_size, config.max_request_size, self._buffered_limit)
        self._age_limit = config.delivery_timeout_ms / 1000 * _GROWING_AGE
        self._disabled: set[str] = set()

    def next_limit(self, batch: ProducerBatch, now: float) -> int:
        """Bytes of records to which a full batch may grow; its present limit if it must not."""
        core: BatchCore = batch.core
        if (
            batch.queue.topic in self._disabled
            or now - batch.created_at > self._age_limit
            or core.buffered_bytes > self._buffered_limit
        ):
            return core.limit
        return max(core.limit, min(core.limit + self._step, self.limit - HEADER_SIZE))

    def disable(self, topic: str) -> None:
        """A broker found a batch of the topic too large: its batches no longer grow."""
        self._disabled.add(topic)

    def forget(self, topic: str) -> None:
        """The topic is no longer in use."""
        self._disabled.discard(topic)
