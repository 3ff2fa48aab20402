"""Calls off the producer's loop, and frameworks that choose by "is it async?" where to call."""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
import warnings
from types import FunctionType

import pytest
from starlette.background import BackgroundTask, BackgroundTasks

from aiokprod import Producer, WrongLoop
from aiokprod.testing.fake_cluster import FakeCluster

RECORDS = 5


def run_with_producer(main):
    """`main(producer, cluster)` on a real loop; a coroutine nobody awaits is an error."""

    async def start():
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


def values_of(cluster):
    return cluster.values("t", 0)[1:]


CALLS = {
    "send": lambda producer, value: ((producer.send, "t", value), {}),
    "submit": lambda producer, value: ((producer.submit, "t", value), {}),
    "submit with a key": lambda producer, value: ((producer.submit, "t", value), {"key": b"k"}),
    "submit by the slow path": lambda producer, value: (
        (producer.submit, "t", bytearray(value)), {}
    ),
    "send_many": lambda producer, value: ((producer.send_many, "t", [value]), {}),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_background_task_delivers_every_record(call):
    async def main(producer, cluster):
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


def test_background_task_of_a_producer_that_is_not_started_delivers_every_record():
    async def main(_, cluster):
        producer = Producer(
            bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment()
        )
        await BackgroundTask(producer.submit, "t", b"v")()
        await producer.close()
        assert values_of(cluster) == [b"v"]

    run_with_producer(main)


def test_try_submit_in_a_background_task_is_an_error_not_a_loss():
    async def main(producer, cluster):
        with pytest.raises(WrongLoop, match="run_coroutine_threadsafe"):
            await BackgroundTask(producer.try_submit, "t", b"v")()
        assert values_of(cluster) == []

    run_with_producer(main)


@pytest.mark.parametrize("value", [b"v", bytearray(b"v"), "no bytes"])
@pytest.mark.parametrize("started", [True, False])
def test_submit_in_another_thread_raises_at_the_call(started, value):
    async def main(producer, cluster):
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


def test_submit_on_another_loop_raises_at_the_call():
    async def main(producer, cluster):
        async def elsewhere():
            with pytest.raises(WrongLoop):
                producer.submit("t", b"v")
            for call in (producer.send_many("t", [b"v"]), producer.send("t", b"v")):
                with pytest.raises(WrongLoop):
                    await call

        await asyncio.to_thread(asyncio.run, elsewhere())
        assert values_of(cluster) == []

    run_with_producer(main)


def test_submit_of_a_producer_without_a_loop_raises_at_the_call():
    producer = Producer(bootstrap_servers="localhost:1")
    with pytest.raises(WrongLoop, match="no event loop runs in this thread"):
        producer.submit("t", b"v")


def test_submit_counts_as_a_coroutine_function_before_and_after_the_start():
    looks = [asyncio.iscoroutinefunction] if sys.version_info < (3, 14) else []
    if sys.version_info >= (3, 12):
        looks.append(inspect.iscoroutinefunction)

    async def main(producer, cluster):
        assert not isinstance(vars(Producer)["submit"], FunctionType), "compiled, without a frame"
        fresh = Producer(bootstrap_servers="localhost:1")
        for look in looks:
            assert look(producer.submit)
            assert look(fresh.submit)
            assert look(Producer.submit)
            assert not look(producer.try_submit)

    run_with_producer(main)


@pytest.mark.parametrize("schedule", ["call_soon", "call_soon_threadsafe", "call_later"])
def test_debug_mode_refuses_submit_as_a_callback_and_takes_try_submit(schedule):
    """The loop awaits nothing that a callback returns: a record on the slow path would be lost."""

    async def main(producer, cluster):
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
