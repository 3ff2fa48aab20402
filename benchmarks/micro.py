"""Micro-benchmarks: append, import, start, idling, memory of pending records."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from benchmarks.brokers import running
from benchmarks.case import Case

TIMEOUT: Final = 120.0
REPEATS: Final = {"append": 5, "pending": 3, "start": 1, "import": 9, "empty_loop": 5, "crowd": 5}
"""Number of measured runs of each figure, after one warm-up run."""
IDLE_PARTITIONS: Final = (10, 10_000)

WORDS: Final = {
    "append_ns": "compiled append of a 100-byte record, ns",
    "append_keyed_ns": "the same with a 16-byte key, murmur2 included, ns",
    "submit_ns": "`await submit()` without an engine, the calling loop included, ns",
    "pending_bytes": "memory of a pending record beyond its value, bytes",
    "import_ms": "processor time of `import aiokprod`, asyncio being imported already, ms",
    "start_trips": "round trips from `start()` to the first acknowledgment, connecting included",
    "start_dials": "connections opened for that",
    "warm_trips": "round trips of a record after `warm()`",
    "empty_loop_lag_ms": "worst loop lag of a loop that does nothing (about half a second), ms",
    "crowd_lag_ms": "worst loop lag of 10 000 tasks that begin at once and do nothing, ms",
    "crowd_apart_ms": "the same less the time of Python's collector, ms",
    "idle_wakes": "wake-ups a second of an idle producer, 10 partitions",
    "idle_switches": "times a second any of its threads went to sleep",
    "idle_cpu_us": "its processor time, µs a second",
    "idle_wakes_10000": "wake-ups a second of an idle producer, 10 000 partitions",
    "idle_switches_10000": "times a second any of its threads went to sleep, 10 000 partitions",
    "idle_cpu_us_10000": "its processor time, µs a second, 10 000 partitions",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def main(chosen: argparse.Namespace) -> int:
    """Measure and print."""
    figures = measure_all()
    print(json.dumps(figures, indent=1) if chosen.json else table(figures))
    return 0


def table(figures: dict[str, float]) -> str:
    """Return the figures as a Markdown table."""
    lines = ["| figure | measured |", "|---|---|"]
    lines += [f"| {WORDS[name]} | {value:,.4g} |" for name, value in figures.items()]
    return "\n".join(lines)


def measure_all() -> dict[str, float]:
    """Measure all figures and return their medians. Each run is a separate process."""
    figures: dict[str, float] = {}
    for name, repeats in REPEATS.items():
        with _bytecode() as environment:
            runs = [_worker(name, environment=environment) for _ in range(1 + repeats)][1:]
        figures |= {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    with running("mock") as brokers:
        for partitions in IDLE_PARTITIONS:
            with brokers.topic(Case(partitions=partitions)) as topic:
                end = "" if partitions == IDLE_PARTITIONS[0] else f"_{partitions}"
                found = _worker("idle", brokers.servers, topic)
                figures |= {name + end: value for name, value in found.items()}
    return {name: figures[name] for name in WORDS}


@contextmanager
def _bytecode() -> Iterator[dict[str, str]]:
    """Return environment variables with which Python caches bytecode, as for an installed package.
    They do not depend on the bytecode settings of this process."""
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as folder:
        yield inherited | {"PYTHONPYCACHEPREFIX": folder}


def _worker(*arguments: str, environment: dict[str, str] | None = None) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.micro_worker", *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        stdin=subprocess.DEVNULL,
        env=environment,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{arguments[0]} failed:\n{done.stderr[-3000:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures
