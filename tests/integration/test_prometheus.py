"""A Prometheus server (Debian's package `prometheus`) that scrapes a running producer."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from aiokprod.observe.prometheus import collector, exposition
from aiokprod.producer import Producer
from aiokprod.testing.fake_cluster import FakeCluster

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana-dashboard.json"

CONFIGURATION = """
global: {{scrape_interval: 250ms}}
scrape_configs:
  - job_name: producer
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="the package prometheus is not installed"
)


@contextmanager
def served(registry: CollectorRegistry, formats: set[str]) -> Iterator[int]:
    """Serve the registry over HTTP and yield the port. Add the content types of the responses to
    `formats`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body, content_type = exposition(registry, self.headers.get("Accept", ""))
            formats.add(content_type)
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Prometheus:
    """A server with its data in a directory. `ask` evaluates a query."""

    def __init__(self, directory: Path, target: int, *features: str) -> None:
        self.port = free_port()
        path = directory / "prometheus.yml"
        path.write_text(CONFIGURATION.format(port=target))
        self.process = subprocess.Popen(
            [
                "prometheus", f"--config.file={path}", f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}", *features,
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def ask(self, query: str) -> list[Any]:
        """Return the result vector. It is empty until the server is ready."""
        url = f"http://127.0.0.1:{self.port}/api/v1/query?" + urllib.parse.urlencode(
            {"query": query}
        )
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                found: list[Any] = json.load(response)["data"]["result"]
                return found
        except OSError:
            return []

    def value(self, query: str) -> float | None:
        """Return the value of a query that has a single result, or None without a result."""
        result = self.ask(query)
        return float(result[0]["value"][1]) if result else None

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


def scraped(directory: Path, queries: list[str], *features: str) -> tuple[Any, ...]:
    """Return the results of queries after 300 delivered records, the metrics at that time, and the
    formats."""
    formats: set[str] = set()

    async def main() -> tuple[Any, ...]:
        cluster = FakeCluster(1)
        cluster.create_topic("orders", 2)
        async with Producer(
            bootstrap_servers=cluster.bootstrap_servers,
            environment=cluster.environment(1),
            client_id="shop",
        ) as producer:
            registry = CollectorRegistry()
            registry.register(collector(producer, native_histograms=True))
            with served(registry, formats) as port:
                prometheus = Prometheus(directory, port, *features)
                try:
                    for number in range(300):
                        await producer.send("orders", b"order %d" % number)
                    await producer.flush()
                    total = 'kafka_producer_records_acknowledged_total{topic="orders"}'
                    give_up = time.monotonic() + 60
                    while await asyncio.to_thread(prometheus.value, total) != 300:
                        assert time.monotonic() < give_up, "Prometheus does not show the records"
                        await asyncio.sleep(0.3)
                    await asyncio.sleep(1)  # a rate needs several scrapes
                    found = [await asyncio.to_thread(prometheus.ask, query) for query in queries]
                finally:
                    await asyncio.to_thread(prometheus.stop)
            return found, producer.metrics(), formats

    return asyncio.run(main())


def panels_queries() -> list[str]:
    """Return the expressions of the dashboard with its variables filled in."""
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [
        target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])
    ]
    return [
        query.replace("$client_id", ".*").replace("$__rate_interval", "1m") for query in queries
    ]


@needs_prometheus
def test_prometheus_scrapes_a_producer(tmp_path: Path) -> None:
    queries = panels_queries()
    assert len(queries) > 10
    found, metrics, formats = scraped(
        tmp_path, ["kafka_producer_delivery_time_seconds_count", *queries]
    )
    assert all(content_type.startswith("text/plain") for content_type in formats)
    assert float(found[0][0]["value"][1]) == metrics["delivery_time_s"]["count"]
    empty = [query for query, result in zip(queries, found[1:], strict=True) if not result]
    # No record has failed, was throttled or had to wait.
    assert all("errors_total" in query or "refusals_total" in query for query in empty), empty


@needs_prometheus
def test_prometheus_reads_native_histograms(tmp_path: Path) -> None:
    """The conversion is lossless: the count, the sum and every bucket equal those of
    `producer.metrics()`."""
    found, metrics, formats = scraped(
        tmp_path,
        [
            "kafka_producer_delivery_time_seconds",
            "histogram_quantile(0.99, kafka_producer_delivery_time_seconds)",
        ],
        "--enable-feature=native-histograms",
    )
    assert {content_type.partition(";")[0] for content_type in formats} == {
        "application/vnd.google.protobuf"
    }
    expected = metrics["delivery_time_s"]
    shown = found[0][0]["histogram"][1]
    assert float(shown["count"]) == expected["count"]
    assert float(shown["sum"]) == pytest.approx(expected["sum"])
    counts = [float(count) for _, low, high, count in shown["buckets"] if float(low) > 0]
    assert counts == [count for count in expected["buckets"] if count]
    lows = [float(low) for _, low, high, count in shown["buckets"] if float(low) > 0]
    places = [expected["offset"] + i for i, count in enumerate(expected["buckets"]) if count]
    assert lows == pytest.approx([2 ** (place / 8) for place in places])
    assert float(found[1][0]["value"][1]) == pytest.approx(expected["p99"], rel=0.1)
