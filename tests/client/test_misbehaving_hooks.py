"""Interceptors and plug-ins that return a malformed result, or raise a BaseException that is not an
Exception."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
from collections.abc import Callable
from typing import Any

import pytest

from aiokprod import Observer, Producer, ProducerRecord
from aiokprod._client.record_hooks import RecordHooks
from aiokprod.errors import ConfigError, KafkaError
from aiokprod.testing import fake_cluster as faults
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.virtual import run
from tests.scenarios.scenario_helpers import make_producer, runtime_of
from tests.simulation.call_interrupts import Injector, TimeUp


class Interceptor:
    """Records its calls."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.ended: list[Any] = []

    def on_send(self, record: Any) -> Any:
        self.sent.append(record)
        return record

    def on_acknowledgement(self, metadata: Any, error: Any, headers: Any = ()) -> None:
        self.ended.append((metadata, error, headers))

    def close(self) -> None:
        """Do nothing: no resource is open."""


class Changing(Interceptor):
    """Returns the result of a function that takes the record."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        super().__init__()
        self.change = change

    def on_send(self, record: Any) -> Any:
        super().on_send(record)
        return self.change(record)


class Interrupting(Interceptor):
    """Raises in both methods or in one of them."""

    def __init__(self, error: type[BaseException], *, method: str) -> None:
        super().__init__()
        self.error = error
        self.method = method

    def on_send(self, record: Any) -> Any:
        super().on_send(record)
        if self.method == "on_send":
            raise self.error
        return record

    def on_acknowledgement(self, metadata: Any, error: Any, headers: Any = ()) -> None:
        super().on_acknowledgement(metadata, error, headers)
        if self.method == "on_acknowledgement":
            raise self.error


class Plugin:
    """A plug-in with a token for each record. It raises when it receives a token back."""

    def __init__(self, error: type[BaseException] | None = None) -> None:
        self.error = error
        self.ended: list[Any] = []

    def on_append(self, topic: str, key: Any, value: Any, headers: Any) -> Any:
        return headers, value

    def on_batch_settled(self, batch: Any, tokens: Any, base_offset: Any, error: Any) -> None:
        self.ended += [(token, type(error)) for _, token in tokens]
        if self.error is not None:
            raise self.error

    def on_record_unsent(self, topic: str, partition: Any, token: Any, error: Any) -> None:
        self.ended.append((token, type(error)))
        if self.error is not None:
            raise self.error


class Awaitable:
    """An awaitable that must not be awaited."""

    def __await__(self) -> Any:
        raise AssertionError


def headers(wrong: Any) -> Callable[[Any], Any]:
    return lambda record: dataclasses.replace(record, headers=wrong)


def fields(**wrong: Any) -> Callable[[Any], Any]:
    """Return a function that copies a record and sets fields without validation."""

    def change(record: Any) -> Any:
        other = dataclasses.replace(record)
        for name, value in wrong.items():
            object.__setattr__(other, name, value)
        return other

    return change


MALFORMED: dict[str, Callable[[Any], Any]] = {
    "headers that are no sequence": headers(5),
    "headers as an iterator": lambda record: headers(iter([("h", b"")]))(record),
    "headers as a dict": headers({"h": b""}),
    "a list for a pair": headers([["h", b""]]),
    "a value that is no bytes": headers([("h", 5)]),
    "a name that is no text": headers([("\ud800", b"")]),
    "no fields": lambda record: object.__new__(ProducerRecord),
    "an illegal topic": fields(topic="/"),
    "a negative partition": fields(partition=-1),
    "a timestamp that is no int": fields(timestamp_ms="now"),
    "nothing": lambda record: None,
    "an awaitable": lambda record: Awaitable(),
}


async def producing(*, fast: bool, **options: Any) -> tuple[FakeCluster, Producer[Any, Any]]:
    """Start a producer that has the metadata of a topic, with the fast path or without it."""
    cluster = FakeCluster(brokers=1, auto_create=False)
    cluster.create_topic("t", 1)
    producer = make_producer(cluster, max_block_ms=100, **options)
    await producer.start()
    await producer.warm(["t"])
    if not fast:
        runtime_of(producer).fast_path.stop()
    return cluster, producer


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_record_of_an_interceptor_is_ignored(name: str, fast: bool) -> None:
    async def main() -> None:
        first, last = Changing(MALFORMED[name]), Interceptor()
        cluster, producer = await producing(fast=fast, interceptors=[first, last])
        async with producer:
            pair = [("h", b"1")]
            await producer.send("t", b"v", headers=pair)
            assert [record.headers for record in last.sent] == [pair]
            with pytest.raises(KafkaError):
                await producer.send("t", b"v", partition=5, headers=pair)
            result = await producer.send_many("t", [b"v"], headers=[pair])
            assert not result.errors
            for each in (first, last):
                assert len(each.sent) == len(each.ended) == 3
                assert [tuple(found) for _, _, found in each.ended] == [tuple(pair)] * 3
                assert [error is None for _, error, _ in each.ended] == [True, False, True]
        assert [record.headers for record in cluster.log("t", 0)] == [tuple(pair)] * 2

    run(main)


@pytest.mark.parametrize("fast", [True, False])
def test_headers_that_an_interceptor_has_made_invalid_in_place_refuse_the_record(
    fast: bool,
) -> None:
    """No copy of the original headers exists."""

    def spoil(record: Any) -> Any:
        record.headers.append(("h", 5))
        return record

    async def main() -> None:
        interceptor = Changing(spoil)
        _, producer = await producing(fast=fast, interceptors=[interceptor])
        async with producer:
            for call in (producer.send, producer.try_submit):
                with pytest.raises(ConfigError, match="headers"):
                    await call("t", b"v", headers=[("g", b"")])
            assert len(interceptor.sent) == len(interceptor.ended) == 2
            assert all(isinstance(error, ConfigError) for _, error, _ in interceptor.ended)

    run(main)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("call", ["send", "submit", "try_submit", "send_many"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_interrupt_in_on_send_reaches_the_caller_and_those_that_saw_the_record(
    call: str, fast: bool, error: type[BaseException]
) -> None:
    async def main() -> None:
        first, last = Interceptor(), Interceptor()
        broken = Interrupting(error, method="on_send")
        plugin = Plugin()
        cluster, producer = await producing(
            fast=fast, interceptors=[first, broken, last], plugins=[plugin]
        )
        values: Any = [b"v"] if call == "send_many" else b"v"
        try:
            await getattr(producer, call)("t", values)
        except error:
            raised = True
        else:
            raised = False
        await producer.close()
        assert raised
        for each in (first, broken):
            [(metadata, failure, found)] = each.ended
            assert (metadata, found) == (None, ())
            assert isinstance(failure, KafkaError)
            assert failure.topic == "t"
        assert last.sent == last.ended == []
        assert plugin.ended == [(None, KafkaError)]
        assert not cluster.log("t", 0)

    run(main)


@pytest.mark.parametrize("way", ["acknowledged", "failed", "withdrawn", "refused"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interrupt_in_a_report_is_passed_to_the_loop_and_all_others_are_made(
    way: str, error: type[BaseException]
) -> None:
    async def main() -> None:
        interceptors = [Interrupting(error, method="on_acknowledgement"), Interceptor()]
        plugins = [Plugin(error), Plugin()]
        cluster, producer = await producing(fast=True, interceptors=interceptors, plugins=plugins)
        seen: list[BaseException] = []
        lists = [each.ended for each in interceptors] + [each.ended for each in plugins]
        reports: list[list[int]] = []

        def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            seen.append(context["exception"])
            reports.append([len(ended) for ended in lists])

        asyncio.get_running_loop().set_exception_handler(handle)
        if way == "failed":
            cluster.control(0, faults.refuse(29))
        values = [b"0", b"1"]
        if way == "refused":
            for value in values:
                with pytest.raises(KafkaError):
                    producer.try_submit("t", value, partition=5)
        else:
            handles = [producer.try_submit("t", value) for value in values]
            if way == "withdrawn":
                assert all([handle.cancel() for handle in handles])
            await asyncio.gather(*handles, return_exceptions=True)
        await producer.close()
        for interceptor in interceptors:
            assert len(interceptor.ended) == 2
        first, second = plugins
        assert first.ended == second.ended
        tokens = [None, None] if way == "refused" else values
        assert [token for token, _ in first.ended] == tokens
        batches = 1 if way in ("acknowledged", "failed") else 2
        assert [type(one) for one in seen] == [error] * (2 + batches)
        assert reports == [[2, 2, 2, 2]] * len(seen), "the handler was called between reports"

    run(main)


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeUp])
def test_interrupt_while_the_failure_of_a_report_is_logged_is_passed_to_the_loop(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal handler raises in library code, not in the hook. The call raises the record's
    error, and all other hooks receive the outcome."""

    def interrupted(*args: Any, **options: Any) -> None:
        raise error

    async def main() -> None:
        interceptors = [Interrupting(ValueError, method="on_acknowledgement"), Interceptor()]
        plugins = [Plugin(ValueError), Plugin()]
        _, producer = await producing(fast=True, interceptors=interceptors, plugins=plugins)
        seen: list[BaseException] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: seen.append(context["exception"])
        )
        with monkeypatch.context() as patch:
            patch.setattr("aiokprod._client.record_hooks.logger.warning", interrupted)
            patch.setattr("aiokprod.interceptors.logger.warning", interrupted)
            with pytest.raises(KafkaError) as refusal:
                producer.try_submit("t", b"v", partition=5)
        await asyncio.sleep(0)
        assert [type(one) for one in seen] == [error, error]
        for interceptor in interceptors:
            [(_, reported, _)] = interceptor.ended
            assert type(reported) is refusal.type
        assert [plugin.ended for plugin in plugins] == [[(None, refusal.type)]] * 2
        await producer.close()

    run(main)


