"""F77: passes of the loop that are always over their time, so that whoever sends on waits in line,
under every fault there is."""

from __future__ import annotations

import asyncio
import functools

import pytest

from aiokprod._core.yielding import YieldQueue
from aiokprod.errors import KafkaError, Outcome, ProducerClosed
from tests.scenarios.scenario_helpers import harness, play
from tests.simulation.parallel_seeds import Totals, outcomes

USERS = 40


@pytest.fixture(autouse=True)
def short_passes(monkeypatch):
    always_over = functools.partial(YieldQueue, slice_length=-1.0)
    monkeypatch.setattr("aiokprod._client.runtime.YieldQueue", always_over)


def in_line(producer):
    return producer._lifecycle.runtime.yield_queue.waiting


async def crowded(producer):
    """Half of the users are in line."""
    while in_line(producer) < USERS // 2:  # noqa: ASYNC110
        await asyncio.sleep(0)


def run(users, **options):
    """`users(producer, cluster)` with a topic of four partitions on three brokers."""

    async def main():
        async with harness(partitions=4, cluster={"brokers": 3}, **options) as (
            cluster,
            producer,
            _,
        ):
            await producer.start()
            await producer.warm(["t"])
            await users(producer, cluster)

    play(main)


async def send(producer, handles, name, records):
    for number in range(records):
        handles.append(await producer.submit("t", b"%d-%d" % (name, number)))


def test_every_record_of_a_crowd_in_line_is_acknowledged_once():
    handles, longest = [], 0

    async def users(producer, cluster):
        nonlocal longest
        tasks = [asyncio.create_task(send(producer, handles, n, 600)) for n in range(USERS)]
        while not all(task.done() for task in tasks):
            longest = max(longest, in_line(producer))
            await asyncio.sleep(0)
        places = [await handle for handle in handles]
        assert len({(one.partition, one.offset) for one in places}) == USERS * 600

    run(users)
    assert longest > USERS // 2, "they did wait in line"


def test_close_ends_who_waits_in_line():
    handles, errors = [], []

    async def user(producer, name):
        try:
            await send(producer, handles, name, 1_000_000)
        except ProducerClosed as error:
            errors.append(error)

    async def users(producer, cluster):
        tasks = [asyncio.create_task(user(producer, name)) for name in range(USERS)]
        await crowded(producer)
        await producer.close(5)
        await asyncio.wait_for(asyncio.gather(*tasks), 10)
        assert in_line(producer) == 0

    run(users)
    assert len(errors) == USERS
    assert all(handle.done() for handle in handles)


def test_cancelled_in_line_the_record_was_admitted_and_has_its_outcome():
    handles, cancelled = [], 0

    async def users(producer, cluster):
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


def test_full_memory_and_silent_brokers_hold_nobody_for_ever_in_line():
    outcomes_seen = []

    async def user(producer, name):
        for number in range(400):
            try:
                handle = await producer.submit("t", b"%d-%d" % (name, number))
                await handle
            except KafkaError as error:
                outcomes_seen.append(error.outcome)
                return

    async def users(producer, cluster):
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


def test_simulation_in_which_senders_wait_in_line(monkeypatch):
    releases = []

    class Watched(YieldQueue):
        def release(self):
            releases.append(self.waiting)
            super().release()

    monkeypatch.setattr(
        "aiokprod._client.runtime.YieldQueue", functools.partial(Watched, slice_length=-1.0)
    )
    totals = Totals()
    for seed, found in outcomes(range(300, 420), jobs=1):
        totals.add(seed, found)
    assert not totals.broken
    # Few: the clock is looked at with every 64th record only, and plans send less at once.
    assert len(releases) >= 10, "nobody waited in line"
