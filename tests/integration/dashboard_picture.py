"""Draw the Grafana dashboard of docs/ with the values of a real Prometheus server.

    python -m tests.integration.dashboard_picture docs/grafana-dashboard.png

For two minutes, two producers send to a fake cluster. A broker fails, requests are throttled, and
records are rejected. Prometheus (Debian's package) scrapes the producers. Every panel is drawn at
its place in the dashboard, from the results of its expressions. Grafana itself is not needed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import matplotlib.pyplot as plt
import matplotlib.ticker as ticker
from prometheus_client import CollectorRegistry

from aiokprod.errors import Code, KafkaError
from aiokprod.observe.prometheus import collector
from aiokprod.producer import Producer
from aiokprod.testing.fake_cluster import FakeCluster
from tests.integration.test_prometheus import DASHBOARD, Prometheus, served

SECONDS: Final = 120.0
STEP_S: Final = 1.0
TOPICS: Final = ("orders", "clicks", "payments")
PANEL_INCHES: Final = (6.0, 2.9)
COLUMNS: Final = 24
"""Number of columns in Grafana's grid."""

mpl.use("Agg")


async def traffic(producer: Producer[bytes, bytes], start: float) -> None:
    """Send to all topics at a rate that rises and falls."""
    rng = random.Random(1)
    while (now := time.monotonic() - start) < SECONDS:
        for number, topic in enumerate(TOPICS):
            for _ in range(int(6 + 5 * math.sin(now / 15 + number))):
                value = b'{"user": %d, "page": "/products/%d"}' % (rng.randrange(9_999), number)
                value *= rng.randrange(1, 9)
                delivery = await producer.submit(topic, value)
                delivery.add_done_callback(lambda done: done.exception())
        await asyncio.sleep(0.05)


async def transactions(producer: Producer[bytes, bytes], start: float) -> None:
    """Commit transactions, and abort every fifth one."""
    number = 0
    while time.monotonic() - start < SECONDS:
        number += 1
        try:
            await producer.begin_transaction()
            await producer.send_many("ledger", [b"entry"] * 20)
            await (producer.abort_transaction if number % 5 == 0 else producer.commit_transaction)()
        except KafkaError:
            await producer.abort_transaction()
        await asyncio.sleep(0.3)


async def faults(cluster: FakeCluster) -> None:
    """Stop and restart a broker, move leaders, throttle requests, and reject records."""
    rng = random.Random(2)
    await asyncio.sleep(30)
    cluster.kill(2)
    await asyncio.sleep(15)
    cluster.start(2)
    await asyncio.sleep(10)
    for _ in range(10):
        for topic in TOPICS:
            cluster.move_leader(topic, rng.randrange(4))
        await asyncio.sleep(0.5)
    for _ in range(20):
        cluster.throttle(300, 1)
        await asyncio.sleep(0.5)
    cluster.throttle(0, 1)
    await asyncio.sleep(10)
    for _ in range(10):
        for partition in range(4):
            cluster.fail_produce(("clicks", partition), Code.INVALID_RECORD)
        await asyncio.sleep(1)


async def record(directory: Path) -> list[list[tuple[str, list[tuple[float, float]]]]]:
    """Run the producers under Prometheus. Return the series of each panel as (legend, points),
    where a point is (time, value)."""
    cluster = FakeCluster(3, default_partitions=4)
    options: dict[str, Any] = {
        "bootstrap_servers": cluster.bootstrap_servers, "request_timeout_ms": 5_000,
        "compression_type": "lz4",
    }  # fmt: skip
    registry = CollectorRegistry()
    async with (
        Producer[bytes, bytes](
            client_id="shop", environment=cluster.environment(1), **options
        ) as shop,
        Producer[bytes, bytes](
            client_id="ledger",
            transactional_id="ledger-1",
            environment=cluster.environment(2),
            **options,
        ) as ledger,
    ):
        registry.register(collector(shop, ledger))
        with served(registry, set()) as port:
            prometheus = Prometheus(directory, port)
            try:
                begin, start = time.time(), time.monotonic()
                async with asyncio.TaskGroup() as group:
                    group.create_task(traffic(shop, start))
                    group.create_task(transactions(ledger, start))
                    group.create_task(faults(cluster))
                return await asyncio.to_thread(series, prometheus.port, begin + 5, time.time())
            finally:
                await asyncio.to_thread(prometheus.stop)


def series(
    port: int, begin: float, end: float
) -> list[list[tuple[str, list[tuple[float, float]]]]]:
    """Return the series of each panel."""
    found = []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        lines = []
        for target in panel["targets"]:
            query = target["expr"].replace("$client_id", ".*").replace("$__rate_interval", "5s")
            url = f"http://127.0.0.1:{port}/api/v1/query_range?" + urllib.parse.urlencode(
                {"query": query, "start": begin, "end": end, "step": STEP_S}
            )
            with urllib.request.urlopen(url, timeout=30) as response:
                results = json.load(response)["data"]["result"]
            for result in results:
                legend = target["legendFormat"]
                for name, value in result["metric"].items():
                    legend = legend.replace(f"{{{{{name}}}}}", value)
                points = [(float(at), float(value)) for at, value in result["values"]]
                lines.append((legend, [(at, y) for at, y in points if math.isfinite(y)]))
        found.append(sorted(lines))
    return found


def formatter(unit: str) -> ticker.Formatter:
    """Return a formatter for the labels of a value axis, as in Grafana."""
    if unit == "percentunit":
        return ticker.PercentFormatter(1.0)
    suffix = {"s": "s", "Bps": "B/s", "rps": "rec/s", "ops": "op/s", "cps": "/s"}.get(unit, "")
    return ticker.EngFormatter(suffix, sep=" " if suffix else "")


def draw(
    panels: list[dict[str, Any]],
    values: list[list[tuple[str, list[tuple[float, float]]]]],
    path: Path,
) -> None:
    """Draw all panels at their places in the dashboard."""
    clock = ticker.FuncFormatter(lambda at, _: time.strftime("%H:%M:%S", time.gmtime(at)))
    plt.style.use("dark_background")
    columns = max(COLUMNS // panel["gridPos"]["w"] for panel in panels)
    rows = len({panel["gridPos"]["y"] for panel in panels})
    size = (PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    figure.patch.set_facecolor("#111217")
    for panel, lines in zip(panels, values, strict=True):
        place = panel["gridPos"]
        axis = axes[place["y"] // place["h"]][place["x"] // place["w"]]
        axis.set_facecolor("#181b1f")
        for legend, points in lines:
            if points:
                axis.plot(*zip(*points, strict=True), label=legend, linewidth=1.3)
        axis.set_title(panel["title"], loc="left", fontsize=10)
        unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit", "short")
        axis.yaxis.set_major_formatter(formatter(unit))
        axis.xaxis.set_major_formatter(clock)
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.15)
        if axis.get_legend_handles_labels()[0]:
            axis.margins(y=0.35)  # room for the legend
            axis.set_ylim(bottom=0)
            axis.legend(fontsize=6, loc="upper left", ncols=3, framealpha=0.4)
    figure.savefig(path, dpi=80)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, help="the PNG file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        values = asyncio.run(record(Path(directory)))
    panels = json.loads(DASHBOARD.read_text())["panels"]
    empty = [panel["title"] for panel, lines in zip(panels, values, strict=True) if not lines]
    if empty:
        raise SystemExit(f"no values for the panels {empty}")
    draw(panels, values, arguments.path)


if __name__ == "__main__":
    main()
