"""Chunks of fuzzing for several cores."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz.decoders import Figures, fuzz_decoders, fuzz_frames
from tests.fuzz.live import fuzz_client

TARGETS: dict[str, Callable[[int, int], Figures]] = {
    "decoders": fuzz_decoders,
    "frames": fuzz_frames,
    "client": fuzz_client,
}
SHARES = {"decoders": 0.9, "frames": 0.098, "client": 0.002}
CHUNKS = {"decoders": 50_000, "frames": 20_000, "client": 500}


def run_task(task: tuple[str, int, int]) -> Figures:
    """Run one chunk of one target in a process of a pool."""
    name, executions, seed = task
    return TARGETS[name](executions, seed)


def tasks(names: list[str], executions: int, seed: int) -> list[tuple[str, int, int]]:
    """Return chunks of all targets, each with a separate seed. A larger number of executions starts
    with the chunks of a smaller one, except for shortened chunks."""
    total = sum(SHARES[name] for name in names)
    found = []
    for name in names:
        left = round(executions * SHARES[name] / total)
        own = seed * len(TARGETS) * 1_000_000 + list(TARGETS).index(name)
        while left > 0:
            size = min(left, CHUNKS[name])
            found.append((name, size, own))
            left -= size
            own += len(TARGETS)
    return found