def test_exit_of_the_exception_handler_ends_the_loop_after_all_reports() -> None:
    interceptors = [Interrupting(KeyboardInterrupt, method="on_acknowledgement"), Interceptor()]
    plugins = [Plugin(KeyboardInterrupt), Plugin()]

    def leave(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.set_exception_handler(None)
        raise SystemExit(3)

    async def main() -> None:
        _, producer = await producing(fast=True, interceptors=interceptors, plugins=plugins)
        asyncio.get_running_loop().set_exception_handler(leave)
        try:
            handles = [producer.try_submit("t", value) for value in (b"0", b"1")]
            await asyncio.gather(*handles)
        finally:
            assert runtime_of(producer).failure is None
            await producer.close()

    with pytest.raises(SystemExit):
        run(main)
    lists = [each.ended for each in interceptors] + [each.ended for each in plugins]
    assert [len(ended) for ended in lists] == [2, 2, 2, 2]


def test_interrupt_in_a_report_after_the_end_of_the_loop_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plugins = [Plugin(KeyboardInterrupt), Plugin()]
    hooks = RecordHooks(None, tuple(plugins), Observer())
    hooks.loop = asyncio.new_event_loop()
    hooks.loop.close()
    hooked = hooks.start(ProducerRecord("t", b"v"))
    assert hooked is not None
    hooks.end(hooked, "t", None, KafkaError("refused"))
    assert [len(plugin.ended) for plugin in plugins] == [1, 1]
    assert "a plug-in was interrupted" in caplog.text


def test_record_dropped_before_there_is_a_loop_is_not_reported() -> None:
    plugin = Plugin()
    hooks = RecordHooks(None, (plugin,), Observer())
    hooked = hooks.start(ProducerRecord("t", b"v"))
    assert hooked is not None
    del hooked
    gc.collect()
    assert plugin.ended == []


async def refused_at(step: int) -> bool:
    """Interrupt a call that is rejected. Return False if the call took fewer bytecodes."""
    interceptor = Interceptor()
    _, producer = await producing(fast=False, interceptors=[interceptor])

    def strike() -> None:
        raise TimeUp

    injector = Injector(step, strike)

    async def call() -> None:
        with injector.armed(), contextlib.suppress(KafkaError, TimeUp):
            producer.try_submit("t", b"v", partition=5)

    # Call it in a task: if a tracer raises between two handlers, the exception stays attached to
    # the coroutine.
    await asyncio.create_task(call())
    # A record whose report was interrupted is reported when it is deleted. The canary reads the
    # frames of its exception, so it may have put the record into a reference cycle.
    if len(interceptor.sent) != len(interceptor.ended):
        gc.collect()
    for _ in range(3):  # until the loop runs the callbacks of a finalizer
        await asyncio.sleep(0)
    assert len(interceptor.sent) == len(interceptor.ended), step
    await producer.close()
    return injector.has_struck


def test_refused_record_is_reported_once_wherever_a_signal_handler_raises() -> None:
    async def main() -> None:
        for step in range(1, 2_000, 3):
            if not await refused_at(step):
                assert step > 100, "the tracer saw the call"
                return
        raise AssertionError("the call never ends")

    run(main, debug=False)
