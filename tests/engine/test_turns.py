"""Who goes on in which loop pass."""

from __future__ import annotations

import asyncio
import random

import pytest

from aiokprod.engine.turns import FIRST, MOST, Turns
from tests.engine.world import virtual


def turns() -> Turns:
    return Turns(asyncio.get_running_loop())


@virtual
async def test_everybody_goes_on_in_order_of_arrival() -> None:
    line = turns()
    order: list[int] = []

    async def user(number: int) -> None:
        for _ in range(3):
            place = line.join()
            place._asyncio_future_blocking = False  # awaited by its own `__await__`
            await place
            order.append(number)

    await asyncio.gather(*(user(number) for number in range(100)))
    assert order == list(range(100)) * 3


@virtual
async def test_groups_grow_while_nobody_joins_and_shrink_while_somebody_does() -> None:
    line = turns()

    async def released(busy: bool) -> list[int]:
        places = [line.join() for _ in range(3000)]
        sizes, done = [], 0
        while done < len(places):
            await asyncio.sleep(0)
            now = sum(place.done() for place in places)
            sizes.append(now - done)
            done = now
            if busy:
                line.join()
            if busy and len(sizes) == 4:
                break
        return sizes

    sizes = await released(False)
    assert sizes[:4] == [FIRST // 2, FIRST, 2 * FIRST, 4 * FIRST]
    assert max(sizes) == MOST
    assert await released(True) == [MOST // 2, MOST // 4, MOST // 8, MOST // 16]


@virtual
async def test_one_goes_on_in_every_pass_however_busy_the_loop_is() -> None:
    line = turns()
    places = [line.join() for _ in range(40)]
    for _ in range(60):
        line.join()
        await asyncio.sleep(0)
    assert all(place.done() for place in places)


@virtual
async def test_cancelled_place_is_passed_over() -> None:
    line = turns()
    first, second = line.join(), line.join()
    first.cancel()
    await asyncio.sleep(0)
    assert first.cancelled()
    assert second.done()
    assert not second.cancelled()


@virtual
async def test_empty_line_schedules_nothing() -> None:
    line = turns()
    place = line.join()
    await asyncio.sleep(0)
    assert place.done()
    loop = asyncio.get_running_loop()
    scheduled = []
    call_soon = loop.call_soon
    loop.call_soon = lambda *args, **more: scheduled.append(args)  # type: ignore[method-assign,assignment,func-returns-value]
    try:
        line._release()
    finally:
        loop.call_soon = call_soon  # type: ignore[method-assign]
    assert scheduled == []


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
            place = line.join()
            place._asyncio_future_blocking = False
            await place
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
