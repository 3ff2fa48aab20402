"""Records sent from within the opening of a batch: by finalizers, which the garbage collector runs
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
from tests.hot.desk import idle_desk
from tests.hot.interrupts.inject import Injector
from tests.hot.interrupts.scenes import TOPIC, World


class Leaked:
    """A cycle whose finalizer sends."""

    world: World | None = None
    sizes = (700, 700, 700)
    sent = 0

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        world = Leaked.world
        if world is None:
            return
        Leaked.world = None  # one at a time
        try:
            for size in Leaked.sizes:
                Leaked.sent += 1
                with contextlib.suppress(KafkaError):  # no room
                    world.try_submit(Injector(0), size, partition=Leaked.sent % 2)
        finally:
            Leaked.world = world


@pytest.mark.parametrize("threshold", [1, 3, 7, 20])
def test_finalizers_that_send_lose_no_record_of_either(threshold: int) -> None:
    async def main() -> None:
        world = World({"batch_size": 2_000, "buffer_memory": 30_000, "linger_ms": 5}, threshold)
        await world.start()
        before = gc.get_threshold()
        Leaked.world, Leaked.sent = world, 0
        try:
            for number in range(300):
                Leaked()
                gc.set_threshold(threshold, 1, 1)
                try:
                    world.try_submit(Injector(0), world.rng.choice((10, 900, 1_800)), partition=0)
                except KafkaError:
                    await asyncio.sleep(0.01)
                finally:
                    gc.set_threshold(*before)
                if number % 100 == 99:
                    Leaked.world = None
                    await world.check()
                    Leaked.world = world
        finally:
            gc.set_threshold(*before)
            Leaked.world = None
        assert Leaked.sent > 50, "the collector has run within calls"
        await world.check()
        await world.producer.close()

    run(main, debug=False, collect_garbage=False)


def test_finalizer_that_uses_up_the_batch_being_opened_is_no_crash() -> None:
    """In a process of its own: the batch that the outer call is given is gone."""
    script = """
        import asyncio, gc, random
        from tests.hot.interrupts.scenes import World
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
            world = World(dict(buffer_memory=65536, batch_size=16384, linger_ms=1000), 1)
            await world.start()
            p = Leaked.p = world.producer
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
    desk = idle_desk()
    roll = desk.roll

    def rolled(topic: Any, partition: int, size: int) -> Any:
        slot = roll(topic, partition, size)
        slot.core = None
        return slot

    appender = type(desk.appender)(
        loop=desk.loop, memory=desk.memory, roll=rolled, slow_submit=desk.slow_submit,
        unix_ms=desk.unix_ms, turns=desk.appender.turns, max_request_size=1000, sticky_limit=1000,
    )  # fmt: skip
    assert appender.append(desk.topic, 0, b"v", None, None, None) is None
    assert desk.memory.used == 0


def test_batch_that_a_nested_call_filled_takes_no_record_too_many() -> None:
    desk = idle_desk(limit=100)
    roll = desk.roll

    def rolled(topic: Any, partition: int, size: int) -> Any:
        slot = roll(topic, partition, size)
        slot.core.seal()
        return slot

    appender = type(desk.appender)(
        loop=desk.loop, memory=desk.memory, roll=rolled, slow_submit=desk.slow_submit,
        unix_ms=desk.unix_ms, turns=desk.appender.turns, max_request_size=1000, sticky_limit=1000,
    )  # fmt: skip
    assert appender.append(desk.topic, 0, b"v", None, None, None) is None
    assert desk.core.count == 0


def test_logging_handler_that_sends_does_no_harm() -> None:
    async def main() -> None:
        world = World({"batch_size": 1_000}, 1)
        await world.start()

        class Sending(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                world.try_submit(Injector(0), 400)

        handler = Sending()
        logger = logging.getLogger("aiokprod")
        logger.addHandler(handler)
        try:
            for number in range(50):
                logger.error("event %d", number)
                world.try_submit(Injector(0), 300)
                if number % 10 == 9:
                    await world.check()
        finally:
            logger.removeHandler(handler)
        await world.check()
        await world.producer.close()

    run(main, debug=False, collect_garbage=False)


def test_serializer_that_sends_does_no_harm() -> None:
    inner: list[Any] = []

    async def main() -> None:
        worlds: list[World] = []

        def serializer(data: bytes) -> bytes:
            if worlds and data.endswith(b"outer") and worlds[0].number % 2:
                worlds[0].try_submit(Injector(0), 600, partition=0)
            return bytes(data)

        world = World({"batch_size": 1_000, "value_serializer": serializer}, 1)
        await world.start()
        worlds.append(world)
        for number in range(60):
            inner.append(world.producer.try_submit(TOPIC, b"%d outer" % number, partition=0))
            if number % 20 == 19:
                await world.producer.flush()
                for delivery in inner:
                    assert delivery.done()
                    assert delivery.exception() is None
        for _, delivery in world.handles:
            assert delivery.result().offset is not None
        assert world.producer._runtime.memory.used == 0
        await world.producer.close()

    run(main, debug=False, collect_garbage=False)
