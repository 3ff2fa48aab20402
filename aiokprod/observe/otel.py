"""Traces and metrics for OpenTelemetry.

::

    from aiokprod.observe.otel import Telemetry

    producer = Producer(bootstrap_servers="localhost:9092", plugins=[Telemetry()])
    with tracer.start_as_current_span("checkout"):
        await producer.send("orders", body)

Needs the extra `otel`; the SDK is the application's choice. docs/observability.md has examples.

Source: OpenTelemetry semantic conventions for messaging and for Kafka (status: development).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

try:
    from opentelemetry import metrics, trace
    from opentelemetry.context import get_current
    from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, StatusCode
    from opentelemetry.trace.propagation import get_current_span, set_span_in_context
except ImportError as error:
    raise ImportError(
        "aiokprod.observe.otel needs the package opentelemetry-api: pip install 'aiokprod[otel]'"
    ) from error

from aiokprod._version import __version__
from aiokprod.errors import ConfigError, KafkaError
from aiokprod.observe._otel_context import HeaderInjector, extract
from aiokprod.observer import error_name

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Span, TracerProvider

    from aiokprod.cluster import ClusterSnapshot, Node
    from aiokprod.config import ProducerConfig
    from aiokprod.observer import BatchView
    from aiokprod.records import Header

__all__ = ["Spans", "Telemetry", "extract"]

Spans = Literal["off", "batch", "record"]

MAX_LINKS: Final = 128
"""Maximum number of links of a batch span, the default limit of SDKs."""

DURATION_BOUNDS: Final = (
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
"""Bucket bounds in s that the conventions specify for messaging.client.operation.duration."""

_NAME: Final = "aiokprod"
_SCHEMA: Final = "https://opentelemetry.io/schemas/1.37.0"
_COMMON: Final = {"messaging.system": "kafka", "messaging.operation.name": "send"}


class Telemetry:
    """A plug-in that propagates the trace context, creates spans and records metrics.

    Use one object for each producer. A record that is sent without an active context is not
    changed. Other records get the headers of the propagator (traceparent, tracestate, baggage),
    unless they already contain a traceparent. Spans are created only if the active span is sampled.

    Args:
        tracer_provider, meter_provider: None uses the global provider.
        propagator: None uses the global propagator. A propagator with the fields of W3C Trace
            Context and Baggage only is called once for consecutive records of the same span.
        spans: "batch" creates a CLIENT span for each batch with records of sampled spans. Its
            parent is the first of these spans, and it has links to at most 128 of them. "record"
            creates a PRODUCER span for each record, whose headers contain the context of this
            span. "off" only adds headers.
        key_attribute: set messaging.kafka.message.key on record spans, to the text of keys in UTF-8
            and to hexadecimal digits for other keys. Keys can be personal data, so the attribute is
            off by default.
        unix_ns: the wall clock, for the start of batch spans.

    A record span ends once, when the record has its outcome. Failed spans have the attributes
    error.type (the name of the error code or class) and aiokprod.outcome.

    Raises:
        ConfigError: `spans` has another value.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        propagator: TextMapPropagator | None = None,
        *,
        spans: Spans = "batch",
        key_attribute: bool = False,
        unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        if spans not in get_args(Spans):
            raise ConfigError(f"Telemetry: spans={spans!r}: use 'off', 'batch' or 'record'")
        self._tracer = trace.get_tracer(_NAME, __version__, tracer_provider, _SCHEMA)
        meter = metrics.get_meter(_NAME, __version__, meter_provider, _SCHEMA)
        self._sent = meter.create_counter(
            "messaging.client.sent.messages",
            "{message}",
            "Number of messages producer attempted to send to the broker.",
        )
        self._duration = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of messaging operation initiated by a producer or consumer client.",
            explicit_bucket_boundaries_advisory=DURATION_BOUNDS,
        )
        self._headers = HeaderInjector(propagator)
        self._spans = spans
        self._key_attribute = key_attribute
        self._unix_ns = unix_ns
        self._client: dict[str, str] = {}
        self._nodes: dict[int, Node] = {}

    def configure(self, config: ProducerConfig) -> None:
        """Store the client_id for the attributes of spans."""
        if config.client_id:
            self._client = {"messaging.client.id": config.client_id}

    # -- RecordPlugin ---------------------------------------------------------------------------

    def on_append(
        self, topic: str, key: bytes | None, value: bytes | None, headers: tuple[Header, ...]
    ) -> tuple[Sequence[Header], object | None] | None:
        """Add the headers of the context, and start a record span; see `RecordPlugin`."""
        context = get_current()
        if not context:
            return None
        parent = get_current_span(context).get_span_context()
        if not parent.is_valid or not parent.trace_flags & 1 or self._spans == "off":
            return self._headers.added(context, parent, headers), None
        if self._spans == "batch":
            return self._headers.added(context, parent, headers), parent
        attributes = self._attributes(topic) | {"messaging.operation.type": "send"}
        if value is None:
            attributes["messaging.kafka.message.tombstone"] = True
        if self._key_attribute and key is not None:
            attributes["messaging.kafka.message.key"] = _shown(key)
        span = self._tracer.start_span(
            f"send {topic}", context, SpanKind.PRODUCER, attributes=attributes
        )
        try:
            context = set_span_in_context(span, context)
            return self._headers.added(context, span.get_span_context(), headers), span
        except BaseException:  # the propagator failed; without a token, no outcome ends the span
            span.end()
            raise

    def on_batch_settled(
        self,
        batch: BatchView,
        tokens: Sequence[tuple[int, Any]],
        base_offset: int | None,
        error: KafkaError | None,
    ) -> None:
        """End the spans of records, or create a batch span; see `RecordPlugin`."""
        attributes = self._place(batch)
        if self._spans == "batch":
            attributes["messaging.batch.message_count"] = batch.core.record_count
            if base_offset is not None:
                attributes["messaging.kafka.offset"] = base_offset
            age = asyncio.get_running_loop().time() - batch.created_at
            started = self._unix_ns() - int(age * 1e9)
            contexts = (token for _, token in tokens)
            self._finished(batch.topic_partition.topic, contexts, started, attributes, error)
            return
        for index, span in tokens:
            if base_offset is not None:
                attributes["messaging.kafka.offset"] = base_offset + index
            _end(span, attributes, error)

    def on_record_unsent(
        self, topic: str, partition: int | None, token: object | None, error: KafkaError
    ) -> None:
        """End or create the span of a record that was not in a batch; see `RecordPlugin`."""
        if token is None:  # the record failed before `on_append`, in the context of the caller
            token = get_current_span().get_span_context()
            if not token.trace_flags & 1 or self._spans == "off":
                return
        attributes: dict[str, Any] = {}
        if partition is not None:
            attributes["messaging.destination.partition.id"] = str(partition)
        if isinstance(token, SpanContext):
            self._finished(topic, [token], None, attributes, error)
        else:
            _end(token, attributes, error)

    # -- Observer -------------------------------------------------------------------------------

    def on_batch_acknowledged(self, batch: BatchView, now: float) -> None:
        """Record the metrics; see `Observer`."""
        self._measure(batch, now, None)

    def on_batch_failed(self, batch: BatchView, error: KafkaError) -> None:
        """Record the metrics; see `Observer`."""
        if batch.attempts:
            self._measure(batch, asyncio.get_running_loop().time(), error)

    def on_metadata_updated(self, snapshot: ClusterSnapshot) -> None:
        """Store the addresses of the brokers for the attributes of spans; see `Observer`."""
        self._nodes = dict(snapshot.nodes)

    # -- internals ------------------------------------------------------------------------------

    def _attributes(self, topic: str) -> dict[str, Any]:
        return {**_COMMON, **self._client, "messaging.destination.name": topic}

    def _place(self, batch: BatchView) -> dict[str, Any]:
        """Return attributes for the partition, the broker and the number of attempts."""
        attributes: dict[str, Any] = {
            "messaging.destination.partition.id": str(batch.topic_partition.partition),
            "aiokprod.attempts": batch.attempts,
        }
        node = self._nodes.get(batch.wire_node)
        if node is not None:
            attributes["server.address"] = node.host
            attributes["server.port"] = node.port
        return attributes

    def _finished(
        self,
        topic: str,
        contexts: Iterable[SpanContext],
        started: int | None,
        attributes: dict[str, Any],
        error: KafkaError | None,
    ) -> None:
        """Create a span that ends now, as a child of the first context and with links to all."""
        distinct: dict[int, SpanContext] = {}
        for context in contexts:
            distinct.setdefault(context.span_id, context)
            if len(distinct) == MAX_LINKS:
                break
        parent = set_span_in_context(NonRecordingSpan(next(iter(distinct.values()))))
        span = self._tracer.start_span(
            f"send {topic}",
            parent,
            SpanKind.CLIENT,
            attributes=self._attributes(topic) | {"messaging.operation.type": "send"},
            links=[Link(context) for context in distinct.values()],
            start_time=started,
        )
        _end(span, attributes, error)

    def _measure(self, batch: BatchView, now: float, error: KafkaError | None) -> None:
        topic = batch.topic_partition.topic
        attributes: dict[str, Any] = {**_COMMON, "messaging.destination.name": topic}
        if error is not None:
            attributes["error.type"] = error_name(error)
        self._sent.add(batch.core.record_count, attributes)
        self._duration.record(
            now - batch.created_at, attributes | {"messaging.operation.type": "send"}
        )


def _end(span: Any, attributes: dict[str, Any], error: KafkaError | None) -> None:
    recorded: Span = span
    if error is not None:
        attributes = attributes | {"error.type": error_name(error)}
        attributes["aiokprod.outcome"] = error.outcome.value
        recorded.set_status(StatusCode.ERROR, error.message)
    recorded.set_attributes(attributes)
    recorded.end()


def _shown(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key.hex()
