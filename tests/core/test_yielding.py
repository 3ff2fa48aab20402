"""The order in which waiting tasks continue, and the iteration of the event loop in which each
continues."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from typing import cast

import pytest

from aiokprod._core.memory import MemoryBudget
from aiokprod._core.yielding import FIRST, LONG, MOST, ROUND, YieldQueue
from tests.engine.engine_harness import virtual


def turns() -> YieldQueue:
    loop = asyncio.get_running_loop()
    return YieldQueue(loop, loop.time, MemoryBudget(1000))


def awaitable(place: asyncio.Future[None]) -> Awaitable[None]:
    """Make the place awaitable.

    A place is meant to be yielded by an iterator. A future sets this attribute when it is awaited.
    """
    place._asyncio_future_blocking = False
    return place


async def released(line: YieldQueue, places: list[asyncio.Future[None]], passes: int) -> list[int]:
    """Return the number of tasks that continued in each iteration."""
    sizes, done = [], sum(place.done() for place in places)
    for _ in range(passes):
        await asyncio.sleep(0)
        now = sum(place.done() for place in places)
        sizes.append(now - done)
        done = now
    return sizes


@virtual
async def test_everybody_goes_on_in_order_of_arrival() -> None:
    line = turns()
    order: list[int] = []

    async def user(number: int) -> None:
        for _ in range(3):
            await awaitable(line.join())
            order.append(number)

    await asyncio.gather(*(user(number) for number in range(100)))
    assert order == list(range(100)) * 3
    assert line.waiting == 0


@virtual
async def test_group_grows_while_passes_are_short() -> None:
    line = turns()
    places = [line.join() for _ in range(7 * ROUND)]
    sizes = await released(line, places, 20)
    assert sizes[:6] == [FIRST, 2 * FIRST, 4 * FIRST, 8 * FIRST, MOST, MOST]
    assert sum(sizes) == len(places)
    places = [line.join() for _ in range(FIRST + 5)]
    assert await released(line, places, 2) == [FIRST, 5], "a new line begins with few"


class SlowLoop:
    """A loop that runs scheduled callbacks on request. Every iteration takes the given time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.scheduled: list[object] = []
        self.places: list[asyncio.Future[None]] = []

    def is_running(self) -> bool:
        return True

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: object, *args: object) -> None:
        self.scheduled.append(callback)

    def create_future(self) -> asyncio.Future[None]:
        self.places.append(asyncio.get_running_loop().create_future())
        return self.places[-1]

    def run(self, seconds: float, others: float = 0.0) -> int:
        """Run one iteration and return how many tasks continued. Each callback of the group takes
        `seconds`; the callbacks after the group take `others` in total."""
        before = sum(place.done() for place in self.places)
        scheduled, self.scheduled = self.scheduled, []
        for callback in scheduled:
            if len(scheduled) == 1 or callback is not scheduled[0]:
                self.now += seconds
            callback()  # type: ignore[operator]
        self.now += others
        return sum(place.done() for place in self.places) - before


def slow_line(used: int = 0) -> tuple[SlowLoop, YieldQueue]:
    loop = SlowLoop()
    memory = MemoryBudget(1000)
    memory.used = used
    return loop, YieldQueue(cast(asyncio.AbstractEventLoop, loop), loop.time, memory)


