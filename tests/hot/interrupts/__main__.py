"""`python -m tests.hot.interrupts`: exceptions of signal handlers in the middle of calls.

    python -m tests.hot.interrupts --executions 1000000
    python -m tests.hot.interrupts --every            # each bytecode of each scene, once

After every exception each accepted record has its outcome, a true one, `flush` and `close` end, no
memory is held, and the producer goes on. Ends with 1 at the first finding, and names its seed.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait

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
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, mp_context=spawn) as pool:  # a crash does not hang it
        if arguments.every:
            combinations = [
                (options, scene, kind)
                for options in OPTIONS for scene in SCENES for kind in range(len(KINDS))
            ]  # fmt: skip
            for figures in pool.map(_every, combinations):
                total.add(figures)
        else:
            size = min(CHUNK, max(1, arguments.executions // arguments.jobs))
            numbers = itertools.count()
            running: set[Future[Figures]] = set()
            while total.raised < arguments.executions:
                while len(running) < arguments.jobs:
                    number = next(numbers)
                    seed = arguments.seed * 1_000_000 + number
                    alarm = number % ALARMS == ALARMS - 1
                    running.add(pool.submit(run_task, (seed, size, alarm)))
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    total.add(future.result())
    seconds = time.monotonic() - started
    print(
        f"{total.raised} exceptions in {total.calls} calls, at {len(total.places)} places, "
        f"{seconds:.0f} s ({total.raised / seconds:.0f}/s, seed {arguments.seed}): no finding"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
