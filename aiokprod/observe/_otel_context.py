"""The trace context in the headers of records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter, Setter

if TYPE_CHECKING:
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import SpanContext

    from aiokprod.records import Header

Carrier = Sequence[tuple[str, bytes | None]]

_W3C: Final = frozenset({"traceparent", "tracestate", "baggage"})


class _HeaderSetter(Setter[list["Header"]]):
    def set(self, carrier: list[Header], key: str, value: str) -> None:
        carrier.append((key, value.encode()))


class _HeaderGetter(Getter[Carrier]):
    def get(self, carrier: Carrier, key: str) -> list[str] | None:
        """Return all values of a header, except those that are not text."""
        found = []
        for name, value in carrier:
            if name.lower() == key and value is not None:
                try:
                    found.append(value.decode())
                except UnicodeDecodeError:
                    continue
        return found or None

    def keys(self, carrier: Carrier) -> list[str]:
        return [name for name, _ in carrier]


_SETTER: Final = _HeaderSetter()
_GETTER: Final = _HeaderGetter()


class HeaderInjector:
    """Adds the headers of a propagator to the headers of records.

    Args:
        propagator: None uses the global propagator at the time a record is sent.
    """

    def __init__(self, propagator: TextMapPropagator | None) -> None:
        self._propagator = propagator
        self._known: TextMapPropagator | None = None
        self._w3c = False
        self._context: Context | None = None
        self._headers: tuple[Header, ...] = ()

    def added(
        self, context: Context, span: SpanContext, headers: tuple[Header, ...]
    ) -> tuple[Header, ...]:
        """Return the headers with those of the context added. Headers that already contain a
        traceparent are returned unchanged.

        Args:
            span: the span of the context.
        """
        if headers and any(name == "traceparent" for name, _ in headers):
            return headers
        # Cache the headers: a context never changes, W3C headers depend on nothing else, and most
        # consecutive records are sent in the same context.
        if context is not self._context:
            made = self._made(context, span)
            if not self._w3c:
                return (*headers, *made)
            self._context, self._headers = context, made
        return (*headers, *self._headers) if headers else self._headers

    def _made(self, context: Context, span: SpanContext) -> tuple[Header, ...]:
        propagator = self._propagator or propagate.get_global_textmap()
        if propagator is not self._known:
            self._known = propagator
            self._w3c = "traceparent" in propagator.fields and propagator.fields <= _W3C
        # If the context contains only the span, there is no baggage. Then write the header here,
        # because the propagators take several times as long.
        if self._w3c and len(context) == 1 and span.is_valid and not span.trace_state:
            return (("traceparent", traceparent(span)),)
        made: list[Header] = []
        propagator.inject(made, context, _SETTER)
        return tuple(made)


def traceparent(span: SpanContext) -> bytes:
    """Return the value of the W3C header `traceparent`."""
    return b"00-%032x-%016x-%02x" % (span.trace_id, span.span_id, span.trace_flags)


def extract(
    headers: Carrier | Mapping[str, bytes | None] | None,
    context: Context | None = None,
    propagator: TextMapPropagator | None = None,
) -> Context:
    """Return the context that a producer stored in the headers of a record. For consumers::

        with tracer.start_as_current_span("process orders", extract(record.headers)):
            ...

    Args:
        headers: (name, value) pairs, a mapping, or None.
        context: the context to which the extracted values are added; None for an empty context, so
            that the span of a record without headers starts a trace.
        propagator: None uses the global propagator.

    Returns:
        The context with the extracted values.
    """
    if context is None:
        context = Context()
    pairs: Iterable[tuple[str, bytes | None]] = ()
    if headers is not None:
        pairs = headers.items() if isinstance(headers, Mapping) else headers
    return (propagator or propagate.get_global_textmap()).extract(list(pairs), context, _GETTER)
