"""Closing a batch for sending: its records become immutable, compressed bytes.

Small payloads are compressed on the spot; larger ones in a worker thread, so that the loop never
stalls (the codecs release the GIL). The ratio reached is remembered per topic, because batches
fill by their estimated compressed size.

Source: Java `MemoryRecordsBuilder.close`, `CompressionRatioEstimator`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from aiokprod._engine.buffer.batch_states import COMPRESSING, READY, SEALED
from aiokprod._wire.compression import Codec

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from aiokprod._engine.buffer.producer_batch import ProducerBatch

INLINE_LIMIT: Final = 32 * 1024
_IMPROVING_STEP: Final = 0.005
_DETERIORATING_STEP: Final = 0.05
_ESTIMATE_MARGIN: Final = 1.05


class BatchCompressor:
    """Closes batches with one codec (None: no compression)."""

    def __init__(
        self,
        codec: Codec | None,
        executor: Executor | None,
        loop: asyncio.AbstractEventLoop,
        on_closed: Callable[[ProducerBatch, BaseException | None], None],
    ) -> None:
        self._codec = codec
        self._executor = executor
        self._loop = loop
        self._on_closed = on_closed
        self._ratios: dict[str, float] = {}
        self._jobs: set[asyncio.Future[bytes]] = set()

    def ratio(self, topic: str) -> float:
        """Estimated compressed / plain size of the next batch of `topic`, margin included."""
        if self._codec is None:
            return 1.0
        return min(1.0, self._ratios.get(topic, 1.0) * _ESTIMATE_MARGIN)

    def reset_ratio(self, topic: str) -> None:
        """The estimate proved wrong (a batch was too large): assume no compression again."""
        if self._codec is not None:
            self._ratios[topic] = 1.0

    def forget(self, topic: str) -> None:
        """The topic is not in use any more."""
        self._ratios.pop(topic, None)

    def close(self, batch: ProducerBatch) -> bool:
        """True if the batch can be sent now; otherwise `on_closed` follows."""
        if batch.state is READY:
            return True
        if batch.state is COMPRESSING:
            return False
        plain = batch.core.finish()
        batch.plain_size = len(plain)
        codec = self._codec
        if codec is None:
            batch.payload = plain
            batch.change_state(READY)
            batch.core.drop_payload()
            return True
        batch.codec_id = codec.codec_id
        if len(plain) <= INLINE_LIMIT or self._executor is None:
            try:
                self._closed(batch, codec.compress(plain))
            except Exception as error:  # a codec or memory failure costs this batch only
                batch.change_state(COMPRESSING)
                self._loop.call_soon(self._on_closed, batch, error)
                return False
            return True
        batch.change_state(COMPRESSING)
        job = self._loop.run_in_executor(self._executor, codec.compress, plain)
        self._jobs.add(job)
        job.add_done_callback(lambda done: self._job_done(batch, done))
        return False

    def _job_done(self, batch: ProducerBatch, job: asyncio.Future[bytes]) -> None:
        self._jobs.discard(job)
        error: BaseException | None
        if job.cancelled():
            error = asyncio.CancelledError("compression was cancelled")
        else:
            error = job.exception()
        if batch.state is COMPRESSING:  # else it has expired meanwhile
            if error is None:
                self._closed(batch, job.result())
            else:
                batch.change_state(SEALED)
        self._on_closed(batch, error)

    def _closed(self, batch: ProducerBatch, payload: bytes) -> None:
        batch.payload = payload
        batch.change_state(READY)
        batch.core.drop_payload()
        topic = batch.topic_partition.topic
        observed = len(payload) / max(1, batch.plain_size)
        known = self._ratios.get(topic, 1.0)
        if observed > known:
            self._ratios[topic] = max(known + _DETERIORATING_STEP, observed)
        else:
            self._ratios[topic] = max(known - _IMPROVING_STEP, observed)
