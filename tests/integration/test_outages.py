"""Real brokers that are killed, or frozen all together or one at a time: the log and the health of
the producer.

The measured seconds are printed. The asserted limits leave room for a busy machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pytest

from aiokprod import KafkaError, Producer
from aiokprod.testing.kafka_cluster import KafkaCluster
from tests.client.outages import LogTap, tapped
from tests.integration.runner import Run

pytestmark = pytest.mark.slow

NOTICED_S = 30.0
OUTAGE_S = 25.0
RECOVERED_S = 120.0
PER_S = 50

Fault = Callable[[KafkaCluster], Coroutine[Any, Any, None]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    # With this session timeout there is no failover while one broker is frozen, so its partitions
    # wait until it continues. Killed brokers can register again after their sessions have expired.
    config = {
        "broker.session.timeout.ms": "45000", "initial.broker.registration.timeout.ms": "150000"
    }  # fmt: skip
    made = KafkaCluster(3, heap="384m", config=config)
    made.start_blocking()
    yield made
    made.stop_blocking()


async def freeze_one(cluster: KafkaCluster) -> None:
    await cluster.pause(await cluster.leader_of("outages", 0))


async def kill_all(cluster: KafkaCluster) -> None:
    await cluster.kill_all()


async def start_all(cluster: KafkaCluster) -> None:
    await cluster.start_nodes(cluster.node_ids)


async def thaw(cluster: KafkaCluster) -> None:
    for node in cluster.node_ids:
        await cluster.resume(node)


@contextlib.asynccontextmanager
async def load(producer: Producer[Any, Any]) -> AsyncIterator[None]:
    """Send records to all partitions until the end of the block."""
    waiting: set[asyncio.Task[None]] = set()

    async def send(number: int) -> None:
        with contextlib.suppress(KafkaError):
            await producer.send("outages", b"x" * 100, partition=number % 3)

    async def run() -> None:
        number = 0
        while True:
            waiting.add(task := asyncio.create_task(send(number)))
            task.add_done_callback(waiting.discard)
            number += 1
            await asyncio.sleep(1 / PER_S)

    running = asyncio.create_task(run())
    try:
        yield
    finally:
        running.cancel()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, running, return_exceptions=True)


async def first(condition: Callable[[], bool], limit: float) -> float:
    """Wait until the condition holds, and return the seconds."""
    start = time.monotonic()
    async with asyncio.timeout(limit):
        while True:
            if condition():
                return time.monotonic() - start
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("fault", "end", "reason"),
    [
        (KafkaCluster.pause_all, thaw, "does not respond"),
        (freeze_one, thaw, "does not respond"),
        (kill_all, start_all, "no broker can be reached"),
    ],
    ids=["all frozen", "one frozen", "all dead"],
)
def test_outage_of_real_brokers_is_noticed(
    cluster: KafkaCluster, run_uvloop: Run, fault: Fault, end: Fault, reason: str
) -> None:
    async def main() -> None:
        with contextlib.suppress(Exception):
            await cluster.create_topic("outages", partitions=3)
        with tapped() as log:
            async with contextlib.AsyncExitStack() as stack:
                producer: Producer[Any, Any] = Producer(bootstrap_servers=cluster.bootstrap_servers)
                stack.push_async_callback(producer.close, 5.0)
                await producer.warm(["outages"])
                await stack.enter_async_context(load(producer))
                await asyncio.sleep(5.0)
                assert producer.health().ok, producer.health()
                await notice(cluster, producer, log, fault, reason)
                began = asyncio.get_running_loop().time()
                await asyncio.sleep(OUTAGE_S)
                lines = log.since(began)
                print(f"further lines in {OUTAGE_S:g} s: {lines}")
                assert len(lines) <= OUTAGE_S / 10
                await end(cluster)
                seconds = await first(lambda: producer.health().ok, RECOVERED_S)
                resumed = await first(lambda: bool(log.events("delivery_resumed")), RECOVERED_S)
                print(f"ok after {seconds:.2f} s, INFO {resumed:.2f} s later")
                print(log.events("delivery_resumed")[0]["message"])

    run_uvloop(main())


async def notice(
    cluster: KafkaCluster, producer: Producer[Any, Any], log: LogTap, fault: Fault, reason: str
) -> None:
    """Cause the fault, and wait until the log, health() and explain() name it."""
    loop = asyncio.get_running_loop()
    begin = asyncio.create_task(fault(cluster))
    started = loop.time()
    logged = await first(lambda: bool(log.events("delivery_stalled")), NOTICED_S)
    await begin
    (fields,) = log.events("delivery_stalled")
    health = producer.health()
    print(f"WARNING after {logged:.2f} s, ok={health.ok}: {fields['message']}")
    assert not health.ok
    assert health.cause is not None
    assert reason in fields["message"]
    assert fields["kafka_partitions"] >= 1
    text = producer.explain()
    print(text)
    assert "outages-0: " in text
    assert reason in text
    assert len(log.since(started)) <= 1 + (loop.time() - started) / 10
