"""The plots of the report: throughput by client, latency by load, and costs by size."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt

from benchmarks.summary import Results, Summary

WIDTH: Final = 7.0
DPI: Final = 90
COLOURS: Final = {
    "aiokprod": "#1b7837",
    "aiokafka": "#b2abd2",
    "aiokafka-tuned": "#8073ac",
    "confluent": "#e08214",
    "confluent-silent": "#fdb863",
    "confluent-aio": "#b35806",
    "confluent-aio-tuned": "#b35806",
    "java": "#2166ac",
    "java-default": "#92c5de",
    "franz-go": "#1d91c0",
    "blaster": "#bdbdbd",
}
_NUMBER: Final = re.compile(r"([\d,]+)(?= (?:partitions|tasks|B)\b|/s)")


def draw_all(results: Results, folder: Path) -> list[Path]:
    """Draw every plot that has results. Return the paths of the plots."""
    folder.mkdir(exist_ok=True)
    drawn = []
    for name, plot in PLOTS.items():
        figure = plot(results)
        if figure is not None:
            path = folder / f"{name}.png"
            figure.savefig(path, dpi=DPI, metadata={"Software": None})
            plt.close(figure)
            drawn.append(path)
    return drawn


def throughput(results: Results) -> Any:
    """Plot records per second by client as bars, with the slowest and fastest run as whiskers."""
    places = [("mock", "fire", "mock cluster"), ("kafka", "fire-rf1", "3 nodes, RF 1"),
              ("kafka", "fire-rf3", "3 nodes, RF 3")]  # fmt: skip
    found = [(title, group) for c, g, title in places if (group := results.group(c, g))]
    if not found:
        return None
    figure, axes = plt.subplots(1, len(found), figsize=(WIDTH + 2, 3.2), squeeze=False)
    for axis, (title, group) in zip(axes[0], found, strict=True):
        shown = [s for s in group if s.label != "blaster" or "mock" not in title]
        rates = [s.figures["rate"] for s in shown]
        whiskers = [[(r.median - r.low) / 1e6 for r in rates],
                    [(r.high - r.median) / 1e6 for r in rates]]  # fmt: skip
        axis.barh(
            [s.label for s in shown], [r.median / 1e6 for r in rates], xerr=whiskers,
            color=[COLOURS.get(s.case.client, "grey") for s in shown],
            error_kw={"linewidth": 0.8},
        )  # fmt: skip
        axis.invert_yaxis()
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("million records/s", fontsize=8)
        axis.tick_params(labelsize=7)
    figure.tight_layout()
    return figure


def load(results: Results) -> Any:
    """Plot p50 (solid) and p99 (dashed) of paced requests."""
    places = [("mock", "load", "mock cluster"), ("kafka", "load-rf3", "3 nodes, RF 3")]
    found = [(title, group) for c, g, title in places if (group := results.group(c, g))]
    if not found:
        return None
    figure, axes = plt.subplots(1, len(found), figsize=(WIDTH + 2, 3.2), squeeze=False)
    for axis, (title, group) in zip(axes[0], found, strict=True):
        for client, points in _lines(group).items():
            rates = [s.case.rate for _, s in points]
            colour = COLOURS.get(points[0][1].case.client)
            axis.plot(rates, [s["p50_ms"] for _, s in points], "o-", color=colour, label=client,
                      markersize=3)  # fmt: skip
            axis.plot(rates, [s["p99_ms"] for _, s in points], "o--", color=colour, markersize=3)
        _finish(axis, title, "requests/s", "ms: p50, p99 dashed")
        axis.set_yscale("log")
    figure.tight_layout()
    return figure


def costs(results: Results) -> Any:
    """Plot rates by the number of partitions, the number of tasks and the size of a value."""
    places = [("partitions", "partitions"), ("tasks", "tasks submitting to one partition"),
              ("sizes", "bytes of a value")]  # fmt: skip
    found = [(name, group) for g, name in places if (group := results.group("mock", g))]
    if not found:
        return None
    figure, axes = plt.subplots(1, len(found), figsize=(WIDTH + 3, 3.2), squeeze=False)
    for axis, (name, group) in zip(axes[0], found, strict=True):
        by_size = name == "bytes of a value"
        for label, points in _lines(group).items():
            values = [
                s["rate"] * s.case.size / 1e6 if by_size else s["rate"] / 1e6 for _, s in points
            ]
            style = ":" if "keyed" in label or "awaiting" in label else "-"
            colour = COLOURS.get(points[0][1].case.client)
            axis.plot([x for x, _ in points], values, "o" + style, color=colour, label=label,
                      markersize=3)  # fmt: skip
        _finish(axis, "", name, "MB/s" if by_size else "million records/s")
        axis.set_yscale("log")
    figure.tight_layout()
    return figure


def _finish(axis: Any, title: str, x: str, y: str) -> None:
    axis.set_xscale("log")
    axis.set_title(title, fontsize=9)
    axis.set_xlabel(x, fontsize=8)
    axis.set_ylabel(y, fontsize=8)
    axis.tick_params(labelsize=7)
    axis.grid(True, linewidth=0.3)
    axis.legend(fontsize=6)


def _lines(group: Iterable[Summary]) -> dict[str, list[tuple[int, Summary]]]:
    """Return the points of each line, by the label without its number. For example, "aiokprod,
    keyed, 10 partitions" is the point at 10 of the line "aiokprod, keyed"."""
    lines: dict[str, list[tuple[int, Summary]]] = {}
    for summary in group:
        number = _NUMBER.search(summary.label)
        if number is None:
            continue
        words = summary.label[: number.start()] + summary.label[number.end() :]
        name = re.sub(r" ?(partitions|tasks(?= awaiting)|tasks|/s|B)$", "", words.strip())
        name = re.sub(r",\s+tasks awaiting", ", awaiting", name).strip(" ,")
        lines.setdefault(name, []).append((int(number[1].replace(",", "")), summary))
    return {name: sorted(points, key=lambda p: p[0]) for name, points in lines.items()}


PLOTS: Final[dict[str, Callable[[Results], Any]]] = {
    "throughput": throughput,
    "load": load,
    "costs": costs,
}
