"""Runs all measurements of `make bench` (mock cluster, real brokers, micro-benchmarks), and writes
the report."""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from benchmarks import catalogue, micro, report
from benchmarks.brokers import running
from benchmarks.case import CLUSTERS, Case
from benchmarks.runner import Group, run_group, warm_up_brokers
from benchmarks.summary import Results

RESULTS: Final = Path(__file__).parent / "results.json"
WARM_UP: Final = [Case(client="confluent", cluster="kafka", records=500_000, replicas=3)] * 3
"""The cases that warm up new JVMs."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the part of the catalogue, the number of runs and the file of the
    results."""
    parser.add_argument("--cluster", choices=(*CLUSTERS, "both"), default="both")
    parser.add_argument("--only", nargs="+", metavar="GROUP", help="these groups; see --list")
    parser.add_argument("--without", nargs="+", metavar="CLIENT", default=[],
                        help="leave out clients whose name begins so, such as java")  # fmt: skip
    parser.add_argument("--runs", type=int, help="of every case, instead of 5 or 3")
    parser.add_argument("--seconds", type=float, help="of every run, instead of 1 or 2")
    parser.add_argument("--full", action="store_true", help="more points on every curve: hours")
    parser.add_argument("--pin", type=int, metavar="CPU", help="keep clients on this processor")
    parser.add_argument("--output", type=Path, default=RESULTS,
                        help="JSON file; groups not measured now stay in it")  # fmt: skip
    parser.add_argument("--list", action="store_true", help="name the groups and measure nothing")
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")


def chosen_groups(chosen: argparse.Namespace) -> dict[str, list[Group]]:
    """Return the chosen groups by cluster. Raises ValueError for a group that does not exist."""
    kinds = CLUSTERS if chosen.cluster == "both" else (chosen.cluster,)
    found: dict[str, list[Group]] = {}
    known: list[str] = []
    for kind in kinds:
        groups = catalogue.groups(kind, chosen.full)
        known += [group.name for group in groups]
        found[kind] = [
            _changed(group, chosen.without, chosen.seconds)
            for group in groups
            if not chosen.only or group.name in chosen.only
        ]
    unknown = set(chosen.only or ()) - set(known)
    if unknown:
        raise ValueError(f"only={sorted(unknown)}: no such group; there are {', '.join(known)}")
    return {kind: groups for kind, groups in found.items() if groups}


def _changed(group: Group, without: list[str], seconds: float | None) -> Group:
    """Return the group with fewer clients or shorter runs."""
    cases = {
        label: case if seconds is None else case.with_(seconds=seconds)
        for label, case in group.cases.items()
        if not any(case.client.startswith(name) for name in without)
    }
    return Group(group.name, group.title, cases, group.runs)


def about() -> dict[str, Any]:
    """Describe the machine and the versions, without names or paths."""
    import aiokafka
    import confluent_kafka

    import aiokprod

    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": f"{_cores()} cores ({_processor()}), {platform.system()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "aiokprod": f"{aiokprod.__version__} ({_commit()})",
        "aiokafka": aiokafka.__version__,
        "confluent-kafka": f"{confluent_kafka.version()} (librdkafka "
        f"{confluent_kafka.libversion()[0]})",
    }


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0))


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def _commit() -> str:
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return "no repository"
    return done.stdout.strip() or "no repository"


def tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S', time.gmtime())} {text}", file=sys.stderr, flush=True)


def main(chosen: argparse.Namespace) -> int:
    """Measure, save after every group, and report. If a run of aiokprod fails, its group keeps the
    earlier figures, and the exit status is 1."""
    if chosen.runs is not None and chosen.runs < 1:
        raise ValueError(f"runs={chosen.runs}: at least one")
    groups = chosen_groups(chosen)
    if chosen.list:
        for kind, entries in groups.items():
            for group in entries:
                print(f"{kind:6} {group.name:12} {len(group.cases):3} cases  {group.title}")
        return 0
    results = Results.load(chosen.output) if chosen.output.exists() else Results()
    results.about |= about()
    failed = False
    for kind, entries in groups.items():
        with running(kind) as brokers:
            results.about[kind] = brokers.name
            if kind == "kafka":
                warm_up_brokers(brokers, WARM_UP)
            for group in entries:
                try:
                    found = run_group(brokers, group, runs=chosen.runs, cpu=chosen.pin, tell=tell)
                except RuntimeError as error:
                    tell(f"{group.name} FAILED: {error}")
                    failed = True
                    continue
                results.add(found)
                results.save(chosen.output)
    if not chosen.only:
        tell("micro")
        results.micro = micro.measure_all()
        results.save(chosen.output)
    print(report.text(results))
    report.draw(results)
    return 1 if failed or (chosen.check and report.missed(results)) else 0
