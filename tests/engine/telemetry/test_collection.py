from __future__ import annotations

import time

import pytest

from aiokprod._engine.telemetry.collection import PREFIX, Collection
from aiokprod._wire.otlp import encode_metrics
from aiokprod.observer import Metrics

REQUIRED = {
    "connection.creation.rate", "connection.creation.total",
    "node.request.latency.avg", "node.request.latency.max",
    "produce.throttle.time.avg", "produce.throttle.time.max",
    "record.queue.time.avg", "record.queue.time.max",
}  # fmt: skip
"""KIP-714, "Required metrics" of producers."""


def used() -> Metrics:
    metrics = Metrics()
    for node in (1, 2):
        metrics.on_connection_opened(node)
        metrics.on_produce_done(node, 0.002 * node)
        metrics.on_produce_done(node, 0.004 * node)
    metrics.on_throttle(1, 0.25)
    metrics.histograms["queue_time_s"].add(0.005)
    metrics.topics.add("t").records_acknowledged = 7
    return metrics


def named(collection: Collection, *requested: str, delta: bool = False, elapsed: float = 10.0):  # type: ignore[no-untyped-def]  # a dict
    points = collection.points(requested, elapsed, delta=delta)
    return {
        (point.name.removeprefix(PREFIX), *point.attributes.values()): point.value
        for point in points
    }


def test_required_metrics_are_there_with_their_values() -> None:
    found = named(Collection(used(), dict), "")
    assert {name for name, *_ in found} >= REQUIRED
    assert found["connection.creation.total",] == 2
    assert found["connection.creation.rate",] == 0.2
    assert found["node.request.latency.avg", "node-1"] == pytest.approx(3)
    assert found["node.request.latency.max", "node-2"] == 8
    assert found["produce.throttle.time.max",] == 250
    assert found["record.queue.time.avg",] == 5
    assert found["topic.record.send.total", "t"] == found["record.send.total",] == 7


def test_only_requested_metrics_are_given() -> None:
    collection = Collection(used(), dict)
    found = named(collection, PREFIX + "connection.", PREFIX + "record.send")
    assert {name for name, *_ in found} == {
        "connection.creation.total", "connection.creation.rate", "connection.close.total",
        "connection.count", "record.send.total",
    }  # fmt: skip
    assert named(collection, "org.apache.kafka.consumer.") == {}


def test_averages_and_maxima_are_those_since_the_last_push() -> None:
    metrics = used()
    collection = Collection(metrics, dict)
    named(collection, "")
    found = named(collection, "")
    assert not {name for name, *_ in found if name.endswith((".avg", ".max"))}
    assert found["connection.creation.rate",] == 0
    metrics.on_produce_done(1, 0.001)
    found = named(collection, "")
    assert found["node.request.latency.max", "node-1"] == 1
    assert ("node.request.latency.max", "node-2") not in found


def test_sums_are_cumulative_or_since_the_last_push() -> None:
    metrics = used()
    cumulative, delta = Collection(metrics, dict), Collection(metrics, dict)
    named(cumulative, "")
    assert named(delta, "", delta=True)["record.send.total",] == 7
    metrics.topics.counters["t"].records_acknowledged += 3
    assert named(cumulative, "")["record.send.total",] == 10
    found = named(delta, "", delta=True)
    assert found["record.send.total",] == found["topic.record.send.total", "t"] == 3
    assert found["connection.creation.total",] == 0


def test_sums_since_the_last_push_after_cumulative_ones() -> None:
    metrics = Metrics()
    collection = Collection(metrics, dict)
    metrics.topics.add("t").records_acknowledged = 5
    assert named(collection, "")["record.send.total",] == 5
    metrics.topics.add("t").records_acknowledged = 7
    found = named(collection, "", delta=True)
    assert found["record.send.total",] == found["topic.record.send.total", "t"] == 2


def test_gauges_are_given_as_far_as_they_are_known() -> None:
    found = named(Collection(used(), lambda: {"metadata_age_s": 4.0}), "")
    assert found["metadata.age",] == 4
    assert ("buffer.total.bytes",) not in found


def test_points_of_a_metric_follow_one_another() -> None:
    metrics = used()
    metrics.topics.add("u")
    names = [point.name for point in Collection(metrics, dict).points([""], 1.0, delta=False)]
    assert len(set(names)) == sum(
        name != before for name, before in zip(names, [None, *names], strict=False)
    )


def test_push_takes_little_time() -> None:
    """The limit is generous because the machine may be busy; the benchmark has the limit of 0.5
    ms."""
    metrics = used()
    for number in range(10):
        metrics.topics.add(f"topic-{number}")
    collection = Collection(metrics, dict)
    times = []
    for _ in range(20):
        before = time.process_time()
        points = collection.points([""], 10.0, delta=True)
        encode_metrics(
            points, start_ns=1, time_ns=2, delta=True, resource={}, scope="s", version="1"
        )
        times.append(time.process_time() - before)
    assert min(times) < 0.005
