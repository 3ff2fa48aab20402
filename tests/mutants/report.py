"""The table of a run, and which survivors have a reason."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

NEEDED: Final = 0.95
REASONS: Final = Path(__file__).with_name("survivors.toml")


def reasons(path: Path = REASONS) -> dict[str, str]:
    """Key of a mutant -> why nobody needs to notice it."""
    survivors = tomllib.loads(path.read_text())["survivor"]
    return {entry["mutant"]: entry["reason"] for entry in survivors}


def report(results: Sequence[Mapping[str, Any]], known: Mapping[str, str]) -> tuple[str, bool]:
    """The text, and True if enough mutants were noticed and each survivor has a reason."""
    groups: dict[str, Counter[str]] = {}
    for entry in results:
        groups.setdefault(entry["group"], Counter())[entry["result"]] += 1
    total = sum(groups.values(), Counter[str]())
    lines = [f"{'group':16} {'mutants':>8} {'noticed':>8} {'by hanging':>11} {'survived':>9}"]
    for name, counts in [*sorted(groups.items()), ("all", total)]:
        valid = counts["killed"] + counts["hung"] + counts["survived"]
        noticed = counts["killed"] + counts["hung"]
        lines.append(
            f"{name:16} {valid:8} {noticed:8} {counts['hung']:11} {counts['survived']:9}"
        )
    valid = total["killed"] + total["hung"] + total["survived"]
    noticed = total["killed"] + total["hung"]
    rate = noticed / valid if valid else 0.0
    lines.append(f"noticed: {rate:.1%} of {valid} (needed: {NEEDED:.0%}); "
                 f"{total['invalid']} did not compile and do not count")
    unexplained = 0
    for entry in results:
        if entry["result"] == "survived":
            reason = known.get(entry["key"])
            unexplained += reason is None
            lines.append(f"survived: {entry['key']} -> {entry['text']}\n"
                         f"    {reason or 'NO REASON'} ({entry['tests']} tests run the line)")
    if unexplained:
        lines.append(f"{unexplained} survivors without a reason in {REASONS.name}")
    return "\n".join(lines), valid > 0 and rate >= NEEDED and not unexplained
