"""Prepares a batch for sending: encodes and compresses its records into immutable bytes.

Payloads of up to `INLINE_LIMIT` bytes are compressed immediately, larger ones in a worker thread,
so that they do not block the loop (the codecs release the GIL). The compression ratio is remembered
per topic, because batches are filled by their estimated compressed size.

Source: Java `MemoryRecordsBuilder.close`, `CompressionRatioEstimator`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from aiokprod._engine.buffer.batch_states import COMPRESSING, READY, SEALED

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from aiokprod._engine.buffer.producer_batch import ProducerBatch

INLINE_LIMIT: Final = 32 * 1024
_IMPROVING_STEP: Final = 0.005
_DETERIORATING_STEP: Final = 0.05
_ESTIMATE_MARGIN: Final = 1.05


class BatchCompressor:
    """Compresses batches with the codec of their topic.

    Args:
        on_compressed: called with the batch, and an error or None, for each batch for which
            `compress` returned False.
    """

    def __init__(
        self,
        executor: Executor | None,
        loop: asyncio.AbstractEventLoop,
        on_compressed: Callable[[ProducerBatch, BaseException | None], None],
    ) -> None:
        self._executor = executor
        self._loop = loop
        self._on_compressed = on_compressed
        self._ratios: dict[str, float] = {}
        self._jobs: set[asyncio.Future[bytes]] = set()

    def ratio(self, topic: str) -> float:
        """Return the estimated compressed size / plain size of the next batch of `topic`, including
        a margin."""
        return min(1.0, self._ratios.get(topic, 1.0) * _ESTIMATE_MARGIN)

    def reset_ratio(self, topic: str) -> None:
        """Assume no compression again, because the estimate was wrong (a batch was too large)."""
        self._ratios.pop(topic, None)

    def forget(self, topic: str) -> None:
        """Drop the ratio of a topic that is no longer in use."""
        self._ratios.pop(topic, None)

    def compress(self, batch: ProducerBatch) -> bool:
        """Encode and compress a batch. Return True if it can be sent now. Return False if a worker
        thread compresses it or the codec failed; `on_compressed` is then called later."""
        if batch.state is READY:
            return True
        if batch.state is COMPRESSING:
            return False
        plain = batch.core.finish()
        batch.plain_size = len(plain)
        codec = batch.queue.settings.codec
        if codec is None:
            batch.payload = plain
            batch.change_state(READY)
            batch.core.drop_payload()
            return True
        batch.codec_id = codec.codec_id
        if len(plain) <= INLINE_LIMIT or self._executor is None:
            try:
                payload = codec.compress(plain)
            except Exception as error:  # a codec or memory error fails this batch only
                batch.change_state(COMPRESSING)
                self._loop.call_soon(self._on_compressed, batch, error)
                return False
            self._set_payload(batch, payload)
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
        if batch.state is COMPRESSING:  # false if the batch expired during the compression
            if error is None:
                self._set_payload(batch, job.result())
            else:
                # If a signal handler interrupts `_on_compressed`, a batch in state SEALED is
                # compressed again by the next drain. In state COMPRESSING, it would block its
                # partition until it expires.
                batch.change_state(SEALED)
        self._on_compressed(batch, error)

    def _set_payload(self, batch: ProducerBatch, payload: bytes) -> None:
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
