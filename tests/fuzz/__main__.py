"""`python -m tests.fuzz`: decoders, frame reader and the live client with damaged bytes.

The exit status is 1 at the first finding, whose text contains the bytes; add them to a test. With
`--journal` and the same seed, a run continues after the last complete chunks of an interrupted run.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from pathlib import Path

from tests.campaign import Journal, fingerprint, results
from tests.fuzz.batch import TARGETS, run_task, tasks
from tests.fuzz.decoders import Figures


def main() -> int:
    """Run the targets that the command line selects."""
    parser = argparse.ArgumentParser(description="fuzz what reads the network")
    parser.add_argument("targets", nargs="*", help=f"of: {', '.join(TARGETS)}")
    parser.add_argument("--executions", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, help="of the time, or of the code for a journal")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--journal", type=Path, help="file that remembers chunks")
    arguments = parser.parse_args()
    seed = arguments.seed
    if seed is None:
        seed = int(time.time() if arguments.journal is None else fingerprint()) % 10**6
    names = arguments.targets or list(TARGETS)
    started = time.monotonic()
    total = Figures()
    journal = None
    if arguments.journal is not None:
        journal = Journal(arguments.journal, lambda found: Figures(**found))
    chunks = tasks(names, arguments.executions, seed)
    for figures in results(chunks, run_task, arguments.jobs, journal, vars):
        total.add(figures)
    seconds = time.monotonic() - started
    print(
        f"{total.executions} executions in {total.seconds:.0f} s of processor time "
        f"({total.executions / max(total.seconds, 1e-9):.0f}/s), {seconds:.0f} s since the start, "
        f"seed {seed}: "
        + ", ".join(f"{name} {count}" for name, count in sorted(total.per_target.items()))
    )
    print(
        f"{total.decoded} decoded, {total.refused} refused, {total.measured} measured: at most "
        f"{total.most_memory} bytes beyond twice the frame; no finding"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
