"""Results of many runs, as a table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.chaos.faults import CATALOGUE
from tests.chaos.run import GRACE, HELD

Result = dict[str, Any]


def load(path: Path) -> list[Result]:
    """Read one JSON object per line; of each run, return the last one. `not_played` says why a run
    could not be completed."""
    runs: dict[tuple[str, int], dict[str, Result]] = {}
    for line in path.read_text().splitlines():
        one = json.loads(line)
        run = runs.setdefault((one["fault"], one["turn"]), {})
        if "not_played" in one or "not_played" in next(iter(run.values()), {}):
            run.clear()
        run[one.get("workload", "")] = one
    return [one for run in runs.values() for one in run.values()]


def broken(results: Iterable[Result]) -> list[str]:
    """Return the broken promises and the incomplete runs."""
    told = []
    for one in results:
        if "not_played" in one:
            told.append(f"{one['fault']}#{one['turn']}: not played, {one['not_played']}")
        elif one["wrong"]:
            told.append(f"{one['fault']}/{one['workload']}#{one['turn']}: {one['wrong']}")
    return told


def _total(results: Iterable[Result], name: str) -> int:
    return sum(result["verdict"][name] for result in results)


def _most(results: Iterable[Result], name: str) -> str:
    """Return the maximum of a figure of whole series, where it was recorded."""
    noted = [result["series"][name] for result in results if name in result["series"]]
    return f"{max(noted):.3f}" if noted else "?"


def table(results: Sequence[Result]) -> str:
    """Return a Markdown table: a row per fault and workload, with the worst values of its runs."""
    lines = [
        "| fault | producer | runs | records | lost | doubled | inverted | wrong offset | "
        "unknown | rate held | of both | unavailable | brokers' own | excess | metadata/s |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for fault in CATALOGUE:
        for workload in ("idempotent", "plain", "transactional"):
            runs = [r for r in results if (r["fault"], r.get("workload")) == (fault, workload)]
            if runs:
                lines.append(_row(fault, workload, runs))
    return "\n".join(lines)


def _row(fault: str, workload: str, runs: Sequence[Result]) -> str:
    unknown = _total(runs, "unknown_present") + _total(runs, "unknown_absent")
    misplaced = _total(runs, "wrong_offset") + _total(runs, "wrong_place")
    held = min(run["rate_held"] for run in runs)
    together = min(run["rate_together"] for run in runs)
    worst = {
        name: max(run[name] for run in runs) for name in ("unavailable_s", "broker_s", "excess_s")
    }
    cells = [
        CATALOGUE[fault].text,
        workload,
        str(len(runs)),
        f"{_total(runs, 'records'):,}",
        str(_total(runs, "lost")),
        str(_total(runs, "duplicates")),
        str(_total(runs, "inversions")),
        str(misplaced),
        str(unknown),
        f"{held:,}/s",
        f"{together:,}/s",
        f"{worst['unavailable_s']:.1f} s",
        f"{worst['broker_s']:.1f} s",
        f"{worst['excess_s']:.1f} s",
        str(max(run["metadata_most_per_second"] for run in runs)),
    ]
    return "| " + " | ".join(cells) + " |"


def _transactions(results: Sequence[Result]) -> str:
    if not results:
        return "transactions: not played"
    latest = max(run["recovered_s"] for run in results)
    return (
        f"transactions: {_total(results, 'acknowledged'):,} records committed, "
        f"{_total(results, 'aborted'):,} aborted on purpose, {_total(results, 'rejected'):,} "
        f"because of an error, {_total(results, 'torn')} transactions seen in part, the first "
        f"commit at most {latest:.1f} s after a fault"
    )


def summary(results: Sequence[Result]) -> str:
    """Return the figures that the acceptance criteria require."""
    complaints = broken(results)
    results = [one for one in results if "not_played" not in one]
    if not results:
        return f"nothing was played: {'; '.join(complaints)}"
    idempotent = [r for r in results if r["workload"] != "plain"]
    judged = [r for r in results if r.get("recovered_s") is None]
    held = {
        workload: min(r["rate_held"] for r in results if r["workload"] == workload)
        for workload in sorted({r["workload"] for r in results})
    }
    together = min(r["rate_together"] for r in results)
    excess = max((r["excess_s"] for r in judged), default=0.0)
    alone = max((r["alone_s"] if "alone_s" in r else r["excess_s"] for r in judged), default=0.0)
    lag, own = _most(results, "loop_lag_max_s"), _most(results, "loop_lag_own_max_s")
    lines = [
        f"{len(results)} runs of {len({r['fault'] for r in results})} faults, "
        f"{_total(results, 'records'):,} records handed over, "
        f"{_total(results, 'acknowledged'):,} acknowledged",
        f"lost {_total(results, 'lost')}, doubled (idempotent and transactional) "
        f"{_total(idempotent, 'duplicates')}, inverted {_total(results, 'inversions')}, "
        "at a wrong offset or partition "
        f"{_total(results, 'wrong_offset') + _total(results, 'wrong_place')}, corrupt "
        f"{_total(results, 'corrupt')}, said absent but present "
        f"{_total(results, 'definite_but_present')}, never settled "
        f"{_total(results, 'unsettled')}; gone with a topic that was deleted "
        f"{_total(results, 'gone_with_the_topic'):,}, acknowledged without an offset "
        f"{_total(results, 'offset_unknown')}",
        f"least rate held between faults: all producers together {together:,} records/s (wanted "
        f"{HELD:,}), {', '.join(f'the {name} one {rate:,}' for name, rate in held.items())}; "
        f"{sum(r['rate_held'] >= HELD for r in results)} of {len(results)} held {HELD:,} alone",
        f"unavailable at most {excess:.2f} s longer than the brokers or the network (allowed "
        f"{GRACE:.0f}); {alone:.2f} s if no partition had to wait for another of its leader",
        _transactions([r for r in results if r.get("recovered_s") is not None]),
        f"the loop of a producer woke up at most {lag} s late, by work of its own thread at most "
        f"{own} s",
        f"broken promises: {'; '.join(complaints) if complaints else 'none'}",
    ]
    return "\n".join(lines)
