"""`python -m tests.interrupts`: signal handlers raise exceptions in the middle of calls.

    python -m tests.interrupts --executions 1000000
    python -m tests.interrupts --every            # each bytecode of each scene, once

After every exception each accepted record gets a true outcome, `flush` and `close` end, no memory
is held, and the producer continues. Most calls are interrupted in bursts (`bursts`), some one by
one (`parallel`). The exit status is 1 at the first finding, which names its seed. With `--journal`
and the same seed, a run continues after the last complete slices of an interrupted run.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.campaign import Journal, fingerprint, results
from tests.interrupts.inject import KINDS
from tests.interrupts.parallel import Figures
from tests.interrupts.scenes import OPTIONS, SCENES
from tests.interrupts.slices import run_every, run_slice


def main() -> int:
    """Run what the command line selects."""
    parser = argparse.ArgumentParser(description="interrupt the calls of a producer")
    parser.add_argument("--executions", type=int, default=1_000_000, help="exceptions raised")
    parser.add_argument("--every", action="store_true", help="each bytecode of each scene instead")
    parser.add_argument("--seed", type=int, help="of the time, or of the code for a journal")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--journal", type=Path, help="file that remembers slices")
    arguments = parser.parse_args()
    seed = arguments.seed
    if seed is None:
        seed = int(time.time() if arguments.journal is None else fingerprint()) % 10**6
    started = time.monotonic()
    total = Figures()
    if arguments.every:
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(arguments.jobs, mp_context=spawn) as pool:
            combinations = [
                (options, scene, kind)
                for options in OPTIONS for scene in SCENES for kind in range(len(KINDS))
            ]  # fmt: skip
            for figures in pool.map(run_every, combinations):
                total.add(figures)
    else:
        journal = None
        if arguments.journal is not None:
            journal = Journal(arguments.journal, Figures.from_json)
        slices = ((seed, number) for number in itertools.count())
        for figures in results(slices, run_slice, arguments.jobs, journal, vars):
            total.add(figures)
            if total.raised >= arguments.executions:
                break
    print(
        f"{total.raised} exceptions in {total.calls} calls, at {len(total.places)} places, "
        f"{total.seconds:.0f} s of processor time "
        f"({total.raised / max(total.seconds, 1e-9):.0f}/s), {time.monotonic() - started:.0f} s "
        f"since the start, seed {seed}: no finding"
    )
    print(", ".join(f"{name} {count}" for name, count in total.shapes.most_common()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
