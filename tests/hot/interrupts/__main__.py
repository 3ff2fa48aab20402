"""`python -m tests.hot.interrupts`: exceptions of signal handlers in the middle of calls.

    python -m tests.hot.interrupts --executions 1000000
    python -m tests.hot.interrupts --every            # each bytecode of each scene, once

After every exception each accepted record has its outcome, a true one, `flush` and `close` end, no
memory is held, and the producer goes on. Ends with 1 at the first finding, and names its seed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time

from tests.hot.interrupts.batch import Figures, every_bytecode, run_task
from tests.hot.interrupts.inject import KINDS
from tests.hot.interrupts.scenes import OPTIONS, SCENES

CHUNK = 1_000
ALARMS = 10
"""One chunk of so many has real signals; most of those come too late or early to count."""


def _every(task: tuple[str, str, int]) -> Figures:
    options, scene, kind = task
    return every_bytecode(options, scene, KINDS[kind])


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description="interrupt the calls of a producer")
    parser.add_argument("--executions", type=int, default=1_000_000, help="exceptions raised")
    parser.add_argument("--every", action="store_true", help="each bytecode of each scene instead")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 10**6)
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    arguments = parser.parse_args()
    started = time.monotonic()
    total = Figures()
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        if arguments.every:
            combinations = [
                (options, scene, kind)
                for options in OPTIONS for scene in SCENES for kind in range(len(KINDS))
            ]  # fmt: skip
            for figures in pool.imap_unordered(_every, combinations):
                total.add(figures)
        else:
            size = min(CHUNK, max(1, arguments.executions // arguments.jobs))
            chunks = (
                (arguments.seed * 1_000_000 + number, size, number % ALARMS == ALARMS - 1)
                for number in range(10 * arguments.executions // size + 1)
            )
            for figures in pool.imap_unordered(run_task, chunks):
                total.add(figures)
                if total.raised >= arguments.executions:
                    pool.terminate()
                    break
    seconds = time.monotonic() - started
    print(
        f"{total.raised} exceptions in {total.calls} calls, at {len(total.places)} places, "
        f"{seconds:.0f} s ({total.raised / seconds:.0f}/s, seed {arguments.seed}): no finding"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
