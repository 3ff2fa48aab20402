"""Calls outside the producer's loop, and frameworks that use `iscoroutinefunction` to decide where
to call."""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Coroutine
from types import FunctionType
from typing import Any

import pytest
from starlette.background import BackgroundTask, BackgroundTasks

from aiokprod import Producer, WrongLoop
from aiokprod.testing.fake_cluster import FakeCluster
from tests.hang import HANG_S

RECORDS = 5


def run_with_producer(
    main: Callable[[Producer[Any, Any], FakeCluster], Coroutine[Any, Any, Any]],
) -> None:
    """Run `main(producer, cluster)` on a real loop; a coroutine that is not awaited is an error."""

    async def start() -> None:
        cluster = FakeCluster(default_partitions=1)
        async with Producer(
            bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment()
        ) as producer:
            await producer.send("t", b"first")
            await main(producer, cluster)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(start())
        gc.collect()


def values_of(cluster: FakeCluster) -> list[bytes | None]:
    return cluster.values("t", 0)[1:]


CALLS: dict[str, Callable[[Producer[Any, Any], bytes], tuple[Any, dict[str, Any]]]] = {
    "send": lambda producer, value: ((producer.send, "t", value), {}),
    "submit": lambda producer, value: ((producer.submit, "t", value), {}),
    "submit with a key": lambda producer, value: ((producer.submit, "t", value), {"key": b"k"}),
    "submit by the slow path": lambda producer, value: (
        (producer.submit, "t", bytearray(value)), {}
    ),
    "send_many": lambda producer, value: ((producer.send_many, "t", [value]), {}),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_background_task_delivers_every_record(call: str) -> None:
    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        sent = [b"%d" % number for number in range(RECORDS)]
        for value in sent:
            arguments, options = CALLS[call](producer, value)
            await BackgroundTask(*arguments, **options)()
        several = BackgroundTasks()
        for value in sent:
            arguments, options = CALLS[call](producer, value)
            several.add_task(*arguments, **options)
        await several()
        await producer.flush()
        assert values_of(cluster) == sent + sent

    run_with_producer(main)


def test_background_task_of_a_producer_that_is_not_started_delivers_every_record() -> None:
    async def main(_: Producer[Any, Any], cluster: FakeCluster) -> None:
        producer = Producer(
            bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment()
        )
        await BackgroundTask(producer.submit, "t", b"v")()
        await producer.close()
        assert values_of(cluster) == [b"v"]

    run_with_producer(main)


def test_try_submit_in_a_background_task_is_an_error_not_a_loss() -> None:
    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        with pytest.raises(WrongLoop, match="run_coroutine_threadsafe"):
            await BackgroundTask(producer.try_submit, "t", b"v")()
        assert values_of(cluster) == []

    run_with_producer(main)


@pytest.mark.parametrize("value", [b"v", bytearray(b"v"), "no bytes"])
@pytest.mark.parametrize("started", [True, False])
def test_submit_in_another_thread_raises_at_the_call(
    started: bool, value: bytearray | bytes | str
) -> None:
    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        if not started:
            producer = Producer(
                bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment()
            )
        for function in (producer.submit, producer.try_submit):
            with pytest.raises(WrongLoop, match="run_coroutine_threadsafe"):
                await asyncio.to_thread(function, "t", value)
        await producer.flush()
        assert values_of(cluster) == []
        assert producer.metrics()["records_failed"] == 0

    run_with_producer(main)


def test_submit_on_another_loop_raises_at_the_call() -> None:
    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        async def elsewhere() -> None:
            with pytest.raises(WrongLoop):
                producer.submit("t", b"v")  # type: ignore[unused-coroutine]
            for call in (producer.send_many("t", [b"v"]), producer.send("t", b"v")):
                with pytest.raises(WrongLoop):
                    await call

        await asyncio.to_thread(asyncio.run, elsewhere())
        assert values_of(cluster) == []

    run_with_producer(main)


def test_submit_of_a_producer_without_a_loop_raises_at_the_call() -> None:
    producer = Producer(bootstrap_servers="localhost:1")
    with pytest.raises(WrongLoop, match="no event loop runs in this thread"):
        producer.submit("t", b"v")  # type: ignore[unused-coroutine]


def test_submit_counts_as_a_coroutine_function_before_and_after_the_start() -> None:
    looks: list[Callable[[Any], bool]] = [inspect.iscoroutinefunction]
    if sys.version_info < (3, 14):
        looks.append(asyncio.iscoroutinefunction)

    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        assert not isinstance(vars(Producer)["submit"], FunctionType), "compiled, without a frame"
        fresh = Producer(bootstrap_servers="localhost:1")
        for look in looks:
            assert look(producer.submit)
            assert look(fresh.submit)
            assert look(Producer.submit)
            assert not look(producer.try_submit)

    run_with_producer(main)


def test_inspect_tells_which_calls_have_to_be_awaited() -> None:
    public = {
        name: inspect.iscoroutinefunction(member)
        for name, member in inspect.getmembers(Producer, callable)
        if not name.startswith("_")
    }
    plain = {name for name, is_coroutine_function in public.items() if not is_coroutine_function}
    assert plain == {
        "explain", "health", "metrics", "send_threadsafe", "table_sender", "transaction",
        "try_submit",
    }  # fmt: skip
    assert {"submit", "send", "send_many", "send_table", "flush", "close"} < public.keys() - plain


def test_background_task_flushes_and_closes() -> None:
    async def main(_: Producer[Any, Any], cluster: FakeCluster) -> None:
        producer = Producer(
            bootstrap_servers=cluster.bootstrap_servers,
            environment=cluster.environment(),
            linger_ms=60_000,
            adaptive_linger=False,
        )
        await producer.warm(["t"])
        for number, call in enumerate((producer.flush, producer.close)):
            delivery = await producer.submit("t", b"%d" % number)
            assert not delivery.done()
            await BackgroundTask(call)()
            assert delivery.done()
        assert values_of(cluster) == [b"0", b"1"]
        assert "closed" in repr(producer)

    run_with_producer(main)


def test_coroutines_of_another_thread_run_on_the_loop() -> None:
    """Synchronous code in another thread uses `run_coroutine_threadsafe`."""

    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        loop = asyncio.get_running_loop()

        def in_thread() -> None:
            def result_of(call: Coroutine[Any, Any, Any]) -> Any:
                return asyncio.run_coroutine_threadsafe(call, loop).result(HANG_S)

            assert result_of(producer.send("t", b"v")).offset == 1
            assert result_of(producer.send_many("t", [b"w"])).ok
            result_of(producer.flush())
            assert result_of(producer.close()).complete

        await asyncio.to_thread(in_thread)
        assert values_of(cluster) == [b"v", b"w"]

    run_with_producer(main)


UNAWAITED: dict[str, Callable[[Producer[Any, Any]], Coroutine[Any, Any, Any]]] = {
    "send": lambda producer: producer.send("t", b"v"),
    "send_many": lambda producer: producer.send_many("t", [b"v"]),
    "flush": lambda producer: producer.flush(),
    "close": lambda producer: producer.close(),
}


@pytest.mark.parametrize("name", UNAWAITED)
def test_coroutine_of_another_thread_that_is_not_awaited_is_reported_by_python(name: str) -> None:
    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        def in_thread() -> None:
            _ = UNAWAITED[name](producer)

        with pytest.warns(RuntimeWarning, match=f"Producer.{name}' was never awaited"):
            await asyncio.to_thread(in_thread)
        assert values_of(cluster) == []
        assert producer.health().ok

    run_with_producer(main)


@pytest.mark.parametrize("name", UNAWAITED)
def test_coroutine_that_another_loop_awaits_raises(name: str) -> None:
    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        def in_thread() -> None:
            with pytest.raises(WrongLoop, match="run_coroutine_threadsafe"):
                asyncio.run(UNAWAITED[name](producer))

        await asyncio.to_thread(in_thread)
        assert values_of(cluster) == []
        assert producer.health().ok

    run_with_producer(main)


def test_call_in_another_thread_calls_nothing_of_the_user() -> None:
    threads: list[int] = []

    def noted(value: bytes) -> bytes:
        threads.append(threading.get_ident())
        return value

    async def main(_: Producer[Any, Any], cluster: FakeCluster) -> None:
        async with Producer(
            bootstrap_servers=cluster.bootstrap_servers,
            environment=cluster.environment(),
            value_serializer=noted,
        ) as producer:
            await producer.send("t", b"v")
            for function in (producer.submit, producer.try_submit):
                with pytest.raises(WrongLoop):
                    await asyncio.to_thread(function, "t", b"w")
        assert set(threads) == {threading.get_ident()}
        assert values_of(cluster) == [b"v"]

    run_with_producer(main)


@pytest.mark.parametrize("schedule", ["call_soon", "call_soon_threadsafe", "call_later"])
def test_debug_mode_refuses_submit_as_a_callback_and_takes_try_submit(schedule: str) -> None:
    """The loop awaits no return value of a callback: a record on the slow path would be lost."""

    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        loop = asyncio.get_running_loop()
        loop.set_debug(True)
        when = (0,) if schedule == "call_later" else ()
        with pytest.raises(TypeError, match="coroutines cannot be used"):
            getattr(loop, schedule)(*when, producer.submit, "t", b"refused")
        getattr(loop, schedule)(*when, producer.try_submit, "t", b"taken")
        await asyncio.sleep(0.01)
        await producer.flush()
        assert values_of(cluster) == [b"taken"]

    run_with_producer(main)
