"""Parts of a long run. They are not in `__main__`, from which a spawned process cannot import."""

from __future__ import annotations

from tests.interrupts import bursts, parallel
from tests.interrupts.inject import KINDS
from tests.interrupts.parallel import Figures, every_bytecode

ROUNDS = 10
"""Number of rounds of bursts in a slice."""
ONE_BY_ONE = 200
"""Number of calls in a slice that interrupts calls one by one."""
CYCLE = 20
"""One in this number of slices uses real signals, most of which arrive too late or too early to
count. Two slices interrupt calls one by one, one of them with real signals."""


def run_every(task: tuple[str, str, int]) -> Figures:
    """Interrupt each bytecode of a scene, in a process of a pool."""
    options, scene, kind = task
    return every_bytecode(options, scene, KINDS[kind])


def run_slice(task: tuple[int, int]) -> Figures:
    """Run one slice of a seed, in a process of a pool."""
    seed, number = task
    first = (seed * 1_000_000 + number) * ROUNDS
    place = number % CYCLE
    if place in (7, 17):
        return parallel.draw(first, ONE_BY_ONE, alarm=place == 17)
    figures = Figures()
    for turn in range(ROUNDS):
        figures.add(bursts.draw(first + turn, bursts.ROUND, alarm=place == 12))
    return figures
