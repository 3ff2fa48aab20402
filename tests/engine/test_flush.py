"""Who waits for which batches (Java IncompleteBatches, RecordAccumulatorTest.testFlush)."""

from __future__ import annotations

import asyncio

from aiokprod.engine.flush import FlushTracker
from aiokprod.errors import Code
from tests.engine.world import World, quiet, virtual


def flush(world: World) -> asyncio.Task[None]:
    return asyncio.ensure_future(world.flushes.wait(list(world.accumulator.incomplete)))


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
    world = World(partitions=3)
    world.append(b"0", 0)
    world.append(b"1", 1)
    first = flush(world)
    await quiet()
    assert world.flushes.active
    world.step()
    world.append(b"2", 2)
    second = flush(world)
    await quiet()
    world.brokers.last.ack()
    await quiet()
    assert first.done()
    assert not second.done()
    world.step()
    world.brokers.last.ack()
    await quiet()
    assert second.done()
    assert not world.flushes.active


@virtual
async def test_flush_takes_a_failure_for_an_end() -> None:
    world = World()
    world.append(b"v")
    waiting = flush(world)
    await quiet()
    world.step()
    world.brokers.last.refuse(Code.INVALID_RECORD)
    await quiet()
    assert waiting.done()
    assert waiting.exception() is None


@virtual
async def test_flush_waits_through_retries_and_expiry_on_the_wire() -> None:
    world = World(delivery_timeout_ms=30_000, request_timeout_ms=30_000)
    world.append(b"v")
    waiting = flush(world)
    await quiet()
    world.step()
    world.brokers.last.refuse(Code.NOT_ENOUGH_REPLICAS)
    await quiet()
    assert not waiting.done()
    world.later()
    world.later(30.0)
    await quiet()
    assert waiting.done(), "it expired, though its answer is still to come"
    world.brokers.last.lose()


@virtual
async def test_flush_ends_when_the_last_record_is_withdrawn() -> None:
    world = World(linger_ms=1000, adaptive_linger=False)
    deliveries = [world.append(b"v"), world.append(b"w")]
    waiting = flush(world)
    await quiet()
    deliveries[0].cancel()
    await quiet()
    assert not waiting.done()
    deliveries[1].cancel()
    await quiet()
    assert waiting.done()
    world.check_idle()


@virtual
async def test_cancelled_flush_only_stops_waiting() -> None:
    world = World(linger_ms=1000, adaptive_linger=False)
    delivery = world.append(b"v")
    waiting = flush(world)
    await quiet()
    waiting.cancel()
    await quiet()
    assert not world.flushes.active, "linger is in force again"
    world.step()
    assert not world.brokers.sent
    assert not delivery.done()


@virtual
async def test_give_up_ends_all_waits() -> None:
    world = World()
    world.append(b"v")
    waits = [flush(world), flush(world)]
    await quiet()
    waits[0].cancel()
    world.flushes.give_up()
    world.flushes.give_up()
    await quiet()
    assert waits[1].done()
    assert not world.flushes.active


@virtual
async def test_flush_of_a_twice_split_batch_waits_for_every_part() -> None:
    world = World()
    for i in range(4):
        world.append(b"%d" % i)
    waiting = flush(world)
    await quiet()
    world.step()
    world.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
    world.step()
    world.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
    for _ in range(3):
        assert not waiting.done()
        world.step()
        world.brokers.last.ack()
        await quiet()
    assert waiting.done()
    world.step()
    world.check_idle()
