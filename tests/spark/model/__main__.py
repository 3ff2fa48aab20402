"""Run the protocol of the Spark sink in virtual time with many seeds, and print the results.

`python -m tests.spark.model --seeds 0-2000 --jobs 2` exits with 1 if a seed broke a promise.
`--detect` puts known defects back, one at a time, and exits with 1 if the seeds do not find one of
them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time

from tests.simulation.parallel_seeds import parsed
from tests.spark.model.defects import DEFECTS, search
from tests.spark.model.parallel import Totals, totals_of

EVERY = 200
"""Number of seeds after which a line is printed."""


def main() -> int:
    """Run the action that the command line selects."""
    parser = argparse.ArgumentParser(description="seeded model of driver, tasks and brokers")
    parser.add_argument("--seeds", type=parsed, default=range(2_000), help="a-b, b excluded")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--detect", nargs="*", choices=list(DEFECTS), help="all without a name")
    arguments = parser.parse_args()
    if arguments.detect is not None:
        return detect(arguments.detect or list(DEFECTS), arguments.seeds)
    return run(arguments.seeds, arguments.jobs)


def run(seeds: range, jobs: int) -> int:
    """Run seeds, and print each seed that breaks a promise at once."""
    started = time.monotonic()
    totals, shown = Totals(), 0
    for part in totals_of(seeds, jobs):
        totals.merge(part)
        for seed, text in part.broken.items():
            print(f"--- seed {seed}\n{text}", flush=True)
        if totals.seeds // EVERY > shown:
            shown = totals.seeds // EVERY
            print(f"{totals.seeds} seeds, {len(totals.broken)} violations, "
                  f"{time.monotonic() - started:.0f} s", flush=True)  # fmt: skip
    print(totals)
    print(f"{time.monotonic() - started:.0f} s with {jobs} jobs")
    return 1 if totals.broken else 0


def detect(names: list[str], seeds: range) -> int:
    """Search for each of these defects."""
    survived = []
    for name in names:
        started = time.monotonic()
        found = search(name, seeds)
        if found is None:
            survived.append(name)
            print(f"{name}: survived {len(seeds)} seeds", flush=True)
        else:
            print(f"{name}: seed {found[0]} ({time.monotonic() - started:.0f} s): "
                  f"{found[1][:160]}", flush=True)  # fmt: skip
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
