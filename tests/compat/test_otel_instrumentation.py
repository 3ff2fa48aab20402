"""OpenTelemetry's instrumentation of aiokafka with the compatible producer.

The module rewrites the four tests of the contrib package that replace internals of aiokafka's
producer. The 13 other tests of that package do not use a producer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import baggage, context
from opentelemetry.instrumentation.aiokafka import AIOKafkaInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

import aiokprod.compat.aiokafka as compat
from aiokprod.compat.aiokafka import AIOKafkaProducer
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.virtual import run


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    compat.install()
    AIOKafkaInstrumentor().instrument(tracer_provider=provider)
    yield exporter
    AIOKafkaInstrumentor().uninstrument()
    compat.uninstall()


def _sent(*sends: tuple[str, bytes], wait: bool = False) -> tuple[FakeCluster, AIOKafkaProducer]:
    clusters = []

    async def main() -> None:
        cluster = FakeCluster(default_partitions=1)
        async with AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment()
        ) as producer:
            call: Any = producer.send_and_wait if wait else producer.send
            for topic, value in sends:
                await call(topic, value, key=b"k")
        clusters.append((cluster, producer))

    run(main)
    return clusters[0]


@pytest.mark.parametrize("wait", [False, True])
def test_every_send_has_a_span_and_its_context_in_the_headers(
    exporter: InMemorySpanExporter, wait: bool
) -> None:
    cluster, producer = _sent(("topic_1", b"1"), ("topic_2", b"2"), wait=wait)
    spans = exporter.get_finished_spans()
    assert [(span.name, span.kind) for span in spans] == [
        ("topic_1 send", SpanKind.PRODUCER),
        ("topic_2 send", SpanKind.PRODUCER),
    ]
    for span, topic in zip(spans, ("topic_1", "topic_2"), strict=True):
        attributes = dict(span.attributes or {})
        assert attributes["messaging.destination.name"] == topic
        assert attributes["messaging.destination.partition.id"] == "0"
        assert attributes["messaging.client.id"] == producer.client._client_id
        (record,) = cluster.log(topic, 0)
        parent = dict(record.headers)["traceparent"]
        assert parent is not None
        place: Any = span.get_span_context()
        assert f"{place.span_id:016x}" in parent.decode()


def test_baggage_travels_in_the_headers(exporter: InMemorySpanExporter) -> None:
    token = context.attach(baggage.set_baggage("foo", "bar"))
    try:
        cluster, _ = _sent(("t", b"1"))
    finally:
        context.detach(token)
    (record,) = cluster.log("t", 0)
    assert dict(record.headers)["baggage"] == b"foo=bar"


def test_the_produce_hook_is_called_with_the_arguments(exporter: InMemorySpanExporter) -> None:
    calls: list[tuple[Any, Any]] = []

    async def hook(span: Any, args: Any, kwargs: Any) -> None:
        await asyncio.sleep(0)
        calls.append((args, kwargs["key"]))

    AIOKafkaInstrumentor().uninstrument()
    AIOKafkaInstrumentor().instrument(async_produce_hook=hook)
    _sent(("t", b"1"))
    assert calls == [(("t", b"1"), b"k")]
