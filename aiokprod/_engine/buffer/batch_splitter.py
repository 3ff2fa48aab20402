"""Functions for splitting a batch that a broker rejected as too large (KIP-126)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiokprod._wire.record_batch import HEADER_SIZE

if TYPE_CHECKING:
    from aiokprod._engine.buffer.producer_batch import ProducerBatch

_MAX_PLAIN: Final = 1 << 30


def plain_records(batch: ProducerBatch) -> bytes:
    """Return the records section before compression."""
    assert batch.payload is not None, "only an encoded batch is split"
    codec = batch.queue.settings.codec
    return batch.payload if codec is None else codec.decompress(batch.payload, _MAX_PLAIN)


def part_limit(batch: ProducerBatch) -> int:
    """Return the maximum size of the records section of a part, in bytes before compression:
    batch_size without the header, or half of the batch's records section if that is less."""
    return max(1, min(batch.queue.settings.batch_size - HEADER_SIZE, batch.plain_size // 2))
