"""Encodes metrics as an OpenTelemetry `MetricsData` message, for PushTelemetry (KIP-714).

The message contains only gauges and sums of numbers, like the messages of the Java clients. As in
Google's library, fields are written in the order of their numbers, and fields with default values
are omitted.

Source: opentelemetry/proto/metrics/v1/metrics.proto.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from aiokprod._wire.protobuf import double, fixed64, integer, message, text

_DELTA: Final = 1
_CUMULATIVE: Final = 2

_NO_ATTRIBUTES: Final[Mapping[str, str]] = {}


class Point(NamedTuple):
    """One value of a metric.

    Attributes:
        name: the name of the metric. All points of one metric must be consecutive.
        monotonic: True for a sum since the start of its interval; False for a gauge.
    """

    name: str
    value: float
    monotonic: bool = False
    attributes: Mapping[str, str] = _NO_ATTRIBUTES


def encode_metrics(
    points: Iterable[Point],
    *,
    start_ns: int,
    time_ns: int,
    delta: bool,
    resource: Mapping[str, str],
    scope: str,
    version: str,
) -> bytes:
    """Return the encoded message.

    Args:
        start_ns, time_ns: Unix times in ns of the start and the end of the sums. Gauges have only
            the end.
        delta: the sums count from the last push; otherwise from the start of the client.
        resource: attributes of the client.
        scope, version: name and version of the library.
    """
    metrics = [
        _metric(name, group, start_ns, time_ns, delta=delta) for name, group in _grouped(points)
    ]
    own_scope = message(1, text(1, scope), text(2, version))
    scopes = message(2, own_scope, *metrics)
    return message(1, message(1, *_attributes(1, resource)), scopes)


def _grouped(points: Iterable[Point]) -> Iterator[tuple[str, list[Point]]]:
    group: list[Point] = []
    for point in points:
        if group and group[0].name != point.name:
            yield group[0].name, group
            group = []
        group.append(point)
    if group:
        yield group[0].name, group


def _metric(name: str, points: list[Point], start_ns: int, time_ns: int, *, delta: bool) -> bytes:
    monotonic = points[0].monotonic
    start = fixed64(2, start_ns) if monotonic and start_ns else b""
    head = start + fixed64(3, time_ns)
    data = [message(1, head, double(4, point.value), *_attributes(7, point.attributes))
            for point in points]  # fmt: skip
    if not monotonic:
        return message(2, text(1, name), message(5, *data))
    temporality = integer(2, _DELTA if delta else _CUMULATIVE)
    return message(2, text(1, name), message(7, *data, temporality, integer(3, 1)))


def _attributes(field: int, attributes: Mapping[str, str]) -> Iterator[bytes]:
    for name, value in attributes.items():
        yield _attribute(field, name, value)


@lru_cache(4096)
def _attribute(field: int, name: str, value: str) -> bytes:
    """Encode an attribute. Cached, because several metrics of a topic have the same attribute."""
    return message(field, text(1, name), message(2, text(1, value)))
