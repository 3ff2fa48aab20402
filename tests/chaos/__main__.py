"""Chaos: real brokers, real faults, two producers under load, every record accounted for.

    python -m tests.chaos                                   every fault, three runs
    python -m tests.chaos --faults all-down,blackhole       some
    python -m tests.chaos --report                          table of what --out holds

Results are appended to --out, one JSON object per run and workload.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.cluster import ChaosCluster
from tests.chaos.faults import CATALOGUE
from tests.chaos.report import load, summary, table
from tests.chaos.run import play

OUT = Path("build/chaos.jsonl")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Real faults on real brokers.")
    parser.add_argument("--faults", default="all", help=", ".join(CATALOGUE))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rate", type=int, default=12_000, help="records/s of each producer")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after")
    parser.add_argument("--report", action="store_true", help="only print the table of --out")
    chosen = parser.parse_args()
    chosen.faults = list(CATALOGUE) if chosen.faults == "all" else chosen.faults.split(",")
    unknown = [name for name in chosen.faults if name not in CATALOGUE]
    if unknown:
        parser.error(f"no such faults: {unknown}; there are {', '.join(CATALOGUE)}")
    return chosen


async def campaign(chosen: argparse.Namespace) -> bool:
    """True if every promise was kept."""
    ends = time.monotonic() + chosen.seconds
    good = True
    for replicas in (False, True):
        faults = [name for name in chosen.faults if CATALOGUE[name].replicas == replicas]
        if faults and time.monotonic() < ends:
            async with ChaosCluster(replicas_through_proxy=replicas) as cluster:
                good &= await _series(cluster, faults, chosen, ends)
    return good


async def _series(
    cluster: ChaosCluster, faults: Sequence[str], chosen: argparse.Namespace, ends: float
) -> bool:
    good = True
    for turn in range(chosen.runs):
        for fault in faults:
            if time.monotonic() > ends:
                print(f"time is up before {fault} #{turn}")
                return good
            began = time.monotonic()
            results = await play(cluster, fault, turn, chosen.rate, chosen.out.parent)
            with chosen.out.open("a") as out:
                for result in results:
                    out.write(json.dumps(result) + "\n")
                    good &= not result["wrong"]
                    print(_line(result, time.monotonic() - began), flush=True)
    return good


def _line(result: dict[str, object], seconds: float) -> str:
    verdict = result["verdict"]
    assert isinstance(verdict, dict)
    state = f"WRONG {result['wrong']} {verdict['examples']}" if result["wrong"] else "ok"
    return (
        f"{result['fault']} #{result['turn']} {result['workload']}: {state}; "
        f"{result['records']:,} records, {verdict['duplicates']} doubled, held "
        f"{result['rate_before']:,} and {result['rate_after']:,}/s, unavailable "
        f"{result['unavailable_s']} s (brokers {result['broker_s']} s, excess "
        f"{result['excess_s']} s), metadata {result['metadata_most_per_second']}/s, errors "
        f"{result['errors']}, {seconds:.0f} s"
    )


def main() -> int:
    chosen = arguments()
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    good = True if chosen.report else asyncio.run(campaign(chosen))
    results = load(chosen.out)
    print(table(results))
    print()
    print(summary(results))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
