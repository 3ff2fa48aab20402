"""How many seeds it takes to find a bug."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass

import pytest

from tests.faults.detection.bugs import BUGS
from tests.faults.simulation.run import run_seed


@dataclass(frozen=True)
class Finding:
    """The first seed that found a bug.

    Attributes:
        seed: None if none did.
        seeds_run: seeds until then, that one included.
        verdict: what the judge said.
        again: of the seeds that were run in all, how many find it (with `--all`).
    """

    name: str
    seed: int | None
    seeds_run: int
    verdict: str
    seconds: float
    again: int = 0


def search(name: str, first: int, most: int, sample: int) -> Finding:
    """Run seeds with one bug until it is found, then as far as `sample` to count the others."""
    started = time.monotonic()
    gc.disable()
    found: tuple[int, str] | None = None
    hits = 0
    seeds_run = 0
    with pytest.MonkeyPatch.context() as patch:
        BUGS[name](patch)
        for seed in range(first, first + most):
            if found is not None and seeds_run >= sample:
                break
            seeds_run += 1
            verdict = verdict_on(seed)
            if verdict is not None:
                hits += 1
                found = found or (seed, verdict)
            if not seeds_run % 20:
                gc.collect()
    gc.enable()
    seconds = time.monotonic() - started
    if found is None:
        return Finding(name, None, seeds_run, "", seconds)
    return Finding(name, found[0], seeds_run, found[1], seconds, hits)


def searched(task: tuple[str, int, int, int]) -> Finding:
    """`search` for a pool of processes."""
    return search(*task)


def verdict_on(seed: int) -> str | None:
    """What is wrong with a seed, None if nothing."""
    try:
        run_seed(seed)
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None
