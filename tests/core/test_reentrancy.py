"""Records sent while a batch is being opened: by finalizers, which the garbage collector may run
anywhere, by serializers, and by logging handlers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from aiokprod.errors import KafkaError
from aiokprod.testing.virtual import run
from tests.core.core_harness import idle_harness
from tests.interrupts.inject import Injector
from tests.interrupts.scenes import TOPIC, InterruptHarness


class Leaked:
    """A reference cycle whose finalizer sends records."""

    harness: InterruptHarness | None = None
    sizes = (700, 700, 700)
    sent = 0

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        harness = Leaked.harness
        if harness is None:
            return
        Leaked.harness = None  # one finalizer at a time
        try:
            for size in Leaked.sizes:
                Leaked.sent += 1
                with contextlib.suppress(KafkaError):  # the buffer may be full
                    harness.try_submit(Injector(0), size, partition=Leaked.sent % 2)
        finally:
            Leaked.harness = harness


@pytest.mark.parametrize("threshold", [1, 3, 7, 20])
def test_finalizers_that_send_lose_no_record_of_either(threshold: int) -> None:
    assert gc.isenabled()

    async def main() -> None:
        harness = InterruptHarness(
            {"batch_size": 2_000, "buffer_memory": 30_000, "linger_ms": 5}, threshold
        )
        await harness.start()
        before = gc.get_threshold()
        Leaked.harness, Leaked.sent = harness, 0
        try:
            for number in range(300):
                Leaked()
                gc.set_threshold(threshold, 1, 1)
                try:
                    harness.try_submit(
                        Injector(0), harness.rng.choice((10, 900, 1_800)), partition=0
                    )
                except KafkaError:
                    await asyncio.sleep(0.01)
                finally:
                    gc.set_threshold(*before)
                if number % 100 == 99:
                    Leaked.harness = None
                    await harness.check()
                    Leaked.harness = harness
        finally:
            gc.set_threshold(*before)
            Leaked.harness = None
        assert Leaked.sent > 50, "the collector has run within calls"
        await harness.check()
        await harness.producer.close()

    run(main, debug=False, collect_garbage=False)


def test_finalizer_that_uses_up_the_batch_being_opened_is_no_crash() -> None:
    """The batch that the outer call receives is no longer open. The test runs in a separate
    process, because a failure is a crash."""
    script = """
        import asyncio, gc, random
        from tests.interrupts.scenes import InterruptHarness
        from aiokprod.testing.virtual import run
        class Leaked:
            p = None
            def __init__(self): self.me = self
            def __del__(self):
                if Leaked.p is not None:
                    for _ in range(3):
                        try: Leaked.p.try_submit("t", b"x" * 9000, partition=0)
                        except Exception: pass
        async def main():
            options = dict(buffer_memory=65536, batch_size=16384, linger_ms=1000)
            harness = InterruptHarness(options, 1)
            await harness.start()
            p = Leaked.p = harness.producer
            gc.set_threshold(THRESHOLD, 1, 1)
            for _ in range(1500):
                Leaked()
                try: p.try_submit("t", b"y" * random.choice((10, 3000, 9000)), partition=0)
                except Exception: await asyncio.sleep(0)
            Leaked.p = None
            await p.close(1)
        run(main, debug=False, collect_garbage=False)
        print("fine")
    """
    for threshold in (3, 20):
        code = textwrap.dedent(script).replace("THRESHOLD", str(threshold))
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            capture_output=True, text=True, timeout=900,  # slow under the sanitizers
        )  # fmt: skip
        assert done.stdout == "fine\n", done.stderr[-2000:]


def test_roll_that_returns_a_slot_without_a_batch_needs_a_decision() -> None:
    harness = idle_harness()
    open_new_batch = harness.open_new_batch

    def rolled(topic: Any, partition: int, size: int, permit: object) -> Any:
        slot = open_new_batch(topic, partition, size, permit)
        slot.core = None
        return slot

    appender = type(harness.appender)(
        memory=harness.memory,
        open_new_batch=rolled,
        slow_submit=harness.slow_submit,
        unix_ms=harness.unix_ms,
        yield_queue=harness.yield_queue,
        max_request_size=1000,
    )
    assert appender.append(harness.topic, 0, b"v", None, None, None).delivery is None
    assert harness.memory.used == 0


def test_batch_that_a_nested_call_filled_takes_no_record_too_many() -> None:
    harness = idle_harness(limit=100)
    open_new_batch = harness.open_new_batch

    def rolled(topic: Any, partition: int, size: int, permit: object) -> Any:
        slot = open_new_batch(topic, partition, size, permit)
        assert slot.core is not None
        slot.core.seal()
        return slot

    appender = type(harness.appender)(
        memory=harness.memory,
        open_new_batch=rolled,
        slow_submit=harness.slow_submit,
        unix_ms=harness.unix_ms,
        yield_queue=harness.yield_queue,
        max_request_size=1000,
    )
    assert appender.append(harness.topic, 0, b"v", None, None, None).delivery is None
    assert harness.core.count == 0


def test_logging_handler_that_sends_does_no_harm() -> None:
    async def main() -> None:
        harness = InterruptHarness({"batch_size": 1_000}, 1)
        await harness.start()

        class Sending(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                harness.try_submit(Injector(0), 400)

        handler = Sending()
        logger = logging.getLogger("aiokprod")
        logger.addHandler(handler)
        try:
            for number in range(50):
                logger.error("event %d", number)
                harness.try_submit(Injector(0), 300)
                if number % 10 == 9:
                    await harness.check()
        finally:
            logger.removeHandler(handler)
        await harness.check()
        await harness.producer.close()

    run(main, debug=False, collect_garbage=False)


def test_serializer_that_sends_does_no_harm() -> None:
    inner: list[Any] = []

    async def main() -> None:
        worlds: list[InterruptHarness] = []

        def serializer(data: bytes) -> bytes:
            if worlds and data.endswith(b"outer") and worlds[0].number % 2:
                worlds[0].try_submit(Injector(0), 600, partition=0)
            return bytes(data)

        harness = InterruptHarness({"batch_size": 1_000, "value_serializer": serializer}, 1)
        await harness.start()
        worlds.append(harness)
        for number in range(60):
            inner.append(harness.producer.try_submit(TOPIC, b"%d outer" % number, partition=0))
            if number % 20 == 19:
                await harness.producer.flush()
                for delivery in inner:
                    assert delivery.done()
                    assert delivery.exception() is None
        for _, delivery in harness.handles:
            assert delivery.result().offset is not None
        assert harness.producer._lifecycle.runtime.memory.used == 0
        await harness.producer.close()

    run(main, debug=False, collect_garbage=False)
