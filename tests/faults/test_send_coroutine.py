"""The compiled coroutine of `send` has the life that `async def` would give it."""

from __future__ import annotations

import asyncio
import collections.abc

import pytest

from aiokprod import Producer
from aiokprod.errors import Code, ConfigError, Outcome, ProducerClosed, RecordTooLarge
from aiokprod.testing import fake_cluster as faults
from tests.faults.kit import play, scenario, world

# Both ways through it: the topic's metadata are known, or have to be fetched first.
WARM = pytest.mark.parametrize("warm", [True, False], ids=["fast", "slow"])


def started(**options):
    """A test of a started producer; with `warm`, its topic is known."""

    def decorate(test):
        async def main(warm):
            async with world(partitions=1, **options) as (cluster, producer, _):
                await producer.start()
                if warm:
                    await producer.warm(["t"])
                await test(cluster, producer)

        @WARM
        def wrapper(warm):
            play(lambda: main(warm))

        wrapper.__name__, wrapper.__doc__ = test.__name__, test.__doc__
        return wrapper

    return decorate


def length(cluster):
    return len(cluster.log("t", 0))


@started()
async def test_nothing_happens_before_it_is_awaited(cluster, producer):
    call = producer.send("t", b"x")
    await asyncio.sleep(1)
    assert length(cluster) == 0
    assert (await call).offset == 0
    assert length(cluster) == 1


@started()
async def test_one_that_is_never_awaited_warns_and_sends_nothing(cluster, producer):
    call = producer.send("t", b"x")
    with pytest.warns(RuntimeWarning, match=r"'Producer\.send' was never awaited"):
        del call
    await asyncio.sleep(1)
    assert length(cluster) == 0


@started()
async def test_it_is_a_coroutine_for_asyncio(cluster, producer):
    call = producer.send("t", b"x")
    assert asyncio.iscoroutine(call)
    assert isinstance(call, collections.abc.Coroutine)
    assert (call.__name__, call.__qualname__) == ("send", "Producer.send")
    assert (await call).offset == 0
    assert (await asyncio.create_task(producer.send("t", b"x"))).offset == 1
    assert (await asyncio.wait_for(producer.send("t", b"x"), 5)).offset == 2
    task = asyncio.ensure_future(producer.send("t", b"x"))
    await asyncio.sleep(0)
    assert "Producer.send" in repr(task)
    assert (await task).offset == 3
    found = await asyncio.gather(*(producer.send("t", b"x") for _ in range(3)))
    assert [metadata.offset for metadata in found] == [4, 5, 6]


@started()
async def test_it_is_awaited_once(cluster, producer):
    call = producer.send("t", b"x")
    await call
    for again in (lambda: call.send(None), lambda: next(call), lambda: call.throw(KeyError)):
        with pytest.raises(RuntimeError, match="already awaited"):
            again()
    call.close()
    assert length(cluster) == 1


@pytest.mark.parametrize("end", ["close", "throw", "throw class", "throw old"])
@scenario(partitions=1)
async def test_ended_before_it_began_it_sends_nothing(cluster, producer, history, end):
    await producer.warm(["t"])
    call = producer.send("t", b"x")
    if end == "close":
        call.close()
    else:
        given = {
            "throw": (KeyError("k"),), "throw class": (KeyError,),
            "throw old": (KeyError, KeyError("k"), None),
        }[end]  # fmt: skip
        with pytest.raises(KeyError):
            call.throw(*given)
    with pytest.raises(RuntimeError, match="already awaited"):
        await call
    await asyncio.sleep(1)
    assert length(cluster) == 0


@started()
async def test_task_cancelled_before_it_ran_sends_nothing(cluster, producer):
    task = asyncio.create_task(producer.send("t", b"x"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await producer.flush()
    assert length(cluster) == 0


@pytest.mark.parametrize("alone", [True, False], ids=["task of its own", "awaited"])
@scenario(partitions=1, linger_ms=1000, adaptive_linger=False)
async def test_cancelled_while_its_batch_is_open_it_is_withdrawn(cluster, producer, history, alone):
    await producer.warm(["t"])

    async def user():
        await producer.send("t", b"x")

    task = asyncio.create_task(producer.send("t", b"x") if alone else user())
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError, match="withdrawn before it was sent"):
        await task
    await producer.flush()
    assert length(cluster) == 0


@scenario(partitions=1)
async def test_cancelled_in_the_slow_path_it_sends_nothing(cluster, producer, history):
    for broker_id in cluster.brokers:
        cluster.pause(broker_id)
    await producer.start()
    task = asyncio.create_task(producer.send("t", b"x"))
    await asyncio.sleep(0.1)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for broker_id in cluster.brokers:
        cluster.resume(broker_id)
    await producer.flush()
    assert length(cluster) == 0


@scenario(partitions=1)
async def test_closed_in_the_slow_path_its_coroutine_is_closed_too(cluster, producer, history):
    await producer.start()
    call = producer.send("t", b"x")
    call.send(None)
    call.close()
    with pytest.raises(RuntimeError, match="already awaited"):
        call.send(None)
    await producer.flush()
    assert length(cluster) == 0


@started()
async def test_bad_record_is_told_when_it_is_awaited(cluster, producer):
    call = producer.send("t", "text is no bytes")
    with pytest.raises(Exception, match="value"):
        await call
    with pytest.raises(RuntimeError, match="already awaited"):
        await call
    with pytest.raises(TypeError):
        producer.send()
    with pytest.raises(ConfigError, match="timeout"):
        await producer.send("t", b"x", timeout=-1)


@started()
async def test_failure_of_the_delivery_is_raised_with_its_outcome(cluster, producer):
    cluster.control(0, faults.refuse(Code.MESSAGE_TOO_LARGE))
    call = producer.send("t", b"x")
    with pytest.raises(RecordTooLarge) as caught:
        await call
    assert caught.value.outcome is Outcome.REJECTED
    with pytest.raises(RuntimeError, match="already awaited"):
        await call


@started()
async def test_without_am_send_it_steps_just_so(cluster, producer):
    """As a traced interpreter steps it (a debugger, coverage)."""
    call = producer.send("t", b"x")
    while True:
        try:
            future = next(call)
        except StopIteration as stop:
            metadata = stop.value
            break
        if future is not None:
            future._asyncio_future_blocking = False
            await asyncio.wait([future])
        else:
            await asyncio.sleep(0)
    assert metadata.offset == 0


@scenario(partitions=1)
async def test_method_kept_from_before_the_start_works_after_it(cluster, producer, history):
    send = producer.send
    assert (await send("t", b"x")).offset == 0
    assert (await send("t", b"x")).offset == 1
    assert (await send("t", b"x", timeout=5)).offset == 2
    await producer.close()
    for method in (send, producer.send):
        with pytest.raises(ProducerClosed):
            await method("t", b"x")


def test_subclass_may_have_its_own_send():
    class Counting(Producer):
        calls = 0

        async def send(self, topic, value=None, **options):
            self.calls += 1
            return await super().send(topic, value, **options)

    async def main():
        async with world(partitions=1) as (cluster, producer, _):
            options = {"bootstrap_servers": cluster.bootstrap_servers}
            async with Counting(environment=producer._environment, **options) as own:
                assert [(await own.send("t", b"x")).offset for _ in range(3)] == [0, 1, 2]
                assert own.calls == 3

    play(main)
