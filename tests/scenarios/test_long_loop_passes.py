"""F77: every iteration of the event loop exceeds its time slice, so a task that sends continuously
has to wait. This is tested under every fault."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from aiokprod._core.batch import Delivery
from aiokprod._core.yielding import YieldQueue
from aiokprod.errors import KafkaError, Outcome, ProducerClosed
from aiokprod.producer import Producer
from aiokprod.testing.fake_cluster import FakeCluster
from tests.scenarios.scenario_helpers import harness, play, runtime_of
from tests.simulation.parallel_seeds import Totals, outcomes

USERS = 40


@pytest.fixture(autouse=True)
def short_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    always_over = functools.partial(YieldQueue, slice_length=-1.0)
    monkeypatch.setattr("aiokprod._client.runtime.YieldQueue", always_over)


def in_line(producer: Producer[Any, Any]) -> int:
    return runtime_of(producer).yield_queue.waiting


async def crowded(producer: Producer[Any, Any]) -> None:
    """Wait until half of the users are queued."""
    while in_line(producer) < USERS // 2:  # noqa: ASYNC110
        await asyncio.sleep(0)


def run(
    users: Callable[[Producer[Any, Any], FakeCluster], Coroutine[Any, Any, Any]], **options: Any
) -> None:
    """Run `users(producer, cluster)` with a topic of four partitions on three brokers."""

    async def main() -> None:
        async with harness(partitions=4, cluster={"brokers": 3}, **options) as (
            cluster,
            producer,
            _,
        ):
            await producer.start()
            await producer.warm(["t"])
            await users(producer, cluster)

    play(main)


async def send(
    producer: Producer[Any, Any], handles: list[Delivery], name: int, records: int
) -> None:
    for number in range(records):
        # One by one, because other tasks read the list in the meantime.
        handles.append(await producer.submit("t", b"%d-%d" % (name, number)))  # noqa: PERF401


def test_every_record_of_a_crowd_in_line_is_acknowledged_once() -> None:
    handles: list[Delivery] = []
    longest = 0

    async def users(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        nonlocal longest
        tasks = [asyncio.create_task(send(producer, handles, n, 600)) for n in range(USERS)]
        while not all(task.done() for task in tasks):
            longest = max(longest, in_line(producer))
            await asyncio.sleep(0)
        places = [await handle for handle in handles]
        assert len({(one.partition, one.offset) for one in places}) == USERS * 600

    run(users)
    assert longest > USERS // 2, "they did wait in line"


def test_close_ends_who_waits_in_line() -> None:
    handles: list[Delivery] = []
    errors: list[ProducerClosed] = []

    async def user(producer: Producer[Any, Any], name: int) -> None:
        try:
            await send(producer, handles, name, 1_000_000)
        except ProducerClosed as error:
            errors.append(error)

    async def users(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        tasks = [asyncio.create_task(user(producer, name)) for name in range(USERS)]
        await crowded(producer)
        await producer.close(5)
        await asyncio.wait_for(asyncio.gather(*tasks), 10)
        assert in_line(producer) == 0

    run(users)
    assert len(errors) == USERS
    assert all(handle.done() for handle in handles)


def test_cancelled_in_line_the_record_was_admitted_and_has_its_outcome() -> None:
    handles: list[Delivery] = []
    cancelled = 0

    async def users(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        nonlocal cancelled
        tasks = [asyncio.create_task(send(producer, handles, n, 3000)) for n in range(USERS)]
        await crowded(producer)
        for task in tasks[::2]:
            cancelled += task.cancel()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
        await producer.flush()
        assert in_line(producer) == 0
        for handle in handles:
            await handle

    run(users)
    assert cancelled == USERS // 2
    assert len(handles) >= USERS // 2 * 3000


@pytest.mark.parametrize("timeout", [None, 30])
@pytest.mark.parametrize("passes", range(4))
def test_cancelled_send_that_took_the_slow_path_withdraws_its_record(
    timeout: float | None, passes: int
) -> None:
    async def users(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        sending = asyncio.create_task(producer.send("t", b"victim", timeout=timeout))
        for _ in range(passes):
            await asyncio.sleep(0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await producer.flush()
        assert not any(cluster.logs("t"))

    run(users, value_serializer=lambda value: value, linger_ms=1000, adaptive_linger=False)


def test_full_memory_and_silent_brokers_hold_nobody_for_ever_in_line() -> None:
    outcomes_seen = []

    async def user(producer: Producer[Any, Any], name: int) -> None:
        for number in range(400):
            try:
                handle = await producer.submit("t", b"%d-%d" % (name, number))
                await handle
            except KafkaError as error:
                outcomes_seen.append(error.outcome)
                return

    async def users(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        for broker_id in cluster.brokers:
            cluster.pause(broker_id)
        tasks = [asyncio.create_task(user(producer, name)) for name in range(USERS)]
        fill = [asyncio.create_task(send(producer, [], n, 5000)) for n in range(4)]
        done = await asyncio.wait_for(asyncio.gather(*tasks, *fill, return_exceptions=True), 120)
        assert len(done) == USERS + 4
        assert in_line(producer) == 0

    run(users, buffer_memory=256 * 1024, batch_size=16 * 1024, max_block_ms=2_000,
        delivery_timeout_ms=6_000, request_timeout_ms=2_000, linger_ms=0)  # fmt: skip
    assert outcomes_seen
    assert set(outcomes_seen) <= {Outcome.NOT_SENT, Outcome.UNKNOWN}


def test_simulation_in_which_senders_wait_in_line(monkeypatch: pytest.MonkeyPatch) -> None:
    releases = []

    class Watched(YieldQueue):
        def release(self) -> None:
            releases.append(self.waiting)
            super().release()

    monkeypatch.setattr(
        "aiokprod._client.runtime.YieldQueue", functools.partial(Watched, slice_length=-1.0)
    )
    totals = Totals()
    for seed, found in outcomes(range(300, 420), jobs=1):
        totals.add(seed, found)
    assert not totals.broken
    # The number is small: the clock is read only with every 64th record, and plans send fewer at
    # once.
    assert len(releases) >= 10, "nobody waited in line"
