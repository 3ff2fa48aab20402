"""`python -m tests.faults.simulation --seeds 0-2000 --jobs 2`: many seeds, and what they came to.

Ends with 1 if a seed broke a promise, or if the judge had to be mild too often. `--seeds N` alone
runs that one again.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time

from tests.faults.simulation.batch import Totals, outcomes, parsed
from tests.faults.simulation.exemptions import EXEMPTIONS, MOST_SEEDS


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
    return 1 if totals.broken or totals.too_mild() else 0


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
    mild = (
        f"{name} {totals.exemptions[name]} in {totals.mild_seeds[name]} seeds "
        f"{totals.mild_at.get(name, [])}"
        for name in EXEMPTIONS
    )
    print("exemptions needed: " + ", ".join(mild))
    for name in totals.too_mild():
        print(f"too mild: {name} ({EXEMPTIONS[name]}), at most {MOST_SEEDS[name]:.1%} of the seeds")
    print(f"violations: {len(totals.broken)} {sorted(totals.broken)[:20] or ''}")


if __name__ == "__main__":
    sys.exit(main())
