"""Metrics for Prometheus: a collector for the registry of `prometheus_client`.

::

    from prometheus_client import REGISTRY
    from aiokprod.observe.prometheus import collector

    REGISTRY.register(collector(producer))

A registry accepts only one collector, so pass all producers of the process to it. In tests, use a
separate `CollectorRegistry` for each application.

Needs the extra `prometheus`. docs/observability.md contains examples and the names of metrics.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

from aiokprod._metrics.counters import OTHER_TOPICS
from aiokprod._metrics.definitions import METRICS, Metric
from aiokprod.errors import ConfigError

try:
    from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
    from prometheus_client.metrics_core import Metric as Family
    from prometheus_client.registry import Collector, CollectorRegistry
    from prometheus_client.samples import BucketSpan, NativeHistogram, Sample
except ImportError as error:
    raise ImportError(
        "aiokprod.observe.prometheus needs the package prometheus_client: "
        "pip install 'aiokprod[prometheus]'"
    ) from error

if TYPE_CHECKING:
    from aiokprod.producer import Producer

__all__ = ["PROTOBUF", "ProducerCollector", "collector", "exposition"]

PROTOBUF: Final = (
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
)
"""Content type of the protobuf format, in which Prometheus reads native histograms."""

_PER_OCTAVE: Final = 8

_BOUNDS: Final[dict[str, range]] = {
    "s": range(-13, 8),  # 0.12 ms to 128 s
    "bytes": range(6, 25, 2),  # 64 bytes to 16 MiB
    "records": range(0, 17, 2),
    "": range(-5, 1),
}
"""Upper bounds of classic buckets by unit, as exponents of 2. They are also bounds of the
producer's buckets, so the counts are exact."""

_UNITS: Final = {"s": "seconds", "bytes": "bytes"}


def collector(
    *producers: Producer[Any, Any],
    namespace: str = "kafka_producer",
    max_topics: int = 200,
    native_histograms: bool = False,
) -> ProducerCollector:
    """Return a collector for the metrics of some producers.

    Args:
        producers: producers with different `client_id`s, which are a label of all metrics.
        namespace: prefix of all names.
        max_topics: number of topics of each producer that get separate label values: the topics
            that were used first. All others are counted together as "(other)".
        native_histograms: also return native histograms, for `exposition` or for the OpenMetrics 2
            text of prometheus_client. Other text formats of prometheus_client cannot contain them.

    Raises:
        ConfigError: no producer is given, two have the same client_id, or an argument is not valid.
    """
    if not producers:
        raise ConfigError("collector: give at least one producer")
    names = [producer.client_id for producer in producers]
    if len(set(names)) < len(names):
        raise ConfigError(f"collector: two producers have the same client_id: {sorted(names)}")
    if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", namespace) is None:
        raise ConfigError(
            f"collector: namespace={namespace!r}: use letters, digits and _, and no digit first"
        )
    if max_topics < 0:
        raise ConfigError(f"collector: max_topics={max_topics}: must not be negative")
    return ProducerCollector(producers, namespace, max_topics, native_histograms)


class ProducerCollector(Collector):
    """See `collector`. May be used in any thread.

    In a thread without an event loop, `collect` releases the GIL after each metric, so that a
    scrape does not delay the event loop by its whole duration.
    """

    def __init__(
        self,
        producers: Sequence[Producer[Any, Any]],
        namespace: str,
        max_topics: int,
        native_histograms: bool = False,
    ) -> None:
        self._producers = producers
        self._namespace = namespace
        self._max_topics = max_topics
        self._native = native_histograms

    def describe(self) -> Iterable[Family]:
        """Return the metrics without samples, for the registry's check for duplicate names."""
        return [self._family(metric) for metric in METRICS]

    def collect(self) -> Iterator[Family]:
        """Yield all metrics with their current values."""
        pause = _pause()
        found = []
        for producer in self._producers:
            values = producer.metrics(by=("topic", "node"))
            values["topics"] = _limited(values["topics"], self._max_topics)
            found.append((producer.client_id, values))
            pause()
        for metric in METRICS:
            family = self._family(metric)
            for client_id, values in found:
                for label, value in _divided(metric, values):
                    family.add(client_id, label, value)
            if family.rows:
                yield family
                pause()

    def _family(self, metric: Metric) -> ProducerFamily:
        return ProducerFamily(metric, self._namespace, native=self._native)


Label = tuple[str, str]
"""Name and value of the label by which a metric is divided; ("", "") for an undivided metric."""


