from __future__ import annotations

import asyncio
import math
import shutil
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Summary, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse
from prometheus_client.samples import NativeHistogram

from aiokprod._histogram import Histogram
from aiokprod._metrics.definitions import METRICS
from aiokprod.errors import ConfigError
from aiokprod.observe.prometheus import (
    PROTOBUF,
    ProducerCollector,
    classic_buckets,
    collector,
    exposition,
    native_histogram,
)
from aiokprod.producer import Producer
from aiokprod.testing.fake_cluster import FakeCluster
from tests.observe.observed import with_producer

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def registry_of(*producers: Producer[Any, Any], **options: Any) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(collector(*producers, **options))
    return registry


def samples(text: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(text)
        for sample in family.samples
    }


async def some_traffic(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
    cluster.create_topic("u", 1)
    cluster.fail_produce(("u", 0), 87, times=1)
    for number in range(40):
        await producer.send("t", b"value %d" % number)
    with pytest.raises(Exception, match="INVALID_RECORD"):
        await producer.send("u", b"value")


def test_text_has_every_value_of_metrics() -> None:
    async def body(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        await some_traffic(cluster, producer)
        values = producer.metrics(by=["topic", "node"])
        found = samples(generate_latest(registry_of(producer)).decode())
        own = ("client_id", "c-1")

        def value(name: str, *labels: tuple[str, str]) -> float:
            return found[f"kafka_producer_{name}", tuple(sorted((own, *labels)))]

        for metric in METRICS:
            name = metric.name.removesuffix("_s") + "_seconds" * metric.name.endswith("_s")
            name += "_total" * (metric.kind == "counter") + "_count" * (metric.kind == "histogram")
            shown: Any = (lambda one: one["count"]) if metric.kind == "histogram" else float
            if metric.topic:
                for topic, counts in values["topics"].items():
                    assert value(name, ("topic", topic)) == shown(counts[metric.name])
            elif metric.node:
                for node, counts in values["nodes"].items():
                    assert value(name, ("node", str(node))) == shown(counts[metric.name])
            elif metric.label:
                for label, count in values[metric.name].items():
                    assert value(name, (metric.label, label)) == count
            else:
                assert value(name) == pytest.approx(shown(values[metric.name]))
        assert value("errors_total", ("error", "INVALID_RECORD")) == 1
        assert value("queue_time_seconds_bucket", ("le", "+Inf")) == 41

    with_producer(body, client_id="c-1")


def test_classic_buckets_are_exact() -> None:
    values = [0.0, 0.1, 0.125, 0.1250001, 0.2, 1.0, 1.5, 2.0, 3.0, 1e9]
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    found = dict(classic_buckets(histogram.snapshot(), range(-4, 3)))
    for exponent in range(-4, 3):
        assert found[repr(2.0**exponent)] == sum(value <= 2.0**exponent for value in values)
    assert found["+Inf"] == len(values)
    assert dict(classic_buckets(Histogram().snapshot(), [0])) == {"1.0": 0, "+Inf": 0}


def buckets(native: NativeHistogram) -> dict[tuple[float, float], int]:
    """Return the bounds and counts of the buckets, as the Prometheus documentation of native
    histograms defines them."""
    found, count = {}, 0
    for span in native.pos_spans or ():
        for place, delta in enumerate(native.pos_deltas or ()):
            index = span.offset + place
            count += delta
            base = 2 ** (2**-native.schema)
            found[base ** (index - 1), base**index] = count
    return found


def test_native_histogram_is_lossless() -> None:
    histogram = Histogram()
    values = [0.0, *(1.001**step / 100 for step in range(3000))]
    for value in values:
        histogram.add(value)
    native = native_histogram(histogram.snapshot())
    assert native.count_value == len(values)
    assert native.zero_count == 1
    assert native.sum_value == pytest.approx(math.fsum(values))
    for (low, high), count in buckets(native).items():
        assert count == sum(low < value <= high for value in values)
    empty = native_histogram(Histogram().snapshot())
    assert (empty.count_value, empty.pos_spans, empty.pos_deltas) == (0, None, None)


def test_native_histograms_survive_the_text_of_open_metrics() -> None:
    async def body(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        await some_traffic(cluster, producer)
        registry = registry_of(producer, native_histograms=True)
        text = open_metrics(registry, version="2.0.0").decode()  # type: ignore[no-untyped-call]
        lines = [line for line in text.splitlines() if "schema:3" in line]
        assert len(lines) > 10
        expected = native_histogram(producer.metrics()["queue_time_s"])
        (shown,) = [line for line in lines if line.startswith("kafka_producer_queue_time_seconds{")]
        (span,), deltas = expected.pos_spans or (), expected.pos_deltas or ()
        # Compare the text, because the parser of prometheus_client does not read negative offsets.
        assert f"count:{expected.count_value}," in shown
        assert f"positive_spans:[{span.offset}:{span.length}]" in shown
        assert f"positive_deltas:[{','.join(map(str, deltas))}]" in shown

    with_producer(body)


def test_text_is_that_of_prometheus_client() -> None:
    """The text covers all collectors of the registry, without native histograms."""

    async def body(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        await some_traffic(cluster, producer)
        producer._metrics.plugin_errors['a\\b\n"c"'] = 3
        registry = registry_of(producer, native_histograms=True)
        Summary("size", "Size.", registry=registry).observe(4)
        shown, content_type = exposition(registry, "application/openmetrics-text,text/plain")
        assert content_type.startswith("text/plain; version=0.0.4")
        assert samples(shown.decode()) == pytest.approx(
            samples(generate_latest(registry_with(producer, registry)).decode())
        )
        assert shown.count(b"# HELP") == shown.count(b"# TYPE")

    with_producer(body)


def registry_with(producer: Producer[Any, Any], other: CollectorRegistry) -> CollectorRegistry:
    """Return a registry with the same collectors, but without native histograms."""
    registry = registry_of(producer)
    for one in list(other._collector_to_names):
        if not isinstance(one, ProducerCollector):
            registry.register(one)
    return registry


def test_protobuf_is_what_the_schema_says() -> None:
    """Google's parser decodes the data with Prometheus' schema."""
    from tests.observe.prometheus_schema import read_families

    async def body(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        await some_traffic(cluster, producer)
        registry = registry_of(producer, native_histograms=True)
        Counter("jobs", "Jobs.", ["kind"], registry=registry).labels("a").inc(3)
        Gauge("depth", "Depth.", registry=registry).set(-2.5)
        Summary("size", "Size.", registry=registry).observe(4)
        data, content_type = exposition(registry, f"{PROTOBUF};q=0.7,text/plain;q=0.3")
        assert content_type == PROTOBUF
        families = {family.name: family for family in read_families(data)}
        values = producer.metrics(by=["topic"])
        acknowledged = families["kafka_producer_records_acknowledged_total"]
        assert acknowledged.type == 0
        by_topic = {
            label.value: metric.counter.value
            for metric in acknowledged.metric
            for label in metric.label
            if label.name == "topic"
        }
        assert by_topic == {
            topic: counts["records_acknowledged"] for topic, counts in values["topics"].items()
        }
        (metric,) = families["kafka_producer_queue_time_seconds"].metric
        histogram, expected = metric.histogram, values["queue_time_s"]
        assert histogram.schema == 3
        assert histogram.sample_count == expected["count"]
        assert histogram.sample_sum == pytest.approx(expected["sum"])
        assert histogram.zero_count == expected["zeros"]
        assert [span.offset for span in histogram.positive_span] == [expected["offset"] + 1]
        total, counts = 0, []
        for delta in histogram.positive_delta:
            total += delta
            counts.append(total)
        assert counts == expected["buckets"]
        assert histogram.bucket[-1].cumulative_count == expected["count"]
        (empty,) = families["kafka_producer_throttle_time_seconds"].metric[:1]
        assert [span.length for span in empty.histogram.positive_span] == [0]
        assert families["jobs_total"].metric[0].counter.value == 3
        assert families["depth"].metric[0].gauge.value == -2.5
        assert families["size"].metric[0].summary.sample_sum == 4

    with_producer(body)


def test_topics_beyond_the_limit_are_summed() -> None:
    async def body(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        for number in range(6):
            cluster.create_topic(f"t{number}", 1)
            await producer.send(f"t{number}", b"value")
        for limit, shown in ((2, ["t0", "t1", "(other)"]), (0, ["(other)"]), (6, None)):
            found = samples(generate_latest(registry_of(producer, max_topics=limit)).decode())
            by_topic = {
                dict(labels)["topic"]: value
                for (name, labels), value in found.items()
                if name == "kafka_producer_records_acknowledged_total"
            }
            assert sum(by_topic.values()) == 6
            assert sorted(by_topic) == sorted(shown or [f"t{number}" for number in range(6)])

    with_producer(body)


def test_several_producers_are_told_apart_by_client_id() -> None:
    one = Producer(bootstrap_servers="b:1", client_id="one")
    two = Producer(bootstrap_servers="b:1", client_id="two")
    found = samples(generate_latest(registry_of(one, two, namespace="mine")).decode())
    assert found["mine_batches_sent_total", (("client_id", "one"),)] == 0
    assert found["mine_batches_sent_total", (("client_id", "two"),)] == 0
    with pytest.raises(ConfigError, match="same client_id"):
        collector(one, one)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"namespace": "a-b"}, "namespace"),
        ({"namespace": "9a"}, "namespace"),
        ({"max_topics": -1}, "max_topics"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        collector(Producer(bootstrap_servers="b:1"), **options)
    with pytest.raises(ConfigError, match="at least one producer"):
        collector()


def test_second_collector_with_the_same_names_is_refused_by_the_registry() -> None:
    registry = registry_of(Producer(bootstrap_servers="b:1"))
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(collector(Producer(bootstrap_servers="b:1")))


def test_missing_package_is_named_with_its_extra() -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "try: import aiokprod.observe.prometheus\n"
        "except ImportError as error: assert 'aiokprod[prometheus]' in str(error), error\n"
        "else: raise SystemExit(1)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def busy(producer: Producer[Any, Any], topics: int) -> None:
    """Add metrics for many topics and nodes to a producer, without a cluster."""
    for number in range(topics):
        counts = producer._metrics.topics.add(f"orders.eu-west-{number:03}")
        counts.records_acknowledged = counts.bytes_sent = 1000 + number
    for node in range(3):
        for value in range(1, 400):
            producer._metrics.nodes.of(node).request_latency_s.add(value / 1000)


@pytest.fixture
def wide() -> ProducerCollector:
    producer = Producer(bootstrap_servers="b:1")
    busy(producer, 200)
    return collector(producer)


def test_scrape_in_a_thread_lets_the_event_loop_run(wide: ProducerCollector) -> None:
    """The event loop must run between two metrics. The test counts how often the loop gets the GIL,
    not how long a turn takes."""
    registry = CollectorRegistry()
    registry.register(wide)
    families = sum(bool(family.samples) for family in wide.collect())
    done = threading.Event()

    def scrape() -> None:
        for _ in range(5):
            generate_latest(registry)
        done.set()

    async def main() -> int:
        thread = threading.Thread(target=scrape)
        thread.start()
        passes = 0
        while not done.is_set():
            passes += 1
            time.sleep(0)  # noqa: ASYNC251 - as a loop that polls without waiting
            await asyncio.sleep(0)
        thread.join()
        return passes

    assert asyncio.run(main()) > 5 * families / 4


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_has_no_complaints() -> None:
    async def body(cluster: FakeCluster, producer: Producer[Any, Any]) -> bytes:
        await some_traffic(cluster, producer)
        return generate_latest(registry_of(producer))

    text = with_producer(body)
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout + checked.stderr == b""
