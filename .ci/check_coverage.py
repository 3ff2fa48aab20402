"""Fails when a module that must be proven in virtual time is not covered well enough.

Reads the JSON report of coverage.py. Thresholds: 95 % of lines, 90 % of branches.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

LINES, BRANCHES = 95.0, 90.0
MODULES = (
    "aiokprod/engine/metadata.py",
    "aiokprod/engine/accumulator.py",
    "aiokprod/engine/sender.py",
    "aiokprod/engine/settlement.py",
    "aiokprod/engine/outcome.py",
    "aiokprod/engine/producer_state.py",
    "aiokprod/engine/idempotence.py",
    "aiokprod/net/channel.py",
)


def percent(part: int, whole: int) -> float:
    return 100.0 if whole == 0 else 100.0 * part / whole


def main(path: str) -> int:
    files: dict[str, dict[str, Any]] = {
        Path(name).as_posix(): entry
        for name, entry in json.loads(Path(path).read_text())["files"].items()
    }
    worst = 0
    print(f"{'module':40} {'lines':>8} {'branches':>9}")
    for module in MODULES:
        if module not in files:
            print(f"{module:40} not measured")
            worst = 1
            continue
        summary = files[module]["summary"]
        lines = percent(summary["covered_lines"], summary["num_statements"])
        branches = percent(summary["covered_branches"], summary["num_branches"])
        enough = lines >= LINES and branches >= BRANCHES
        print(f"{module:40} {lines:7.1f}% {branches:8.1f}%{'' if enough else '  TOO LOW'}")
        if not enough:
            worst = 1
            print(f"    missing lines: {files[module]['missing_lines']}")
            print(f"    missing branches: {files[module]['missing_branches']}")
    if worst:
        print(f"at least {LINES:.0f} % of lines and {BRANCHES:.0f} % of branches are required")
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
