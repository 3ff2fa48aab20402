"""`python -m tests.scenarios.in_flight`: all 65 536 outcomes of five batches in flight."""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import sys
import time

from tests.scenarios.test_matrix_in_flight import play_all


def run_part(task: tuple[int, int]) -> int:
    """Run one part of the cases in a process of a pool."""
    logging.disable(logging.CRITICAL)
    gc.disable()
    count: int = play_all(*task)
    gc.collect()
    return count


def main() -> int:
    """Run all cases, or every n-th of them."""
    parser = argparse.ArgumentParser(description="five batches in flight, every way to fail")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--parts", type=int, default=256)
    parser.add_argument("--first", type=int, default=0, help="part to begin with")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds to stop after")
    arguments = parser.parse_args()
    started = time.monotonic()
    cases = done = 0
    tasks = [(part, arguments.parts) for part in range(arguments.first, arguments.parts)]
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        for count in pool.imap(run_part, tasks):
            cases += count
            done += 1
            if time.monotonic() - started > arguments.limit:
                break
    seconds = time.monotonic() - started
    last = arguments.first + done
    print(f"{cases} cases in {seconds:.0f} s, parts {arguments.first} to {last - 1}: no violation")
    return 0


if __name__ == "__main__":
    sys.exit(main())
