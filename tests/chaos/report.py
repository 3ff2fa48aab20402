"""Results of many runs, as a table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.chaos.faults import CATALOGUE
from tests.chaos.run import GRACE

HELD = 10_000
"""Records per second and producer that must get through while nothing is broken."""

Result = dict[str, Any]


def load(path: Path) -> list[Result]:
    """One JSON object per line."""
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def _total(results: Iterable[Result], name: str) -> int:
    return sum(result["verdict"][name] for result in results)


def table(results: Sequence[Result]) -> str:
    """Markdown: a row per fault and workload, worst values of its runs."""
    lines = [
        "| fault | producer | runs | records | lost | doubled | inverted | wrong offset | "
        "unknown | rate held | unavailable | brokers' own | excess | metadata/s |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for fault in CATALOGUE:
        for workload in ("idempotent", "plain"):
            runs = [r for r in results if (r["fault"], r["workload"]) == (fault, workload)]
            if runs:
                lines.append(_row(fault, workload, runs))
    return "\n".join(lines)


def _row(fault: str, workload: str, runs: Sequence[Result]) -> str:
    unknown = _total(runs, "unknown_present") + _total(runs, "unknown_absent")
    misplaced = _total(runs, "wrong_offset") + _total(runs, "wrong_place")
    held = min(run["rate_held"] for run in runs)
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
        f"{worst['unavailable_s']:.1f} s",
        f"{worst['broker_s']:.1f} s",
        f"{worst['excess_s']:.1f} s",
        str(max(run["metadata_most_per_second"] for run in runs)),
    ]
    return "| " + " | ".join(cells) + " |"


def summary(results: Sequence[Result]) -> str:
    """The figures the acceptance asks for."""
    idempotent = [r for r in results if r["workload"] == "idempotent"]
    held = min(r["rate_held"] for r in results)
    excess = max(r["excess_s"] for r in results)
    broken = [
        f"{r['fault']}/{r['workload']}#{r['turn']}: {r['wrong']}" for r in results if r["wrong"]
    ]
    lines = [
        f"{len(results)} runs of {len({r['fault'] for r in results})} faults, "
        f"{_total(results, 'records'):,} records handed over, "
        f"{_total(results, 'acknowledged'):,} acknowledged",
        f"lost {_total(results, 'lost')}, doubled (idempotent) {_total(idempotent, 'duplicates')}, "
        f"inverted {_total(results, 'inversions')}, at a wrong offset or partition "
        f"{_total(results, 'wrong_offset') + _total(results, 'wrong_place')}, corrupt "
        f"{_total(results, 'corrupt')}, said absent but present "
        f"{_total(results, 'definite_but_present')}, never settled "
        f"{_total(results, 'unsettled')}",
        f"least rate held by a producer between faults {held:,} records/s "
        f"(wanted {HELD:,}); unavailable at most {excess:.2f} s longer than the brokers or the "
        f"network (allowed {GRACE:.0f})",
        f"broken promises: {'; '.join(broken) if broken else 'none'}",
    ]
    return "\n".join(lines)
