"""The producer's metrics under the names of KIP-714.

Rates, averages and maxima cover the time since the last push, not the sample window of Java's
metrics. Averages and maxima without a value in this time are omitted. Times are in ms, as in Java,
or in ns if the name contains `ns`.

Source: KIP-714 "Standard producer metrics"; Java `TelemetryMetricNamingConvention`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aiokprod._wire.otlp import Point

if TYPE_CHECKING:
    from aiokprod._histogram import Histogram
    from aiokprod.observer import Metrics

PREFIX: Final = "org.apache.kafka.producer."

_NS: Final = 1e9
_MS: Final = 1e3

_TOTALS: Final = {
    "connection.close.total": "connections_closed",
    "record.send.total": "records_acknowledged",
    "record.retry.total": "records_retried",
    "batch.split.total": "batches_split",
    "outgoing.byte.total": "network_bytes_out",
    "incoming.byte.total": "network_bytes_in",
    "request.total": "requests_sent",
    "response.total": "responses_received",
    "successful.authentication.total": "authentications",
    "failed.authentication.total": "authentication_failures",
    "successful.reauthentication.total": "reauthentications",
}
_GAUGES: Final = {
    "connection.count": "connections",
    "requests.in.flight": "requests_in_flight",
    "buffer.available.bytes": "buffer_available_bytes",
    "buffer.total.bytes": "buffer_total_bytes",
    "waiting.threads": "waiting_sends",
    "metadata.age": "metadata_age_s",
}
_AVERAGES: Final = {
    "produce.throttle.time": ("throttle_time_s", _MS),
    "record.queue.time": ("queue_time_s", _MS),
    "request.latency": ("request_latency_s", _MS),
    "batch.size": ("batch_size_bytes", 1.0),
}
"""Metrics with an average and a maximum, each with its histogram and scale."""
_MEANS: Final = {
    "compression.rate": ("compression_ratio", 1.0),
    "records.per.request": ("records_per_request", 1.0),
}
_WAITS: Final = {
    "bufferpool.wait.time.ns.total": "buffer_wait_time_s",
    "metadata.wait.time.ns.total": "metadata_wait_time_s",
    "flush.time.ns.total": "flush_time_s",
    "txn.init.time.ns.total": "txn_init_time_s",
    "txn.begin.time.ns.total": "txn_begin_time_s",
    "txn.send.offsets.time.ns.total": "txn_send_offsets_time_s",
    "txn.commit.time.ns.total": "txn_commit_time_s",
    "txn.abort.time.ns.total": "txn_abort_time_s",
}
_BY_TOPIC: Final = {
    "topic.record.send.total": "records_acknowledged",
    "topic.record.error.total": "records_failed",
    "topic.record.retry.total": "records_retried",
    "topic.byte.total": "bytes_sent",
}


class _Window:
    """Average and maximum of a histogram since the last call of `take`."""

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._count = 0
        self._total = 0.0

    def take(self) -> tuple[float, float] | None:
        """Return (average, maximum), or None if there was no value."""
        count, total = self._histogram.count, self._histogram.total
        added, self._count = count - self._count, count
        sum_added, self._total = total - self._total, total
        peak = self._histogram.take_peak()
        return (sum_added / added, peak) if added else None


class Collection:
    """Returns the data points of the metrics that a subscription requests.

    Args:
        metrics: the metrics of the producer.
        gauges: returns the current values by name.
    """

    def __init__(self, metrics: Metrics, gauges: Callable[[], Mapping[str, float]]) -> None:
        self._metrics = metrics
        self._gauges = gauges
        self._windows: dict[tuple[str, int], _Window] = {}
        self._before: dict[tuple[str, str], float] = {}

    def points(self, requested: Sequence[str], elapsed: float, *, delta: bool) -> list[Point]:
        """Return the current values.

        Args:
            requested: prefixes of metric names; "" requests all metrics.
            elapsed: seconds since the last call; rates are calculated from it.
            delta: True if sums cover only the time since the last call.
        """
        prefixes = tuple(requested)
        # Create all points, including those that are not requested, so that each begins a new
        # window.
        made = [
            point._replace(name=PREFIX + point.name)
            for point in self._points(max(elapsed, 1e-3), delta=delta)
        ]
        return [point for point in made if point.name.startswith(prefixes)]

    def _points(self, elapsed: float, *, delta: bool) -> Iterator[Point]:
        metrics = self._metrics
        values = metrics.counters() | dict(self._gauges())
        opened = values["connections_opened"]
        yield Point("connection.creation.rate", self._since("rate", "", opened) / elapsed)
        total = partial(self._sum, delta)
        yield total("connection.creation.total", opened)
        errors = values["records_failed"] + values["records_refused"]
        yield total("record.error.total", errors)
        for name, own in _TOTALS.items():
            yield total(name, values[own])
        for name, own in _GAUGES.items():
            if own in values:
                yield Point(name, float(values[own]))
        for name, own in _WAITS.items():
            histogram = metrics.histograms[own]
            if histogram.count:
                yield total(name, histogram.total * _NS)
        yield from self._averages()
        topics = list(metrics.topics.counters.items())
        for name, own in _BY_TOPIC.items():
            for topic, counts in topics:
                yield total(name, getattr(counts, own), {"topic": topic})

    def _averages(self) -> Iterator[Point]:
        histograms = self._metrics.histograms
        for name, (own, scale) in _AVERAGES.items():
            found = self._window(name, -1, histograms[own]).take()
            if found is not None:
                yield Point(f"{name}.avg", found[0] * scale)
                yield Point(f"{name}.max", found[1] * scale)
        for name, (own, scale) in _MEANS.items():
            found = self._window(name, -1, histograms[own]).take()
            if found is not None:
                yield Point(f"{name}.avg", found[0] * scale)
        name = "node.request.latency"
        averages, maxima = [], []
        for node, counts in list(self._metrics.nodes.counters.items()):
            found = self._window(name, node, counts.request_latency_s).take()
            if found is not None:
                own_node = {"node_id": f"node-{node}"}  # like the tag in Java
                averages.append(Point(f"{name}.avg", found[0] * _MS, attributes=own_node))
                maxima.append(Point(f"{name}.max", found[1] * _MS, attributes=own_node))
        yield from averages
        yield from maxima

    def _window(self, name: str, node: int, histogram: Histogram) -> _Window:
        found = self._windows.get((name, node))
        if found is None:
            found = self._windows[name, node] = _Window(histogram)
        return found

    def _sum(self, delta: bool, name: str, value: float, attributes: Any = None) -> Point:
        topic = attributes["topic"] if attributes else ""
        since = self._since(name, topic, value)  # call it always, because a later call may need it
        return Point(name, float(since if delta else value), True, attributes or {})

    def _since(self, name: str, topic: str, value: float) -> float:
        before = self._before.get((name, topic), 0.0)
        self._before[name, topic] = value
        return value - before