class ProducerFamily(Family):
    """One metric with its values.

    The `samples` are created on access, because for some hundred topics that takes longer than
    creating the text.

    Attributes:
        rows: (suffix of the name, client_id, label, value of `le`, value) of each sample.
        natives: (client_id, label, value) of each native histogram.
    """

    def __init__(self, metric: Metric, namespace: str, *, native: bool) -> None:
        name = f"{namespace}_{metric.name}"
        if metric.name.endswith("_s"):
            name = name.removesuffix("_s") + "_seconds"
        unit = _UNITS.get(metric.unit, "")
        text = metric.meaning[0].upper() + metric.meaning[1:]
        # OpenMetrics requires that the name ends with the unit.
        own_unit = unit if name.endswith(f"_{unit}") else ""
        super().__init__(name, text.replace("`", "") + ".", metric.kind, own_unit)
        self.rows: list[tuple[str, str, Label, str, float]] = []
        self.natives: list[tuple[str, Label, Mapping[str, Any]]] = []
        self._bounds = _BOUNDS.get(metric.unit, range(0))
        self._native = native

    def add(self, client_id: str, label: Label, value: Any) -> None:
        """Add a value of `producer.metrics()`: a number, or the dict of a histogram."""
        if self.type != "histogram":
            suffix = "_total" if self.type == "counter" else ""
            self.rows.append((suffix, client_id, label, "", value))
            return
        if self._native:
            self.natives.append((client_id, label, value))
        for bound, count in classic_buckets(value, self._bounds):
            self.rows.append(("_bucket", client_id, label, bound, count))
        self.rows.append(("_count", client_id, label, "", value["count"]))
        self.rows.append(("_sum", client_id, label, "", value["sum"]))

    @property
    def samples(self) -> list[Sample]:
        """The samples in the form of prometheus_client."""
        made = [
            Sample(self.name, _labels(client_id, label), 0.0, None, None, native_histogram(value))
            for client_id, label, value in self.natives
        ]
        for suffix, client_id, label, bound, value in self.rows:
            labels = _labels(client_id, label) | ({"le": bound} if bound else {})
            made.append(Sample(self.name + suffix, labels, value))
        return made

    @samples.setter
    def samples(self, value: list[Sample]) -> None:
        """Ignore the value, because the base class sets an empty list."""

    def text(self) -> str:
        """Return the samples in Prometheus' text format."""
        name = self.name + ("_total" if self.type == "counter" else "")
        lines = [f"# HELP {name} {self.documentation}\n# TYPE {name} {self.type}\n"]
        for suffix, client_id, label, bound, value in self.rows:
            le = f',le="{bound}"' if bound else ""
            lines.append(f"{self.name}{suffix}{{{_label_text(client_id, label)}{le}}} {value}\n")
        return "".join(lines)


def _labels(client_id: str, label: Label) -> dict[str, str]:
    labels = {"client_id": client_id}
    if label[0]:
        labels[label[0]] = label[1]
    return labels


@lru_cache(4096)
def _label_text(client_id: str, label: Label) -> str:
    shown = [f'{name}="{_escaped(text)}"' for name, text in _labels(client_id, label).items()]
    return ",".join(shown)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def exposition(registry: CollectorRegistry, accept: str = "") -> tuple[bytes, str]:
    """Return the metrics of a registry in the format that the scraper prefers.

    Args:
        accept: the Accept header of the request. If it contains Prometheus' protobuf format
            (feature native-histograms), the result has this format and contains the native
            histograms of the collector. Otherwise the result is the text that
            `prometheus_client.generate_latest` would return, created in less time.

    Returns:
        The body of the response and its content type.
    """
    if "application/vnd.google.protobuf" in accept:
        from aiokprod.observe._prometheus_protobuf import encode

        return encode(registry.collect()), PROTOBUF
    others: list[Family] = []
    texts = []
    for family in registry.collect():
        if isinstance(family, ProducerFamily):
            texts.append(family.text())
        else:
            others.append(family)
    return generate_latest(_Fixed(others)) + "".join(texts).encode(), CONTENT_TYPE_PLAIN_0_0_4


class _Fixed(Collector):
    """Returns families that have already been collected."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        """Return the families."""
        return self._families


def native_histogram(value: Mapping[str, Any]) -> NativeHistogram:
    """Convert a histogram of `producer.metrics()` to a native histogram, without loss."""
    counts: list[int] = value["buckets"]
    # Prometheus numbers a bucket by its upper bound, the producer by its lower bound.
    spans = [BucketSpan(value["offset"] + 1, len(counts))] if counts else None
    deltas = [count - before for count, before in zip(counts, [0, *counts], strict=False)]
    return NativeHistogram(
        count_value=value["count"],
        sum_value=value["sum"],
        schema=value["scale"],
        zero_threshold=0.0,
        zero_count=value["zeros"],
        pos_spans=spans,
        pos_deltas=deltas or None,
    )


def classic_buckets(
    value: Mapping[str, Any], exponents: Sequence[int]
) -> Iterator[tuple[str, int]]:
    """Yield `le` and the cumulative count up to 2^e for each exponent e, and up to infinity."""
    counts: list[int] = value["buckets"]
    cumulative = [0]
    for count in counts:
        cumulative.append(cumulative[-1] + count)
    for exponent in exponents:
        below = exponent * _PER_OCTAVE - value["offset"]  # buckets with an upper bound up to 2^e
        inside = cumulative[min(max(below, 0), len(counts))]
        yield repr(2.0**exponent), value["zeros"] + inside
    yield "+Inf", value["count"]


def _divided(metric: Metric, values: Mapping[str, Any]) -> Iterator[tuple[Label, Any]]:
    """Yield label and value of each sample of a metric. A metric that is divided by topic or broker
    has no separate total, because that is the sum of the values."""
    if metric.topic:
        for topic, counts in values["topics"].items():
            yield ("topic", topic), counts[metric.name]
    elif metric.node:
        for node, counts in values["nodes"].items():
            yield ("node", str(node)), counts[metric.name]
    elif metric.label:
        for name, count in values[metric.name].items():
            yield (metric.label, name), count
    elif metric.name in values:
        yield ("", ""), values[metric.name]


def _limited(topics: dict[str, dict[str, int]], limit: int) -> dict[str, dict[str, int]]:
    """Return the first `limit` topics, and the sum of all others."""
    if len(topics) <= limit:
        return topics
    names = [name for name in topics if name != OTHER_TOPICS]
    kept = {name: topics[name] for name in names[:limit]}
    others = [topics[name] for name in names[limit:]]
    others += [topics[OTHER_TOPICS]] if OTHER_TOPICS in topics else []
    if others:
        kept[OTHER_TOPICS] = {key: sum(one[key] for one in others) for key in others[0]}
    return kept


def _pause() -> Callable[[], None]:
    """Return a function to call between two metrics. It releases the GIL in threads without an
    event loop, and otherwise does nothing."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return partial(time.sleep, 0)  # no event loop in this thread: other threads may run
    return lambda: None
