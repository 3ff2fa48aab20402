"""Prometheus' protobuf format, the only one in which Prometheus 2 reads native histograms.

`prometheus_client` writes text formats only. Source: prometheus/client_model, metrics.proto.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client.samples import BucketSpan

from aiokprod._wire.protobuf import (
    delimited,
    double,
    integer,
    message,
    packed_signed,
    signed,
    text,
)

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from prometheus_client.samples import NativeHistogram, Sample

COUNTER: Final = 0
GAUGE: Final = 1
SUMMARY: Final = 2
UNTYPED: Final = 3
HISTOGRAM: Final = 4

_TYPES: Final = {
    "counter": COUNTER,
    "gauge": GAUGE,
    "info": GAUGE,
    "stateset": GAUGE,
    "summary": SUMMARY,
    "histogram": HISTOGRAM,
}

_SUFFIXES: Final = {"counter": "_total", "info": "_info"}


def encode(families: Iterable[Metric]) -> bytes:
    """Return the families as delimited messages `io.prometheus.client.MetricFamily`."""
    return b"".join(map(_family, families))


def _family(family: Metric) -> bytes:
    kind = _TYPES.get(family.type, UNTYPED)
    metrics = [message(4, _labels(labels), _value(kind, family.name, samples))
               for labels, samples in _grouped(family)]  # fmt: skip
    name = family.name + _SUFFIXES.get(family.type, "")
    body = text(1, name) + text(2, family.documentation) + integer(3, kind)
    return delimited(body + b"".join(metrics))


def _grouped(family: Metric) -> Iterator[tuple[dict[str, str], list[Sample]]]:
    """Yield the samples of each set of labels. `le` and `quantile` are part of the value. Creation
    times and the count and sum of gauge histograms are omitted."""
    groups: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for sample in family.samples:
        if not sample.name.endswith(("_created", "_gsum", "_gcount")):
            own = tuple(item for item in sample.labels.items() if item[0] not in ("le", "quantile"))
            groups.setdefault(own, []).append(sample)
    for labels, samples in groups.items():
        yield dict(labels), samples


def _labels(labels: dict[str, str]) -> bytes:
    return b"".join(
        message(1, text(1, name), text(2, value)) for name, value in sorted(labels.items())
    )


def _value(kind: int, name: str, samples: list[Sample]) -> bytes:
    if kind == HISTOGRAM:
        return message(7, *_histogram(name, samples))
    if kind == SUMMARY:
        return message(4, *_summary(name, samples))
    field = {COUNTER: 3, GAUGE: 2, UNTYPED: 5}[kind]
    return message(field, double(1, float(samples[0].value)))


def _summary(name: str, samples: list[Sample]) -> Iterator[bytes]:
    for sample in samples:
        if sample.name == f"{name}_count":
            yield integer(1, int(sample.value))
        elif sample.name == f"{name}_sum":
            yield double(2, float(sample.value))
        else:
            quantile = double(1, float(sample.labels["quantile"]))
            yield message(3, quantile, double(2, float(sample.value)))


def _histogram(name: str, samples: list[Sample]) -> Iterator[bytes]:
    for sample in samples:
        if sample.native_histogram is not None:
            yield from _native(sample.native_histogram)
        elif sample.name == f"{name}_count":
            yield integer(1, int(sample.value))
        elif sample.name == f"{name}_sum":
            yield double(2, float(sample.value))
        else:
            bound = double(2, float(sample.labels["le"]))
            yield message(3, integer(1, int(sample.value)), bound)


def _native(native: NativeHistogram) -> Iterator[bytes]:
    yield signed(5, native.schema)
    yield double(6, native.zero_threshold)
    yield integer(7, int(native.zero_count))
    # A span without buckets marks a native histogram that has no values yet.
    spans = native.pos_spans or [BucketSpan(0, 0)]
    for offset, length in spans:
        yield message(12, signed(1, offset), integer(2, length))
    if native.pos_deltas:
        yield packed_signed(13, native.pos_deltas)
