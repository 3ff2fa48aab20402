"""Spans and counters under faults: every span ends once, spans with an error match the failed
records, and the counters match the results of the calls."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter, defaultdict
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families as parse

from aiokprod.errors import KafkaError
from aiokprod.observe.otel import Telemetry
from aiokprod.observe.prometheus import collector, exposition
from aiokprod.producer import Producer
from aiokprod.testing.fake_cluster import (
    FakeCluster,
    answer_late,
    close,
    lose_answer,
    lose_request,
    refuse,
)
from aiokprod.testing.virtual import run
from tests.observe.spans import CountingTracer, active

TOPICS = ("orders", "payments", "audit")
RETRIED, FINAL, TOO_LARGE = (6, 7, 19, 20), (87, 29), 10
CHUNK = 500


SEEDS = range(1, 1 + int(os.environ.get("AIOKPROD_SPAN_SEEDS", "1")))
"""A release runs ten seeds of each kind, a million records in total."""


class Results:
    """The results of the calls, by topic. The outcome of a cancelled call's record is unknown."""

    def __init__(self) -> None:
        self.delivered: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.cancelled: Counter[str] = Counter()

    def note(self, topic: str, done: Any) -> None:
        """Count the result of `done`, a task or a `Delivery`."""
        if done.cancelled():
            self.cancelled[topic] += 1
        elif done.exception() is None:
            self.delivered[topic] += 1
        else:
            self.failed[topic] += 1


def disturb(cluster: FakeCluster, rng: random.Random) -> None:
    """Inject one random fault."""
    kind = rng.randrange(8)
    place = rng.choice(TOPICS), rng.randrange(3)
    if kind == 0:
        cluster.fail_produce(place, rng.choice(RETRIED), times=rng.randint(1, 3))
    elif kind == 1:
        cluster.fail_produce(place, rng.choice(FINAL), times=1)
    elif kind == 2:
        cluster.fail_produce(place, TOO_LARGE, times=1)
    elif kind == 3:
        cluster.control(0, rng.choice([lose_answer(), lose_request(), close()]), times=1)
    elif kind == 4:
        cluster.control(0, answer_late(rng.uniform(0, 3)), times=1)
    elif kind == 5:
        cluster.move_leader(*place)
    elif kind == 6:
        cluster.control(3, refuse(-1), times=1)
    else:
        for broker in list(cluster.living()):
            for connection in list(broker.connections):
                connection.reset()


async def send_some(
    producer: Producer[Any, Any], rng: random.Random, results: Results, number: int
) -> asyncio.Task[Any] | None:
    """Send one record in a random way. Return the task, if there is one."""
    topic = rng.choice(TOPICS)
    value = b"x" * (2 << 20 if rng.random() < 0.002 else 30)
    way = rng.random()
    with active(number):
        if way < 0.02:
            task = asyncio.ensure_future(producer.send(topic, value))
            if way < 0.01:
                asyncio.get_running_loop().call_later(rng.uniform(0, 0.02), task.cancel)
            task.add_done_callback(lambda done: results.note(topic, done))
            return task
        try:
            delivery = await producer.submit(topic, value)
        except KafkaError:
            results.failed[topic] += 1
            return None
    delivery.add_done_callback(lambda done: results.note(topic, done))
    return None


def accounted(
    records: int, spans: Any, seed: int
) -> tuple[Results, CountingTracer, dict[str, Any]]:
    results, tracer, rng = Results(), CountingTracer(), random.Random(seed)

    async def main() -> dict[str, Any]:
        cluster = FakeCluster(3)
        for topic in TOPICS:
            cluster.create_topic(topic, 3)
        producer = Producer[Any, Any](
            bootstrap_servers=cluster.bootstrap_servers,
            environment=cluster.environment(seed),
            plugins=[Telemetry(tracer, spans=spans)],
            linger_ms=5,
            delivery_timeout_ms=20_000,
            request_timeout_ms=4_000,
            retries=4,
            batch_size=8_192,
        )
        async with producer:
            tasks: list[asyncio.Task[Any]] = []
            for number in range(1, records + 1):
                task = await send_some(producer, rng, results, number)
                if task is not None:
                    tasks.append(task)
                if number % CHUNK == 0:
                    disturb(cluster, rng)
                    await asyncio.sleep(rng.uniform(0, 0.05))
            await asyncio.gather(*tasks, return_exceptions=True)
            await producer.flush()
            await asyncio.sleep(1)
            registry = CollectorRegistry()
            registry.register(collector(producer))
            check_exposition(registry, producer)
        await asyncio.sleep(1)
        return producer.metrics(by=["topic"])

    return results, tracer, run(main, limit_s=1e6)


def check_exposition(registry: CollectorRegistry, producer: Producer[Any, Any]) -> None:
    """Check that the exposition contains the values of `metrics()`."""
    text, _ = exposition(registry)
    sums: dict[str, float] = defaultdict(float)
    for family in parse(text.decode()):
        for sample in family.samples:
            if "_bucket" not in sample.name:
                sums[sample.name] += sample.value
    values = producer.metrics()
    for name in ("records_acknowledged", "records_failed", "records_refused", "records_retried"):
        assert sums[f"kafka_producer_{name}_total"] == values[name]
    assert sums["kafka_producer_delivery_time_seconds_count"] == values["batches_acknowledged"]


def check(records: int, spans: Any, seed: int) -> None:
    results, tracer, values = accounted(records, spans, seed)
    delivered, failed = results.delivered.total(), results.failed.total()
    assert delivered + failed + results.cancelled.total() == records
    assert failed > records * 0.002, "no fault had an effect"
    assert values["batches_split"] > 0
    assert values["records_retried"] > 0
    for topic in TOPICS:
        counts, cancelled = values["topics"][topic], results.cancelled[topic]
        delivered_or_cancelled = results.delivered[topic] + cancelled
        assert results.delivered[topic] <= counts["records_acknowledged"] <= delivered_or_cancelled
        ended = counts["records_failed"] + counts["records_refused"]
        assert results.failed[topic] <= ended + cancelled
        assert ended <= results.failed[topic] + cancelled
    assert sum(values["errors"].values()) == values["records_failed"]
    assert sum(values["refusals"].values()) == values["records_refused"]
    assert tracer.open == tracer.ended_again == 0
    if spans == "record":
        assert tracer.started == records
        assert tracer.failed == records - values["records_acknowledged"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("spans", ["record", "batch"])
def test_spans_and_counters_add_up_under_faults(spans: Any, seed: int) -> None:
    check(50_000, spans, seed)
