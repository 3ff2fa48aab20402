"""Drivers that send records by each entry point and store every outcome in a History."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from aiokprod import AuthenticationError, Delivery, KafkaError, Producer
from aiokprod.testing.kafka_cluster import KafkaCluster
from tests.hang import HANG_S
from tests.integration.checker import History, check

TASKS = 512
CHUNK = 10_000
KEYS = [b"key-%d" % number for number in range(997)]


def key_of(number: int, keyed: bool) -> bytes | None:
    return KEYS[number % len(KEYS)] if keyed else None


async def by_send(
    producer: Producer[bytes, bytes], history: History, count: int, *, keyed: bool, size: int = 100
) -> None:
    """Send from 512 tasks, each of which awaits one record after another."""
    left = count

    async def worker() -> None:
        nonlocal left
        while left:
            left -= 1
            key = key_of(left, keyed)
            sequence, value = history.next_value(key, size)
            try:
                history.acknowledged(sequence, await producer.send(history.topic, value, key=key))
            except KafkaError as error:
                history.failed(sequence, error.outcome)

    await asyncio.gather(*(worker() for _ in range(TASKS)))


def settle(history: History, sequence: int) -> Callable[[Delivery], None]:
    """Return a done callback that stores the outcome of a record in the history."""

    def done(delivery: Delivery) -> None:
        error = delivery.exception()
        if error is None:
            history.acknowledged(sequence, delivery.result())
        else:
            history.failed(sequence, error.outcome)

    return done


async def by_submit(
    producer: Producer[bytes, bytes], history: History, count: int, *, keyed: bool, size: int = 100
) -> None:
    """Submit the records from one task as fast as possible, and wait until all have an outcome."""
    for number in range(count):
        key = key_of(number, keyed)
        sequence, value = history.next_value(key, size)
        delivery = await producer.submit(history.topic, value, key=key)
        delivery.add_done_callback(settle(history, sequence))
    await producer.flush()
    await asyncio.sleep(0)


async def by_send_many(
    producer: Producer[bytes, bytes], history: History, count: int, *, keyed: bool, size: int = 100
) -> None:
    """Send columns of 10 000 records, one after another."""
    for start in range(0, count, CHUNK):
        keys = [key_of(number, keyed) for number in range(start, min(start + CHUNK, count))]
        numbered = [history.next_value(key, size) for key in keys]
        result = await producer.send_many(
            history.topic, [value for _, value in numbered], keys=keys if keyed else None
        )
        errors, offsets, partitions = result.errors, result.offsets, result.partitions
        for position, (sequence, _) in enumerate(numbered):
            if position in errors:
                history.failed(sequence, errors[position].outcome)
            else:
                partition = partitions[position]
                assert partition is not None
                history.place(sequence, partition, offsets[position])


class Stream:
    """A steady load in the background, which calls `submit` and continues after errors.

    `rate` is the number of records per second, submitted in steps of 10 ms. `acks` contains (time,
    partition) of every acknowledgment, with times from `time.monotonic()`.
    """

    def __init__(
        self,
        producer: Producer[bytes, bytes],
        history: History,
        *,
        rate: int = 2_000,
        keyed: bool = True,
    ) -> None:
        self._producer = producer
        self._history = history
        self._per_step = max(1, rate // 100)
        self._keyed = keyed
        self._stop = False
        self._task: asyncio.Task[None] | None = None
        self.acks: list[tuple[float, int]] = []
        self.errors: list[KafkaError] = []
        self.handed_over: list[float] = []

    async def __aenter__(self) -> Stream:
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Stop submitting and wait until every record has an outcome."""
        self._stop = True
        if self._task is not None:
            await self._task
            await self._producer.flush()
            await asyncio.sleep(0)
            self._task = None

    async def _run(self) -> None:
        number = 0
        loop = asyncio.get_running_loop()
        due = loop.time()
        while not self._stop:
            for _ in range(self._per_step):
                number += 1
                await self._hand_over(number)
            due = max(due + 0.01, loop.time() - 0.1)
            await asyncio.sleep(max(0.0, due - loop.time()))

    async def _hand_over(self, number: int) -> None:
        key = key_of(number, self._keyed)
        sequence, value = self._history.next_value(key)
        self.handed_over.append(time.monotonic())
        try:
            delivery = await self._producer.submit(self._history.topic, value, key=key)
        except KafkaError as error:
            self.errors.append(error)
            self._history.failed(sequence, error.outcome)
            return
        delivery.add_done_callback(self._done(sequence))

    def _done(self, sequence: int) -> Callable[[Any], None]:
        note = settle(self._history, sequence)

        def done(delivery: Delivery) -> None:
            error = delivery.exception()
            if error is None:
                self.acks.append((time.monotonic(), delivery.partition))
            else:
                self.errors.append(error)
            note(delivery)

        return done


async def every_record_once(
    cluster: KafkaCluster, topic: str, count: int, settings: dict[str, Any]
) -> None:
    """Send records with these settings, and check that each is in the log exactly once and in
    order."""
    history = History(topic)
    await cluster.create_topic(topic, partitions=6)
    async with Producer(**settings) as producer:
        await by_submit(producer, history, count, keyed=True)
    await _all_there(cluster, topic, history)


async def every_record_once_for(
    cluster: KafkaCluster, topic: str, seconds: float, settings: dict[str, Any]
) -> None:
    """Like `every_record_once`, but with a load for `seconds`."""
    history = History(topic)
    await cluster.create_topic(topic, partitions=6)
    async with Producer(**settings) as producer:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            await by_submit(producer, history, 5_000, keyed=True)
    await _all_there(cluster, topic, history)


async def _all_there(cluster: KafkaCluster, topic: str, history: History) -> None:
    report = await asyncio.to_thread(check, cluster.bootstrap_servers, history)
    assert report.ok, str(report)
    assert report.acknowledged == report.in_log == len(history)
    await cluster.delete_topic(topic)


async def refused(producer: Producer[bytes, bytes], topic: str, text: str) -> None:
    """Check that all waiting calls fail with `text`, or with one of several texts separated by
    bars."""
    async with asyncio.timeout(HANG_S):
        found = await asyncio.gather(
            *(producer.send(topic, b"v") for _ in range(10)), return_exceptions=True
        )
    for error in found:
        assert isinstance(error, AuthenticationError), repr(error)
        assert any(part in str(error) for part in text.split("|")), str(error)


async def healed(producer: Producer[bytes, bytes], topic: str) -> None:
    """Check that a rejected producer connects without a restart."""
    async with asyncio.timeout(HANG_S):
        while True:
            try:
                await producer.send(topic, b"v")
            except AuthenticationError:
                await asyncio.sleep(0.2)
            else:
                return
