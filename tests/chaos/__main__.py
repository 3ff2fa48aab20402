"""Chaos: real brokers, real faults, three producers under load, every record accounted for.

    python -m tests.chaos                                   every fault, three runs
    python -m tests.chaos --faults all-down,blackhole       some faults
    python -m tests.chaos --report                          table of the results in --out

Results are written to --out, one JSON object per run and workload.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.chaos.cluster import ChaosCluster
from tests.chaos.faults import CATALOGUE
from tests.chaos.report import broken, load, summary, table
from tests.chaos.run import play

OUT = Path("build/chaos.jsonl")
LONGEST = 5
Plan = list[tuple[str, int]]
"""Faults with the number of the run."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Real faults on real brokers.")
    parser.add_argument("--faults", default="all", help=", ".join(CATALOGUE))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--nodes", type=int, default=3, help="3 is what the promises are about")
    parser.add_argument("--rate", type=int, default=12_000, help="records/s, see `run`")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after")
    parser.add_argument("--resume", action="store_true", help="leave out what --out has")
    parser.add_argument("--report", action="store_true", help="only print the table of --out")
    chosen = parser.parse_args()
    chosen.faults = list(CATALOGUE) if chosen.faults == "all" else chosen.faults.split(",")
    unknown = [name for name in chosen.faults if name not in CATALOGUE]
    if unknown:
        parser.error(f"no such faults: {unknown}; there are {', '.join(CATALOGUE)}")
    return chosen


async def campaign(chosen: argparse.Namespace) -> bool:
    """Play the chosen faults. Return True if the time was sufficient for all of them."""
    ends = time.monotonic() + chosen.seconds
    complete = True
    have: set[tuple[str, int]] = set()
    if not chosen.resume:
        chosen.out.unlink(missing_ok=True)
    elif chosen.out.exists():
        noted = load(chosen.out)
        have = {(one["fault"], one["turn"]) for one in noted if "not_played" not in one}
    for replicas in (False, True):
        plans = [
            plan
            for turn in range(chosen.first, chosen.first + chosen.runs)
            for plan in _plans(
                [name for name in chosen.faults if (name, turn) not in have], turn, replicas
            )
        ]
        if plans and time.monotonic() >= ends:
            print(f"time is up before {len(plans)} series")
            complete = False
        elif plans:
            async with ChaosCluster(chosen.nodes, replicas_through_proxy=replicas) as cluster:
                complete &= await _series(cluster, plans, chosen, ends)
    return complete


def _plans(faults: Sequence[str], turn: int, replicas: bool) -> list[Plan]:
    """Return the series of faults. The faults of a series need the same connections to the brokers.
    Each series has at most `LONGEST` faults, so that the audit stays quick."""
    mine = [name for name in faults if CATALOGUE[name].replicas == replicas]
    plans: list[Plan] = [[(name, turn)] for name in mine if CATALOGUE[name].alone]
    for network in (False, True):
        shared = [
            (name, turn)
            for name in mine
            if CATALOGUE[name].network == network and not CATALOGUE[name].alone
        ]
        plans += [shared[at : at + LONGEST] for at in range(0, len(shared), LONGEST)]
    return plans


async def _series(
    cluster: ChaosCluster, plans: Sequence[Plan], chosen: argparse.Namespace, ends: float
) -> bool:
    for plan in plans:
        names = ", ".join(name for name, _ in plan)
        if time.monotonic() > ends:
            print(f"time is up before {names} #{plan[0][1]}")
            return False
        began = time.monotonic()
        try:
            results = await play(cluster, plan, chosen.rate, chosen.out.parent)
        except Exception as error:  # the next plan can still be run
            print(f"{names} #{plan[0][1]} were not played to their end: {error!r}", flush=True)
            with chosen.out.open("a") as out:
                for name, turn in plan:
                    note = {"fault": name, "turn": turn, "not_played": repr(error)[:300]}
                    out.write(json.dumps(note) + "\n")
            continue
        with chosen.out.open("a") as out:
            for result in results:
                out.write(json.dumps(result) + "\n")
                print(_line(result), flush=True)
        print(f"{names}: {time.monotonic() - began:.0f} s, {results[0]['series']}", flush=True)
    return True


def _line(result: dict[str, Any]) -> str:
    verdict = result["verdict"]
    state = f"WRONG {result['wrong']} {verdict['examples']}" if result["wrong"] else "ok"
    return (
        f"{result['fault']} #{result['turn']} {result['workload']}: {state}; "
        f"{verdict['records']:,} records, {verdict['duplicates']} doubled, held "
        f"{result['rate_held']:,}/s ({result['rate_together']:,}/s both), unavailable "
        f"{result['unavailable_s']} s (brokers {result['broker_s']} s, excess "
        f"{result['excess_s']} s, alone {result['alone_s']} s), {_commit(result)}metadata "
        f"{result['metadata_most_per_second']}/s"
    )


def _commit(result: dict[str, Any]) -> str:
    recovered = result["recovered_s"]
    return "" if recovered is None else f"first commit after {recovered} s, "


def main() -> int:
    chosen = arguments()
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    complete = chosen.report or asyncio.run(campaign(chosen))
    results = load(chosen.out)
    print(table(results))
    print()
    print(summary(results))
    return 0 if complete and not broken(results) else 1


if __name__ == "__main__":
    sys.exit(main())
