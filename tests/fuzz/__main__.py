"""`python -m tests.fuzz`: decoders, frame reader and the live client under damaged bytes.

Ends with 1 at the first finding; its text holds the bytes, which belong into a test of their own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from tests.fuzz.batch import TARGETS, run_task, tasks
from tests.fuzz.decoders import Figures


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description="fuzz what reads the network")
    parser.add_argument("targets", nargs="*", help=f"of: {', '.join(TARGETS)}")
    parser.add_argument("--executions", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 10**6)
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    arguments = parser.parse_args()
    names = arguments.targets or list(TARGETS)
    started = time.monotonic()
    total = Figures()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, mp_context=spawn) as pool:  # a crash does not hang it
        chunks = tasks(names, arguments.executions, arguments.seed)
        for figures in pool.map(run_task, chunks):
            total.add(figures)
    seconds = time.monotonic() - started
    print(
        f"{total.executions} executions in {seconds:.0f} s "
        f"({total.executions / seconds:.0f}/s, seed {arguments.seed}): "
        + ", ".join(f"{name} {count}" for name, count in sorted(total.per_target.items()))
    )
    print(
        f"{total.decoded} decoded, {total.refused} refused, {total.measured} measured: at most "
        f"{total.most_memory} bytes beyond twice the frame; no finding"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
