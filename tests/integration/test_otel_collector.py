"""Spans and metrics of a producer in an OpenTelemetry Collector, which is built from the Go module
proxy (otelcol/main.go)."""

from __future__ import annotations

import asyncio
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from aiokprod.observe.otel import Telemetry
from aiokprod.observe.otel_metrics import with_producers
from aiokprod.producer import Producer
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.kafka_artifacts import MissingTool
from aiokprod.testing.kafka_node import free_ports
from benchmarks import go_program
from tests.hang import HANG_S

SOURCE = Path(__file__).with_name("otelcol")
RECORDS = 50

CONFIGURATION = """
receivers: {{otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:{port}"}}}}}}}}
exporters: {{debug: {{verbosity: detailed, use_internal_logger: false}}}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    traces: {{receivers: [otlp], exporters: [debug]}}
    metrics: {{receivers: [otlp], exporters: [debug]}}
"""


@contextmanager
def collector(folder: Path) -> Iterator[tuple[str, Path]]:
    """Run a collector. Yield its address and the file to which it writes the received data."""
    try:
        program = go_program.executable(SOURCE)
    except MissingTool as error:
        pytest.skip(str(error))
    (port,) = free_ports(1)
    (folder / "config.yaml").write_text(CONFIGURATION.format(port=port))
    output = folder / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [program, f"--config=file:{folder / 'config.yaml'}"], stdout=file, stderr=file
        )
        try:
            wait_for(output, "Everything is ready")
            yield f"http://127.0.0.1:{port}", output
        finally:
            process.terminate()
            process.wait(30)


def wait_for(output: Path, text: str) -> str:
    give_up = time.monotonic() + HANG_S
    while text not in (found := output.read_text()):
        assert time.monotonic() < give_up, found[-2000:]
        time.sleep(0.1)
    return found


@pytest.mark.slow  # the first build compiles hundreds of Go packages
def test_collector_receives_spans_and_metrics(tmp_path: Path) -> None:
    async def main(address: str) -> dict[str, Any]:
        traces, cluster = TracerProvider(), FakeCluster(1)
        exporter = OTLPSpanExporter(f"{address}/v1/traces")
        traces.add_span_processor(BatchSpanProcessor(exporter))
        cluster.create_topic("orders", 1)
        telemetry = Telemetry(traces, spans="record")
        producer = Producer[Any, Any](
            bootstrap_servers=cluster.bootstrap_servers,
            environment=cluster.environment(1),
            client_id="shop",
            plugins=[telemetry],
        )
        metric_exporter = with_producers(OTLPMetricExporter(f"{address}/v1/metrics"), producer)
        meters = MeterProvider([PeriodicExportingMetricReader(metric_exporter, 1e9)])
        counter = meters.get_meter("shop").create_counter("checkouts")
        async with producer:
            for number in range(RECORDS):
                counter.add(1)
                with traces.get_tracer("shop").start_as_current_span("checkout"):
                    await producer.send("orders", b"order %d" % number)
            await asyncio.sleep(0)
            await asyncio.to_thread(meters.force_flush)
            await asyncio.to_thread(traces.force_flush)
            values = producer.metrics()
        await asyncio.to_thread(meters.shutdown)
        await asyncio.to_thread(traces.shutdown)
        return values

    with collector(tmp_path) as (address, output):
        values = asyncio.run(main(address))
        wait_for(output, "checkout")
        wait_for(output, "aiokprod.producer.delivery_time")
        time.sleep(1)
        found = output.read_text()
    assert len(re.findall(r"Name +: send orders", found)) == RECORDS
    assert len(re.findall(r"messaging\.kafka\.offset: Int\(\d+\)", found)) == RECORDS
    assert len(re.findall(r"Kind +: Producer", found)) == RECORDS
    (part,) = re.findall(
        r"-> Name: aiokprod\.producer\.delivery_time\n(.*?)\nMetric #", found, re.DOTALL
    )[:1]
    assert "DataType: ExponentialHistogram" in part
    expected = values["delivery_time_s"]
    assert f"Count: {expected['count']}" in part
    counts = [int(count) for count in re.findall(r"Bucket \(0\.\S+, \S+\], Count: (\d+)", part)]
    assert [count for count in counts if count] == [one for one in expected["buckets"] if one]
