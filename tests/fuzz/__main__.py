"""`python -m tests.fuzz`: decoders, frame reader and the live client under damaged bytes.

Ends with 1 at the first finding; its text holds the bytes, which belong into a test of their own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable

from tests.fuzz.decoders import Figures, fuzz_decoders, fuzz_frames
from tests.fuzz.live import fuzz_client

TARGETS: dict[str, Callable[[int, int], Figures]] = {
    "decoders": fuzz_decoders,
    "frames": fuzz_frames,
    "client": fuzz_client,
}
SHARES = {"decoders": 0.9, "frames": 0.09, "client": 0.01}
CHUNKS = {"decoders": 200_000, "frames": 50_000, "client": 2_000}


def run_task(task: tuple[str, int, int]) -> Figures:
    """One chunk of one target, for a pool of processes."""
    name, executions, seed = task
    return TARGETS[name](executions, seed)


def tasks(names: list[str], executions: int, seed: int) -> list[tuple[str, int, int]]:
    """Chunks of all targets, each with a seed of its own."""
    total = sum(SHARES[name] for name in names)
    found = []
    for name in names:
        left = round(executions * SHARES[name] / total)
        while left > 0:
            size = min(left, CHUNKS[name])
            found.append((name, size, seed + len(found)))
            left -= size
    return found


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
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        chunks = tasks(names, arguments.executions, arguments.seed)
        for figures in pool.imap_unordered(run_task, chunks):
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
