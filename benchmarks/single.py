"""Measures one case, which options describe, any number of times."""

from __future__ import annotations

import argparse
import json
import sys

from benchmarks import case as cases
from benchmarks.brokers import running
from benchmarks.report import table
from benchmarks.runner import Group, run_group, warm_up_brokers


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the fields of a case, the clients and the number of runs."""
    cases.add_options(parser, skip=("client",))
    parser.add_argument(
        "--client", nargs="+", default=["aiokprod"], choices=list(cases.CLIENTS), metavar="NAME",
        help=f"one or more of {', '.join(cases.CLIENTS)}; several take turns",
    )  # fmt: skip
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--pin", type=int, metavar="CPU", help="keep the client on this processor")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def main(chosen: argparse.Namespace) -> int:
    """Measure and print."""
    if chosen.runs < 1:
        raise ValueError(f"runs={chosen.runs}: at least one")
    group = Group(
        "run", "", {name: cases.from_options(chosen, client=name) for name in chosen.client}
    )
    with running(chosen.cluster) as brokers:
        if chosen.cluster == "kafka":
            warm_up_brokers(brokers, list(group.cases.values()))
        summaries = run_group(
            brokers, group, runs=chosen.runs, cpu=chosen.pin,
            tell=lambda text: print(text, file=sys.stderr),
        )  # fmt: skip
    if chosen.json:
        print(json.dumps([summary.to_json() for summary in summaries], indent=1))
    else:
        print(table(summaries))
    return 0
