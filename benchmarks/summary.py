"""Summarises the runs of a case as medians with their spread, and stores them in a file."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.case import Case


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of the sorted values do not exceed.

    Raises ValueError if there are no values or `share` is not from 0 to 1.
    """
    if not ordered:
        raise ValueError("a quantile needs at least one value")
    if not 0 <= share <= 1:
        raise ValueError(f"share={share}: allowed are 0 to 1")
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, smallest and largest of the runs."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        found = list(values)
        return cls(statistics.median(found), min(found), max(found))


@dataclass(frozen=True, slots=True)
class Summary:
    """All runs of one case.

    Attributes:
        label: name of the case within its group.
        runs: number of successful runs.
        figures: spread by name. "rate" is in records per second; other figures have the units of
            the worker.
        note: the reason why runs failed.
    """

    group: str
    label: str
    case: Case
    runs: int
    figures: Mapping[str, Spread]
    note: str = ""

    def __getitem__(self, figure: str) -> float:
        """Return the median of a figure. Raises KeyError if no run had the figure."""
        return self.figures[figure].median

    def get(self, figure: str) -> float | None:
        found = self.figures.get(figure)
        return None if found is None else found.median

    def to_json(self) -> dict[str, Any]:
        figures = {
            name: [_short(s.median), _short(s.low), _short(s.high)]
            for name, s in self.figures.items()
        }
        return {
            "group": self.group,
            "label": self.label,
            "runs": self.runs,
            "case": self.case.to_json(),
            "figures": figures,
            "note": self.note,
        }

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Summary:
        figures = {name: Spread(*values) for name, values in entry["figures"].items()}
        case = Case(**entry["case"])
        return cls(entry["group"], entry["label"], case, entry["runs"], figures, entry["note"])


def _short(number: float) -> float:
    """Round to four significant digits, because more digits would be noise."""
    return float(f"{number:.4g}")


def summarise(
    group: str, label: str, case: Case, results: Sequence[Mapping[str, float]], note: str = ""
) -> Summary:
    """Summarise the results of the workers for one case. Without results, there are no figures."""
    if not results:
        return Summary(group, label, case, 0, {}, note)
    figures: dict[str, Spread] = {
        "rate": Spread.of(result["count"] / result["seconds"] for result in results)
    }
    for name in results[0]:
        if name not in ("warm_up",):
            figures[name] = Spread.of(result[name] for result in results)
    return Summary(group, label, case, len(results), figures, note)


class Results:
    """All results by cluster, group and label, stored as one JSON file.

    A new measurement of a group replaces only the figures of that group.
    """

    def __init__(self, about: Mapping[str, Any] | None = None) -> None:
        self.about: dict[str, Any] = dict(about or {})
        self.summaries: dict[tuple[str, str, str], Summary] = {}
        self.micro: dict[str, float] = {}

    def add(self, summaries: Iterable[Summary]) -> None:
        new = list(summaries)
        replaced = {(s.case.cluster, s.group) for s in new}
        kept = {key: s for key, s in self.summaries.items() if key[:2] not in replaced}
        self.summaries = kept | {(s.case.cluster, s.group, s.label): s for s in new}

    def merge(self, later: Results) -> None:
        """Replace the groups that `later` contains."""
        self.about |= later.about
        self.micro |= later.micro
        self.add(later.summaries.values())

    def find(self, cluster: str, group: str, label: str) -> Summary | None:
        """Return the summary of a case, or None if it was not measured or never succeeded."""
        found = self.summaries.get((cluster, group, label))
        return found if found is not None and found.runs else None

    def group(self, cluster: str, group: str, *, failed: bool = False) -> list[Summary]:
        """Return the summaries of a group in the order of measurement. With `failed`, include cases
        that never succeeded."""
        return [
            s
            for key, s in self.summaries.items()
            if key[:2] == (cluster, group) and (s.runs or failed)
        ]

    def groups(self, cluster: str) -> list[str]:
        return list(dict.fromkeys(key[1] for key in self.summaries if key[0] == cluster))

    def save(self, path: Path) -> None:
        entries = ",\n".join(json.dumps(s.to_json()) for s in self.summaries.values())
        micro = {name: _short(value) for name, value in self.micro.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f'{{"about": {json.dumps(self.about)},\n"micro": {json.dumps(micro)},\n'
            f'"summaries": [\n{entries}\n]}}\n'
        )

    @classmethod
    def load(cls, path: Path) -> Results:
        """Load the results. Raises FileNotFoundError if there is no file."""
        data = json.loads(path.read_text())
        results = cls(data["about"])
        results.micro = data["micro"]
        results.add(Summary.from_json(entry) for entry in data["summaries"])
        return results
