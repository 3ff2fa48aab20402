"""Fails if the tests in virtual time do not cover a module well enough.

The script reads the JSON report of coverage.py. The thresholds are 95 % of lines and 90 % of
branches, for every module outside `LEFT_OUT`. New modules are included automatically.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

LINES, BRANCHES = 95.0, 90.0
PACKAGE: Final = Path("aiokprod")
LEFT_OUT: Final = ("_wire", "_core", "_arrow", "spark", "testing")
"""Packages that are not measured. Golden bytes and other clients verify `_wire`, tests with real
brokers verify `spark`, `_core` and `_arrow` are compiled, and `testing` is the testing kit."""

LOWER: Final[Mapping[str, tuple[float, float, str]]] = {
    "aiokprod/blocking.py": (95.0, 85.0, "forks, exits and interrupts are tested in processes"),
}
"""(lines, branches, reason) by module: lower thresholds, and why not all tests can be measured."""


def modules(package: Path = PACKAGE) -> list[str]:
    """Return the modules of the measured packages."""
    found = [
        path
        for path in package.rglob("*.py")
        if path.relative_to(package).parts[0] not in LEFT_OUT and path.stat().st_size > 200
    ]
    return sorted(path.as_posix() for path in found)


def percent(part: int, whole: int) -> float:
    return 100.0 if whole == 0 else 100.0 * part / whole


def check(
    files: Mapping[str, dict[str, Any]],
    wanted: Iterable[str],
    lower: Mapping[str, tuple[float, float, str]] = LOWER,
) -> int:
    """Print a line for each module. Return 1 if the coverage of a module is too low or missing."""
    worst = 0
    wanted = list(wanted)
    print(f"{'module':44} {'lines':>8} {'branches':>9}")
    for module in wanted:
        if module not in files:
            print(f"{module:44} not measured")
            worst = 1
            continue
        summary = files[module]["summary"]
        lines = percent(summary["covered_lines"], summary["num_statements"])
        branches = percent(summary["covered_branches"], summary["num_branches"])
        least, least_branches, why = lower.get(module, (LINES, BRANCHES, ""))
        enough = lines >= least and branches >= least_branches
        note = f"  ({why})" if why else ""
        print(f"{module:44} {lines:7.1f}% {branches:8.1f}%{note if enough else '  TOO LOW'}")
        if not enough:
            worst = 1
            print(f"    missing lines: {files[module]['missing_lines']}")
            print(f"    missing branches: {files[module]['missing_branches']}")
    for module in sorted(set(lower) - set(wanted)):
        print(f"{module:44} has an exception, but is no module")
        worst = 1
    if not wanted:
        print("there is no module to check")
        worst = 1
    if worst:
        print(f"at least {LINES:.0f} % of lines and {BRANCHES:.0f} % of branches are required")
    return worst


def main(path: str) -> int:
    files = {
        Path(name).as_posix(): entry
        for name, entry in json.loads(Path(path).read_text())["files"].items()
    }
    return check(files, modules())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