@virtual
async def test_group_shrinks_while_it_takes_long_but_not_below_a_round() -> None:
    loop, line = slow_line()
    for _ in range(4 * ROUND):
        line.join()
    long = 2 * LONG
    assert [loop.run(long) for _ in range(5)] == [FIRST, FIRST // 2, 4, 4, 4]
    passes = 5
    while line.waiting:
        assert loop.run(long) >= 1
        passes += 1
    assert passes < ROUND
    loop.run(0)
    assert loop.scheduled == [], "nobody waits, so nothing is scheduled"


@pytest.mark.matrix
@virtual
@pytest.mark.parametrize("before", [1, 511, 1023, 5000])
@pytest.mark.parametrize("behind", [0, 50])
async def test_wait_of_the_last_is_bounded_however_many_join_behind(
    before: int, behind: int
) -> None:
    loop, line = slow_line()
    for _ in range(before):
        line.join()
    last = loop.places[-1]
    passes = 0
    while not last.done():
        for _ in range(behind):
            line.join()
        loop.run(2 * LONG)
        passes += 1
    assert passes <= ROUND


@virtual
async def test_what_others_do_in_a_pass_does_not_make_the_group_smaller() -> None:
    loop, line = slow_line()
    for _ in range(100):
        line.join()
    assert [loop.run(LONG / 2, others=1.0) for _ in range(2)] == [FIRST, 2 * FIRST]


@virtual
async def test_group_stays_small_while_memory_is_in_use() -> None:
    loop, line = slow_line(used=251)
    for _ in range(3 * ROUND):
        line.join()
    assert [loop.run(0) for _ in range(3)] == [FIRST, FIRST, FIRST]
    loop, line = slow_line(used=250)
    for _ in range(3 * ROUND):
        line.join()
    assert [loop.run(0) for _ in range(3)] == [FIRST, 2 * FIRST, 4 * FIRST]


@virtual
async def test_cancelled_place_is_passed_over() -> None:
    line = turns()
    first, second = line.join(), line.join()
    first.cancel()
    await asyncio.sleep(0)
    assert first.cancelled()
    assert second.done()
    assert not second.cancelled()
    assert line.waiting == 0


@virtual
async def test_interrupted_release_does_not_strand_the_line() -> None:
    loop, line = slow_line()
    for _ in range(3):
        line.join()

    class Interrupting:
        def done(self) -> bool:
            raise KeyboardInterrupt

    create, loop.create_future = loop.create_future, Interrupting  # type: ignore[method-assign,assignment]
    line.join()
    loop.create_future = create  # type: ignore[method-assign]
    line.join()
    with pytest.raises(KeyboardInterrupt):
        loop.run(0)
    assert loop.run(0) == 1
    assert line.waiting == 0


@virtual
@pytest.mark.parametrize("failing", [1, 2])
async def test_interrupted_schedule_is_made_good_by_who_joins_next(failing: int) -> None:
    loop, line = slow_line()
    places = [line.join() for _ in range(3 * FIRST)]
    call_soon, calls = loop.call_soon, 0

    def interrupted(*args: object) -> None:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise KeyboardInterrupt
        call_soon(*args)

    loop.call_soon = interrupted  # type: ignore[assignment,method-assign]
    with pytest.raises(KeyboardInterrupt):
        loop.run(0)
    places.append(line.join())
    for _ in range(10):
        loop.run(0)
    assert all(place.done() for place in places)
    assert line.waiting == 0


@pytest.mark.parametrize("failures", [1, 1000])
@virtual
async def test_clock_that_fails_in_a_release_strands_nobody(failures: int) -> None:
    loop = asyncio.get_running_loop()
    told: list[BaseException] = []
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    readings = 0

    def clock() -> float:
        nonlocal readings
        readings += 1
        if readings <= failures:
            raise MemoryError
        return loop.time()

    line = YieldQueue(loop, clock, MemoryBudget(1000))
    places = [line.join() for _ in range(3)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert {type(error) for error in told} == {MemoryError}
    assert all(place.done() for place in places)


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(10))
@virtual
async def test_random_use_forgets_nobody(seed: int) -> None:
    rng = random.Random(seed)
    line = turns()
    left = set(range(200))

    async def user(number: int) -> None:
        for _ in range(rng.randrange(20)):
            if rng.random() < 0.3:
                await asyncio.sleep(rng.choice([0, 0.01]))
            await awaitable(line.join())
        left.discard(number)

    tasks = [asyncio.ensure_future(user(number)) for number in range(200)]
    gone = set()
    for number, task in enumerate(tasks):
        if rng.random() < 0.2:
            await asyncio.sleep(0)
            if task.cancel():
                gone.add(number)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert left <= gone
    assert line.waiting == 0
