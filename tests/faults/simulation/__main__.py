"""`python -m tests.faults.simulation --seeds 0-2000 --jobs 2`: many seeds, and what they came to.

Ends with 1 if a seed broke a promise; `--seeds N` alone runs that one again.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.faults.simulation.run import Report, run_seed

CHUNK = 20
COLLECT_EVERY = 20
"""Seeds between two collections of garbage: a third of a seed's time otherwise."""


@dataclass
class Totals:
    """The sum of all reports."""

    seeds: int = 0
    records: int = 0
    acknowledged: int = 0
    virtual_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    hash: int = 0
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
        self.hash ^= found.trace * (2 * seed + 1) % 2**64  # in whatever order seeds end


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


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description="seeded simulation of producer and cluster")
    parser.add_argument("--seeds", type=parsed, default=range(2_000), help="a-b, b excluded")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds to stop after")
    arguments = parser.parse_args()
    start = time.monotonic()
    totals = Totals()
    for seed, found in outcomes(arguments.seeds, arguments.jobs):
        totals.add(seed, found)
        if isinstance(found, str):
            print(f"--- seed {seed}\n{found}", flush=True)
        if time.monotonic() - start > arguments.limit:
            print(f"stopped after {arguments.limit:.0f} s")
            break
    show(totals, time.monotonic() - start, arguments.jobs)
    return 1 if totals.broken else 0


def show(totals: Totals, seconds: float, jobs: int) -> None:
    """The figures, for people."""
    rate = totals.seeds / max(seconds, 1e-9)
    print(
        f"{totals.seeds} seeds in {seconds:.1f} s with {jobs} jobs: {rate:.1f} seeds/s, "
        f"a million would take {1e6 / max(rate, 1e-9) / 3600:.1f} h\n"
        f"{totals.records} records, {totals.acknowledged} acknowledged, "
        f"{totals.virtual_s / 86_400:.2f} days of virtual time, event hash {totals.hash:016x}"
    )
    print("faults: " + ", ".join(f"{name} {count}" for name, count in totals.faults.most_common()))
    print(f"violations: {len(totals.broken)} {sorted(totals.broken)[:20] or ''}")


if __name__ == "__main__":
    sys.exit(main())
