"""Exports the metrics of producers through the OpenTelemetry SDK without loss.

::

    from aiokprod.observe.otel_metrics import with_producers

    producer = Producer(bootstrap_servers="localhost:9092", plugins=[Telemetry()])
    exporter = with_producers(OTLPMetricExporter(), producer)
    metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(exporter)]))

The SDK does not accept histograms that were counted elsewhere. The metrics are therefore added to
the SDK's exports, with exponential histograms that have the buckets of the producer. Needs the
extra `otel` and the package opentelemetry-sdk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

try:
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Buckets,
        ExponentialHistogram,
        ExponentialHistogramDataPoint,
        Gauge,
        Metric,
        MetricExporter,
        MetricExportResult,
        MetricsData,
        NumberDataPoint,
        ScopeMetrics,
        Sum,
    )
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
except ImportError as error:
    raise ImportError(
        "aiokprod.observe.otel_metrics needs the package opentelemetry-sdk: "
        "pip install 'aiokprod[otel]' opentelemetry-sdk"
    ) from error

from aiokprod._metrics.definitions import METRICS
from aiokprod._metrics.definitions import Metric as Definition
from aiokprod._version import __version__
from aiokprod.errors import ConfigError

if TYPE_CHECKING:
    from aiokprod.producer import Producer

__all__ = ["PREFIX", "scope_metrics", "with_producers"]

PREFIX: Final = "aiokprod.producer."
"""Prefix of all names. The rest is the name in `producer.metrics()`, without the `_s` of
durations."""

_UNITS: Final = {"": "1", "s": "s", "bytes": "By", "batches": "{batch}"}
_ATTRIBUTES: Final = {"topic": "messaging.destination.name", "node": "node.id"}
_NO_BUCKETS: Final = Buckets(offset=0, bucket_counts=[])


def with_producers(
    exporter: MetricExporter,
    *producers: Producer[Any, Any],
    unix_ns: Callable[[], int] = time.time_ns,
) -> MetricExporter:
    """Return an exporter that exports the metrics of producers together with those of the SDK.

    The metrics are added to the first resource of each export. The SDK exports nothing until an
    instrument has a value; the instruments of `Telemetry` have values after the first batch. Sums
    are cumulative, even if the exporter prefers another temporality.

    Args:
        producers: the producers. The attribute messaging.client.id identifies each of them.
        unix_ns: the wall clock.

    Raises:
        ConfigError: no producer is given.
    """
    if not producers:
        raise ConfigError("with_producers: give at least one producer")
    return _Exporter(exporter, producers, unix_ns)


class _Exporter(MetricExporter):
    def __init__(
        self,
        exporter: MetricExporter,
        producers: tuple[Producer[Any, Any], ...],
        unix_ns: Callable[[], int],
    ) -> None:
        super().__init__(exporter._preferred_temporality, exporter._preferred_aggregation)
        self._exporter = exporter
        self._producers = producers
        self._unix_ns = unix_ns
        self._started = unix_ns()

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        """Export the metrics of the SDK and of the producers."""
        resources = list(metrics_data.resource_metrics)
        if resources:
            first, now = resources[0], self._unix_ns()
            added = [
                scope_metrics(producer, start_ns=self._started, time_ns=now)
                for producer in self._producers
            ]
            resources[0] = replace(first, scope_metrics=[*first.scope_metrics, *added])
        return self._exporter.export(MetricsData(resources), timeout_millis, **kwargs)

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """See `MetricExporter`."""
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """See `MetricExporter`."""
        self._exporter.shutdown(timeout_millis, **kwargs)


def scope_metrics(producer: Producer[Any, Any], *, start_ns: int, time_ns: int) -> ScopeMetrics:
    """Return the current metrics of a producer.

    Args:
        start_ns, time_ns: start and end of the counters, in Unix ns.
    """
    values = producer.metrics(by=("topic", "node"))
    client = {"messaging.client.id": producer.client_id}
    metrics = []
    for metric in METRICS:
        divided = [(client | own, value) for own, value in _divided(metric, values)]
        if divided:
            metrics.append(_metric(metric, divided, start_ns, time_ns))
    return ScopeMetrics(InstrumentationScope("aiokprod", __version__), metrics, "")


def _metric(
    metric: Definition, divided: list[tuple[dict[str, str], Any]], start_ns: int, time_ns: int
) -> Metric:
    cumulative = AggregationTemporality.CUMULATIVE
    data: Sum | Gauge | ExponentialHistogram
    if metric.kind == "histogram":
        data = ExponentialHistogram(
            [_histogram(own, value, start_ns, time_ns) for own, value in divided], cumulative
        )
    else:
        points = [NumberDataPoint(own, start_ns, time_ns, value) for own, value in divided]
        if metric.kind == "counter":
            data = Sum(points, cumulative, is_monotonic=True)
        else:
            data = Gauge(points)
    name = metric.name.removesuffix("_s") if metric.unit == "s" else metric.name
    unit = _UNITS.get(metric.unit) or f"{{{metric.unit.removesuffix('s')}}}"
    return Metric(PREFIX + name, metric.meaning.replace("`", ""), unit, data)


def _histogram(
    attributes: dict[str, str], value: Mapping[str, Any], start_ns: int, time_ns: int
) -> ExponentialHistogramDataPoint:
    return ExponentialHistogramDataPoint(
        attributes=attributes,
        start_time_unix_nano=start_ns,
        time_unix_nano=time_ns,
        count=value["count"],
        sum=value["sum"],
        scale=value["scale"],
        zero_count=value["zeros"],
        positive=Buckets(value["offset"], value["buckets"]),
        negative=_NO_BUCKETS,
        flags=0,
        min=0.0,  # the producer does not record minimums
        max=value["max"],
    )


def _divided(metric: Definition, values: Mapping[str, Any]) -> Iterator[tuple[dict[str, str], Any]]:
    """Yield attributes and value of each data point of a metric. A metric that is divided by an
    attribute has no total."""
    if metric.topic or metric.node:
        by, found = ("topic", values["topics"]) if metric.topic else ("node", values["nodes"])
        for name, counts in found.items():
            yield {_ATTRIBUTES[by]: str(name)}, counts[metric.name]
    elif metric.label:
        for name, count in values[metric.name].items():
            yield {"error.type" if metric.label == "error" else metric.label: name}, count
    elif metric.name in values:
        yield {}, values[metric.name]
