"""Checks the producer's promises on the mock cluster and on three real nodes, in eight minutes.

    python -m benchmarks core            both clusters (`make bench-core`)
    python -m benchmarks core --cluster mock

All producers have default settings and are idempotent with acks=all. Topics on the real nodes have
replication factor 3 and min.insync.replicas=2. The clients run alternately. aiokafka runs with its
defaults and with tuned settings, and the faster of the two counts. The exit status is 1 if a
promise is broken, or cannot be checked because another client failed.

The mock cluster is also used to compare serializers and callbacks with aiokafka and
confluent-kafka. The limits of `benchmarks.ways`, `benchmarks.callbacks` and `benchmarks.bulk` are
checked in this process.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from benchmarks import bulk, callbacks, catalogue, ways
from benchmarks.brokers import running
from benchmarks.case import CLUSTERS, CODECS
from benchmarks.report import table
from benchmarks.runner import Group, run_group, warm_up_brokers
from benchmarks.suite import WARM_UP, tell
from benchmarks.summary import Spread, Summary
from benchmarks.targets import AIOKAFKA, BESIDE, Verdict
from benchmarks.targets import ways as judge_ways

RUNS: Final = 5
SECONDS: Final = 0.7
CLIENTS: Final = ("aiokprod", *AIOKAFKA, "round-trip")
GROUPS: Final = {
    "mock": ("fire", "await", "lone"),
    "kafka": ("fire-rf3", "await-rf3", "lone-rf3"),
}
SUBMIT_TIMES: Final = 5.0
SEND_TIMES: Final = 1.0
LONE_MS: Final = 1.0

Summaries = Mapping[str, Summary]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the cluster, the number of runs and their duration."""
    parser.add_argument("--cluster", choices=(*CLUSTERS, "both"), default="both")
    parser.add_argument("--runs", type=int, default=RUNS, help="of every case; %(default)s")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of a run; %(default)s")


def groups(cluster: str, seconds: float = SECONDS) -> list[Group]:
    """Return the groups of the catalogue that have a promise, with only the clients in it."""
    found = {group.name: group for group in catalogue.groups(cluster)}
    return [
        Group(
            name,
            found[name].title,
            {
                label: case.with_(seconds=seconds)
                for label, case in found[name].cases.items()
                if case.client in CLIENTS
            },
        )
        for name in GROUPS[cluster]
    ]


def ways_group(seconds: float = SECONDS) -> Group:
    """Return the group of those ways in the catalogue that have a promise."""
    found = next(group for group in catalogue.groups("mock") if group.name == "ways")
    labels = [
        f"{client}, {way}"
        for peer, _, pairs in BESIDE
        for ours, theirs in pairs.items()
        for client, way in (("aiokprod", ours), (peer, theirs))
    ]
    return Group(
        found.name,
        found.title,
        {label: found.cases[label].with_(seconds=seconds) for label in dict.fromkeys(labels)},
    )


def in_this_process() -> list[Verdict]:
    """Check the limits that need no other client."""
    found = ways.ways()
    verdicts = ways.verdicts(found, asyncio.run(ways.measure(found, ways.ROUNDS)), ways.ROUNDS)
    for codec in CODECS:
        times = asyncio.run(callbacks.measure(codec, callbacks.RECORDS, callbacks.RUNS))
        verdicts += callbacks.verdicts(codec, times)
    return verdicts + bulk.verdicts(bulk.measure(bulk.RECORDS, bulk.ROUNDS))


def judge(group: str, summaries: Summaries) -> Verdict:
    """Return the verdict on the promise of `group`. `summaries` contains the results by label."""
    scenario, _, replicas = group.partition("-rf")
    where = f"RF {replicas}, three nodes" if replicas else "mock"
    return _JUDGES[scenario](where, {k: s for k, s in summaries.items() if s.runs})


def _rates(scenario: str, times: float) -> Callable[[str, Summaries], Verdict]:
    """Return a function that compares records per second with the faster aiokafka client."""

    def found(where: str, summaries: Summaries) -> Verdict:
        name, promise = f"{scenario}, {where}", f"≥ {times:g} times aiokafka"
        ours = summaries.get("aiokprod")
        theirs = max(
            (summaries[peer] for peer in AIOKAFKA if peer in summaries),
            key=lambda s: s["rate"],
            default=None,
        )
        if ours is None or theirs is None:
            return Verdict(name, promise, "not measured", None)
        ratio = ours["rate"] / theirs["rate"]
        words = (
            f"{ratio:.2f} times: {_records(ours.figures['rate'])}; "
            f"{theirs.label} {_records(theirs.figures['rate'])}"
        )
        return Verdict(name, promise, words, ratio >= times)

    return found


def _lone(where: str, summaries: Summaries) -> Verdict:
    """Compare the p50 of a single record in flight with the p50 of sequential Produce requests."""
    name, promise = f"1 task `await send()`, {where}", f"p50 ≤ bare Produce + {LONE_MS:g} ms"
    ours, bare = summaries.get("aiokprod"), summaries.get("round-trip")
    if ours is None or bare is None:
        return Verdict(name, promise, "not measured", None)
    above = ours["p50_ms"] - bare["p50_ms"]
    words = f"{above:+.3f} ms: {_ms(ours.figures['p50_ms'])}; bare {_ms(bare.figures['p50_ms'])}"
    return Verdict(name, promise, words, above <= LONE_MS)


_JUDGES: Final[Mapping[str, Callable[[str, Summaries], Verdict]]] = {
    "fire": _rates("`submit`, each handle awaited", SUBMIT_TIMES),
    "await": _rates("64 tasks `await send()`", SEND_TIMES),
    "lone": _lone,
}


def _records(rate: Spread) -> str:
    return f"{rate.median:,.0f}/s ({rate.low:,.0f} to {rate.high:,.0f})"


def _ms(latency: Spread) -> str:
    return f"{latency.median:.3f} ms ({latency.low:.3f} to {latency.high:.3f})"


def line(verdict: Verdict) -> str:
    """Return a line with `kept` or `BROKEN` and the figures: medians (slowest to fastest run)."""
    word = {True: "kept  ", False: "BROKEN", None: "NOT JUDGED"}[verdict.reached]
    return f"{word} {verdict.scenario}: {verdict.target}: {verdict.figure}"


def main(chosen: argparse.Namespace) -> int:
    """Measure and print. Return 1 unless every promise is kept, otherwise 0. Raises RecordsMissing
    if a run of aiokprod loses or duplicates a record."""
    if chosen.runs < 1:
        raise ValueError(f"runs={chosen.runs}: at least one")
    verdicts: list[Verdict] = []
    for kind in CLUSTERS if chosen.cluster == "both" else (chosen.cluster,):
        entries = groups(kind, chosen.seconds)
        with running(kind) as brokers:
            if kind == "kafka":
                warm_up_brokers(brokers, WARM_UP)
            for group in entries:
                found = run_group(brokers, group, runs=chosen.runs, tell=tell)
                print(f"**{group.title}** ({brokers.name})\n\n{table(found)}\n", flush=True)
                verdicts.append(judge(group.name, {s.label: s for s in found}))
            if kind == "mock":
                group = ways_group(chosen.seconds)
                found = run_group(brokers, group, runs=chosen.runs, tell=tell)
                print(f"**{group.title}** ({brokers.name})\n\n{table(found)}\n", flush=True)
                measured = {s.label: s for s in found if s.runs}
                verdicts += judge_ways(measured.get)
        if kind == "mock":
            verdicts += in_this_process()
    print("\n".join(line(verdict) for verdict in verdicts))
    return 0 if all(verdict.reached for verdict in verdicts) else 1
