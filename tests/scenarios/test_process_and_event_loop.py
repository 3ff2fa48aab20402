"""Faults F67 to F77: process, runtime, asyncio. The interpreter cases of F77 are in
`test_interpreter_shutdown`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import json
import os
import random
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from aiokprod._core.batch import Delivery
from aiokprod.errors import (
    BufferFull,
    BufferTimeout,
    DeliveryTimeout,
    ForkedProcess,
    KafkaError,
    MetadataMissing,
    Outcome,
    ProducerClosed,
    ProducerFailed,
    SerializationError,
    WrongLoop,
)
from aiokprod.producer import Producer
from aiokprod.records import ProducerRecord, RecordMetadata
from aiokprod.testing import fake_cluster as faults
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.memory import MemoryNetwork
from aiokprod.testing.virtual import VirtualLoop, run
from tests.hang import HANG_S
from tests.scenarios.scenario_helpers import (
    RECOVERY,
    TICK,
    History,
    clock,
    error_of,
    make_producer,
    now,
    scenario,
    until,
)

TP = ("t", 0)


# -- F67: stalled loop --------------------------------------------------------------------------


@scenario(partitions=1, request_timeout_ms=5_000, delivery_timeout_ms=60_000)
@pytest.mark.parametrize("stall_s", [6.0, 30.0])
async def test_f67_loop_stalled_reads_before_it_judges_timeouts(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History, stall_s: float
) -> None:
    await history.submit_many(3)
    await history.settle()
    links = len(cluster.network.links)
    for _ in range(3):
        await history.submit()
    await asyncio.sleep(0.0006)
    clock().stall(stall_s)
    await history.settle()
    history.all_acked()
    assert len(cluster.network.links) == links
    assert cluster.duplicates == 0


@scenario(partitions=1, delivery_timeout_ms=10_000, request_timeout_ms=5_000)
async def test_f67_loop_stalled_beyond_delivery_timeout_keeps_the_answer(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    await history.submit()
    await asyncio.sleep(0.0006)
    clock().stall(20.0)
    await history.settle()
    history.check()
    assert history.attempts[-1].acked


@scenario(partitions=3)
async def test_f67_stalls_again_and_again_are_survived(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    rng = random.Random(7)
    for _ in range(60):
        await history.submit_many(5, partitions=(0, 1, 2))
        await asyncio.sleep(rng.uniform(0, 0.01))
        clock().stall(rng.choice([0, 0.5, 3, 40]))
    await history.settle()
    history.all_acked()


# -- F68: cancelled callers ---------------------------------------------------------------------


@scenario(topic=None, cluster={"auto_create": False})
async def test_f68_send_cancelled_while_waiting_for_metadata_sends_nothing(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    task = history.send_later("t", 0)
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    cluster.create_topic("t", 1)
    await producer.send("t", b"other", partition=0)
    assert cluster.values("t", 0) == [b"other"]
    await producer.flush(1)


@scenario(partitions=1, linger_ms=500, adaptive_linger=False)
async def test_f68_send_cancelled_in_an_open_batch_is_withdrawn(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await producer.warm(["t"])
    tasks = [asyncio.ensure_future(producer.send("t", b"%d" % n, partition=0)) for n in range(5)]
    await asyncio.sleep(0.01)
    tasks[2].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[2]
    found = await asyncio.gather(*tasks[:2], *tasks[3:])
    assert cluster.values("t", 0) == [b"0", b"1", b"3", b"4"]
    assert [metadata.offset for metadata in found] == [0, 1, 2, 3]
    await producer.flush(1)


@scenario(partitions=1, linger_ms=500, adaptive_linger=False)
async def test_f68_every_record_of_a_batch_withdrawn_sends_nothing(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await producer.warm(["t"])
    tasks = [asyncio.ensure_future(producer.send("t", b"%d" % n, partition=0)) for n in range(5)]
    await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await producer.flush(5)
    assert cluster.values("t", 0) == []
    await producer.send("t", b"next", partition=0)
    assert cluster.values("t", 0) == [b"next"]
    assert cluster.violations == []


@scenario(partitions=1)
async def test_f68_send_cancelled_in_flight_is_delivered_once(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.control(0, faults.delay(1.0), times=1)
    task = asyncio.ensure_future(producer.send("t", b"in-flight", partition=0))
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await producer.flush(10)
    assert cluster.values("t", 0).count(b"in-flight") == 1
    await history.send()


@scenario(partitions=1)
async def test_f68_send_timeout_in_flight_says_unknown(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.control(0, faults.delay(1.0), times=1)
    attempt = await history.send(timeout=0.5)
    assert error_of(attempt, DeliveryTimeout).outcome is Outcome.UNKNOWN
    assert abs(attempt.settled_at - attempt.started_at - 0.5) < 0.01
    await producer.flush(10)
    assert len(cluster.log("t", 0)) == 2
    history.check()


@scenario(partitions=1, linger_ms=2_000, adaptive_linger=False)
async def test_f68_send_timeout_in_an_open_batch_withdraws(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await producer.warm(["t"])
    attempt = await history.send(timeout=0.5)
    assert error_of(attempt).outcome is Outcome.NOT_SENT
    await producer.flush(10)
    assert cluster.values("t", 0) == []
    history.check()


@scenario(partitions=1)
async def test_f68_delivery_survives_wait_for_gather_and_shield(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await producer.warm(["t"])
    cluster.control(0, faults.delay(1.0), times=1)
    delivery = await producer.submit("t", b"1", partition=0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(delivery), 0.1)
    done, pending = await asyncio.wait([delivery], timeout=0.1)  # type: ignore[type-var]
    assert not done
    assert len(pending) == 1
    first, second = await asyncio.gather(delivery, delivery)
    assert first == second == await delivery
    assert first.offset == 0


@scenario(partitions=1)
async def test_f68_gather_takes_cancelled_deliveries_for_results(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    """gather reads how a child was cancelled from an undocumented attribute of futures."""
    await producer.warm(["t"])
    cluster.control(0, faults.delay(1.0), times=1)
    sent = await producer.submit("t", b"1", partition=0)
    await asyncio.sleep(0.1)
    withdrawn = await producer.submit("t", b"2", partition=0)
    gathered = asyncio.gather(sent, withdrawn, return_exceptions=True)
    sent.cancel()
    withdrawn.cancel()
    texts = [str(error) for error in await asyncio.wait_for(gathered, 1.0)]
    assert "in flight" in texts[0]
    assert "withdrawn" in texts[1]


@scenario(partitions=1)
async def test_f68_one_shielded_waiter_cancelled_leaves_the_others(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await producer.warm(["t"])
    cluster.control(0, faults.delay(1.0), times=1)
    delivery = await producer.submit("t", b"1", partition=0)

    async def wait() -> RecordMetadata:
        return await asyncio.shield(delivery)

    tasks = [asyncio.ensure_future(wait()) for _ in range(3)]
    await asyncio.sleep(0.1)
    tasks[1].cancel()
    found: list[Any] = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(found[1], asyncio.CancelledError)
    assert found[0].offset == found[2].offset == 0
    assert (await delivery).offset == 0


@scenario(partitions=1)
async def test_f68_delivery_whose_waiter_was_cancelled_can_be_awaited_again(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await producer.warm(["t"])
    cluster.control(0, faults.delay(1.0), times=1)
    delivery = await producer.submit("t", b"1", partition=0)
    await asyncio.sleep(0.1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(delivery, 0.1)
    try:
        metadata = await delivery
    except (asyncio.CancelledError, KafkaError):
        metadata = None
    await producer.flush()
    assert metadata is None or metadata.offset == 0
    assert cluster.values("t", 0) == [b"1"]


@scenario(partitions=1, buffer_memory=20_000)
async def test_f68_cancelled_waiters_for_memory_leave_no_hole(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    remove = cluster.control(0, faults.lose_request())
    fill = [asyncio.ensure_future(producer.send("t", b"x" * 4_000)) for _ in range(4)]
    await asyncio.sleep(0.1)
    waiting = [asyncio.ensure_future(producer.send("t", b"y" * 6_000)) for _ in range(6)]
    await asyncio.sleep(0.1)
    for task in waiting[::2]:
        task.cancel()
    await asyncio.sleep(0.1)
    remove()
    cluster.brokers[1].connections[0].reset()
    await asyncio.gather(*fill, *waiting[1::2])
    await asyncio.gather(*waiting[::2], return_exceptions=True)
    assert len(cluster.log("t", 0)) == 1 + 4 + 3
    for _ in range(10):
        await producer.send("t", b"z" * 15_000)


# -- F69, F70: background tasks -----------------------------------------------------------------


def background_tasks() -> list[asyncio.Task[Any]]:
    return [t for t in clock().pending_tasks() if t.get_name().startswith("aiokprod")]


@pytest.mark.parametrize("victim", range(4))
@pytest.mark.parametrize("busy", [True, False])
def test_f69_background_task_cancelled_by_a_stranger_fails_loudly_or_recovers(
    victim: int, busy: bool
) -> None:
    async def main() -> None:
        cluster = FakeCluster()
        cluster.create_topic("t", 1)
        producer = make_producer(cluster)
        await producer.send("t", b"first", partition=0)
        if busy:
            cluster.control(0, faults.lose_request())
        pending = [asyncio.ensure_future(producer.send("t", b"p", partition=0)) for _ in range(3)]
        if busy:
            await asyncio.sleep(0.5)
        tasks = background_tasks()
        if victim >= len(tasks):
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
            await producer.close(0)
            return
        tasks[victim].cancel()
        start = now()
        found = await asyncio.wait_for(asyncio.gather(*pending, return_exceptions=True), 121)
        failed = [error for error in found if isinstance(error, BaseException)]
        if failed:
            assert all(isinstance(error, KafkaError) for error in failed), failed
            assert now() - start < 1, "the failure must be told at once"
            with pytest.raises((ProducerFailed, ProducerClosed)):
                await asyncio.wait_for(producer.send("t", b"later", partition=0), 1)
        await asyncio.wait_for(producer.close(5), 6)

    run(main)


def test_f69_all_tasks_cancelled_never_hangs() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        cluster.create_topic("t", 1)
        producer = make_producer(cluster)
        await producer.send("t", b"first", partition=0)
        cluster.control(0, faults.lose_request())
        delivery = await producer.submit("t", b"p", partition=0)
        await asyncio.sleep(0.1)
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()
        with pytest.raises(KafkaError) as info:
            await asyncio.wait_for(delivery, 1)
        assert info.value.outcome is Outcome.UNKNOWN
        with pytest.raises((ProducerFailed, ProducerClosed)) as late:
            await asyncio.wait_for(producer.send("t", b"later", partition=0), 1)
        assert late.value.outcome is Outcome.NOT_SENT
        with pytest.raises(ProducerFailed) as late:
            producer.try_submit("t", b"later", partition=0)
        assert late.value.outcome is Outcome.NOT_SENT
        with pytest.raises((ProducerFailed, ProducerClosed)):
            await asyncio.wait_for(producer.flush(), 1)
        await asyncio.wait_for(producer.close(5), 6)

    run(main)


class FailingRandom(random.Random):
    """Raises if it is armed."""

    armed = False

    def random(self) -> float:
        if self.armed:
            raise RuntimeError("the dice are broken")
        return super().random()

    def getrandbits(self, k: int) -> int:
        if self.armed:
            raise RuntimeError("the dice are broken")
        return super().getrandbits(k)


class FailingDialer:
    """A dialer that can be set to raise an exception that no dialer should raise."""

    def __init__(self, network: MemoryNetwork) -> None:
        self.network = network
        self.error: Exception | None = None

    async def resolve(self, host: str, port: int) -> Any:
        if self.error:
            raise self.error
        return await self.network.resolve(host, port)

    async def connect(
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> Any:
        if self.error:
            raise self.error
        return await self.network.connect(protocol_factory, host, port)


@pytest.mark.parametrize("error", [RuntimeError("bug"), OSError("odd"), ValueError("bad")])
def test_f70_dialer_that_raises_is_a_failed_connect_or_a_loud_failure(error: Exception) -> None:
    async def main() -> None:
        cluster = FakeCluster()
        cluster.create_topic("t", 1)
        dialer = FailingDialer(cluster.network)
        producer = make_producer(cluster, dialer=dialer, delivery_timeout_ms=40_000)
        await producer.send("t", b"first", partition=0)
        dialer.error = error
        for connection in list(cluster.brokers[1].connections):
            connection.reset()
        start = now()
        task = asyncio.ensure_future(producer.send("t", b"second", partition=0))
        await asyncio.sleep(3)
        dialer.error = None
        try:
            await asyncio.wait_for(task, 60)
        except KafkaError:
            assert now() - start <= 40 + TICK
            with pytest.raises(KafkaError):
                await asyncio.wait_for(producer.send("t", b"third", partition=0), 60)
        await asyncio.wait_for(producer.close(5), 6)

    run(main)


def test_f70_broken_randomness_never_hangs() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        cluster.create_topic("t", 3)
        rng = FailingRandom(1)
        producer = make_producer(cluster, rng=rng, delivery_timeout_ms=40_000)
        await producer.send("t", b"first")
        rng.armed = True
        for broker in cluster.brokers.values():
            for connection in list(broker.connections):
                connection.reset()
        for _ in range(5):
            start = now()
            try:
                await asyncio.wait_for(producer.send("t", b"x" * 1000), 130)
            except (KafkaError, RuntimeError):
                assert now() - start <= 60 + TICK
        await asyncio.wait_for(producer.close(5), 6)
        clock().unhandled.clear()

    run(main)


def test_f70_broken_wall_clock_fails_the_call_and_never_hangs() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        cluster.create_topic("t", 1)
        broken: list[int] = []

        def unix_ms() -> int:
            if broken:
                raise RuntimeError("no clock")
            return cluster.unix_ms()

        producer = make_producer(cluster, unix_ms=unix_ms)
        await producer.send("t", b"first", partition=0)
        broken.append(1)
        for _ in range(3):
            with contextlib.suppress(RuntimeError, KafkaError):
                await asyncio.wait_for(producer.send("t", b"second", partition=0), 5)
        broken.clear()
        await asyncio.wait_for(producer.close(5), 6)

    run(main)


class BrokenObserver:
    """An observer whose every hook raises."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("on_"):
            return self._raise
        raise AttributeError(name)

    @staticmethod
    def _raise(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("observer is broken")


def test_f70_broken_observer_and_interceptors_change_nothing() -> None:
    class BrokenInterceptor:
        def on_send(self, record: ProducerRecord[Any, Any]) -> None:
            raise RuntimeError("on_send")

        def on_acknowledgement(
            self, metadata: RecordMetadata | None, error: KafkaError | None
        ) -> None:
            raise RuntimeError("on_acknowledgement")

        def close(self) -> None:
            raise RuntimeError("close")

    async def main() -> None:
        cluster = FakeCluster()
        cluster.create_topic("t", 3)
        producer = make_producer(
            cluster, observer=BrokenObserver(), interceptors=[BrokenInterceptor()]
        )
        history = History(cluster, producer)
        await history.submit_many(20, partitions=(0, 1, 2))
        cluster.kill(1)
        await history.submit_many(20, partitions=(0, 1, 2))
        await history.settle()
        history.all_acked()
        await producer.close(5)

    run(main)


# -- F71: callbacks -----------------------------------------------------------------------------


def test_f71_callback_that_raises_does_not_stop_the_others() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        cluster.create_topic("t", 1)
        producer = make_producer(cluster)
        seen = []

        def callback(number: int) -> Callable[[Delivery], None]:
            def called(delivery: Delivery) -> None:
                seen.append(number)
                if number % 2:
                    raise ValueError(f"callback {number}")

            return called

        for number in range(10):
            delivery = await producer.submit("t", b"%d" % number, partition=0)
            delivery.add_done_callback(callback(number))
        await producer.flush()
        await asyncio.sleep(0.1)
        assert seen == list(range(10))
        metadata = await producer.send("t", b"next", partition=0)
        assert metadata.offset == 10
        await producer.close(5)
        # An exception raised by a callback goes to the loop's exception handler, as with any
        # asyncio future, or to the log.
        loop = clock()
        assert all("callback" in str(context.get("exception")) for context in loop.unhandled)
        loop.unhandled.clear()

    run(main)


@scenario(partitions=1)
async def test_f71_callbacks_of_a_partition_come_in_send_order(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    seen: list[int] = []

    def called(number: int, delivery: Delivery) -> None:
        seen.append(number)

    for number in range(200):
        delivery = await producer.submit("t", b"%d" % number, partition=0)
        delivery.add_done_callback(functools.partial(called, number))
        if number % 20 == 0:
            await asyncio.sleep(0.003)
    await producer.flush()
    await asyncio.sleep(0.1)
    assert seen == list(range(200))


@scenario(partitions=1)
async def test_f71_callback_that_sends_again_is_served(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    left = [50]
    done = asyncio.Event()

    def again(delivery: Delivery) -> None:
        if left[0] == 0:
            done.set()
            return
        left[0] -= 1
        producer.try_submit("t", b"again", partition=0).add_done_callback(again)

    (await producer.submit("t", b"first", partition=0)).add_done_callback(again)
    await asyncio.wait_for(done.wait(), 30)
    assert len(cluster.log("t", 0)) == 51


@scenario(partitions=1, delivery_timeout_ms=3_000, request_timeout_ms=1_000)
async def test_f71_callback_of_an_expired_record_may_send_again(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.kill(1, failover_s=10_000)
    again = []

    def resend(delivery: Delivery) -> None:
        again.append(producer.try_submit("t", b"again", partition=0))

    (await producer.submit("t", b"first", partition=0)).add_done_callback(resend)
    await asyncio.sleep(3.5)
    cluster.start(1)
    assert len(again) == 1
    metadata = await again[0]
    assert metadata.offset == 1


@scenario(partitions=1)
async def test_f71_slow_callback_delays_only(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    def slow(delivery: Delivery) -> None:
        clock().stall(5.0)

    for number in range(5):
        delivery = await producer.submit("t", b"%d" % number, partition=0)
        delivery.add_done_callback(slow)
        await asyncio.sleep(0.01)
    await producer.flush()
    assert len(cluster.log("t", 0)) == 5


# -- F72: close ---------------------------------------------------------------------------------


@scenario()
async def test_f72_close_under_traffic_delivers_or_fails_everything(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.submit_many(500, partitions=(0, 1, 2))
    report = await producer.close()
    await history.settle()
    history.all_acked()
    assert report.complete
    assert report.delivered == 500
    assert report.failed == 0
    with pytest.raises(ProducerClosed):
        await producer.send("t", b"late")


@scenario(partitions=1)
async def test_f72_close_timeout_zero_fails_what_is_pending(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.control(0, faults.lose_request())
    await history.submit_many(3)
    await asyncio.sleep(0.1)
    start = now()
    report = await producer.close(0)
    assert now() - start < 0.01
    await history.settle()
    for attempt in history.attempts[1:]:
        assert error_of(attempt, ProducerClosed).outcome is Outcome.UNKNOWN
    assert not report.complete
    assert sum(batch.records for batch in report.undelivered) == 3
    history.check()


@scenario(partitions=1, linger_ms=60_000, adaptive_linger=False, delivery_timeout_ms=300_000)
async def test_f72_close_timeout_zero_with_unsent_records_is_definite(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await producer.warm(["t"])
    await history.submit_many(3)
    report = await producer.close(0)
    await history.settle()
    for attempt in history.attempts:
        assert error_of(attempt, ProducerClosed).outcome is Outcome.NOT_SENT
    assert sum(batch.records for batch in report.undelivered) == 3
    history.check()


@scenario(partitions=1, linger_ms=60_000, adaptive_linger=False, delivery_timeout_ms=300_000)
async def test_f72_close_timeout_zero_reports_no_record_that_was_withdrawn(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await producer.warm(["t"])
    delivery = await producer.submit("t", b"v")
    assert delivery.cancel()
    report = await producer.close(0)
    assert report.complete
    assert not report.undelivered


@scenario(partitions=1)
@pytest.mark.parametrize("timeout", [0.5, 3.0])
async def test_f72_close_keeps_its_timeout(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History, timeout: float
) -> None:
    await history.send()
    cluster.pause(1)
    await history.submit_many(3)
    await asyncio.sleep(0.1)
    start = now()
    report = await producer.close(timeout)
    assert abs(now() - start - timeout) < TICK
    assert abs(report.elapsed_s - timeout) < TICK
    assert not report.complete
    await history.settle()
    history.check()


@scenario(partitions=1)
async def test_f72_close_twice_and_at_once_gives_the_same_report(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.submit_many(10)
    first, second = await asyncio.gather(producer.close(), producer.close())
    assert first == second == await producer.close()
    await history.settle()
    history.all_acked()


@scenario(topic=None, cluster={"auto_create": False})
async def test_f72_close_while_a_send_waits_for_metadata_wakes_it(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    task = history.send_later("absent", 0)
    await asyncio.sleep(1)
    start = now()
    await producer.close(5)
    attempt = await task
    assert error_of(attempt, ProducerClosed).outcome is Outcome.NOT_SENT
    assert now() - start < 1


@scenario(partitions=1, buffer_memory=10_000, max_request_size=9_000)
async def test_f72_close_while_a_send_waits_for_memory_wakes_it(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.control(0, faults.lose_request())
    tasks = [asyncio.ensure_future(producer.send("t", b"x" * 5_000)) for _ in range(4)]
    await asyncio.sleep(1)
    start = now()
    await producer.close(2)
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(error, ProducerClosed) for error in found), found
    assert now() - start < 2 + TICK


@scenario(partitions=1)
async def test_f72_close_from_a_callback(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    closing = []

    def close(delivery: Delivery) -> None:
        closing.append(asyncio.ensure_future(producer.close(5)))

    (await producer.submit("t", b"1", partition=0)).add_done_callback(close)
    await producer.submit("t", b"2", partition=0)
    await until(lambda: bool(closing))
    report = await asyncio.wait_for(closing[0], 10)
    assert report.complete
    assert len(cluster.log("t", 0)) == 2


@scenario(partitions=1)
async def test_f72_close_cancelled_leaves_nothing_behind(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.control(0, faults.lose_request())
    await history.submit_many(3)
    task = asyncio.ensure_future(producer.close())
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(history.settle(), 5)
    history.check()


@scenario(partitions=1)
async def test_f72_flush_during_a_cancelled_close_waits_for_the_outcomes(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.control(0, faults.lose_request())
    deliveries = [await producer.submit("t", b"v") for _ in range(3)]

    async def flush() -> list[bool]:
        await producer.flush()
        return [delivery.done() for delivery in deliveries]

    flushing = asyncio.ensure_future(flush())
    await asyncio.sleep(0.1)
    closing = asyncio.ensure_future(producer.close())
    await asyncio.sleep(0.5)
    closing.cancel()
    assert all(await flushing)
    with pytest.raises(asyncio.CancelledError):
        await closing
    for delivery in deliveries:
        with pytest.raises(ProducerClosed):
            await delivery


@pytest.mark.parametrize("call", ["send", "submit", "try_submit", "send_many"])
@pytest.mark.parametrize("serializer", [None, str.encode])
def test_record_of_another_task_in_the_pass_of_close_is_refused(call: str, serializer: Any) -> None:
    async def main() -> None:
        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", 1)
        producer = make_producer(cluster, value_serializer=serializer)
        value: Any = b"v" if serializer is None else "v"
        await producer.send("t", value)  # later records may take the fast path

        async def send() -> None:
            if call == "try_submit":
                producer.try_submit("t", value)
            elif call == "send_many":
                await producer.send_many("t", [value])
            else:
                await getattr(producer, call)("t", value)

        report, error = await asyncio.gather(producer.close(), send(), return_exceptions=True)
        assert isinstance(error, ProducerClosed)
        assert error.outcome is Outcome.NOT_SENT
        assert not isinstance(report, BaseException)
        assert report.complete
        assert cluster.values("t", 0) == [b"v"]

    run(main)


@scenario(topic=None)
async def test_f72_close_before_start_is_fine(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    report = await producer.close()
    assert report.complete
    with pytest.raises(ProducerClosed):
        await producer.start()
    with pytest.raises(ProducerClosed):
        producer.try_submit("t", b"")
    with pytest.raises(ProducerClosed):
        await producer.flush()


@scenario(topic=None, brokers=1)
async def test_f72_close_with_no_broker_reachable(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    cluster.kill(1)
    task = history.send_later("t", 0)
    await asyncio.sleep(5)
    start = now()
    await producer.close(1)
    assert now() - start <= 1 + TICK
    assert error_of(await task).outcome is Outcome.NOT_SENT


@scenario(topic=None, brokers=1)
async def test_f72_close_while_a_connect_hangs(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    cluster.network.hang("broker1", 9092)
    task = history.send_later("t", 0)
    await asyncio.sleep(2)
    start = now()
    await producer.close(1)
    assert now() - start <= 1 + TICK
    assert error_of(await task).outcome is Outcome.NOT_SENT


# -- F73, F74: memory ---------------------------------------------------------------------------


@scenario(partitions=1, buffer_memory=10_000, max_block_ms=2_000, max_request_size=9_000)
async def test_f73_buffer_full_times_out_definite(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    remove = cluster.control(0, faults.delay(10))
    history.size = 4_000
    first = [history.send_later() for _ in range(2)]
    await asyncio.sleep(0.1)
    waiting = await history.send()
    assert error_of(waiting, BufferTimeout).outcome is Outcome.NOT_SENT
    assert abs(waiting.settled_at - waiting.started_at - 2) < TICK
    remove()
    await asyncio.gather(*first)
    await history.send()
    history.check()
    assert sum(a.acked for a in history.attempts) == 4


@scenario(partitions=1, buffer_memory=10_000, max_request_size=9_000)
async def test_f73_waiters_are_served_in_turn_and_big_ones_not_starved(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.control(0, faults.delay(0.2))
    order = []

    async def send(number: int, size: int) -> None:
        await (await producer.submit("t", b"x" * size, partition=0))

    async def admitted(number: int, size: int) -> None:
        delivery = await producer.submit("t", b"x" * size, partition=0)
        order.append(number)
        await delivery

    sizes = [4_000, 4_000] + [8_500 if n == 5 else 300 for n in range(40)]
    await asyncio.gather(*(admitted(n, size) for n, size in enumerate(sizes)))
    assert order == sorted(order)


@scenario(partitions=1, buffer_memory=10_000, max_request_size=9_000)
async def test_f73_try_submit_raises_buffer_full(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    with pytest.raises(MetadataMissing):
        producer.try_submit("t", b"early")
    await producer.warm(["t"])
    cluster.control(0, faults.delay(1))
    deliveries = []

    def fill() -> None:
        for _ in range(100):
            deliveries.append(producer.try_submit("t", b"x" * 1_000, partition=0))  # noqa: PERF401

    with pytest.raises(BufferFull) as info:
        fill()
    assert info.value.outcome is Outcome.NOT_SENT
    assert 5 <= len(deliveries) <= 10
    await asyncio.gather(*deliveries)
    producer.try_submit("t", b"x" * 1_000, partition=0)
    await producer.flush()


@scenario(partitions=3, buffer_memory=100_000, delivery_timeout_ms=3_000, request_timeout_ms=1_000)
async def test_f73_no_leak_after_failures_of_every_kind(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    history.size = 2_000
    for round_number in range(6):
        await history.submit_many(30, partitions=(0, 1, 2))
        if round_number % 3 == 0:
            cluster.kill(1, failover_s=5)
            await asyncio.sleep(8)
            cluster.start(1)
        elif round_number % 3 == 1:
            cluster.fail_produce(TP, 44, 2)
        else:
            cluster.control(0, faults.lose_answer(), times=2)
        await history.settle()
    await asyncio.sleep(5)
    history.check(refusals=True)
    big = [producer.try_submit("t", b"x" * 30_000, partition=n) for n in range(3)]
    await asyncio.gather(*big)


def test_f74_memory_error_while_serializing_fails_that_record_only() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        cluster.create_topic("t", 1)

        def serialize(value: str) -> bytes:
            if value == "huge":
                raise MemoryError("no room")
            return value.encode()

        producer = make_producer(cluster, value_serializer=serialize, buffer_memory=50_000)
        await producer.send("t", "a", partition=0)
        for _ in range(200):
            with pytest.raises((MemoryError, KafkaError)):
                await producer.send("t", "huge", partition=0)
        await producer.send("t", "b" * 40_000, partition=0)
        assert len(cluster.log("t", 0)) == 2
        await producer.close(5)

    run(main)


# -- F75: fork ----------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_f75_child_of_a_fork_is_refused_and_writes_nothing() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        cluster.create_topic("t", 1)
        producer = make_producer(cluster)
        await producer.send("t", b"parent", partition=0)
        reading, writing = os.pipe()
        taken = [link.up.taken for link in cluster.network.links]
        child = os.fork()
        if child == 0:
            found: list[str | bool] = []
            try:
                for call in (
                    lambda: producer.try_submit("t", b"child", partition=0),
                    lambda: producer.submit("t", b"child", partition=0).__await__().send(None),
                    lambda: producer.send("t", b"child", partition=0).send(None),
                    lambda: producer.send_many("t", [b"child"]).send(None),
                    lambda: producer.flush().send(None),
                    lambda: producer.close().send(None),
                    lambda: producer.start().send(None),
                ):
                    try:
                        call()
                        found.append("returned")
                    except BaseException as error:
                        found.append(type(error).__name__)
                found.append([link.up.taken for link in cluster.network.links] == taken)
                os.write(writing, json.dumps(found).encode())
            finally:
                os._exit(0)
        os.close(writing)
        os.waitpid(child, 0)  # noqa: ASYNC222 - a child that ends at once
        with os.fdopen(reading) as stream:
            found = json.loads(stream.read())
        assert found == [ForkedProcess.__name__] * 7 + [True]
        metadata = await producer.send("t", b"parent again", partition=0)
        assert metadata.offset == 1
        await producer.close(5)

    run(main)


# -- F76: wall clock ----------------------------------------------------------------------------


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000])
def test_f76_wall_clock_jump_moves_timestamps_and_no_timeouts(jump_ms: int) -> None:
    async def main() -> None:
        cluster = FakeCluster()
        cluster.create_topic("t", 1)
        offset = [0]
        producer = make_producer(
            cluster,
            unix_ms=lambda: cluster.unix_ms() + offset[0],
            delivery_timeout_ms=10_000,
            request_timeout_ms=5_000,
        )
        await producer.send("t", b"1", partition=0)
        remove = cluster.control(0, faults.lose_request())
        task = asyncio.ensure_future(producer.send("t", b"2", partition=0))
        await asyncio.sleep(1)
        offset[0] = jump_ms
        await asyncio.sleep(1)
        assert not task.done()
        remove()
        cluster.brokers[1].connections[0].reset()
        await task
        metadata = await producer.send("t", b"3", partition=0)
        assert abs(metadata.timestamp_ms - cluster.unix_ms() - jump_ms) < 1000
        stamps = [record.timestamp_ms for record in cluster.log("t", 0)]
        assert abs(stamps[2] - stamps[0] - jump_ms) < 10_000
        await producer.close(5)

    run(main)


@scenario(partitions=1, linger_ms=1_000, adaptive_linger=False)
async def test_f76_timestamps_out_of_order_in_one_batch_are_kept(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    stamps = [5_000_000, 1, 2**62, 0, 7]
    deliveries = [
        await producer.submit("t", b"", partition=0, timestamp_ms=stamp) for stamp in stamps
    ]
    found = await asyncio.gather(*deliveries)
    assert [record.timestamp_ms for record in cluster.log("t", 0)] == stamps
    assert [metadata.timestamp_ms for metadata in found] == stamps
    assert cluster.violations == []


# -- hangs: wrong loop, thread, use before start and after close ---------------------------------


def test_wrong_loop_is_refused_at_once() -> None:
    kept: list[Any] = []

    async def first() -> None:
        cluster = FakeCluster()
        cluster.create_topic("t", 1)
        producer = make_producer(cluster)
        await producer.send("t", b"1", partition=0)
        kept.append(producer)
        other = VirtualLoop()

        def in_thread() -> None:
            async def call(coroutine: Coroutine[Any, Any, Any]) -> BaseException | None:
                try:
                    await coroutine
                except BaseException as error:
                    return error
                return None

            async def second() -> list[BaseException | None]:
                return [
                    await call(producer.send("t", b"x")),
                    await call(producer.flush()),
                    await call(producer.send_many("t", [b"x"])),
                    await call(producer.start()),
                    await call(producer.close()),
                ]

            kept.append(other.run_until_complete(second()))
            other.close()

        thread = threading.Thread(target=in_thread)
        thread.start()
        thread.join(HANG_S)
        assert not thread.is_alive()
        assert [type(error) for error in kept[1]] == [WrongLoop] * 5
        await producer.send("t", b"2", partition=0)
        await producer.close(5)

    run(first)


def test_producer_used_outside_any_loop_is_refused() -> None:
    cluster = FakeCluster()
    producer = make_producer(cluster)
    with pytest.raises((WrongLoop, RuntimeError)):
        producer.try_submit("t", b"x")


def test_producer_of_a_loop_that_ended_is_refused_by_the_next() -> None:
    kept = []

    async def first() -> None:
        cluster = FakeCluster()
        cluster.create_topic("t", 1)
        producer = make_producer(cluster)
        await producer.send("t", b"1", partition=0)
        kept.append(producer)

    async def second() -> None:
        with pytest.raises(KafkaError):
            await asyncio.wait_for(kept[0].send("t", b"x"), 5)
        with pytest.raises(KafkaError):
            await asyncio.wait_for(kept[0].flush(), 5)

    run(first, check_leaks=False)
    run(second)
    with pytest.warns(ResourceWarning):  # noqa: PT031 - the collection warns
        kept.clear()
        gc.collect()


@scenario(partitions=1)
async def test_start_twice_and_at_once_is_one_start(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await asyncio.gather(producer.start(), producer.start(), history.send())
    await producer.start()
    history.all_acked()
    assert cluster.count(22) == 1


@scenario(partitions=1)
async def test_flush_from_many_tasks_while_sending_ends(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    async def flusher() -> None:
        for _ in range(20):
            await asyncio.wait_for(producer.flush(), 5)
            await asyncio.sleep(0.003)

    sending = asyncio.ensure_future(history.submit_many(200, every=0.001))
    await asyncio.gather(*(flusher() for _ in range(10)))
    await sending
    await history.settle()
    history.all_acked()


@scenario(partitions=1, linger_ms=10_000, adaptive_linger=False)
async def test_flush_overrides_linger(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await producer.warm(["t"])
    await history.submit_many(3)
    start = now()
    await producer.flush()
    assert now() - start < 0.1
    await history.settle()
    history.all_acked()


@scenario(partitions=1)
async def test_flush_timeout_is_kept_and_records_go_on(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.control(0, faults.delay(3), times=1)
    await history.submit()
    start = now()
    with pytest.raises(DeliveryTimeout):
        await producer.flush(0.5)
    assert abs(now() - start - 0.5) < 0.01
    await history.settle()
    history.all_acked()


@scenario(partitions=1)
async def test_serializer_that_raises_fails_its_record_only(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    with pytest.raises(SerializationError):
        await producer.send("t", object(), partition=0)
    await history.send()
    history.all_acked()


@scenario(partitions=3)
async def test_recovery_after_everything_failed_at_once(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    sending = asyncio.ensure_future(history.submit_many(600, every=0.02, partitions=(0, 1, 2)))
    await asyncio.sleep(2)
    for broker_id in (1, 2, 3):
        cluster.pause(broker_id)
    await asyncio.sleep(1)
    for broker in cluster.brokers.values():
        for connection in list(broker.connections):
            connection.reset()
    for broker_id in (1, 2, 3):
        cluster.kill(broker_id)
    await asyncio.sleep(3)
    for broker_id in (3, 2, 1):
        cluster.start(broker_id)
    start = now()
    await until(lambda: any(a.settled_at > start for a in history.attempts))
    assert now() - start < RECOVERY
    await sending
    await history.settle()
    history.all_acked()
