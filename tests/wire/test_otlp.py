"""Our OTLP messages compared with the encoder of Google's library and OpenTelemetry's schema."""

from __future__ import annotations

import random
from typing import Any

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, MetricsData

from aiokprod._wire.otlp import Point, encode_metrics

START, END = 1_700_000_000_000_000_000, 1_700_000_010_000_000_000


def by_oracle(
    points: list[Point], *, delta: bool, start_ns: int = START, resource: dict[str, str]
) -> bytes:
    """Encode the same message with the generated classes."""
    data = MetricsData()
    made: Any = data.resource_metrics.add()
    for name, value in resource.items():
        made.resource.attributes.add(key=name).value.string_value = value
    made.resource.SetInParent()
    scope = made.scope_metrics.add()
    scope.scope.name, scope.scope.version = "lib", "1.0"
    metric = None
    for point in points:
        if metric is None or metric.name != point.name:
            metric = scope.metrics.add(name=point.name)
        if point.monotonic:
            metric.sum.is_monotonic = True
            metric.sum.aggregation_temporality = (
                AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
                if delta
                else AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
            )
            number = metric.sum.data_points.add(start_time_unix_nano=start_ns)
        else:
            number = metric.gauge.data_points.add()
        number.time_unix_nano = END
        number.as_double = point.value
        for name, value in point.attributes.items():
            number.attributes.add(key=name).value.string_value = value
    encoded: bytes = data.SerializeToString(deterministic=True)
    return encoded


def encoded(
    points: list[Point], *, delta: bool, resource: dict[str, str], start_ns: int = START
) -> bytes:
    return encode_metrics(
        points, start_ns=start_ns, time_ns=END, delta=delta,
        resource=resource, scope="lib", version="1.0",
    )  # fmt: skip


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2, 50, 400])
def test_messages_have_the_bytes_of_the_oracle(count: int, delta: bool) -> None:
    rng = random.Random(count)
    points = []
    for number in range(count):
        monotonic = rng.random() < 0.5
        for topic in range(rng.randint(1, 4)):
            attributes = {"topic": f"t{topic}"} if rng.random() < 0.5 else {}
            value = rng.choice([0.0, -1.5, 1e300, float(rng.randint(0, 1 << 50))])
            points.append(Point(f"metric.{number}", value, monotonic, attributes))
    for resource in ({}, {"transactional_id": "größe"}, {"a": "", "b": "2"}):
        assert encoded(points, delta=delta, resource=resource) == by_oracle(
            points, delta=delta, resource=resource
        )


def test_sum_without_a_start_has_none() -> None:
    points = [Point("a", 1.0, True)]
    assert encoded(points, delta=False, resource={}, start_ns=0) == by_oracle(
        points, delta=False, start_ns=0, resource={}
    )
