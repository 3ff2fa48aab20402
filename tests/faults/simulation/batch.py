"""Many seeds on several cores."""

from __future__ import annotations

import gc
import multiprocessing
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.faults.simulation.exemptions import MOST_SEEDS
from tests.faults.simulation.run import Report, run_seed

CHUNK = 20
"""Seeds between two collections of garbage, which would take a third of the time."""


EXAMPLES = 5
MANY = 1_000
"""Seeds from which on shares of them mean something."""


@dataclass
class Totals:
    """The sum of all reports.

    Attributes:
        exemptions, mild_seeds: how often, and in how many seeds, the judge had to be mild.
        mild_at: some of these seeds.
    """

    seeds: int = 0
    records: int = 0
    acknowledged: int = 0
    virtual_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    exemptions: Counter[str] = field(default_factory=Counter)
    mild_seeds: Counter[str] = field(default_factory=Counter)
    hash: int = 0
    mild_at: dict[str, list[int]] = field(default_factory=dict)
    broken: dict[int, str] = field(default_factory=dict)

    def add(self, seed: int, found: Report | str) -> None:
        """One more seed: its report, or how it failed."""
        self.seeds += 1
        if isinstance(found, str):
            self.broken[seed] = found
            return
        self.records += found.records
        self.acknowledged += found.acknowledged
        self.virtual_s += found.virtual_s
        self.faults.update(found.faults)
        self.exemptions.update(found.exemptions)
        self.mild_seeds.update(list(found.exemptions))
        for name in found.exemptions:
            examples = self.mild_at.setdefault(name, [])
            if len(examples) < EXAMPLES:
                examples.append(seed)
        self.hash ^= found.trace * (2 * seed + 1) % 2**64  # in whatever order seeds end

    def too_mild(self) -> list[str]:
        """Exemptions needed by more seeds than they should be, once there are many seeds."""
        if self.seeds < MANY:
            return []
        return [n for n, most in MOST_SEEDS.items() if self.mild_seeds[n] > most * self.seeds]


def outcome_of(seed: int) -> tuple[int, Report | str]:
    """A seed's report, or the text of its failure."""
    try:
        return seed, run_seed(seed)
    except Exception:
        return seed, traceback.format_exc(limit=-6)


def run_chunk(seeds: list[int]) -> list[tuple[int, Report | str]]:
    """Some seeds in a row, without collecting garbage after each."""
    gc.disable()
    found = [outcome_of(seed) for seed in seeds]
    gc.collect()
    return found


def outcomes(seeds: Iterable[int], jobs: int) -> Iterator[tuple[int, Report | str]]:
    """Of all seeds, as they come."""
    wanted = list(seeds)
    chunks = [wanted[start : start + CHUNK] for start in range(0, len(wanted), CHUNK)]
    if jobs == 1:
        for chunk in chunks:
            yield from run_chunk(chunk)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for found in pool.imap_unordered(run_chunk, chunks):
            yield from found


def parsed(text: str) -> range:
    """ "a-b" without b, or a single seed."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or int(first) + 1))
