"""Run many seeds on several cores."""

from __future__ import annotations

import gc
import multiprocessing
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.spark.model.run import Report, run_seed

CHUNK = 20
"""Number of seeds per call of a process."""


@dataclass
class Totals:
    """The sum of all reports. `broken` contains the text of each seed that broke a promise."""

    seeds: int = 0
    rows: int = 0
    batches: int = 0
    virtual_s: float = 0.0
    drawn: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    hash: int = 0
    broken: dict[int, str] = field(default_factory=dict)

    def add(self, seed: int, found: Report | str) -> None:
        """Add the report of one more seed, or the text of its failure."""
        self.seeds += 1
        if isinstance(found, str):
            self.broken[seed] = found
            return
        self.rows += found.rows
        self.batches += found.batches
        self.virtual_s += found.virtual_s
        self.drawn.update(found.drawn)
        self.refusals.update(found.refusals)
        # The result does not depend on the order in which seeds end.
        self.hash ^= found.trace * (2 * seed + 1) % 2**64

    def merge(self, other: Totals) -> None:
        """Add the totals of other seeds."""
        self.seeds += other.seeds
        self.rows += other.rows
        self.batches += other.batches
        self.virtual_s += other.virtual_s
        self.drawn.update(other.drawn)
        self.refusals.update(other.refusals)
        self.hash ^= other.hash
        self.broken.update(other.broken)

    def __str__(self) -> str:
        drawn = ", ".join(f"{name} {count}" for name, count in self.drawn.most_common())
        refused = ", ".join(f"{name} {count}" for name, count in self.refusals.most_common())
        return (
            f"{self.seeds} seeds, {self.rows} rows in {self.batches} batches, "
            f"{self.virtual_s / 86_400:.1f} days of virtual time, event hash {self.hash:016x}\n"
            f"drawn: {drawn}\nbatches that failed: {refused}\n"
            f"violations: {len(self.broken)} {sorted(self.broken)[:20] or ''}"
        )


def outcome_of(seed: int) -> tuple[int, Report | str]:
    """Return a seed with its report, or with the text of its failure."""
    try:
        return seed, run_seed(seed)
    except Exception:
        return seed, traceback.format_exc(limit=-6)


def run_chunk(seeds: range) -> Totals:
    """Run seeds one after another. Garbage is collected only before the first one."""
    totals = Totals()
    gc.collect()
    gc.disable()
    try:
        for seed in seeds:
            totals.add(*outcome_of(seed))
    finally:
        gc.enable()
    return totals


def totals_of(seeds: range, jobs: int) -> Iterator[Totals]:
    """Yield the totals of parts of the seeds, in the order of completion."""
    chunks = [seeds[first : first + CHUNK] for first in range(0, len(seeds), CHUNK)]
    if jobs == 1:
        yield from map(run_chunk, chunks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(run_chunk, chunks)
