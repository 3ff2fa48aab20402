"""Which batches a flush waits for (Java IncompleteBatches, RecordAccumulatorTest.testFlush)."""

from __future__ import annotations

import asyncio

from aiokprod._engine.buffer.flush import FlushTracker
from aiokprod.errors import Code
from tests.engine.engine_harness import EngineHarness, quiet, virtual


def flush(harness: EngineHarness) -> asyncio.Task[None]:
    return asyncio.ensure_future(harness.flushes.wait(list(harness.accumulator.incomplete)))


@virtual
async def test_flush_of_nothing_returns_at_once() -> None:
    tracker = FlushTracker()
    coroutine = tracker.wait([])
    try:
        coroutine.send(None)
    except StopIteration:
        pass
    else:
        raise AssertionError("it suspended")
    assert not tracker.active


@virtual
async def test_flush_waits_for_all_that_was_handed_over_before_and_nothing_after() -> None:
    harness = EngineHarness(partitions=3)
    harness.append(b"0", 0)
    harness.append(b"1", 1)
    first = flush(harness)
    await quiet()
    assert harness.flushes.active
    harness.step()
    harness.append(b"2", 2)
    second = flush(harness)
    await quiet()
    harness.brokers.last.ack()
    await quiet()
    assert first.done()
    assert not second.done()
    harness.step()
    harness.brokers.last.ack()
    await quiet()
    assert second.done()
    assert not harness.flushes.active


@virtual
async def test_flush_takes_a_failure_for_an_end() -> None:
    harness = EngineHarness()
    harness.append(b"v")
    waiting = flush(harness)
    await quiet()
    harness.step()
    harness.brokers.last.refuse(Code.INVALID_RECORD)
    await quiet()
    assert waiting.done()
    assert waiting.exception() is None


@virtual
async def test_flush_waits_through_retries_and_expiry_on_the_wire() -> None:
    harness = EngineHarness(delivery_timeout_ms=30_000, request_timeout_ms=30_000)
    harness.append(b"v")
    waiting = flush(harness)
    await quiet()
    harness.step()
    harness.brokers.last.refuse(Code.NOT_ENOUGH_REPLICAS)
    await quiet()
    assert not waiting.done()
    harness.later()
    harness.later(30.0)
    await quiet()
    assert waiting.done(), "it expired, though its answer is still to come"
    harness.brokers.last.lose()


@virtual
async def test_flush_ends_when_the_last_record_is_withdrawn() -> None:
    harness = EngineHarness(linger_ms=1000, adaptive_linger=False)
    deliveries = [harness.append(b"v"), harness.append(b"w")]
    waiting = flush(harness)
    await quiet()
    deliveries[0].cancel()
    await quiet()
    assert not waiting.done()
    deliveries[1].cancel()
    harness.step()
    await quiet()
    assert waiting.done()
    harness.check_idle()


@virtual
async def test_cancelled_flush_only_stops_waiting() -> None:
    harness = EngineHarness(linger_ms=1000, adaptive_linger=False)
    delivery = harness.append(b"v")
    waiting = flush(harness)
    await quiet()
    waiting.cancel()
    await quiet()
    assert not harness.flushes.active, "linger is in force again"
    harness.step()
    assert not harness.brokers.sent
    assert not delivery.done()


@virtual
async def test_give_up_ends_the_wait_of_close_and_no_other() -> None:
    harness = EngineHarness()
    harness.append(b"v")
    user = flush(harness)
    batches = list(harness.accumulator.incomplete)
    closes = [
        asyncio.ensure_future(harness.flushes.wait(batches, until_given_up=True)) for _ in range(2)
    ]
    await quiet()
    closes[0].cancel()
    harness.flushes.give_up()
    harness.flushes.give_up()
    await quiet()
    assert closes[1].done()
    assert not user.done()
    harness.step()
    harness.brokers.last.ack()
    await quiet()
    assert user.done()
    assert not harness.flushes.active


@virtual
async def test_flush_of_a_twice_split_batch_waits_for_every_part() -> None:
    harness = EngineHarness()
    for i in range(4):
        harness.append(b"%d" % i)
    waiting = flush(harness)
    await quiet()
    harness.step()
    harness.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
    harness.step()
    harness.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
    for _ in range(3):
        assert not waiting.done()
        harness.step()
        harness.brokers.last.ack()
        await quiet()
    assert waiting.done()
    harness.step()
    harness.check_idle()
