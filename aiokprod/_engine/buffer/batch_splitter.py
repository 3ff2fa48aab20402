"""Splitting a batch that a broker finds too large (KIP-126)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiokprod._wire.record_batch import HEADER_SIZE

if TYPE_CHECKING:
    from aiokprod._engine.buffer.producer_batch import ProducerBatch
    from aiokprod._wire.compression import Codec

_MAX_PLAIN: Final = 1 << 30


class BatchSplitter:
    """Knows how to get a batch's records back out of its bytes, and how large parts may be."""

    def __init__(self, batch_size: int, codec: Codec | None) -> None:
        self._batch_size = batch_size
        self._codec = codec

    def plain(self, batch: ProducerBatch) -> bytes:
        """The records section before compression."""
        assert batch.payload is not None, "only a closed batch is split"
        if self._codec is None:
            return batch.payload
        return self._codec.decompress(batch.payload, _MAX_PLAIN)

    def limit(self, batch: ProducerBatch) -> int:
        """Size of the parts in plain bytes: batch_size, or half of a batch that is no larger."""
        return max(1, min(self._batch_size - HEADER_SIZE, batch.plain_size // 2))
