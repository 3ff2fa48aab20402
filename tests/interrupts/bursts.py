"""Many interrupted calls at once, which share requests and checks.

Interrupting calls one by one (`parallel`) costs a round trip of the fake cluster and more for each
exception. A burst of concurrent calls, most of them interrupted, shares these costs. That is ten
times faster, and calls are interrupted in more states. After each burst every accepted record has
its outcome, records of calls that were not interrupted are acknowledged, and no memory is held.
After each round `InterruptHarness.check` and `close` judge as they do after a single call.

One of the sizes is a burst of one call, so that no other call can repair the effect of an
exception. A failed round is replayed with fewer exceptions until one, or a minimal set, remains.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import random
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

from aiokprod import BufferFull
from aiokprod.testing.virtual import run
from tests.interrupts.inject import KINDS, NEVER, Aimed, Alarm, Injector, Survey
from tests.interrupts.parallel import Figures, finish, quiet
from tests.interrupts.scenes import OPTIONS, InterruptHarness

ROUND = 400
"""Calls of one producer; the limit keeps logs and histories small."""
SIZES = (1, 3, 10, 30, 60, 60)
"""Numbers of calls of a burst."""
UNTOUCHED = 0.1
"""Share of the calls that are not interrupted: their records must be acknowledged."""
SURVEYED_BURSTS = 12
DELAYS_S = (2e-6, 2e-4)
"""Minimum and maximum delay of real signals, in seconds."""

Shape = Callable[[InterruptHarness, Injector | Alarm, random.Random], Awaitable[None]]


async def try_submit(
    harness: InterruptHarness, injector: Injector | Alarm, rng: random.Random
) -> None:
    partition = rng.choice((None, None, 0, 1))
    size = rng.choice((10, 10, 300, 1_500))
    harness.try_submit(injector, size, partition=partition, expected=(BufferFull,))


async def submit(harness: InterruptHarness, injector: Injector | Alarm, rng: random.Random) -> None:
    size = rng.choice((10, 50, 300, 900, 1_700))
    await harness.submit(injector, size, partition=rng.choice((None, 0, 1)))


async def submit_with_key(
    harness: InterruptHarness, injector: Injector | Alarm, rng: random.Random
) -> None:
    key = rng.choice((b"key", b"another", bytearray(b"key")))  # bytearray takes the slow path
    await harness.submit(injector, 50, key=key, headers=[("a", b"1"), ("b", None)])


async def send(harness: InterruptHarness, injector: Injector | Alarm, rng: random.Random) -> None:
    await harness.send(injector, rng.choice((50, 50, 900)))


async def send_with_timeout(
    harness: InterruptHarness, injector: Injector | Alarm, rng: random.Random
) -> None:
    await harness.send(injector, 50, timeout=5.0)


async def send_column(
    harness: InterruptHarness, injector: Injector | Alarm, rng: random.Random
) -> None:
    """Send a column. The larger columns open batches within the call."""
    count, size = rng.choice(((3, 20), (8, 20), (4, 600)))
    await harness.send_many(injector, count, size)


async def send_columns(
    harness: InterruptHarness, injector: Injector | Alarm, rng: random.Random
) -> None:
    await harness.send_many(
        injector, 4, 50,
        keys=[b"k%d" % i for i in range(4)],
        headers=[[("h", b"x")] if i % 2 else None for i in range(4)],
        timestamps_ms=[1_700_000_000_000 + i if i % 3 else None for i in range(4)],
    )  # fmt: skip


async def send_records(
    harness: InterruptHarness, injector: Injector | Alarm, rng: random.Random
) -> None:
    await harness.send_records(injector, 3, rng.choice((20, 700)))


SHAPES: dict[str, Shape] = {
    shape.__name__: shape
    for shape in (
        try_submit, submit, submit_with_key, send, send_with_timeout, send_column, send_columns,
        send_records,
    )
}  # fmt: skip
SHARES = {"try_submit": 4, "submit": 2, "submit_with_key": 2, "send": 2, "send_with_timeout": 2,
          "send_column": 2, "send_columns": 1, "send_records": 1}  # fmt: skip
"""Weights of the calls, for equal numbers of exceptions in `try_submit`, `submit`, `send` and
`send_many`."""


@dataclass
class Planned:
    """One call of a burst, drawn before the run, so that a replay draws the same calls.

    Attributes:
        position: position of the call in its round.
        wait: iterations of the event loop before the call starts.
    """

    position: int
    shape: str
    seed: int
    wait: int
    injector: Injector | Alarm


@dataclass
class Round:
    """The calls of one producer."""

    options: str
    seed: int
    bursts: list[list[Planned]] = field(default_factory=list)


@functools.cache
def survey(options: str) -> dict[str, list[list[int]]]:
    """Measure, for each shape, the bytecodes per activation in concurrent calls."""
    found: dict[str, list[list[int]]] = {shape: [] for shape in SHAPES}

    async def main() -> None:
        harness = InterruptHarness(OPTIONS[options], 1)
        await harness.start()
        rng = random.Random(options)
        for number in range(SURVEYED_BURSTS):
            names = list(SHAPES) * (1 + number % 3)
            rng.shuffle(names)
            planned = [
                Planned(position, shape, rng.getrandbits(30), rng.randrange(3), Survey())
                for position, shape in enumerate(names)
            ]
            await burst(harness, planned)
            for call in planned:
                assert isinstance(call.injector, Survey)
                if call.injector.lengths:
                    found[call.shape].append(call.injector.lengths)
        await harness.check()
        await finish(harness)

    with quiet():
        run(main, debug=False, collect_garbage=False)
    return found


def plan(seed: int, calls: int, *, alarm: bool) -> Round:
    """Draw a round."""
    rng = random.Random(seed)
    drawn = Round(rng.choice(list(OPTIONS)), seed)
    activations = survey(drawn.options)
    position = 0
    while position < calls:
        size = min(rng.choice(SIZES), calls - position)
        planned = []
        for _ in range(size):
            (shape,) = rng.choices(list(SHARES), list(SHARES.values()))
            injector = _injector(rng, activations[shape], alarm)
            planned.append(
                Planned(position, shape, rng.getrandbits(30), rng.choice((0, 0, 0, 1, 3)), injector)
            )
            position += 1
        drawn.bursts.append(planned)
    return drawn


def _injector(rng: random.Random, calls: list[list[int]], alarm: bool) -> Injector | Alarm:
    kind = rng.choice(KINDS)
    if rng.random() < UNTOUCHED:
        return NEVER
    if alarm:
        return Alarm(rng.uniform(*DELAYS_S), kind)
    lengths = rng.choice(calls)
    target, activation = rng.randint(1, sum(lengths)), 0
    while target > lengths[activation]:
        target -= lengths[activation]
        activation += 1
    return Aimed(activation, target, kind)


async def burst(harness: InterruptHarness, planned: Collection[Planned]) -> None:
    """Make the calls, and judge the accepted records."""
    await asyncio.gather(*[_call(harness, call) for call in planned])
    await harness.settled()


async def _call(harness: InterruptHarness, call: Planned) -> None:
    for _ in range(call.wait):
        await asyncio.sleep(0)
    injector = call.injector
    try:
        await SHAPES[call.shape](harness, injector, random.Random(call.seed))
    except injector.kind:
        if not injector.place:
            raise


def play(drawn: Round, only: Collection[int] | None = None) -> Figures:
    """Run a round; with `only`, exceptions are raised only in the calls at these positions."""
    figures = Figures()

    async def main() -> None:
        harness = InterruptHarness(OPTIONS[drawn.options], drawn.seed)
        await harness.start()
        try:
            await judged(harness)
        except BaseException:
            with contextlib.suppress(Exception):  # no warnings about outcomes that are not read
                await asyncio.wait_for(harness.producer.close(0), 10)
            harness.bulks.clear()
            raise

    async def judged(harness: InterruptHarness) -> None:
        for planned in drawn.bursts:
            if only is not None:
                for call in planned:
                    if call.position not in only:
                        call.injector = NEVER
            await burst(harness, planned)
            for call in planned:
                if call.injector is not NEVER:
                    figures.note(call.shape, call.injector.place)
        await harness.check()
        await finish(harness)

    with quiet(), figures.timed():
        run(main, debug=False, collect_garbage=False)
    return figures


def draw(seed: int, calls: int, *, alarm: bool = False) -> Figures:
    """Run one round drawn by the seed.

    Raises:
        Exception: the finding of the judge, with a note of the exceptions that suffice for it.
    """
    try:
        if alarm:
            with Alarm.installed():
                return play(plan(seed, calls, alarm=True))
        return play(plan(seed, calls, alarm=False))
    except BaseException as error:
        error.add_note(f"round of {calls} calls, seed {seed}, alarm {alarm}")
        if not alarm:  # the time of a real signal cannot be replayed
            error.add_note(narrow(seed, calls))
        raise


def narrow(seed: int, calls: int) -> str:
    """Return a minimal set of exceptions with which the round of a seed still fails, found by
    leaving out parts of them."""
    finding = ""

    def fails(only: Collection[int]) -> bool:
        nonlocal finding
        try:
            play(plan(seed, calls, alarm=False), only)
        except BaseException as error:
            finding = repr(error)
            return True
        return False

    kept = list(range(calls))
    if not fails(kept):
        return "the replay found nothing"
    size = calls
    while size:
        for end in range(len(kept), 0, -size):
            fewer = kept[: max(0, end - size)] + kept[end:]
            if fails(fewer):
                kept = fewer
        size //= 2
    planned = itertools.chain.from_iterable(plan(seed, calls, alarm=False).bursts)
    needed = [call for call in planned if call.position in kept]
    fails(kept)
    return f"{len(kept)} exceptions suffice: {needed}: {finding}"
