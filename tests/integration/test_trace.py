"""An aiokafka consumer with OpenTelemetry's contrib instrumentation continues the trace of the
producer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from aiokafka import AIOKafkaConsumer
from opentelemetry.instrumentation.aiokafka import AIOKafkaInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from aiokprod import Producer
from aiokprod.observe.otel import Telemetry
from aiokprod.testing.kafka_cluster import KafkaCluster
from tests.integration.runner import Run


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaCluster]:
    cluster = KafkaCluster(1)
    cluster.start_blocking()
    yield cluster
    cluster.stop_blocking()


def test_instrumented_consumer_continues_the_trace(
    broker: KafkaCluster, run_uvloop: Run, topic: str
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    instrumentor = AIOKafkaInstrumentor()
    instrumentor.instrument(tracer_provider=provider)

    async def main() -> None:
        await broker.create_topic(topic, partitions=1)
        telemetry = Telemetry(provider, spans="record")
        async with Producer(
            bootstrap_servers=broker.bootstrap_servers, plugins=[telemetry]
        ) as producer:
            for number in range(5):
                with tracer.start_as_current_span("checkout"):
                    await producer.send(topic, b"order %d" % number)
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            for _ in range(5):
                await consumer.getone()
        finally:
            await consumer.stop()

    try:
        run_uvloop(main())
    finally:
        instrumentor.uninstrument()
    spans = exporter.get_finished_spans()
    sent = {span.context.span_id: span for span in spans if span.name == f"send {topic}"}
    received = [span for span in spans if "receive" in span.name]
    assert len(sent) == len(received) == 5
    for span in received:
        parents = [link.context for link in span.links] + ([span.parent] if span.parent else [])
        (parent,) = [one for one in parents if one.span_id in sent]
        assert parent.trace_id == sent[parent.span_id].context.trace_id
        assert sent[parent.span_id].attributes is not None
    provider.shutdown()
