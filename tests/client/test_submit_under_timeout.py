"""`submit` within `asyncio.timeout`: the fast path, and cancellation during a wait for memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from aiokprod._client.record_submitter import RecordSubmitter
from aiokprod.errors import KafkaError, Outcome
from aiokprod.producer import Producer
from aiokprod.records import Header
from aiokprod.testing import fake_cluster as faults
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.virtual import run
from tests.scenarios.scenario_helpers import make_producer, play, runtime_of

DELAY_S = 1.0
"""Delay of the first response, in seconds."""


class Outcomes:
    """A plug-in that records the outcome of each record, by value. A second outcome is an error."""

    def __init__(self) -> None:
        self.begun: list[bytes | None] = []
        self.ended: dict[bytes | None, Outcome | None] = {}

    def on_append(
        self, topic: str, key: bytes | None, value: bytes | None, headers: tuple[Header, ...]
    ) -> tuple[tuple[Header, ...], bytes | None]:
        self.begun.append(value)
        return headers, value

    def on_batch_settled(
        self, batch: Any, tokens: Any, base_offset: int | None, error: KafkaError | None
    ) -> None:
        for _, value in tokens:
            self._end(value, error)

    def on_record_unsent(
        self, topic: str, partition: int | None, token: Any, error: KafkaError
    ) -> None:
        self._end(token, error)

    def _end(self, value: bytes | None, error: KafkaError | None) -> None:
        assert value not in self.ended
        self.ended[value] = None if error is None else error.outcome


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"value_serializer": bytes.strip},
        {"plugins": [Outcomes()]},
        {"partitioner": lambda *_: 0},
    ],
    ids=["plain", "serializer", "plugin", "partitioner"],
)
def test_submit_under_a_timeout_takes_the_fast_path(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        cluster = FakeCluster(default_partitions=1)
        async with make_producer(cluster, **options) as producer:
            await producer.send("t", b"first")  # the fast path needs the topic's metadata
            monkeypatch.setattr(RecordSubmitter, "submit", None)
            monkeypatch.setattr(RecordSubmitter, "append", None)

            async def one(number: int) -> None:
                async with asyncio.timeout(5):
                    delivery = await producer.submit("t", b"%d" % number)
                    await delivery

            await asyncio.gather(*(one(number) for number in range(64)))
            for number in range(64, 128):
                await asyncio.wait_for(producer.submit("t", b"%d" % number), 5)
            await producer.flush()
        assert cluster.values("t", 0)[1:] == [b"%d" % number for number in range(128)]

    run(main)


async def cancelled_while_it_waits(cancel_at: Callable[[asyncio.Task[Any], Any], object]) -> bool:
    """Cancel the second of three large records while the second and the third wait for memory.

    The buffer has room for one of them. Return True if the second record was appended nevertheless.

    Args:
        cancel_at: called with the task of the second record and the handle of the first one.
    """
    cluster = FakeCluster(brokers=1)
    cluster.create_topic("t", 1)
    outcomes = Outcomes()
    first, second, third = (letter * 3_000 for letter in (b"1", b"2", b"3"))
    async with make_producer(
        cluster, buffer_memory=4_000, max_request_size=4_000, plugins=[outcomes]
    ) as producer:
        await producer.warm(["t"])
        cluster.control(0, faults.delay(DELAY_S), times=1)
        memory = runtime_of(producer).memory
        delivery = await producer.submit("t", first)
        tasks = [asyncio.ensure_future(submitted(producer, value)) for value in (second, third)]
        await asyncio.sleep(DELAY_S / 2)
        assert memory.waiting == 2
        used = memory.used
        cancel_at(tasks[0], delivery)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        appended = not isinstance(results[0], BaseException)
        if not appended:
            assert isinstance(results[0], asyncio.CancelledError | TimeoutError)
            assert memory.used == used, "that of one large record"
        assert not isinstance(results[1], BaseException)
        await producer.flush()
        await asyncio.sleep(0)
        assert memory.waiting == memory.used == 0
        sent = [first, second, third] if appended else [first, third]
        assert cluster.values("t", 0) == sent
        assert outcomes.begun == [first, second, third]
        assert outcomes.ended == {
            first: None,
            second: None if appended else Outcome.NOT_SENT,
            third: None,
        }
        assert producer.metrics()["records_refused"] == (not appended)
    return appended


async def submitted(producer: Producer[Any, Any], value: bytes) -> Any:
    return await producer.submit("t", value)


def test_timeout_of_submit_while_it_waits_for_memory_leaves_no_record() -> None:
    async def main() -> None:
        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", 1)
        outcomes = Outcomes()
        loop = asyncio.get_running_loop()
        async with make_producer(
            cluster, buffer_memory=4_000, max_request_size=4_000, plugins=[outcomes]
        ) as producer:
            await producer.warm(["t"])
            cluster.control(0, faults.delay(DELAY_S), times=1)
            memory = runtime_of(producer).memory
            await producer.submit("t", b"1" * 3_000)
            used, began = memory.used, loop.time()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.25):
                    await producer.submit("t", b"2" * 3_000)
            assert loop.time() == pytest.approx(began + 0.25)
            assert memory.used == used
            assert memory.waiting == 0
            assert outcomes.ended == {b"2" * 3_000: Outcome.NOT_SENT}
            await producer.submit("t", b"small")  # fits into the buffer, so it does not wait
            assert loop.time() == pytest.approx(began + 0.25)
            await producer.flush()
            assert memory.used == 0
            assert cluster.values("t", 0) == [b"1" * 3_000, b"small"]

    run(main)


def test_cancelled_in_each_pass_around_the_grant_is_appended_or_not_sent() -> None:
    def after_passes(passes: int, task: asyncio.Task[Any], delivery: Any) -> None:
        loop = asyncio.get_running_loop()

        def next_pass(left: int) -> None:
            if left == 0:
                task.cancel()
            else:
                loop.call_soon(next_pass, left - 1)

        delivery.add_done_callback(lambda _: next_pass(passes))

    found = [
        play(partial(cancelled_while_it_waits, partial(after_passes, passes)))
        for passes in range(6)
    ]
    assert found == sorted(found), "once it is appended, a later cancellation changes nothing"
    assert not found[0]
    assert found[-1]


@pytest.mark.parametrize("delay_s", [0.0, DELAY_S / 4, DELAY_S / 2 - 0.001, DELAY_S / 2])
def test_cancelled_at_any_moment_of_the_wait_is_not_sent(delay_s: float) -> None:
    def after_delay(task: asyncio.Task[Any], _: Any) -> None:
        asyncio.get_running_loop().call_later(delay_s, task.cancel)

    assert not play(partial(cancelled_while_it_waits, after_delay))
