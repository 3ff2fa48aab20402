"""`Engine`: how buffer and sender are connected. Their behaviour is tested with `EngineHarness`."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from typing import cast

from aiokprod._core.memory import Reservation
from aiokprod._wire.compression import codec_for
from aiokprod.testing.virtual import VirtualLoop
from tests.engine.engine_harness import EngineHarness, quiet, virtual


@virtual
async def test_call_that_waits_for_memory_wakes_the_sender() -> None:
    harness = EngineHarness(linger_ms=60_000, adaptive_linger=False, buffer_memory=500)
    harness.append(b"x" * 100)
    before = harness.wakeups
    reservation = Reservation(harness.memory)
    waiter = asyncio.ensure_future(harness.memory.reserve(450, reservation, harness.now + 10))
    await quiet()
    assert harness.wakeups == before + 1
    harness.step()
    harness.brokers.last.ack()
    await waiter
    harness.memory.give_back(reservation)


@virtual
async def test_share_of_a_broker_is_limited_if_the_metadata_have_several() -> None:
    for brokers in (1, 2):
        harness = EngineHarness(brokers=brokers, buffer_memory=1_000)
        harness.quota.account(1).bytes += 501
        assert harness.quota.exceeded(1) is (brokers == 2)


@virtual
async def test_batch_of_a_worker_thread_returns_to_the_sender() -> None:
    worker = cast(Executor, object())  # the virtual loop runs its jobs by itself
    harness = EngineHarness(codec=codec_for("gzip"), executor=worker, batch_size=200_000)
    assert isinstance(harness.loop, VirtualLoop)
    harness.loop.executor_delay_s = 0.5
    delivery = harness.append(b"x" * 100_000)
    harness.step()
    assert not harness.brokers.sent
    await asyncio.sleep(1)
    harness.step()
    harness.brokers.last.ack()
    await quiet()
    assert delivery.done()
    harness.check_idle()
