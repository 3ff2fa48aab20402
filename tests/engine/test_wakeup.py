"""The event that the sender waits on: sets are remembered, deadlines are exact, and no timer
remains."""

from __future__ import annotations

import asyncio
import math

from aiokprod._engine.wakeup import WakeupEvent
from aiokprod.testing.virtual import VirtualLoop
from tests.engine.engine_harness import quiet, virtual


@virtual
async def test_wait_ends_when_set() -> None:
    loop = asyncio.get_running_loop()
    wakeup = WakeupEvent(loop)
    task = asyncio.ensure_future(wakeup.wait(math.inf))
    await asyncio.sleep(1000)
    assert not task.done()
    wakeup.set()
    wakeup.set()
    await quiet()
    assert task.done()


@virtual
async def test_wait_ends_exactly_at_its_deadline() -> None:
    loop = asyncio.get_running_loop()
    wakeup = WakeupEvent(loop)
    start = loop.time()
    await wakeup.wait(start + 2.5)
    assert loop.time() == start + 2.5
    await wakeup.wait(start + 2.5)  # in the past: still takes one iteration of the event loop
    assert loop.time() == start + 2.5


@virtual
async def test_set_before_the_wait_is_remembered_and_costs_one_turn() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    wakeup = WakeupEvent(loop)
    wakeup.set()
    passes = loop.passes
    await wakeup.wait(math.inf)
    assert loop.passes == passes + 1


@virtual
async def test_clear_forgets_past_sets() -> None:
    loop = asyncio.get_running_loop()
    wakeup = WakeupEvent(loop)
    wakeup.set()
    wakeup.clear()
    start = loop.time()
    await wakeup.wait(start + 1)
    assert loop.time() == start + 1


@virtual
async def test_timer_of_an_earlier_wait_never_ends_a_later_one() -> None:
    loop = asyncio.get_running_loop()
    wakeup = WakeupEvent(loop)
    start = loop.time()
    loop.call_later(0.1, wakeup.set)
    await wakeup.wait(start + 1)
    wakeup.clear()
    await wakeup.wait(start + 5)
    assert loop.time() == start + 5


@virtual
async def test_cancelled_wait_leaves_no_timer_and_can_be_repeated() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    wakeup = WakeupEvent(loop)
    task = asyncio.ensure_future(wakeup.wait(loop.time() + 100))
    await quiet()
    task.cancel()
    await quiet()
    assert task.cancelled()
    assert not loop.pending_timers()
    wakeup.set()
    await wakeup.wait(math.inf)


@virtual
async def test_set_and_deadline_in_one_pass_end_the_wait_once() -> None:
    loop = asyncio.get_running_loop()
    wakeup = WakeupEvent(loop)
    loop.call_at(loop.time() + 1, wakeup.set)
    await wakeup.wait(loop.time() + 1)
    wakeup.clear()
    task = asyncio.ensure_future(wakeup.wait(math.inf))
    await asyncio.sleep(10)
    assert not task.done()
    task.cancel()
    await quiet()


@virtual
async def test_kept_timer_serves_later_waits_and_ends_none_of_them_early() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    wakeup = WakeupEvent(loop, keep_timer=True)
    start = loop.time()
    for _ in range(3):  # set before each deadline: one timer is enough
        wakeup.clear()
        loop.call_later(0.1, wakeup.set)
        await wakeup.wait(loop.time() + 1)
        assert len(loop.pending_timers()) == 1
    wakeup.clear()
    await wakeup.wait(start + 5)  # the timer fires at 1 and is set again
    assert loop.time() == start + 5
    assert not loop.pending_timers()


@virtual
async def test_kept_timer_makes_room_for_an_earlier_deadline_and_ends_with_close() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    wakeup = WakeupEvent(loop, keep_timer=True)
    start = loop.time()
    loop.call_later(0.1, wakeup.set)
    await wakeup.wait(start + 100)
    wakeup.clear()
    await wakeup.wait(start + 2)
    assert loop.time() == start + 2
    wakeup.clear()
    loop.call_later(0.1, wakeup.set)
    await wakeup.wait(start + 100)
    assert len(loop.pending_timers()) == 1
    wakeup.close()
    assert not loop.pending_timers()


@virtual
async def test_due_at_is_the_time_at_which_the_wait_was_to_end() -> None:
    loop = asyncio.get_running_loop()
    wakeup = WakeupEvent(loop)
    assert wakeup.due_at == 0.0
    start = loop.time()
    await wakeup.wait(start + 1.5)
    assert wakeup.due_at == start + 1.5
    wakeup.due_at = 0.0
    wakeup.clear()
    loop.call_later(0.25, wakeup.set)
    await wakeup.wait(math.inf)
    assert wakeup.due_at == start + 1.75
    wakeup.due_at = 0.0
    await wakeup.wait(math.inf)  # still set: does not suspend until an event
    assert wakeup.due_at == 0.0
