"""Parts of a long run. They are not in `__main__`, which a spawned process cannot import from."""

from __future__ import annotations

from tests.interrupts import bursts, parallel
from tests.interrupts.inject import KINDS
from tests.interrupts.parallel import Figures, every_bytecode

ROUNDS = 10
"""Of bursts in a slice."""
ONE_BY_ONE = 200
"""Calls of a slice that interrupts one call after another."""
CYCLE = 20
"""Of this number of slices one has real signals, most of which come too late or early to count, and
two interrupt one call after another, one of them with real signals."""


def run_every(task: tuple[str, str, int]) -> Figures:
    """Each bytecode of a scene, for a pool of processes."""
    options, scene, kind = task
    return every_bytecode(options, scene, KINDS[kind])


def run_slice(task: tuple[int, int]) -> Figures:
    """One slice of a seed, for a pool of processes."""
    seed, number = task
    first = (seed * 1_000_000 + number) * ROUNDS
    place = number % CYCLE
    if place in (7, 17):
        return parallel.draw(first, ONE_BY_ONE, alarm=place == 17)
    figures = Figures()
    for turn in range(ROUNDS):
        figures.add(bursts.draw(first + turn, bursts.ROUND, alarm=place == 12))
    return figures
