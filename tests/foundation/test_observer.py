from __future__ import annotations

import asyncio
import inspect
import logging
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from aiokprod._client.validation import check_plugins
from aiokprod._histogram import Histogram
from aiokprod._metrics.definitions import names
from aiokprod.cluster import ClusterSnapshot
from aiokprod.errors import BufferFull, ConfigError, DeliveryTimeout, broker_error, error_code
from aiokprod.observer import HOOKS, Metrics, Observer, ObserverChain
from aiokprod.records import TopicPartition

TP = TopicPartition("t", 0)


@dataclass
class Core:
    record_count: int


@dataclass
class Batch:
    size: int = 1000
    plain_size: int = 4000
    codec_id: int = 4
    compression_ratio: float = 0.25
    attempts: int = 1
    wire_node: int = 1
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
    "on_record_refused": (BufferFull("no room"),),
    "on_admission_wait": ("t", "buffer", 0.125),
    "on_transaction_call": ("commit", 0.75, broker_error(47, "commit")),
    "on_throttle": (1, 0.5),
    "on_connection_opened": (1,),
    "on_connection_closed": (1, None),
    "on_metadata_updated": (ClusterSnapshot(),),
}


def test_every_hook_is_covered_here_and_by_metrics() -> None:
    assert sorted(CALLS) == sorted(HOOKS)
    assert set(HOOKS) <= set(vars(Metrics))
    for hook in HOOKS:
        assert inspect.signature(getattr(Metrics, hook)) == inspect.signature(
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


@pytest.mark.parametrize("hook", HOOKS)
def test_chain_skips_hooks_that_an_observer_lacks(hook: str) -> None:
    class Throttles:
        """An observer with a single hook. It is not a subclass of Observer."""

        def __init__(self) -> None:
            self.seen: list[tuple[Any, ...]] = []

        def on_throttle(self, *arguments: Any) -> None:
            self.seen.append(arguments)

    observer = Throttles()
    getattr(ObserverChain([observer]), hook)(*CALLS[hook])
    assert observer.seen == ([CALLS[hook]] if hook == "on_throttle" else [])


def test_observer_with_one_hook_is_accepted_and_called() -> None:
    class Closings:
        def on_connection_closed(self, node_id: int, error: object) -> None: ...

    check_plugins(Closings(), None)


@pytest.mark.parametrize(
    ("observer", "text"),
    [
        (object(), "has none of them"),
        (Observer, "pass an instance"),
        (SimpleNamespace(on_throttle=print, on_batch_split=5), "on_batch_split is not a method"),
    ],
)
def test_observer_that_cannot_be_called_is_refused(observer: object, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        check_plugins(observer, None)


def test_chain_survives_a_failing_observer_and_logs_it_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Observer):
        def on_throttle(self, node_id: int, seconds: float) -> None:
            raise ZeroDivisionError

    metrics = Metrics()
    chain = ObserverChain([Broken(), metrics], metrics.plugin_failed)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            chain.on_throttle(1, 0.5)
    assert metrics.snapshot()["throttles"] == 5
    assert len(caplog.records) == 1
    assert "observer Broken failed in on_throttle" in caplog.text
    assert metrics.snapshot()["plugin_errors"] == {"Broken.on_throttle": 5}


def test_chain_survives_the_result_of_a_cancelled_future_and_a_failing_attribute() -> None:
    class Broken:
        def on_throttle(self, node_id: int, seconds: float) -> None:
            raise asyncio.CancelledError

        @property
        def on_produce_done(self) -> None:
            raise ZeroDivisionError

    metrics = Metrics()
    chain = ObserverChain([Broken(), metrics], metrics.plugin_failed)
    chain.on_throttle(1, 0.5)
    chain.on_produce_done(1, 0.5)
    assert metrics.snapshot()["throttles"] == metrics.snapshot()["request_latency_s"]["count"] == 1
    assert metrics.plugin_errors == {"Broken.on_throttle": 1, "Broken.on_produce_done": 1}


def test_metrics_count_what_happened() -> None:
    metrics = Metrics()
    for hook, arguments in CALLS.items():
        getattr(metrics, hook)(*arguments)
    metrics.on_batch_failed(Batch(), DeliveryTimeout("late"))
    values = metrics.snapshot()
    counters = {name: value for name, value in values.items() if isinstance(value, int)}
    assert {name: value for name, value in counters.items() if value} == {
        "batches_acknowledged": 1,
        "batches_failed": 2,
        "batches_retried": 1,
        "batches_sent": 2,
        "batches_split": 1,
        "bytes_sent": 1500,
        "connections_closed": 1,
        "connections_opened": 1,
        "metadata_updates": 1,
        "plain_bytes_sent": 8000,
        "produce_requests": 1,
        "records_acknowledged": 4,
        "records_failed": 8,
        "records_refused": 1,
        "records_retried": 4,
        "records_unretrieved": 3,
        "throttles": 1,
    }
    assert set(counters) == {name for name in names("counter")} | {"connections"}
    assert values["refusals"] == {"BufferFull": 1}
    assert values["transaction_errors"] == {"INVALID_PRODUCER_EPOCH": 1}
    assert values["compression_ratio"]["max"] == 0.25
    assert values["buffer_wait_time_s"]["max"] == 0.125
    assert values["txn_commit_time_s"]["max"] == 0.75
    assert metrics.by_topic() == {
        "t": {
            "records_acknowledged": 4, "records_failed": 8, "records_refused": 0,
            "records_retried": 4, "bytes_sent": 1500, "plain_bytes_sent": 8000,
        },
        "(other)": dict.fromkeys(metrics.by_topic()["t"], 0) | {"records_refused": 1},
    }  # fmt: skip
    (node,) = metrics.by_node().values()
    assert node["request_latency_s"]["max"] == 0.25
    assert node["throttle_time_s"]["count"] == node["throttles"] == node["produce_requests"] == 1
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
    assert before["errors"] == before["refusals"] == {}
    assert before["throttle_time_s"]["count"] == 0


# -- histogram ----------------------------------------------------------------------------------


EMPTY = {
    "count": 0, "sum": 0.0, "avg": 0.0, "p50": 0.0, "p99": 0.0, "max": 0.0,
    "scale": 3, "zeros": 0, "offset": 0, "buckets": [],
}  # fmt: skip


def test_histogram_snapshot_has_the_buckets() -> None:
    histogram = Histogram()
    for value in (0.0, 1.0, 1.01, 1.05, 2.0, 2.1):
        histogram.add(value)
    assert histogram.snapshot() == {
        "count": 6, "sum": pytest.approx(7.16), "avg": pytest.approx(7.16 / 6),
        "p50": pytest.approx(2 ** (1 / 16)), "p99": pytest.approx(2 ** (17 / 16)), "max": 2.1,
        "scale": 3, "zeros": 1, "offset": -1, "buckets": [1, 2, 0, 0, 0, 0, 0, 0, 1, 1],
    }  # fmt: skip


@pytest.mark.parametrize("spread", [1e-4, 1.0, 1e9])
def test_histogram_export_is_lossless(spread: float) -> None:
    """Bucket k counts exactly the values v with 2**(k/8) < v <= 2**((k+1)/8)."""
    rng = random.Random(7)
    values = [rng.lognormvariate(0, 3) * spread for _ in range(5_000)]
    values += [2.0**n for n in range(-40, 60)]
    for n in range(-39, 59):
        values += [math.nextafter(2.0**n, 0), math.nextafter(2.0**n, math.inf)]
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    shown = histogram.snapshot()
    wanted: dict[int, int] = {}
    for value in values:
        mantissa, exponent = math.frexp(value)
        bounds = [2 ** (step / 8) for step in range(8)]
        k = 8 * (exponent - 1) + sum(2 * mantissa > bound for bound in bounds) - 1
        wanted[k] = wanted.get(k, 0) + 1
    found = {shown["offset"] + i: count for i, count in enumerate(shown["buckets"]) if count}
    assert found == wanted
    assert shown["zeros"] + sum(shown["buckets"]) == shown["count"] == len(values)


def test_histogram_without_values_is_all_zero() -> None:
    assert Histogram().snapshot() == EMPTY


@pytest.mark.parametrize("spread", [1e-6, 1.0, 1e9])
def test_histogram_quantiles_are_close_to_the_truth(spread: float) -> None:
    rng = random.Random(3)
    values = sorted(rng.lognormvariate(0, 2) * spread for _ in range(20_000))
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    for q in (0.01, 0.5, 0.9, 0.99, 0.999):
        assert histogram.quantile(q) == pytest.approx(values[int(q * len(values)) - 1], rel=0.045)
    assert histogram.quantile(1.0) <= values[-1]
    assert histogram.snapshot()["max"] == values[-1]
    assert histogram.snapshot()["avg"] == pytest.approx(sum(values) / len(values))


def test_histogram_counts_zero_and_below_as_zero() -> None:
    histogram = Histogram()
    for value in (0.0, -1.0, 0.0):
        histogram.add(value)
    assert histogram.snapshot() == EMPTY | {"count": 3, "zeros": 3}


def test_histogram_of_one_value_is_that_value_at_most() -> None:
    histogram = Histogram()
    histogram.add(7.0)
    assert histogram.quantile(0.5) <= 7.0
    assert histogram.quantile(0.5) == pytest.approx(7.0, rel=0.045)


def test_histogram_takes_whatever_is_a_number() -> None:
    histogram = Histogram()
    for value in (1e-300, 1e300, math.inf, math.nan):
        histogram.add(value)
    assert histogram.count == 4
    assert histogram.maximum == math.inf
    assert histogram.quantile(0.25) == 0.0  # NaN counts as zero
    assert 0.0 < histogram.quantile(0.5) < 2**-40
    assert histogram.quantile(1.0) == pytest.approx(1e18, rel=0.1)
    with pytest.raises(TypeError):
        histogram.add("1")  # type: ignore[arg-type]
