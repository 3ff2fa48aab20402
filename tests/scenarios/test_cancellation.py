"""Cancellation at every await of every public coroutine (F68, house rule)."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from aiokprod.errors import KafkaError
from aiokprod.producer import Producer
from aiokprod.records import ProducerRecord, RecordMetadata
from aiokprod.testing import fake_cluster as faults
from aiokprod.testing.fake_cluster import FakeCluster
from tests.scenarios.scenario_helpers import harness, play


class CancelAt:
    """Runs a coroutine as part of its task and cancels that task at the n-th suspension.

    The loop first continues for `late_s` seconds, so that the cancellation coincides with the
    wakeup.
    """

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], number: int, late_s: float | None
    ) -> None:
        self.coroutine = coroutine
        self.number = number
        self.late_s = late_s
        self.suspensions = 0
        self.timers: list[asyncio.Handle] = []

    def __await__(self) -> Generator[Any, Any, Any]:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        inner = self.coroutine.__await__()
        try:
            pending = next(inner)
            while True:
                if self.suspensions == self.number:
                    when = loop.time() + (self.late_s or 0.0)
                    if self.late_s is None:
                        self.timers.append(loop.call_soon(task.cancel))
                    else:
                        self.timers.append(loop.call_at(when, task.cancel))
                self.suspensions += 1
                try:
                    yield pending
                except BaseException as error:
                    pending = inner.throw(error)
                else:
                    pending = inner.send(None)
        except StopIteration as stop:
            return stop.value


async def cancelled_at(
    coroutine: Coroutine[Any, Any, Any], number: int, late_s: float | None
) -> bool:
    """Run and cancel. Return whether the n-th suspension was reached."""
    cancelling = CancelAt(coroutine, number, late_s)

    async def main() -> Any:
        return await cancelling

    with contextlib.suppress(asyncio.CancelledError, KafkaError):
        await asyncio.ensure_future(main())
    for timer in cancelling.timers:
        timer.cancel()
    return cancelling.suspensions > number


async def deliver(producer: Producer[Any, Any]) -> RecordMetadata:
    return await (await producer.submit("t", b"victim", key=b"k"))


CALLS: dict[str, Callable[[Producer[Any, Any]], Coroutine[Any, Any, object]]] = {
    "send": lambda p: p.send("t", b"victim", key=b"k"),
    "send_timeout": lambda p: p.send("t", b"victim", timeout=30),
    "submit": deliver,
    "send_many": lambda p: p.send_many("t", [b"victim"] * 3),
    "send_records": lambda p: p.send_many([ProducerRecord("t", b"victim", partition=1)]),
    "send_table": lambda p: p.send_table("t", pa.table({"value": [b"victim"] * 3})),
    "flush": lambda p: p.flush(),
    "flush_timeout": lambda p: p.flush(30),
    "start": lambda p: p.start(),
    "warm": lambda p: p.warm(["t", "u"]),
    "partitions_for": lambda p: p.partitions_for("t"),
    "refresh_metadata": lambda p: p.refresh_metadata(),
    "check": lambda p: p.check(["t"]),
    "close": lambda p: p.close(),
    "close_timeout": lambda p: p.close(20),
}

COLD, WARM, FULL, SLOW, ERRORS = "cold", "warm", "full", "slow", "errors"


async def prepare(state: str, cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
    """Bring the producer into a state in which calls suspend at different places."""
    if state == COLD:
        return
    await producer.send("t", b"first", partition=0)
    if state == FULL:
        cluster.control(0, faults.delay(0.5), times=6)
        for _ in range(4):
            producer.try_submit("t", b"x" * 2_000, partition=0)
    elif state == SLOW:
        cluster.control(0, faults.delay(0.5), times=3)
        producer.try_submit("t", b"slow", partition=0)
        producer.try_submit("t", b"slow", partition=1)
        await asyncio.sleep(0.1)
    elif state == ERRORS:
        cluster.fail_produce(("t", 0), 19, 2)
        cluster.fail_produce(("t", 1), 6, 2)
        cluster.control(0, faults.close(), times=1)


def assert_memory_is_free(producer: Producer[Any, Any]) -> None:
    metrics = producer.metrics()
    # A producer that was never started has no buffer, and therefore none of these metrics.
    assert metrics.get("buffer_available_bytes") == metrics.get("buffer_total_bytes")
    assert metrics.get("waiting_sends", 0) == 0


async def sweep_one(name: str, state: str, number: int, late_s: float | None) -> bool:
    options: dict[str, Any] = (
        {"buffer_memory": 10_000, "max_request_size": 9_000} if state == FULL else {}
    )
    async with harness(partitions=2, **options) as (cluster, producer, _):
        cluster.create_topic("u", 1)
        await prepare(state, cluster, producer)
        reached = await cancelled_at(CALLS[name](producer), number, late_s)
        if name.startswith("close"):
            report = await asyncio.wait_for(producer.close(20), 21)
            assert report is not None
        else:
            await asyncio.wait_for(producer.flush(), 30)
            assert_memory_is_free(producer)
            metadata = await asyncio.wait_for(producer.send("t", b"after", partition=0), 30)
            assert metadata.offset is not None
            assert cluster.log("t", 0)[metadata.offset].value == b"after"
        victims = sum(record.value == b"victim" for log in cluster.logs("t") for record in log)
        assert victims <= (3 if name in ("send_many", "send_table") else 1)
        assert cluster.violations == []
        return reached


@pytest.mark.parametrize("state", [COLD, WARM, FULL, SLOW, ERRORS])
@pytest.mark.parametrize("name", list(CALLS))
def test_cancelled_at_every_await_leaves_the_producer_whole(name: str, state: str) -> None:
    for late_s in (None, 0.0, 0.0004, 0.001, 0.2):
        number = 0
        while play(partial(sweep_one, name, state, number, late_s)):
            number += 1
            assert number < 60, "a call that never stops suspending"


@pytest.mark.parametrize("seed", range(30))
def test_cancelled_at_random_under_load_keeps_every_answer_true(seed: int) -> None:
    rng = random.Random(seed)

    async def main() -> None:
        options: dict[str, Any] = {
            "buffer_memory": 6_000,
            "max_request_size": 5_000,
            "linger_ms": 2,
        }
        async with harness(partitions=2, seed=seed, **options) as (cluster, producer, _):
            outcomes: dict[int, int | None] = {}

            async def one(number: int) -> None:
                value = b"%d" % number
                try:
                    size = rng.randrange(600)
                    metadata = await producer.send("t", value.ljust(size + 8), partition=number % 2)
                except asyncio.CancelledError:
                    outcomes[number] = None
                else:
                    outcomes[number] = metadata.offset

            tasks = []
            for number in range(150):
                tasks.append(asyncio.ensure_future(one(number)))
                if rng.random() < 0.3:
                    await asyncio.sleep(rng.uniform(0, 0.003))
                if rng.random() < 0.4:
                    rng.choice(tasks).cancel()
                if rng.random() < 0.03 and cluster.network.links:
                    cluster.network.links[-1].reset()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.wait_for(producer.flush(), 30)
            stored = [[int(r.value or b"") for r in log] for log in cluster.logs("t")]
            for partition, numbers in enumerate(stored):
                assert len(set(numbers)) == len(numbers)
                for number, offset in outcomes.items():
                    if number % 2 == partition and offset is not None:
                        assert numbers[offset] == number
            assert_memory_is_free(producer)
            assert cluster.violations == []

    play(main, seed=seed)
