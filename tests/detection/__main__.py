"""`python -m tests.detection`: the number of seeds that the simulation needs to find each known
bug.

Each bug is reintroduced alone; then seeds run from the first one on (2000 by default; CI uses those
below) until a promise breaks. The exit status is 1 if a bug survives `--most` seeds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time

from tests.detection.bugs import BUGS
from tests.detection.search import searched


def main() -> int:
    """Search all bugs, or the named ones."""
    parser = argparse.ArgumentParser(description="re-injected bugs against the simulation")
    parser.add_argument("bugs", nargs="*", help=f"of: {', '.join(BUGS)}")
    parser.add_argument("--first", type=int, default=2_000, help="seed to begin with")
    parser.add_argument("--most", type=int, default=2_000, help="seeds until a bug has survived")
    parser.add_argument("--sample", type=int, default=0, help="seeds to run in any case")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    arguments = parser.parse_args()
    names = arguments.bugs or list(BUGS)
    started = time.monotonic()
    tasks = [(name, arguments.first, arguments.most, arguments.sample) for name in names]
    survived = []
    print(f"{'bug':50} {'first seed':>10} {'found in':>12}  verdict")
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        for found in pool.imap(searched, tasks):
            if found.seed is None:
                survived.append(found.name)
            place = "-" if found.seed is None else str(found.seed)
            share = f"{found.again} of {found.seeds_run}"
            print(f"{found.name:50} {place:>10} {share:>12}  {found.verdict[:70]}", flush=True)
    seconds = time.monotonic() - started
    print(f"{len(names) - len(survived)} of {len(names)} bugs found in {seconds:.0f} s")
    if survived:
        print(f"survived {arguments.most} seeds: {', '.join(survived)}")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
