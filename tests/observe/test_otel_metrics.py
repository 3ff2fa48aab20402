from __future__ import annotations

import asyncio
import math
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    InMemoryMetricReader,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)

from aiokprod._metrics.definitions import METRICS
from aiokprod.errors import ConfigError
from aiokprod.observe.otel import Telemetry
from aiokprod.observe.otel_metrics import PREFIX, scope_metrics, with_producers
from aiokprod.producer import Producer
from aiokprod.testing.fake_cluster import FakeCluster
from tests.observe.observed import with_producer

START, NOW = 1_000, 2_000


class Kept(MetricExporter):
    """An exporter that stores the exported metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.exports: list[MetricsData] = []
        self.calls: list[str] = []

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        self.exports.append(metrics_data)
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        self.calls.append("force_flush")
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        self.calls.append("shutdown")


def by_name(data: Any) -> dict[str, Any]:
    return {metric.name.removeprefix(PREFIX): metric for metric in data.metrics}


def test_values_are_those_of_metrics() -> None:
    async def body(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        cluster.fail_produce(("t", 0), 87, times=1)
        with pytest.raises(Exception, match="INVALID_RECORD"):
            await producer.send("t", b"value", partition=0)
        for _ in range(20):
            await producer.send("t", b"value", partition=1)
        found = by_name(scope_metrics(producer, start_ns=START, time_ns=NOW))
        values = producer.metrics(by=["topic", "node"])
        for metric in METRICS:
            name = metric.name.removesuffix("_s") if metric.unit == "s" else metric.name
            if name not in found:
                assert metric.label, "only errors that did not happen"
                continue
            points = found[name].data.data_points
            for point in points:
                assert point.attributes["messaging.client.id"] == "shop"
                assert (point.start_time_unix_nano, point.time_unix_nano) == (START, NOW)
                own = point.attributes
                if metric.topic:
                    value = values["topics"][own["messaging.destination.name"]][metric.name]
                elif metric.node:
                    value = values["nodes"][int(own["node.id"])][metric.name]
                elif metric.label:
                    value = values[metric.name][own["error.type"]]
                else:
                    value = values[metric.name]
                shown = point.count if metric.kind == "histogram" else point.value
                expected = value["count"] if metric.kind == "histogram" else value
                assert shown == pytest.approx(expected)
        assert found["records_failed"].unit == "{record}"
        assert found["batches_sent"].unit == "{batch}"
        assert found["delivery_time"].unit == "s"

    with_producer(body, client_id="shop")


def test_histograms_are_exported_without_loss() -> None:
    """The test decodes the OTLP message according to the definition of exponential histograms."""

    async def body(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        values = [0.0, *(1.01**step / 1000 for step in range(1500))]
        for value in values:
            producer._metrics.histograms["loop_lag_s"].add(value)
        reader = InMemoryMetricReader()
        provider = MeterProvider([reader])
        provider.get_meter("m").create_counter("c").add(1)
        data = reader.get_metrics_data()
        assert data is not None
        kept = Kept()
        with_producers(kept, producer).export(data)
        provider.shutdown()
        encoded = encode_metrics(kept.exports[0])
        (metric,) = [
            metric
            for scope in encoded.resource_metrics[0].scope_metrics
            for metric in scope.metrics
            if metric.name == PREFIX + "loop_lag"
        ]
        (point,) = metric.exponential_histogram.data_points
        base = 2 ** (2**-point.scale)
        for place, count in enumerate(point.positive.bucket_counts):
            index = point.positive.offset + place
            low, high = base**index, base ** (index + 1)
            assert count == sum(low < value <= high for value in values), index
        assert point.zero_count >= 1
        assert point.count == point.zero_count + sum(point.positive.bucket_counts)
        assert point.sum == pytest.approx(math.fsum(values))

    with_producer(body)


def test_producers_are_exported_with_the_metrics_of_the_sdk() -> None:
    kept = Kept()

    async def body(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        exporter = with_producers(kept, producer, unix_ns=lambda: 7)
        provider = MeterProvider([PeriodicExportingMetricReader(exporter, math.inf)])
        telemetry = Telemetry(meter_provider=provider)
        producer._observer = telemetry  # type: ignore[assignment]
        telemetry._sent.add(1, {})
        provider.force_flush()
        scopes = [scope.scope.name for scope in kept.exports[0].resource_metrics[0].scope_metrics]
        assert scopes == ["aiokprod", "aiokprod"]
        await asyncio.to_thread(provider.shutdown)
        assert kept.calls[-1] == "shutdown"
        assert exporter.force_flush()
        assert exporter.export(MetricsData([])) is MetricExportResult.SUCCESS
        assert kept.exports[-1].resource_metrics == []

    with_producer(body)


def test_bad_arguments_and_a_missing_package_are_named() -> None:
    with pytest.raises(ConfigError, match="at least one producer"):
        with_producers(Kept())
    code = (
        "import sys; sys.modules['opentelemetry.sdk.metrics.export'] = None\n"
        "try: import aiokprod.observe.otel_metrics\n"
        "except ImportError as error: assert 'opentelemetry-sdk' in str(error), error\n"
        "else: raise SystemExit(1)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
