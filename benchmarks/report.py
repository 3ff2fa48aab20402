"""Writes tables and plots of the last results to standard output and docs/reports/benchmarks.md."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from benchmarks import catalogue, micro
from benchmarks.case import CLUSTERS
from benchmarks.summary import Results, Summary
from benchmarks.targets import Verdict, verdicts

HERE: Final = Path(__file__).parent
PAGE: Final = HERE.parent / "docs" / "reports" / "benchmarks.md"
PLOTS: Final = HERE / "plots"
LAG_HEADS: Final = ["loop lag ms", "less collector ms", "held ms"]
REQUEST_HEADS: Final = ["requests/s", "batches / request", "KiB / request"]
LAG_FIGURES: Final = ("lag_ms", "apart_ms", "held_ms")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the files of the results and the update of the report page."""
    parser.add_argument(
        "--input", type=Path, nargs="+", default=[HERE / "results.json"],
        help="JSON files; groups of later ones replace those of earlier ones",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, help="save what was put together")
    parser.add_argument("--write", action="store_true", help=f"put the tables into {PAGE.name}")
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")


def main(chosen: argparse.Namespace) -> int:
    """Print the report."""
    results = Results()
    for path in chosen.input:
        if not path.exists():
            raise ValueError(f"input={path.name}: no such file; `suite` makes one")
        results.merge(Results.load(path))
    if chosen.output is not None:
        results.save(chosen.output)
    print(text(results))
    if chosen.write:
        PAGE.write_text(fill(PAGE.read_text(), sections(results)))
    draw(results)
    return 1 if chosen.check and missed(results) else 0


def draw(results: Results) -> None:
    """Draw the plots if matplotlib (extra `bench`) is installed."""
    try:
        from benchmarks import plots
    except ImportError:
        print("no plots: matplotlib is missing (pip install aiokprod[bench])", file=sys.stderr)
        return
    plots.draw_all(results, PLOTS)


def missed(results: Results) -> list[Verdict]:
    return [verdict for verdict in verdicts(results) if verdict.reached is False]


def text(results: Results) -> str:
    """Return the whole report in Markdown."""
    parts = sections(results)
    return "\n\n".join(part for part in parts.values() if part)


def sections(results: Results) -> dict[str, str]:
    """Return the Markdown of each marked section of the page, by name."""
    found = {"about": _about(results), "targets": targets(results)}
    for cluster in CLUSTERS:
        titles = {group.name: group.title for group in catalogue.groups(cluster, full=True)}
        tables = [
            f"**{titles.get(name, name)}**\n\n{table(results.group(cluster, name, failed=True))}"
            for name in results.groups(cluster)
        ]
        found[cluster] = "\n\n".join(tables)
    found["micro"] = micro.table(results.micro) if results.micro else ""
    return found


def _about(results: Results) -> str:
    return "\n".join(f"- {name}: {value}" for name, value in results.about.items())


def targets(results: Results) -> str:
    """Return a table of all promises with their figures."""
    lines = ["| scenario | target | measured | |", "|---|---|---|---|"]
    words = {True: "reached", False: "**missed**", None: "not judged"}
    for verdict in verdicts(results):
        cells = (verdict.scenario, verdict.target, verdict.figure, words[verdict.reached])
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def table(summaries: Iterable[Summary]) -> str:
    """Return a table with one line per case. Columns without values are left out."""
    rows = list(summaries)
    timed = any("p50_ms" in row.figures for row in rows)
    lagging = any("lag_ms" in row.figures for row in rows)
    counted = any("requests" in row.figures for row in rows)
    of_brokers = any("brokers_us" in row.figures for row in rows)
    head = ["case", "records/s", "min..max", "CPU µs/record"] + ["brokers'"] * of_brokers
    head += ["p50 / p99 / p99.9 ms"] * timed + LAG_HEADS * lagging + REQUEST_HEADS * counted
    head.append("RSS MiB")
    lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    for row in rows:
        if not row.runs:
            lines.append(f"| {row.label} | failed: {row.note} |{' |' * (len(head) - 2)}")
            continue
        rate = row.figures["rate"]
        cells = [row.label, f"{rate.median:,.0f}", f"{rate.low:,.0f}..{rate.high:,.0f}"]
        cells.append(_number(row.get("cpu_us"), "{:.3g}"))
        if of_brokers:
            cells.append(_number(row.get("brokers_us"), "{:.3g}"))
        if timed:
            names = ("p50_ms", "p99_ms", "p999_ms")
            cells.append(" / ".join(_number(row.get(name), "{:.3g}") for name in names))
        if lagging:
            cells += (_number(row.get(name), "{:.1f}") for name in LAG_FIGURES)
        if counted:
            cells += _requests(row)
        cells.append(_number(row.get("rss_mib"), "{:.0f}"))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _requests(row: Summary) -> list[str]:
    """Return the cells of `REQUEST_HEADS`, which are quotients of medians."""
    requests, seconds = row.get("requests"), row.get("seconds")
    if not requests or not seconds:
        return ["-"] * len(REQUEST_HEADS)
    return [
        f"{requests / seconds:,.0f}",
        f"{row['batches'] / requests:.2f}",
        f"{row['bytes_sent'] / requests / 1024:,.0f}",
    ]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _keeping_marks(part: str) -> Callable[[re.Match[str]], str]:
    return lambda found: f"{found[1]}{part}\n{found[2]}"


def fill(page: str, parts: dict[str, str]) -> str:
    """Replace the text between `<!-- begin NAME -->` and `<!-- end NAME -->` in a page."""
    for name, part in parts.items():
        place = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        page = place.sub(_keeping_marks(part), page)
    return page
