"""Closing batches: compression on the spot or in a worker thread, ratios, failures; splitting."""

from __future__ import annotations

import asyncio
import os

import pytest

from aiokprod.engine.closer import INLINE_LIMIT
from aiokprod.errors import Code, Outcome, ProducerFailed
from aiokprod.records import TopicPartition
from aiokprod.testing.virtual import VirtualLoop
from aiokprod.wire.compression import Codec, NoCompression, codec_for
from aiokprod.wire.primitives import BytesLike
from tests.engine.world import World, error_of, offset_of, quiet, virtual

T0 = TopicPartition("t", 0)
WORKER = object()
"""Stands for the executor: the virtual loop runs its jobs inline."""


class Broken(NoCompression):
    """A codec that fails."""

    codec_id = 1

    def compress(self, data: BytesLike) -> bytes:
        raise MemoryError("no room for the window")


def world_with(codec: Codec | None, *, worker: bool = False, **settings: object) -> World:
    return World(
        codec=codec,
        executor=WORKER if worker else None,  # type: ignore[arg-type]
        batch_size=200_000,
        max_request_size=1_000_000,
        **settings,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("name", ["gzip", "snappy", "lz4", "zstd"])
@virtual
async def test_every_codec_is_readable_for_a_broker(name: str) -> None:
    world = world_with(codec_for(name))
    values = [b"%d" % i * 100 for i in range(50)]
    deliveries = [world.append(value) for value in values]
    world.step()
    batch = world.brokers.last.batch
    assert batch.codec == name
    assert batch.size < sum(map(len, values))
    world.brokers.last.ack()
    assert world.brokers.stored(T0) == values
    assert [offset_of(d) for d in deliveries] == list(range(50))
    world.step()
    world.check_idle()


@virtual
async def test_small_batch_is_compressed_on_the_spot() -> None:
    world = world_with(codec_for("gzip"), worker=True)
    world.append(b"x" * 1000)
    world.step()
    assert len(world.brokers.sent) == 1


@virtual
async def test_large_batch_is_compressed_in_a_worker_and_sent_when_that_ends() -> None:
    world = world_with(codec_for("gzip"), worker=True)
    assert isinstance(world.loop, VirtualLoop)
    world.loop.executor_delay_s = 0.5
    task = asyncio.ensure_future(world.sender.run())
    delivery = world.append(b"x" * (INLINE_LIMIT + 1))
    await quiet()
    assert not world.brokers.sent
    (batch,) = world.queued()
    assert batch.closing
    await asyncio.sleep(0.5)
    await quiet()
    assert len(world.brokers.sent) == 1
    assert not batch.closing
    world.brokers.last.ack()
    assert (await delivery).offset == 0
    task.cancel()
    await quiet()
    world.check_idle()


@virtual
async def test_batch_is_compressed_once_however_often_it_is_looked_at() -> None:
    world = world_with(codec_for("gzip"), worker=True)
    assert isinstance(world.loop, VirtualLoop)
    world.loop.executor_delay_s = 0.5
    world.append(b"x" * (INLINE_LIMIT + 1))
    for _ in range(3):
        world.step()
    (batch,) = world.queued()
    assert not world.accumulator._closer.close(batch)
    await asyncio.sleep(1)
    await quiet()
    assert world.accumulator._closer.close(batch)
    world.step()
    assert len(world.brokers.sent) == 1


@virtual
async def test_other_partitions_leave_while_one_is_being_compressed() -> None:
    world = world_with(codec_for("gzip"), worker=True, partitions=2)
    assert isinstance(world.loop, VirtualLoop)
    world.loop.executor_delay_s = 0.5
    world.append(b"x" * (INLINE_LIMIT + 1), 0)
    world.append(b"small", 1)
    world.step()
    assert list(world.brokers.last.batches) == [TopicPartition("t", 1)]
    await asyncio.sleep(0.6)
    await quiet()
    world.step()
    assert T0 in world.brokers.last.batches


@pytest.mark.parametrize("worker", [False, True])
@virtual
async def test_failing_codec_costs_its_batch_and_nothing_else(worker: bool) -> None:
    world = world_with(Broken(), worker=worker)
    delivery = world.append(b"x" * (INLINE_LIMIT + 1))
    flush = asyncio.ensure_future(world.flushes.wait(list(world.accumulator.incomplete)))
    await quiet()
    world.step()
    await quiet()
    error = error_of(delivery)
    assert isinstance(error, ProducerFailed)
    assert error.outcome is Outcome.NOT_SENT
    assert isinstance(error.__cause__.__cause__, MemoryError)  # type: ignore[union-attr]
    await flush
    world.step()
    world.check_idle()
    world.append(b"again")
    world.step()
    await quiet()
    world.step()
    world.check_idle()


@virtual
async def test_cancelled_compression_fails_the_batch() -> None:
    world = world_with(codec_for("gzip"), worker=True)
    assert isinstance(world.loop, VirtualLoop)
    world.loop.executor_delay_s = 5.0
    delivery = world.append(b"x" * (INLINE_LIMIT + 1))
    world.step()
    (job,) = world.accumulator._closer._jobs
    job.cancel()
    await quiet()
    assert error_of(delivery).outcome is Outcome.NOT_SENT
    world.step()
    world.check_idle()


@virtual
async def test_ratio_lets_batches_fill_to_their_size_after_compression() -> None:
    world = world_with(codec_for("gzip"))
    closer = world.accumulator._closer
    assert closer.ratio("t") == 1.0
    for _ in range(200):
        world.append(b"x" * 10_000)
        world.step()
        world.brokers.last.ack()
    ratio = closer.ratio("t")
    assert ratio < 0.1, "ten kilobytes of one letter"
    assert closer.ratio("other") == 1.0
    closer.reset_ratio("t")
    assert closer.ratio("t") == 1.0


@virtual
async def test_ratio_grows_at_once_when_data_stop_compressing() -> None:
    world = world_with(codec_for("gzip"))
    closer = world.accumulator._closer
    for _ in range(50):
        world.append(b"x" * 10_000)
        world.step()
        world.brokers.last.ack()
    before = closer.ratio("t")
    # Down by 0.005 for each batch (Java CompressionRatioEstimator), 5 % on top as a margin.
    assert before == pytest.approx((1 - 50 * 0.005) * 1.05)
    world.append(os.urandom(10_000))
    world.step()
    assert closer.ratio("t") == 1.0 > before


@virtual
async def test_ratio_without_compression_is_one() -> None:
    world = world_with(None)
    closer = world.accumulator._closer
    closer.reset_ratio("t")
    assert closer.ratio("t") == 1.0


@virtual
async def test_compressed_batch_too_large_is_split_by_its_plain_size() -> None:
    world = world_with(codec_for("zstd"), idempotent=False, max_in_flight_requests_per_connection=1)
    values = [b"%d" % i * 500 for i in range(16)]
    deliveries = [world.append(value) for value in values]
    world.step()
    world.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
    world.step()
    while world.brokers.waiting:
        if len(world.brokers.last.values) > 4:
            world.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
        else:
            world.brokers.last.ack()
        world.step()
    assert world.brokers.stored(T0) == values
    assert [offset_of(d) for d in deliveries] == list(range(16))
    world.check_idle()


@virtual
async def test_split_of_two_records_of_any_size_makes_progress() -> None:
    for sizes in ((1, 5000), (5000, 1), (1, 1), (5000, 5000)):
        world = world_with(None, idempotent=False)
        for size in sizes:
            world.append(b"x" * size)
        world.step()
        world.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
        assert len(world.queued()) == 2
        world.step()
        for sent in world.brokers.waiting:
            sent.ack()
        world.step()
        assert list(map(len, world.brokers.stored(T0))) == list(sizes)  # type: ignore[arg-type]
