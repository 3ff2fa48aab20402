from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry.context import attach, detach, get_current
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from aiokprod.errors import ConfigError, KafkaError
from aiokprod.observe.otel import MAX_LINKS, Telemetry, extract
from aiokprod.producer import Producer
from aiokprod.testing.fake_cluster import FakeCluster
from tests.observe.observed import with_producer
from tests.observe.spans import active, span_context


class Sdk:
    """An OpenTelemetry SDK that stores its spans in memory."""

    def __init__(self, **options: Any) -> None:
        self.provider = TracerProvider(**options)
        self.exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    def sent(self) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if "send" in span.name]


@pytest.fixture
def sdk() -> Iterator[Sdk]:
    made = Sdk()
    yield made
    made.provider.shutdown()


def headers_of(cluster: FakeCluster, topic: str = "t") -> list[list[tuple[str, bytes | None]]]:
    return [list(record.headers) for log in cluster.logs(topic) for record in log]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_record_span_has_the_attributes_of_the_conventions(sdk: Sdk) -> None:
    telemetry = Telemetry(sdk.provider, spans="record", key_attribute=True)

    async def body(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        with sdk.tracer.start_as_current_span("checkout"):
            await producer.send("t", None, key=b"customer-7", partition=1)
        await asyncio.sleep(0)
        leader = cluster.leader_of("t", 1)
        (span,) = sdk.sent()
        assert (span.name, span.kind) == ("send t", SpanKind.PRODUCER)
        assert attributes(span) == {
            "messaging.system": "kafka",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.client.id": "shop",
            "messaging.destination.name": "t",
            "messaging.destination.partition.id": "1",
            "messaging.kafka.offset": 0,
            "messaging.kafka.message.tombstone": True,
            "messaging.kafka.message.key": "customer-7",
            "server.address": leader.host,
            "server.port": leader.port,
            "aiokprod.attempts": 1,
        }
        parent = next(one for one in sdk.exporter.get_finished_spans() if one.name == "checkout")
        assert span.parent is not None
        assert span.parent.span_id == parent.context.span_id
        assert span.status.status_code is StatusCode.UNSET
        (headers,) = headers_of(cluster)
        found = trace.get_current_span(extract(headers)).get_span_context()
        assert (found.trace_id, found.span_id) == (span.context.trace_id, span.context.span_id)

    with_producer(body, plugins=[telemetry], client_id="shop")


def test_batch_span_links_the_spans_of_its_records(sdk: Sdk) -> None:
    now = 1_700_000_000_000_000_000
    telemetry = Telemetry(sdk.provider, unix_ns=lambda: now)

    async def body(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        await producer.send("t", b"warm", partition=0)
        for number in range(1, 200):
            with active(number):
                await producer.submit("t", b"value", partition=0)
                await producer.submit("t", b"value", partition=0)
        await producer.submit("t", b"without a span", partition=0)
        await producer.flush()
        await asyncio.sleep(0)
        spans = sdk.sent()
        assert sum(attributes(span)["messaging.batch.message_count"] for span in spans) == 399
        for span in spans:
            assert span.kind is SpanKind.CLIENT
            assert 1 <= len(span.links) <= MAX_LINKS
            assert len({link.context.span_id for link in span.links}) == len(span.links)
            assert span.parent is not None
            assert span.parent.span_id == span.links[0].context.span_id
            assert span.start_time is not None
            assert span.start_time <= now
        assert any(len(span.links) == MAX_LINKS for span in spans)
        first = attributes(spans[0])
        assert first["messaging.kafka.offset"] == 1
        assert first["messaging.destination.name"] == "t"

    with_producer(body, plugins=[telemetry], linger_ms=20, adaptive_linger=False)


@pytest.mark.parametrize("spans", ["batch", "record"])
def test_error_is_in_the_span(sdk: Sdk, spans: Any) -> None:
    async def body(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        cluster.fail_produce(("t", 0), 87, times=1)
        with sdk.tracer.start_as_current_span("checkout"), pytest.raises(KafkaError):
            await producer.send("t", b"value", partition=0)
        await asyncio.sleep(0)
        (span,) = sdk.sent()
        assert span.status.status_code is StatusCode.ERROR
        assert attributes(span)["error.type"] == "INVALID_RECORD"
        assert attributes(span)["aiokprod.outcome"] == "rejected"
        assert "messaging.kafka.offset" not in attributes(span)

    with_producer(body, plugins=[Telemetry(sdk.provider, spans=spans)])


def test_span_of_a_record_ends_although_the_propagator_fails(sdk: Sdk) -> None:
    class Broken(TraceContextTextMapPropagator):
        fields = {"own"}  # noqa: RUF012  # as in the base class

        def inject(self, *args: Any, **kwargs: Any) -> None:
            raise ZeroDivisionError

    async def body(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        with sdk.tracer.start_as_current_span("checkout"):
            await producer.send("t", b"value")
        assert len(sdk.sent()) == 1

    with_producer(body, plugins=[Telemetry(sdk.provider, propagator=Broken(), spans="record")])


@pytest.mark.parametrize("spans", ["batch", "record"])
def test_refused_and_withdrawn_records_have_error_spans(sdk: Sdk, spans: Any) -> None:
    async def body(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        cluster.auto_create = False
        with sdk.tracer.start_as_current_span("checkout"):
            with pytest.raises(KafkaError):
                await producer.send("t", b"x" * (2 << 20))  # the record is too large
            with pytest.raises(KafkaError):
                # The topic has no metadata, so the call fails before the plug-in is called.
                await producer.send("missing", b"value")
            sending = asyncio.ensure_future(producer.send("t", b"value"))
            await asyncio.sleep(0.01)
            sending.cancel()  # the record is in an open batch
            with pytest.raises(asyncio.CancelledError):
                await sending
        await asyncio.sleep(0)
        assert [attributes(span)["error.type"] for span in sdk.sent()] == [
            "RecordTooLarge", "MetadataTimeout", "KafkaError",
        ]  # fmt: skip
        assert {span.status.status_code for span in sdk.sent()} == {StatusCode.ERROR}

    options = {"linger_ms": 500, "adaptive_linger": False, "max_block_ms": 100}
    with_producer(body, plugins=[Telemetry(sdk.provider, spans=spans)], **options)


@pytest.mark.parametrize("spans", ["off", "batch", "record"])
def test_nothing_happens_without_an_active_span(sdk: Sdk, spans: Any) -> None:
    async def body(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        await producer.send("t", b"value", headers=[("own", b"1")])
        assert headers_of(cluster) == [[("own", b"1")]]
        assert sdk.sent() == []

    with_producer(body, plugins=[Telemetry(sdk.provider, spans=spans)])


@pytest.mark.parametrize("spans", ["off", "batch", "record"])
def test_unsampled_context_is_propagated_without_a_span(sdk: Sdk, spans: Any) -> None:
    async def body(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        with active(5, sampled=False):
            await producer.send("t", b"value", headers=[("own", b"1")])
        ((own, added),) = headers_of(cluster)
        assert own == ("own", b"1")
        assert added == ("traceparent", b"00-%032x-%016x-00" % (5 << 64 | 7, 5))
        assert sdk.sent() == []

    with_producer(body, plugins=[Telemetry(sdk.provider, spans=spans)])


def test_spans_that_the_sampler_drops_are_propagated_as_unsampled() -> None:
    sdk = Sdk(sampler=ALWAYS_OFF)

    async def body(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        with active(5):
            await producer.send("t", b"value")
        await asyncio.sleep(0)
        ((header,),) = headers_of(cluster)
        assert header[1] is not None
        assert header[1].endswith(b"-00")
        assert sdk.sent() == []

    with_producer(body, plugins=[Telemetry(sdk.provider, spans="record")])


def test_baggage_and_trace_state_are_propagated(sdk: Sdk) -> None:
    async def body(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        state = trace.TraceState([("vendor", "7")])
        context = trace.SpanContext(1, 2, False, trace.TraceFlags(0), state)
        with trace.use_span(trace.NonRecordingSpan(context)):
            await producer.send("t", b"value", partition=0)
            token = attach(baggage.set_baggage("tenant", "a"))
            await producer.send("t", b"value", partition=0)
            detach(token)
        token = attach(baggage.set_baggage("tenant", "b"))
        await producer.send("t", b"value", partition=0)
        detach(token)
        assert headers_of(cluster) == [
            [("traceparent", b"00-%032x-%016x-00" % (1, 2)), ("tracestate", b"vendor=7")],
            [("traceparent", b"00-%032x-%016x-00" % (1, 2)), ("tracestate", b"vendor=7"),
             ("baggage", b"tenant=a")],
            [("baggage", b"tenant=b")],
        ]  # fmt: skip
        found = extract(headers_of(cluster)[1])
        assert baggage.get_all(found) == {"tenant": "a"}
        assert trace.get_current_span(found).get_span_context().trace_state == state

    with_producer(body, plugins=[Telemetry(sdk.provider)])


def test_traceparent_is_written_as_by_the_propagator(sdk: Sdk) -> None:
    """The plug-in formats this header itself. The test compares many contexts."""

    async def body(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        expected = []
        for number in [1, 2**63, 2**64 - 1, *range(1000, 1100)]:
            for sampled in (True, False):
                with active(number, sampled=sampled):
                    carrier: dict[str, str] = {}
                    TraceContextTextMapPropagator().inject(carrier)
                    expected.append([(name, value.encode()) for name, value in carrier.items()])
                    await producer.submit("t", b"value", partition=0)
        await producer.flush()
        assert headers_of(cluster) == expected

    with_producer(body, plugins=[Telemetry(sdk.provider, spans="off")])


class B3(TraceContextTextMapPropagator):
    """A propagator that writes another header, with a different value at every call."""

    calls = 0

    def inject(self, carrier: Any, context: Any = None, setter: Any = None) -> None:
        self.calls += 1
        setter.set(carrier, "b3", str(self.calls))

    @property
    def fields(self) -> set[str]:
        return {"b3"}


def test_other_propagators_are_called_for_each_record(sdk: Sdk) -> None:
    async def body(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        with active():
            for _ in range(3):
                await producer.send("t", b"value", partition=0, headers=[("own", b"")])
        assert headers_of(cluster) == [
            [("own", b""), ("b3", b"1")], [("own", b""), ("b3", b"2")], [("own", b""), ("b3", b"3")]
        ]  # fmt: skip

    with_producer(body, plugins=[Telemetry(sdk.provider, propagator=B3())])


def test_traceparent_of_the_caller_is_kept(sdk: Sdk) -> None:
    async def body(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        with active():
            await producer.send("t", b"value", headers=[("traceparent", b"mine")])
        assert headers_of(cluster) == [[("traceparent", b"mine")]]

    with_producer(body, plugins=[Telemetry(sdk.provider)])


@pytest.mark.parametrize(
    "headers",
    [None, (), {}, [("traceparent", None)], [("traceparent", b"\xff")], [("x", b"1")]],
)
def test_headers_without_a_context_leave_the_context_as_it_is(headers: Any) -> None:
    with active(3):
        assert not trace.get_current_span(extract(headers)).get_span_context().is_valid
        found = trace.get_current_span(extract(headers, get_current())).get_span_context()
    assert found.span_id == 3


def test_context_is_read_from_a_mapping_too() -> None:
    found = extract({"traceparent": b"00-%032x-%016x-01" % (3, 4)})
    assert trace.get_current_span(found).get_span_context().span_id == 4


def test_keys_that_are_no_text_are_shown_in_hexadecimal(sdk: Sdk) -> None:
    async def body(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        with active():
            await producer.send("t", b"value", key=b"\xff\x01")
        await asyncio.sleep(0)
        assert attributes(sdk.sent()[0])["messaging.kafka.message.key"] == "ff01"

    with_producer(body, plugins=[Telemetry(sdk.provider, spans="record", key_attribute=True)])


def points(reader: InMemoryMetricReader, name: str) -> Sequence[Any]:
    data = reader.get_metrics_data()
    assert data is not None
    (found,) = [
        metric.data.data_points
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == name
    ]
    return found


def test_metrics_of_the_conventions() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])

    async def body(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        for _ in range(5):
            await producer.send("t", b"value", partition=1)
        cluster.fail_produce(("t", 0), 87, times=1)
        with pytest.raises(KafkaError):
            await producer.send("t", b"value", partition=0)
        await asyncio.sleep(0)
        sent = {
            point.attributes.get("error.type"): point.value
            for point in points(reader, "messaging.client.sent.messages")
        }
        assert sent == {None: 5, "INVALID_RECORD": 1}
        durations = points(reader, "messaging.client.operation.duration")
        assert sum(point.count for point in durations) == 6
        assert durations[0].explicit_bounds[0] == 0.005
        assert dict(durations[0].attributes) == {
            "messaging.system": "kafka",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": "t",
        }

    with_producer(body, plugins=[Telemetry(meter_provider=provider)])
    provider.shutdown()


def test_unknown_kind_of_spans_is_refused() -> None:
    with pytest.raises(ConfigError, match="'off', 'batch' or 'record'"):
        Telemetry(spans="all")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("package", "module"),
    [("opentelemetry", "otel"), ("opentelemetry.instrumentation", "otel_instrumentor")],
)
def test_missing_package_is_named_with_its_extra(package: str, module: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        f"try: import aiokprod.observe.{module}\n"
        "except ImportError as error: assert 'aiokprod[otel]' in str(error), error\n"
        "else: raise SystemExit(1)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_contexts_of_the_tests_are_what_they_claim() -> None:
    assert span_context(4).trace_flags.sampled
    assert not span_context(4, sampled=False).trace_flags.sampled
