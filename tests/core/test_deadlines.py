"""`send(timeout=...)`: shared timers, and what the error states about the record."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from aiokprod._client.record_submitter import RecordSubmitter
from aiokprod._core.batch import Delivery, WaitExpired
from aiokprod._core.deadlines import Deadlines
from aiokprod.errors import ConfigError, DeliveryTimeout, Outcome
from aiokprod.producer import Producer
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.virtual import run
from tests.core.core_harness import CoreHarness
from tests.virtual_time import in_virtual_time

LATE = 1 / 128
"""Fraction of the timeout by which a wait may end too late."""


def _no_check(timeout: Any) -> None:
    raise AssertionError(timeout)


def _deadlines() -> Deadlines:
    return Deadlines(asyncio.get_running_loop(), _no_check)


def _watch(deadlines: Deadlines, delivery: Delivery, timeout: float) -> None:
    deadlines.watch(delivery, deadlines.begin(timeout), timeout)


@in_virtual_time
async def test_wait_never_ends_too_early_and_hardly_too_late() -> None:
    loop = asyncio.get_running_loop()
    harness, deadlines = CoreHarness(), _deadlines()
    ended: list[tuple[float, float]] = []
    begun = 0
    for number in range(200):
        timeout = 0.0007 * 1.07**number
        delivery = harness.append()
        began = loop.time()
        delivery.add_done_callback(
            lambda _, began=began, timeout=timeout: ended.append((loop.time() - began, timeout))  # type: ignore[misc]
        )
        _watch(deadlines, delivery, timeout)
        begun += 1
        await asyncio.sleep(0.0013)
    await asyncio.sleep(2_000)
    assert len(ended) == begun
    for took, timeout in ended:
        assert timeout - 1e-9 <= took <= timeout * (1 + LATE) + 1e-9
    assert deadlines.timer_count == 0


@in_virtual_time
async def test_near_deadlines_share_timers_and_finished_records_are_dropped() -> None:
    harness, deadlines = CoreHarness(), _deadlines()
    delivery = harness.append()
    before = sys.getrefcount(harness.core)
    for _ in range(10):
        for _ in range(1_000):
            delivery = harness.append()
            _watch(deadlines, delivery, 5.0)
            delivery.cancel()
        await asyncio.sleep(0.001)
    assert deadlines.timer_count <= 2
    assert sys.getrefcount(harness.core) - before < 300, "handles of finished records are kept"
    await asyncio.sleep(6)
    assert deadlines.timer_count == 0
    assert sys.getrefcount(harness.core) - before < 10


@in_virtual_time
async def test_records_of_one_timer_end_in_order_and_say_what_became_of_them() -> None:
    harness, deadlines = CoreHarness(), _deadlines()
    in_flight = harness.deliveries(3_000)
    harness.core.finish()
    harness.topic.slots[0].core = None
    withdrawn = harness.deliveries(3_000)
    seen: list[Delivery] = []
    for delivery in (*in_flight, *withdrawn):
        delivery.add_done_callback(seen.append)
        _watch(deadlines, delivery, 1.0)
    assert deadlines.timer_count == 1
    await asyncio.sleep(1.1)
    assert seen == [*in_flight, *withdrawn]
    assert [delivery.withdrawn for delivery in seen] == [False] * 3_000 + [True] * 3_000
    for delivery in seen:
        with pytest.raises(WaitExpired):
            delivery.result()


@in_virtual_time
async def test_outcome_before_the_deadline_is_not_ended_by_it() -> None:
    harness, deadlines = CoreHarness(), _deadlines()
    delivery = harness.append()
    _watch(deadlines, delivery, 1)
    harness.core.acknowledge(3)
    await asyncio.sleep(2)
    assert delivery.result().offset == 3


@in_virtual_time
async def test_owner_that_raises_leaves_the_other_deadlines_to_the_next_pass() -> None:
    loop = asyncio.get_running_loop()
    told: list[BaseException] = []
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    harness, deadlines = CoreHarness(partitions=3), _deadlines()

    class Owner:
        def on_emptied(self) -> None:
            raise RuntimeError("a bug")

    deliveries = [harness.append(partition=partition) for partition in range(3)]
    for core in harness.opened:
        core.owner = Owner()
    for delivery in deliveries:
        _watch(deadlines, delivery, 1)
    await asyncio.sleep(1.1)
    assert all(delivery.withdrawn for delivery in deliveries)
    assert len(told) == 3
    loop.set_exception_handler(None)


@pytest.mark.parametrize("timeout", [5e-324, 1e-310, 1e-30, 1e-9])
def test_wait_with_the_smallest_timeouts_ends_as_withdrawn(timeout: float) -> None:
    """The timer step for such a timeout is zero, or too small to be a divisor of a deadline."""

    async def main() -> None:
        cluster = FakeCluster(default_partitions=1)
        async with _producer(cluster, linger_ms=60_000, adaptive_linger=False) as producer:
            await producer.warm(["t"])
            began = asyncio.get_running_loop().time()
            with pytest.raises(DeliveryTimeout) as caught:
                await producer.send("t", b"v", timeout=timeout)
            assert caught.value.outcome is Outcome.NOT_SENT
            assert asyncio.get_running_loop().time() - began < 1e-6
        assert cluster.values("t", 0) == []

    run(main)


@pytest.mark.parametrize("timeout", [10**400, 1 << 1024], ids=["decimal", "binary"])
def test_int_that_is_no_float_is_refused_before_the_record_is_appended(timeout: int) -> None:
    async def main() -> None:
        cluster = FakeCluster(default_partitions=1)
        async with _producer(cluster) as producer:
            await producer.send("t", b"first", timeout=1 << 1022)
            for call in (producer.send("t", b"v", timeout=timeout), producer.flush(timeout)):
                with pytest.raises(ConfigError, match=r"timeout is an int of \d+ bits"):
                    await call
        assert cluster.values("t", 0) == [b"first"]

    run(main)


@in_virtual_time
async def test_infinite_timeout_needs_no_timer_and_closing_leaves_none() -> None:
    harness, deadlines = CoreHarness(), _deadlines()
    _watch(deadlines, harness.append(), float("inf"))
    assert deadlines.timer_count == 0
    for timeout in (1, 2.5, 1e9):
        _watch(deadlines, harness.append(), timeout)
    assert deadlines.timer_count == 3
    deadlines.close()
    await asyncio.sleep(10)
    assert harness.core.record_count == 4


@in_virtual_time
async def test_records_with_a_timeout_take_the_fast_path() -> None:
    taken: list[object] = []
    append = RecordSubmitter.append

    async def noted(self: RecordSubmitter, *fields: Any, **options: Any) -> Delivery:
        taken.append(fields)
        return await append(self, *fields, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecordSubmitter, "append", noted)
        async with _producer(cluster := FakeCluster(default_partitions=1)) as producer:
            await producer.send("t", b"first", timeout=5)
            assert len(taken) == 1, "metadata is missing"
            await asyncio.gather(*(producer.send("t", b"v", timeout=5) for _ in range(100)))
            assert len(taken) == 1
            with pytest.raises(ConfigError, match="send: timeout must be"):
                await producer.send("t", b"v", timeout=0)
    assert len(cluster.values("t", 0)) == 101


def _producer(cluster: FakeCluster, **options: Any) -> Producer[Any, Any]:
    return Producer(
        bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment(), **options
    )


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("in_cleanup", [False, True])
def test_cancellation_together_with_the_timeout_comes_first(
    in_cleanup: bool, cancelled: bool
) -> None:
    """This is also true for a task that was cancelled earlier and sends during its cleanup."""
    ended: list[BaseException] = []

    async def main() -> None:
        cluster = FakeCluster(default_partitions=1)
        async with _producer(cluster, linger_ms=60_000, adaptive_linger=False) as producer:
            await producer.warm(["t"])

            async def cleanup() -> None:
                try:
                    if in_cleanup:
                        await asyncio.sleep(10)
                finally:
                    try:
                        await producer.send("t", b"v", timeout=1)
                    except BaseException as error:
                        ended.append(error)

            task = asyncio.ensure_future(cleanup())
            await asyncio.sleep(0)
            if in_cleanup:
                task.cancel()
                await asyncio.sleep(0)

            assert producer._deadlines is not None
            assert producer._deadlines.timer_count == 1
            batches = producer._lifecycle.started().accumulator.incomplete
            core = next(iter(batches)).core
            assert core.record_count == 1
            owner = core.owner

            class Emptied:
                """Cancels the task during the expiry, before the task is woken."""

                def on_emptied(self) -> None:
                    owner.on_emptied()
                    if cancelled:
                        task.cancel()

            core.owner = Emptied()
            await asyncio.wait([task])

    run(main)
    (error,) = ended
    if cancelled:
        assert isinstance(error, asyncio.CancelledError)
    else:
        assert isinstance(error, DeliveryTimeout)
        assert error.outcome is Outcome.NOT_SENT
