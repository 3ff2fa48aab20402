"""A broker that does not respond: bounded memory, fair waiting, and timely timeouts."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aiokprod import (
    BufferTimeout,
    DeliveryTimeout,
    KafkaError,
    MetadataTimeout,
    Outcome,
    Producer,
    ProducerClosed,
)
from aiokprod.testing.kafka_cluster import KafkaCluster
from tests.hang import HANG_S
from tests.integration.runner import Run

MIB = 1024 * 1024
EARLY = 0.05


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaCluster]:
    """A separate node, because freezing a shared node would disturb other tests."""
    cluster = KafkaCluster(1)
    cluster.start_blocking()
    yield cluster
    cluster.stop_blocking()


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def ready_topic(broker: KafkaCluster, producer: Producer[bytes, bytes], topic: str) -> None:
    await broker.create_topic(topic, partitions=2)
    for partition in range(2):
        await producer.send(topic, b"warm-up", partition=partition)


async def seconds_until(error: type[KafkaError], attempt: asyncio.Future[Any]) -> float:
    started = time.monotonic()
    with pytest.raises(error):
        await attempt
    return time.monotonic() - started


def test_memory_broker_paused_within_the_budget(
    broker: KafkaCluster, run_uvloop: Run, topic: str
) -> None:
    buffer_memory = 32 * MIB

    async def flood(producer: Producer[bytes, bytes]) -> None:
        while True:
            await producer.submit(topic, os.urandom(1_000))

    async def scenario() -> tuple[int, int]:
        async with Producer(
            bootstrap_servers=broker.bootstrap_servers, buffer_memory=buffer_memory
        ) as producer:
            await ready_topic(broker, producer, topic)
            before = resident_bytes()
            await broker.pause_all()
            flooders = [asyncio.ensure_future(flood(producer)) for _ in range(100)]
            most = 0
            for _ in range(50):
                await asyncio.sleep(0.1)
                most = max(most, resident_bytes() - before)
            used = (
                producer.metrics()["buffer_total_bytes"]
                - producer.metrics()["buffer_available_bytes"]
            )
            for task in flooders:
                task.cancel()
            await asyncio.gather(*flooders, return_exceptions=True)
            await broker.resume_all()
            await producer.flush()
        return most, int(used)

    most, used = run_uvloop(scenario())
    print(f"grew by {most / MIB:.1f} MiB, {used / MIB:.1f} MiB of it accounted")
    assert most <= buffer_memory + 64 * MIB
    assert used <= buffer_memory
    assert used > buffer_memory * 0.9


def test_waiters_broker_paused_then_resumed_admitted_in_fifo_order(
    broker: KafkaCluster, run: Run, topic: str
) -> None:
    async def scenario() -> list[int]:
        admitted: list[int] = []
        async with Producer(
            bootstrap_servers=broker.bootstrap_servers, buffer_memory=MIB, batch_size=16_384
        ) as producer:
            await ready_topic(broker, producer, topic)
            await broker.pause_all()

            async def one(number: int) -> None:
                # Small records must not overtake the large records that already wait.
                await producer.submit(topic, b"v" * (100 if number % 2 else 20_000))
                admitted.append(number)

            tasks = []
            for number in range(600):
                tasks.append(asyncio.ensure_future(one(number)))
                await asyncio.sleep(0)
            await asyncio.sleep(0.5)
            assert len(admitted) < 300, "the buffer did not fill"
            await broker.resume_all()
            await asyncio.gather(*tasks)
            await producer.flush()
        return admitted

    assert run(scenario()) == list(range(600))


def test_timeouts_broker_paused_on_time(broker: KafkaCluster, run: Run, topic: str) -> None:
    async def scenario() -> dict[str, tuple[float, float]]:
        """Return pairs of (expected, measured) seconds by description."""
        times: dict[str, tuple[float, float]] = {}
        producer: Producer[bytes, bytes] = Producer(
            bootstrap_servers=broker.bootstrap_servers,
            buffer_memory=MIB,
            max_block_ms=2_000,
            delivery_timeout_ms=5_000,
            request_timeout_ms=1_500,
        )
        async with producer:
            await ready_topic(broker, producer, topic)
            await broker.pause_all()
            delivery = await producer.submit(topic, b"delivery")
            started = time.monotonic()
            unknown = asyncio.ensure_future(producer.send(topic + "-new", b"v"))
            times["metadata"] = (2.0, await seconds_until(MetadataTimeout, unknown))
            short = asyncio.ensure_future(producer.send(topic, b"v", timeout=1.0))
            times["send(timeout)"] = (1.0, await seconds_until(DeliveryTimeout, short))
            with pytest.raises(DeliveryTimeout):
                await delivery
            times["delivery"] = (5.0, time.monotonic() - started)
            times["buffer"] = (2.0, await buffer_timeout(producer))
            flushing = asyncio.ensure_future(producer.flush(timeout=1.0))
            times["flush(timeout)"] = (1.0, await seconds_until(DeliveryTimeout, flushing))
            await broker.resume_all()
        return times

    async def buffer_timeout(producer: Producer[bytes, bytes]) -> float:
        while True:
            started = time.monotonic()
            try:
                await producer.submit(topic, b"v" * 50_000)
            except BufferTimeout as caught:
                error = caught
                break
        elapsed = time.monotonic() - started
        assert error.outcome is Outcome.NOT_SENT
        return elapsed

    for what, (wanted, measured) in run(scenario()).items():
        print(f"{what}: {measured:.3f} s for {wanted} s")
        assert wanted - EARLY <= measured <= wanted + HANG_S, f"{what}: {measured:.3f} s"


def test_close_broker_paused_keeps_its_timeout_and_reports(
    broker: KafkaCluster, run: Run, topic: str
) -> None:
    async def scenario() -> None:
        producer: Producer[bytes, bytes] = Producer(bootstrap_servers=broker.bootstrap_servers)
        await ready_topic(broker, producer, topic)
        await broker.pause_all()
        deliveries = [
            await producer.submit(topic, b"v", partition=number % 2) for number in range(100)
        ]
        started = time.monotonic()
        report = await producer.close(timeout=2.0)
        elapsed = time.monotonic() - started
        await broker.resume_all()
        assert 2.0 - EARLY <= elapsed <= HANG_S, f"close(2.0) took {elapsed:.3f} s"
        assert not report.complete
        assert report.delivered == 0
        assert sum(batch.records for batch in report.undelivered) == 100
        assert {batch.topic_partition.topic for batch in report.undelivered} == {topic}
        outcomes = {
            type(error) for error in await asyncio.gather(*deliveries, return_exceptions=True)
        }
        assert outcomes == {ProducerClosed}

    run(scenario())
