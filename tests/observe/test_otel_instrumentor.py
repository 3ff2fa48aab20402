from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.instrumentation.aiokafka.utils import _aiokafka_getter
from opentelemetry.propagate import extract

from aiokprod.errors import ConfigError
from aiokprod.observe.otel import Telemetry
from aiokprod.observe.otel_instrumentor import AiokprodInstrumentor
from aiokprod.observer import Observer
from aiokprod.producer import Producer
from aiokprod.testing.fake_cluster import FakeCluster
from tests.observe.observed import with_producer
from tests.observe.spans import CountingTracer, active


@pytest.fixture
def tracer() -> Iterator[CountingTracer]:
    made = CountingTracer()
    instrumentor = AiokprodInstrumentor()
    instrumentor.instrument(tracer_provider=made, spans="record")
    yield made
    if instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.uninstrument()


def test_new_producers_are_traced(tracer: CountingTracer) -> None:
    async def body(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        with active():
            await producer.send("t", b"value")

    with_producer(body)
    assert (tracer.started, tracer.open) == (1, 0)


def test_producer_with_telemetry_is_left_as_it_is(tracer: CountingTracer) -> None:
    mine = CountingTracer()

    async def body(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        with active():
            await producer.send("t", b"value")

    with_producer(body, plugins=[Telemetry(mine, spans="record")])
    assert (tracer.started, mine.started) == (0, 1)


def test_plugins_may_be_an_iterator(tracer: CountingTracer) -> None:
    seen: list[str] = []

    class Watching(Observer):
        def on_connection_opened(self, node_id: int) -> None:
            seen.append("opened")

    async def body(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        with active():
            await producer.send("t", b"value")

    with_producer(body, plugins=iter([Watching()]))
    assert tracer.started == 1
    assert seen


def test_uninstrument_restores_the_class(tracer: CountingTracer) -> None:
    AiokprodInstrumentor().uninstrument()

    async def body(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        with active():
            await producer.send("t", b"value")

    with_producer(body)
    assert tracer.started == 0
    assert not hasattr(Producer.__init__, "__wrapped__")


def test_arguments_are_checked_as_before(tracer: CountingTracer) -> None:
    with pytest.raises(ConfigError, match="lingr_ms"):
        Producer(bootstrap_servers="b:1", lingr_ms=5)  # type: ignore[call-overload]


def test_entry_point_names_the_class() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    (target,) = project["project"]["entry-points"]["opentelemetry_instrumentor"].values()
    module, _, name = target.partition(":")
    assert (module, name) == (AiokprodInstrumentor.__module__, AiokprodInstrumentor.__name__)
    assert list(AiokprodInstrumentor().instrumentation_dependencies()) == []


def test_instrumentation_of_aiokafka_reads_the_headers(tracer: CountingTracer) -> None:
    """The consumer instrumentation is the one of the OpenTelemetry contrib package."""

    async def body(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        with active(77, sampled=False):
            await producer.send("t", b"value", partition=0, headers=[("own", b"1")])
        ((record,),) = [log for log in cluster.logs("t") if log]
        consumed = SimpleNamespace(headers=record.headers)
        found = extract(consumed.headers, getter=_aiokafka_getter)
        assert trace.get_current_span(found).get_span_context().span_id == 77
        assert re.fullmatch(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-00", record.headers[1][1] or b"")

    with_producer(body)


def test_plugins_of_a_wrong_type_are_refused_by_the_producer(tracer: CountingTracer) -> None:
    wrong: Any = 5
    with pytest.raises(ConfigError, match="plugins"):
        Producer(bootstrap_servers="b:1", plugins=wrong)


def test_what_is_not_instrumented_is_left_as_it_is() -> None:
    original = Producer.__init__
    AiokprodInstrumentor()._uninstrument()
    assert Producer.__init__ is original
