"""Many interrupted calls, exhaustive or drawn by a seed."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from aiokprod.testing.virtual import run
from tests.interrupts.inject import KINDS, Alarm, Injector
from tests.interrupts.scenes import OPTIONS, SCENES, InterruptHarness

ROUND = 200
"""Calls of one producer; the limit keeps logs and histories small."""


@dataclass
class Figures:
    """The result: the number of calls, the exceptions by place and by call, and the processor
    time."""

    calls: int = 0
    raised: int = 0
    seconds: float = 0.0
    places: collections.Counter[str] = field(default_factory=collections.Counter)
    shapes: collections.Counter[str] = field(default_factory=collections.Counter)

    def add(self, other: Figures) -> None:
        self.calls += other.calls
        self.raised += other.raised
        self.seconds += other.seconds
        self.places.update(other.places)
        self.shapes.update(other.shapes)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Figures:
        counters = {name: collections.Counter(found[name]) for name in ("places", "shapes")}
        return cls(**found | counters)

    def note(self, shape: str, place: str) -> None:
        """Count a call that was interrupted at `place`, or not at all ("")."""
        self.calls += 1
        if place:
            self.raised += 1
            self.places[place] += 1
            self.shapes[shape] += 1

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Add the processor time of the block."""
        before = time.process_time()
        try:
            yield
        finally:
            self.seconds += time.process_time() - before


async def interrupt(harness: InterruptHarness, scene: str, injector: Injector | Alarm) -> None:
    """Make one interrupted call and check the producer."""
    try:
        await SCENES[scene](harness, injector)
    except injector.kind:
        if not injector.place:
            raise
    await harness.check()


async def measure(harness: InterruptHarness, scene: str) -> int:
    """Return the bytecodes of the scene's call."""
    injector = Injector(0)
    await SCENES[scene](harness, injector)
    await harness.check()
    return injector.count


async def finish(harness: InterruptHarness) -> None:
    """Let timers expire that an interrupted call may have left and that have no effect; then
    close."""
    await asyncio.sleep(10)
    await asyncio.wait_for(harness.producer.close(), 10)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Ignore exceptions raised in finalizers, and disable the log about failed records; both are
    expected here."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled)
        sys.unraisablehook = hook


def every_bytecode(options: str, scene: str, kind: type[BaseException], stride: int = 1) -> Figures:
    """Raise before every bytecode of a scene's call in turn, or before every `stride`-th."""
    figures = Figures()

    async def main() -> None:
        harness = InterruptHarness(OPTIONS[options], 1)
        await harness.start()
        try:
            await judged(harness)
        except BaseException:
            with contextlib.suppress(Exception):  # no warning of a producer that is not closed
                await asyncio.wait_for(harness.producer.close(0), 10)
            harness.bulks.clear()
            raise

    async def judged(harness: InterruptHarness) -> None:
        await measure(harness, scene)  # the first call may do more
        target, longest = 1, await measure(harness, scene)
        while target <= longest + stride:
            injector = Injector(target, kind)
            try:
                await interrupt(harness, scene, injector)
            except BaseException as error:
                error.add_note(f"{options} {scene} {kind.__name__} at {target}: {injector.place}")
                raise
            figures.note(scene, injector.place)
            target += stride
        await finish(harness)

    with quiet(), figures.timed():
        run(main, debug=False, collect_garbage=False)
    return figures


def draw(seed: int, calls: int, *, alarm: bool) -> Figures:
    """Run `calls` calls drawn by the seed: producer, scene, kind of exception and place."""
    figures = Figures()
    rng = random.Random(seed)
    while figures.calls < calls:
        options = rng.choice(list(OPTIONS))
        figures.add(_round(rng, options, min(ROUND, calls - figures.calls), seed, alarm))
    return figures


def _round(rng: random.Random, options: str, calls: int, seed: int, alarm: bool) -> Figures:
    figures = Figures()
    doing: dict[str, Any] = {}

    async def main() -> None:
        harness = InterruptHarness(OPTIONS[options], rng.randrange(1 << 30))
        await harness.start()
        lengths: dict[str, int] = {}
        for _ in range(calls):
            scene = rng.choice(list(SCENES))
            kind = rng.choice(KINDS)
            if scene not in lengths:
                lengths[scene] = await measure(harness, scene)
            injector: Injector | Alarm
            if alarm:
                injector = Alarm(rng.uniform(2e-6, 2e-4), kind)
                doing.update(scene=scene, kind=kind.__name__, delay=injector.delay)
                with Alarm.installed():
                    await interrupt(harness, scene, injector)
            else:
                injector = Injector(rng.randint(1, lengths[scene]), kind)
                doing.update(scene=scene, kind=kind.__name__, target=injector.target)
                await interrupt(harness, scene, injector)
            figures.note(scene, injector.place)
        await finish(harness)

    with quiet(), figures.timed():
        try:
            run(main, debug=False, collect_garbage=False)
        except BaseException as error:
            error.add_note(f"seed {seed}, {options}, call {figures.calls} of its round: {doing}")
            raise
    return figures
