"""A tracer that counts spans: started, open, failed, and ended more than once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    TracerProvider,
    get_current_span,
    use_span,
)


class CountedSpan(NonRecordingSpan):
    """A span that counts the calls of `end` and keeps its final status."""

    def __init__(self, owner: CountingTracer, context: SpanContext) -> None:
        super().__init__(context)
        self._owner = owner
        self.ends = 0
        self.failed = False

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        assert not self.ends, "set_status after the end"
        self.failed = status is StatusCode.ERROR

    def end(self, end_time: int | None = None) -> None:
        self.ends += 1
        self._owner.open -= 1
        self._owner.failed += self.failed
        if self.ends > 1:
            self._owner.ended_again += 1


class CountingTracer(Tracer, TracerProvider):
    """A tracer that counts its spans and is its own provider.

    Attributes:
        started, open, failed, ended_again: numbers of spans.
    """

    def __init__(self) -> None:
        self.started = self.open = self.failed = self.ended_again = 0

    def get_tracer(self, *args: Any, **kwargs: Any) -> Tracer:
        return self

    def start_span(
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Any = None,
        links: Sequence[Link] | None = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
    ) -> Span:
        assert get_current_span(context).get_span_context().is_valid, "a span without parent"
        self.started += 1
        self.open += 1
        return CountedSpan(self, span_context(self.started))

    @contextmanager
    def start_as_current_span(  # type: ignore[override]
        self, name: str, *args: Any, **kwargs: Any
    ) -> Iterator[Span]:
        with use_span(self.start_span(name, *args, **kwargs), end_on_exit=True) as span:
            yield span


def span_context(number: int, *, sampled: bool = True) -> SpanContext:
    return SpanContext(number << 64 | 7, number, False, TraceFlags(int(sampled)))


def active(number: int = 1, *, sampled: bool = True) -> Any:
    """Return a context manager that makes a span active."""
    return use_span(NonRecordingSpan(span_context(number, sampled=sampled)))
