"""`python -m tests.simulation --seeds 0-2000 --jobs 2`: runs many seeds and prints the totals.

The exit status is 1 if a seed broke a promise, if too many seeds needed an exemption, or if too few
seeds had a rare fault. `--seeds N` runs a single seed again. Seeds are run in slices, and each
slice prints a line. `--journal` stores the slices in a file; after an interruption, the same
command continues after the last complete slice.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from tests.simulation.exemptions import EXEMPTIONS, MOST_SEEDS
from tests.simulation.parallel_seeds import LEAST_SHARE, Journal, Totals, outcomes, parsed, slices
from tests.simulation.seeds import RARE_FAULTS, plan_of


def main() -> int:
    """Run the seeds that the command line selects."""
    parser = argparse.ArgumentParser(description="seeded simulation of producer and cluster")
    parser.add_argument("--seeds", type=parsed, default=range(2_000), help="a-b, b excluded")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    text = "seconds after which no slice is begun"
    parser.add_argument("--limit", type=float, default=float("inf"), help=text)
    parser.add_argument("--slice", type=int, default=1_000, help="seeds of a summary line")
    parser.add_argument("--journal", type=Path, help="file that remembers slices")
    text = "only seeds with serializers, a partitioner, interceptors or plug-ins"
    parser.add_argument("--hooks", action="store_true", help=text)
    arguments = parser.parse_args()
    if arguments.hooks and arguments.journal is not None:
        parser.error("--journal is for whole ranges of seeds, not for those of --hooks")
    journal = None if arguments.journal is None else Journal(arguments.journal)
    start = time.monotonic()
    spent = 0.0
    totals = Totals()
    for part in slices(arguments.seeds, arguments.slice):
        known = None if journal is None else journal.find(part)
        if known is not None:
            found, seconds = known
        elif time.monotonic() - start > arguments.limit:
            print(f"stopped after {arguments.limit:.0f} s, before seed {part.start}")
            break
        else:
            began = time.monotonic()
            chosen = [seed for seed in part if plan_of(seed).objects or not arguments.hooks]
            found = run_slice(chosen, arguments.jobs)
            seconds = time.monotonic() - began
            if journal is not None:
                journal.add(part, found, seconds)
        spent += seconds
        totals.merge(found)
        show_slice(part, found, seconds, again=known is None)
    show(totals, spent, arguments.jobs)
    return 1 if totals.broken or totals.too_mild() or totals.too_rare() else 0


def run_slice(seeds: Iterable[int], jobs: int) -> Totals:
    """Run some seeds and print failures at once."""
    totals = Totals()
    for seed, found in outcomes(seeds, jobs):
        totals.add(seed, found)
        if isinstance(found, str):
            print(f"--- seed {seed}\n{found}", flush=True)
    return totals


def show_slice(seeds: range, totals: Totals, seconds: float, *, again: bool) -> None:
    """Print one line about a slice."""
    mild = " ".join(f"{name.replace(' ', '-')}={totals.mild_seeds[name]}" for name in EXEMPTIONS)
    print(
        f"slice {seeds.start}-{seeds.stop}: {len(totals.broken)} violations "
        f"{sorted(totals.broken)[:5] or ''} {totals.records} records, seeds with exemptions: "
        f"{mild}; {seconds:.1f} s{'' if again else ' (run before)'}",
        flush=True,
    )


def show(totals: Totals, seconds: float, jobs: int) -> None:
    """Print the totals."""
    rate = totals.seeds / max(seconds, 1e-9)
    print(
        f"{totals.seeds} seeds in {seconds:.1f} s with {jobs} jobs: {rate:.1f} seeds/s, "
        f"a million would take {1e6 / max(rate, 1e-9) / 3600:.1f} h\n"
        f"{totals.records} records, {totals.acknowledged} acknowledged, "
        f"{totals.virtual_s / 86_400:.2f} days of virtual time, event hash {totals.hash:016x}"
    )
    print("faults: " + ", ".join(f"{name} {count}" for name, count in totals.faults.most_common()))
    mild = (
        f"{name} {totals.exemptions[name]} in {totals.mild_seeds[name]} seeds "
        f"{totals.mild_at.get(name, [])}"
        for name in EXEMPTIONS
    )
    print("exemptions needed: " + ", ".join(mild))
    rare = (f"{name} in {totals.fault_seeds[name]} seeds" for name in RARE_FAULTS)
    print("rare faults: " + ", ".join(rare))
    for name in totals.too_rare():
        print(f"too rare: {name}, at least {LEAST_SHARE:.0%} of the seeds")
    for name in totals.too_mild():
        print(f"too mild: {name} ({EXEMPTIONS[name]}), at most {MOST_SEEDS[name]:.1%} of the seeds")
    print(f"violations: {len(totals.broken)} {sorted(totals.broken)[:20] or ''}")


if __name__ == "__main__":
    sys.exit(main())
