"""Closing batches: compression inline or in a worker thread, ratios, failures; splitting."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from pathlib import Path

import pytest

from aiokprod._engine.buffer import batch_compressor
from aiokprod._engine.buffer.batch_compressor import INLINE_LIMIT
from aiokprod._engine.buffer.batch_states import BatchState
from aiokprod._engine.sender import sender
from aiokprod._wire.compression import CODEC_NAMES, Codec, NoCompression, codec_for
from aiokprod._wire.primitives import BytesLike
from aiokprod.errors import Code, Outcome, ProducerFailed
from aiokprod.records import TopicPartition
from aiokprod.testing.virtual import VirtualLoop
from tests.current import current
from tests.engine.engine_harness import EngineHarness, error_of, offset_of, quiet, virtual
from tests.simulation.call_interrupts import Injector

T0 = TopicPartition("t", 0)
WORKER = object()
"""Replaces the executor: the virtual loop runs its jobs inline."""


class Broken(NoCompression):
    """A codec that fails."""

    codec_id = 1

    def compress(self, data: BytesLike) -> bytes:
        raise MemoryError("no room for the window")


def world_with(codec: Codec | None, *, worker: bool = False, **settings: object) -> EngineHarness:
    return EngineHarness(
        codec=codec,
        executor=WORKER if worker else None,  # type: ignore[arg-type]
        batch_size=200_000,
        max_request_size=1_000_000,
        **settings,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("name", CODEC_NAMES[1:])
@virtual
async def test_every_codec_is_readable_for_a_broker(name: str) -> None:
    harness = world_with(codec_for(name))
    values = [b"%d" % i * 100 for i in range(50)]
    deliveries = [harness.append(value) for value in values]
    harness.step()
    batch = harness.brokers.last.batch
    assert batch.codec == name
    assert batch.size < sum(map(len, values))
    harness.brokers.last.ack()
    assert harness.brokers.stored(T0) == values
    assert [offset_of(d) for d in deliveries] == list(range(50))
    harness.step()
    harness.check_idle()


@virtual
async def test_small_batch_is_compressed_on_the_spot() -> None:
    harness = world_with(codec_for("gzip"), worker=True)
    harness.append(b"x" * 1000)
    harness.step()
    assert len(harness.brokers.sent) == 1


@virtual
async def test_large_batch_is_compressed_in_a_worker_and_sent_when_that_ends() -> None:
    harness = world_with(codec_for("gzip"), worker=True)
    assert isinstance(harness.loop, VirtualLoop)
    harness.loop.executor_delay_s = 0.5
    task = asyncio.ensure_future(harness.sender.run())
    delivery = harness.append(b"x" * (INLINE_LIMIT + 1))
    await quiet()
    assert not harness.brokers.sent
    (batch,) = harness.queued()
    assert batch.state is BatchState.COMPRESSING
    await asyncio.sleep(0.5)
    await quiet()
    assert len(harness.brokers.sent) == 1
    assert current(batch.state) is BatchState.IN_FLIGHT
    harness.brokers.last.ack()
    assert (await delivery).offset == 0
    task.cancel()
    await quiet()
    harness.check_idle()


@virtual
async def test_batch_is_compressed_once_however_often_it_is_looked_at() -> None:
    harness = world_with(codec_for("gzip"), worker=True)
    assert isinstance(harness.loop, VirtualLoop)
    harness.loop.executor_delay_s = 0.5
    harness.append(b"x" * (INLINE_LIMIT + 1))
    for _ in range(3):
        harness.step()
    (batch,) = harness.queued()
    assert not harness.accumulator._compressor.compress(batch)
    await asyncio.sleep(1)
    await quiet()
    assert harness.accumulator._compressor.compress(batch)
    harness.step()
    assert len(harness.brokers.sent) == 1


@virtual
async def test_other_partitions_leave_while_one_is_being_compressed() -> None:
    harness = world_with(codec_for("gzip"), worker=True, partitions=2)
    assert isinstance(harness.loop, VirtualLoop)
    harness.loop.executor_delay_s = 0.5
    harness.append(b"x" * (INLINE_LIMIT + 1), 0)
    harness.append(b"small", 1)
    harness.step()
    assert list(harness.brokers.last.batches) == [TopicPartition("t", 1)]
    await asyncio.sleep(0.6)
    await quiet()
    harness.step()
    assert T0 in harness.brokers.last.batches


@pytest.mark.parametrize("worker", [False, True])
@virtual
async def test_failing_codec_costs_its_batch_and_nothing_else(worker: bool) -> None:
    harness = world_with(Broken(), worker=worker)
    delivery = harness.append(b"x" * (INLINE_LIMIT + 1))
    flush = asyncio.ensure_future(harness.flushes.wait(list(harness.accumulator.incomplete)))
    await quiet()
    harness.step()
    await quiet()
    error = error_of(delivery)
    assert isinstance(error, ProducerFailed)
    assert error.outcome is Outcome.NOT_SENT
    assert isinstance(error.__cause__.__cause__, MemoryError)  # type: ignore[union-attr]
    await flush
    harness.step()
    harness.check_idle()
    harness.append(b"again")
    harness.step()
    await quiet()
    harness.step()
    harness.check_idle()


def test_exception_of_a_signal_handler_within_compression_is_never_hidden() -> None:
    """The exception fails the batch, like an exception raised by the codec, or propagates from the
    sender."""

    class SoftTimeLimit(Exception):
        pass

    def interrupted(step: int) -> bool:
        def raise_limit() -> None:
            raise SoftTimeLimit

        injector = Injector(step, raise_limit, str(Path(batch_compressor.__file__).parent))

        @virtual
        async def scene() -> None:
            harness = world_with(codec_for("gzip"))
            harness.append(b"v")
            (batch,) = harness.queued()
            compressor = harness.accumulator._compressor
            batch.core.seal()
            with contextlib.suppress(SoftTimeLimit), injector.armed():
                compressor.compress(batch)

        scene()
        return injector.has_struck

    assert any(not interrupted(step) for step in itertools.count(1))


@virtual
async def test_cancelled_compression_fails_the_batch() -> None:
    harness = world_with(codec_for("gzip"), worker=True)
    assert isinstance(harness.loop, VirtualLoop)
    harness.loop.executor_delay_s = 5.0
    delivery = harness.append(b"x" * (INLINE_LIMIT + 1))
    harness.step()
    (job,) = harness.accumulator._compressor._jobs
    job.cancel()
    await quiet()
    assert error_of(delivery).outcome is Outcome.NOT_SENT
    harness.step()
    harness.check_idle()


@virtual
async def test_batch_whose_failure_is_not_reported_is_compressed_again() -> None:
    """A signal handler raises after `_job_done` has stored the failure and before the sender fails
    the batch: the partition must not wait for the delivery timeout of that batch."""
    harness = world_with(codec_for("gzip"), worker=True)
    assert isinstance(harness.loop, VirtualLoop)
    harness.loop.executor_delay_s = 5.0
    harness.append(b"x" * (INLINE_LIMIT + 1))
    harness.step()
    (batch,) = harness.queued()
    failed = harness.loop.create_future()
    failed.set_exception(MemoryError())

    def interrupt() -> None:
        raise KeyboardInterrupt

    injector = Injector(1, interrupt, str(Path(sender.__file__).parent))
    with pytest.raises(KeyboardInterrupt), injector.armed():
        harness.accumulator._compressor._job_done(batch, failed)
    assert batch.state is BatchState.SEALED
    harness.loop.executor_delay_s = 0.0
    harness.append(b"later")
    harness.step()
    await quiet()
    harness.step()
    assert current(batch.state) is BatchState.IN_FLIGHT
    await asyncio.sleep(5.0)  # the first job ends
    await quiet()
    for sent in list(harness.brokers.waiting):
        sent.ack()
    harness.step()
    for sent in list(harness.brokers.waiting):
        sent.ack()
    assert harness.brokers.stored(T0) == [b"x" * (INLINE_LIMIT + 1), b"later"]


@virtual
async def test_payload_of_a_batch_that_expired_meanwhile_is_dropped_at_once() -> None:
    harness = world_with(codec_for("gzip"), worker=True, delivery_timeout_ms=30_000)
    assert isinstance(harness.loop, VirtualLoop)
    harness.loop.executor_delay_s = 60.0
    harness.append(b"x" * 50_000)
    (batch,) = harness.queued()
    harness.step()
    harness.later(30.0)
    assert harness.memory.used == 0
    await asyncio.sleep(61)
    assert batch.payload is None
    assert not harness.accumulator._compressor._jobs
    assert harness.memory.used == 0
    harness.check_idle()


@virtual
async def test_payload_of_a_batch_that_expires_before_it_is_sent_is_dropped_at_once() -> None:
    harness = world_with(codec_for("gzip"), delivery_timeout_ms=30_000)
    harness.brokers.busy.add(1)
    harness.append_all(b"a", b"b")
    first, _ = harness.queued()
    harness.step()
    assert first.state is BatchState.READY
    assert first.payload
    harness.later(30.0)
    assert current(first.payload) is None
    harness.check_idle()


@virtual
async def test_ratio_lets_batches_fill_to_their_size_after_compression() -> None:
    harness = world_with(codec_for("gzip"))
    compressor = harness.accumulator._compressor
    assert compressor.ratio("t") == 1.0
    for _ in range(200):
        harness.append(b"x" * 10_000)
        harness.step()
        harness.brokers.last.ack()
    ratio = compressor.ratio("t")
    assert ratio < 0.1, "ten kilobytes of one letter"
    assert compressor.ratio("other") == 1.0
    compressor.reset_ratio("t")
    assert compressor.ratio("t") == 1.0


@virtual
async def test_ratio_grows_at_once_when_data_stop_compressing() -> None:
    harness = world_with(codec_for("gzip"))
    compressor = harness.accumulator._compressor
    for _ in range(50):
        harness.append(b"x" * 10_000)
        harness.step()
        harness.brokers.last.ack()
    before = compressor.ratio("t")
    # Down by 0.005 for each batch (Java CompressionRatioEstimator), 5 % on top as a margin.
    assert before == pytest.approx((1 - 50 * 0.005) * 1.05)
    harness.append(os.urandom(10_000))
    harness.step()
    assert compressor.ratio("t") == 1.0 > before


@virtual
async def test_ratio_without_compression_is_one() -> None:
    harness = world_with(None)
    compressor = harness.accumulator._compressor
    compressor.reset_ratio("t")
    assert compressor.ratio("t") == 1.0


@virtual
async def test_compressed_batch_too_large_is_split_by_its_plain_size() -> None:
    harness = world_with(
        codec_for("zstd"), idempotent=False, max_in_flight_requests_per_connection=1
    )
    values = [b"%d" % i * 500 for i in range(16)]
    deliveries = [harness.append(value) for value in values]
    harness.step()
    harness.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
    harness.step()
    while harness.brokers.waiting:
        if len(harness.brokers.last.values) > 4:
            harness.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
        else:
            harness.brokers.last.ack()
        harness.step()
    assert harness.brokers.stored(T0) == values
    assert [offset_of(d) for d in deliveries] == list(range(16))
    harness.check_idle()


@virtual
async def test_split_of_two_records_of_any_size_makes_progress() -> None:
    for sizes in ((1, 5000), (5000, 1), (1, 1), (5000, 5000)):
        harness = world_with(None, idempotent=False)
        for size in sizes:
            harness.append(b"x" * size)
        harness.step()
        harness.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
        assert len(harness.queued()) == 2
        harness.step()
        for sent in harness.brokers.waiting:
            sent.ack()
        harness.step()
        assert list(map(len, harness.brokers.stored(T0))) == list(sizes)  # type: ignore[arg-type]
