"""The compiled awaitables on real event loops: asyncio's and uvloop's, also with eager tasks.

Most tests use virtual time. `noxfile.py` runs these tests in addition for each interpreter, because
the core implements the slots of awaitables itself.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest

from aiokprod import BulkResult, Delivery, Producer, RecordMetadata
from aiokprod.testing.fake_cluster import FakeCluster, serve_tcp

Run: TypeAlias = Callable[[Callable[[Producer[Any, Any]], Awaitable[None]]], FakeCluster]

LOOPS = ["asyncio", "uvloop"]
if sys.version_info >= (3, 12):
    # Not on uvloop: it calls the task factory with arguments that CPython 3.13.0 does not accept.
    LOOPS.append("asyncio, eager tasks")


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    """Return a function that runs a coroutine function with a producer on a cluster behind
    sockets."""
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    if request.param == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop

    def call(body: Callable[[Producer[Any, Any]], Awaitable[None]]) -> FakeCluster:
        cluster = FakeCluster()
        cluster.create_topic("t", 3)

        async def main() -> None:
            if sys.version_info >= (3, 12) and "eager" in request.param:
                asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
            async with (
                serve_tcp(cluster) as bootstrap,
                Producer(bootstrap_servers=bootstrap) as producer,
                asyncio.timeout(60),
            ):
                await body(producer)

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())
        assert cluster.violations == []
        return cluster

    return call


def values(cluster: FakeCluster) -> list[bytes]:
    return sorted(record.value or b"" for log in cluster.logs("t") for record in log)


def test_send_and_submit_can_be_awaited(run: Run) -> None:
    async def body(producer: Producer[Any, Any]) -> None:
        assert isinstance(await producer.send("t", b"1"), RecordMetadata)
        delivery = await producer.submit("t", b"2")
        assert isinstance(delivery, Delivery)
        assert await delivery == await delivery == delivery.result()

    assert values(run(body)) == [b"1", b"2"]


def test_deliveries_work_with_the_functions_of_asyncio(run: Run) -> None:
    async def body(producer: Producer[Any, Any]) -> None:
        first, second, third = [await producer.submit("t", b"%d" % n) for n in range(3)]
        called: list[object] = []
        first.add_done_callback(called.append)
        assert (await asyncio.wait_for(first, 30)).topic == "t"
        assert (await asyncio.shield(second)).topic == "t"
        done, pending = await asyncio.wait([second, third])  # type: ignore[type-var]
        assert done == {second, third}
        assert not pending
        assert len(await asyncio.gather(first, second, third)) == 3
        await asyncio.sleep(0)
        assert called == [first]

    assert values(run(body)) == [b"0", b"1", b"2"]


def test_tasks_that_send_side_by_side_get_their_own_records(run: Run) -> None:
    async def send(producer: Producer[Any, Any], number: int) -> tuple[int, RecordMetadata]:
        return number, await producer.send("t", b"%03d" % number, partition=number % 3)

    async def body(producer: Producer[Any, Any]) -> None:
        tasks = [asyncio.create_task(send(producer, number)) for number in range(300)]
        for number, metadata in await asyncio.gather(*tasks):
            assert metadata.partition == number % 3

    assert values(run(body)) == [b"%03d" % number for number in range(300)]


def test_cancelled_task_withdraws_its_record(run: Run) -> None:
    async def body(producer: Producer[Any, Any]) -> None:
        await producer.send("t", b"first")
        delivery = await producer.submit("t", b"withdrawn")
        assert delivery.cancel()
        with pytest.raises(asyncio.CancelledError):
            await delivery

    assert values(run(body)) == [b"first"]


def test_tight_loop_leaves_time_for_other_tasks(run: Run) -> None:
    async def body(producer: Producer[Any, Any]) -> None:
        passes = 0

        async def count() -> None:
            nonlocal passes
            while True:
                passes += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(count())
        deliveries = [await producer.submit("t", b"%05d" % number) for number in range(20_000)]
        await asyncio.gather(*deliveries)
        other.cancel()
        assert passes > 1

    assert len(values(run(body))) == 20_000


def test_send_many_returns_every_outcome(run: Run) -> None:
    async def body(producer: Producer[Any, Any]) -> None:
        result = await producer.send_many("t", [b"%03d" % number for number in range(500)])
        assert isinstance(result, BulkResult)
        assert result.ok
        assert len(result) == 500

    assert len(values(run(body))) == 500
