"""The table of a run, and the survivors that have a documented reason."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.mutants.operators import sites
from tests.mutants.plan import ROOT

NEEDED: Final = 0.95
REASONS: Final = Path(__file__).with_name("survivors.toml")


def reasons(path: Path = REASONS) -> dict[str, str]:
    """Map the key of a mutant to the reason why no test needs to detect it."""
    survivors = tomllib.loads(path.read_text())["survivor"]
    return {entry["mutant"]: entry["reason"] for entry in survivors}


def stale(known: Iterable[str]) -> list[str]:
    """Return the keys that match no mutant: their line changed, so their reason must be
    reviewed."""
    existing: dict[str, set[str]] = {}
    for path in {key.split(" | ")[0] for key in known}:
        file = ROOT / path
        found = sites(path, file.read_text()) if file.exists() else []
        existing[path] = {mutation.key for mutation in found}
    return [key for key in known if key not in existing[key.split(" | ")[0]]]


def report(results: Sequence[Mapping[str, Any]], known: Mapping[str, str]) -> tuple[str, bool]:
    """Return the text, and True if enough mutants were detected and each survivor has a reason.

    A mutant with only the first round ("open") counts as not detected and has no reason yet.
    """
    groups: dict[str, Counter[str]] = {}
    for entry in results:
        groups.setdefault(entry["group"], Counter())[entry["result"]] += 1
    total = sum(groups.values(), Counter[str]())
    lines = [f"{'group':16} {'mutants':>8} {'noticed':>8} {'by hanging':>11} {'survived':>9}"]
    for name, counts in [*sorted(groups.items()), ("all", total)]:
        noticed = counts["killed"] + counts["hung"]
        left = counts["survived"] + counts["open"]
        lines.append(f"{name:16} {noticed + left:8} {noticed:8} {counts['hung']:11} {left:9}")
    noticed = total["killed"] + total["hung"]
    valid = noticed + total["survived"] + total["open"]
    rate = noticed / valid if valid else 0.0
    lines.append(
        f"noticed: {rate:.1%} of {valid} (needed: {NEEDED:.0%}); "
        f"{total['invalid']} did not compile and do not count"
    )
    unexplained = 0
    refuted = 0
    for entry in results:
        if entry["result"] in ("killed", "hung") and entry["key"] in known:
            refuted += 1
            lines.append(f"noticed, although {REASONS.name} says why not: {entry['key']}")
        elif entry["result"] == "open":
            unexplained += 1
            lines.append(f"not finished: {entry['key']} -> {entry['text']}")
        elif entry["result"] == "survived":
            reason = known.get(entry["key"])
            unexplained += reason is None
            lines.append(
                f"survived: {entry['key']} -> {entry['text']}\n"
                f"    {reason or 'NO REASON'} ({entry['tests']} tests run the line"
                f"{'; ' + entry['by'] if entry.get('by') else ''})"
            )
    if unexplained:
        lines.append(f"{unexplained} survivors without a reason in {REASONS.name}")
    return "\n".join(lines), valid > 0 and rate >= NEEDED and not (unexplained or refuted)
