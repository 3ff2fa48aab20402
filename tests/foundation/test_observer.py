from __future__ import annotations

import inspect
import logging
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from aiokprod._histogram import Histogram
from aiokprod.cluster import ClusterSnapshot
from aiokprod.errors import DeliveryTimeout, broker_error, error_code
from aiokprod.observer import Metrics, Observer, ObserverChain
from aiokprod.records import TopicPartition

HOOKS = [name for name in vars(Observer) if name.startswith("on_")]
TP = TopicPartition("t", 0)


@dataclass
class Core:
    record_count: int


@dataclass
class Batch:
    size: int = 1000
    attempts: int = 1
    created_at: float = 10.0
    sent_at: float = 10.5
    core: Core = field(default_factory=lambda: Core(4))
    topic_partition: TopicPartition = TP


CALLS: dict[str, tuple[Any, ...]] = {
    "on_batches_sent": (1, [Batch(), Batch(size=500, attempts=2)]),
    "on_produce_done": (1, 0.25),
    "on_batch_acknowledged": (Batch(), 11.0),
    "on_batch_retry": (Batch(), error_code(6)),
    "on_batch_split": (Batch(),),
    "on_batch_failed": (Batch(), broker_error(29, "t-0")),
    "on_unretrieved_failure": (TP, 3, DeliveryTimeout("late")),
    "on_throttle": (1, 0.5),
    "on_connection_opened": (1,),
    "on_connection_closed": (1, None),
    "on_metadata_updated": (ClusterSnapshot(),),
}


def test_every_hook_is_covered_here_and_by_all_observers() -> None:
    assert sorted(CALLS) == sorted(HOOKS)
    for cls in (Metrics, ObserverChain):
        assert set(HOOKS) <= set(vars(cls))
        for hook in HOOKS:
            assert inspect.signature(getattr(cls, hook)) == inspect.signature(
                getattr(Observer, hook)
            )


@pytest.mark.parametrize("hook", HOOKS)
def test_hook_of_the_base_class_does_nothing(hook: str) -> None:
    assert getattr(Observer(), hook)(*CALLS[hook]) is None


@pytest.mark.parametrize("hook", HOOKS)
def test_chain_passes_every_hook_on_to_all(hook: str) -> None:
    seen: list[tuple[str, tuple[Any, ...]]] = []

    def make(name: str) -> Observer:
        observer = Observer()
        note: Callable[..., None] = lambda *arguments: seen.append((name, arguments))  # noqa: E731
        setattr(observer, hook, note)
        return observer

    getattr(ObserverChain([make("a"), make("b")]), hook)(*CALLS[hook])
    assert seen == [("a", CALLS[hook]), ("b", CALLS[hook])]


def test_chain_survives_a_failing_observer_and_logs_it_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Observer):
        def on_throttle(self, node_id: int, seconds: float) -> None:
            raise ZeroDivisionError

    metrics = Metrics()
    chain = ObserverChain([Broken(), metrics])
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            chain.on_throttle(1, 0.5)
    assert metrics.counters["throttles"] == 5
    assert len(caplog.records) == 1
    assert "observer Broken failed in on_throttle" in caplog.text


def test_metrics_count_what_happened() -> None:
    metrics = Metrics()
    for hook, arguments in CALLS.items():
        getattr(metrics, hook)(*arguments)
    metrics.on_batch_failed(Batch(), DeliveryTimeout("late"))
    values = metrics.snapshot()
    assert {name: value for name, value in values.items() if isinstance(value, int)} == {
        "batches_acknowledged": 1,
        "batches_failed": 2,
        "batches_retried": 1,
        "batches_sent": 2,
        "batches_split": 1,
        "bytes_sent": 1500,
        "connections_closed": 1,
        "connections_opened": 1,
        "metadata_updates": 1,
        "produce_requests": 1,
        "records_acknowledged": 4,
        "records_failed": 8,
        "records_retried": 4,
        "records_unretrieved": 3,
        "throttles": 1,
    }
    assert values["errors"] == {"TOPIC_AUTHORIZATION_FAILED": 4, "DeliveryTimeout": 4}
    assert values["records_per_request"]["max"] == 8
    assert values["batch_size_bytes"]["count"] == 1
    assert values["records_per_batch"]["max"] == 4
    assert values["queue_time_s"]["max"] == 0.5
    assert values["request_latency_s"]["max"] == 0.25
    assert values["delivery_time_s"]["max"] == 1.0
    assert values["throttle_time_s"]["max"] == 0.5


def test_metrics_snapshot_does_not_change_afterwards() -> None:
    metrics = Metrics()
    before = metrics.snapshot()
    metrics.on_throttle(1, 1.0)
    metrics.on_batch_failed(Batch(), DeliveryTimeout("late"))
    assert before["throttles"] == 0
    assert before["errors"] == {}
    assert before["throttle_time_s"]["count"] == 0


# -- histogram ----------------------------------------------------------------------------------


def test_histogram_without_values_is_all_zero() -> None:
    assert Histogram().snapshot() == {"count": 0, "avg": 0.0, "p50": 0.0, "p99": 0.0, "max": 0.0}


@pytest.mark.parametrize("spread", [1e-6, 1.0, 1e9])
def test_histogram_quantiles_are_close_to_the_truth(spread: float) -> None:
    rng = random.Random(3)
    values = sorted(rng.lognormvariate(0, 2) * spread for _ in range(20_000))
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    for q in (0.01, 0.5, 0.9, 0.99, 0.999):
        assert histogram.quantile(q) == pytest.approx(values[int(q * len(values))], rel=0.08)
    assert histogram.quantile(1.0) <= values[-1]
    assert histogram.snapshot()["max"] == values[-1]
    assert histogram.snapshot()["avg"] == pytest.approx(sum(values) / len(values))


def test_histogram_counts_zero_and_below_as_zero() -> None:
    histogram = Histogram()
    for value in (0.0, -1.0, 0.0):
        histogram.add(value)
    assert histogram.snapshot() == {"count": 3, "avg": 0.0, "p50": 0.0, "p99": 0.0, "max": 0.0}


def test_histogram_of_one_value_is_that_value_at_most() -> None:
    histogram = Histogram()
    histogram.add(7.0)
    assert histogram.quantile(0.5) <= 7.0
    assert histogram.quantile(0.5) == pytest.approx(7.0, rel=0.07)


def test_histogram_takes_whatever_is_a_number() -> None:
    histogram = Histogram()
    for value in (1e-300, 1e300, math.inf, math.nan):
        histogram.add(value)
    assert histogram.count == 4
    assert histogram.maximum == math.inf
    assert histogram.quantile(0.25) == 0.0  # what is no number counts as zero
    assert 0.0 < histogram.quantile(0.5) < 2**-40
    assert histogram.quantile(1.0) == pytest.approx(1e18, rel=0.1)
    with pytest.raises(TypeError):
        histogram.add("1")  # type: ignore[arg-type]
