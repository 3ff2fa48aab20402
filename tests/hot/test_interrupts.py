"""Exceptions of signal handlers, and MemoryError, within calls; see `tests.hot.interrupts`.

The suite takes a sample; `python -m tests.hot.interrupts --every` takes every bytecode.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import textwrap
from typing import Any

import pytest

from aiokprod import KafkaError, Outcome, ProducerFailed
from aiokprod.engine.settlement import Settlement
from aiokprod.testing.virtual import UnhandledError, run
from tests.hot.interrupts.batch import draw, every_bytecode
from tests.hot.interrupts.inject import KINDS, Injector, Interrupted
from tests.hot.interrupts.scenes import SCENES, TOPIC, World

pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")

LIGHT = [scene for scene in SCENES if scene not in ("short_of_memory", "column_larger_than_memory")]


@pytest.mark.parametrize("scene", ["fresh_batch", "full_batch", "sticky_change"])
def test_exception_at_every_bytecode_of_a_call_loses_no_record(scene: str) -> None:
    figures = every_bytecode("idempotent", scene, Interrupted)
    assert figures.raised > 50
    assert len(figures.places) > 10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scene", LIGHT)
def test_exception_in_a_call_loses_no_record(scene: str, kind: type[BaseException]) -> None:
    assert every_bytecode("idempotent", scene, kind, stride=97).calls


@pytest.mark.parametrize("options", ["plain", "compressed", "elastic", "watched", "serialized"])
def test_exception_in_a_call_of_any_producer_loses_no_record(options: str) -> None:
    assert every_bytecode(options, "full_batch", Interrupted, stride=7).raised


@pytest.mark.parametrize("seed", range(2))
def test_signal_handler_that_raises_anywhere_loses_no_record(seed: int) -> None:
    assert draw(seed, 60, alarm=True).calls == 60


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["acknowledge", "_conclude", "fail"])
def test_exception_in_the_settlement_ends_the_producer_definitely(
    where: str, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler that raises in a callback of the loop: nothing is left without an outcome,
    and `health` says so."""
    raised = []

    async def main() -> None:
        world = World({}, 1)
        await world.start()
        if where != "acknowledge":
            world.cluster.fail_produce((TOPIC, 0), 87 if where == "fail" else 6)
        original = getattr(Settlement, where)

        def interrupted(self: Settlement, *arguments: Any, **options: Any) -> Any:
            if raised:
                return original(self, *arguments, **options)
            raised.append(where)
            raise kind("by a signal handler")

        monkeypatch.setattr(Settlement, where, interrupted)
        handles = [world.producer.try_submit(TOPIC, world.value(), partition=0) for _ in range(3)]
        await asyncio.sleep(1)
        assert raised
        health = world.producer.health()
        assert not health.ok
        assert health.state == "failed"
        with pytest.raises(ProducerFailed):
            world.producer.try_submit(TOPIC, b"later")
        for handle in handles:
            assert handle.done()
            assert isinstance(handle.exception(), KafkaError)
        await asyncio.wait_for(world.producer.close(), 10)

    unhandled = None
    try:
        run(main, debug=False, collect_garbage=False)
    except UnhandledError as error:
        unhandled = error
    assert (unhandled is None) or kind is Interrupted, "told to the loop, as any callback's error"


def test_batch_that_an_interrupted_callback_lost_expires() -> None:
    """Neither on the wire nor queued: its deadline ends it all the same, in doubt."""

    async def main() -> None:
        world = World({}, 1)
        await world.start()
        runtime = world.producer._runtime
        handle = world.producer.try_submit(TOPIC, b"v", partition=0)
        (batch,) = runtime.accumulator.incomplete
        runtime.accumulator._take_in()
        runtime.accumulator.remove(batch)
        batch.attempts = 1
        started = asyncio.get_running_loop().time()
        await world.producer.flush(60)
        assert asyncio.get_running_loop().time() - started < 8.5
        assert handle.exception().outcome is Outcome.UNKNOWN
        assert runtime.memory.used == 0
        await world.producer.close()

    run(main, debug=False, collect_garbage=False)


@pytest.mark.parametrize("target", [0, 1], ids=["counts", "raises"])
def test_injector_leaves_the_tracer_that_was_there(target: int) -> None:
    """Without it, coverage measures nothing more in the process."""

    def tracer(frame: object, event: str, argument: object) -> None:
        return None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        injector = Injector(target)
        with contextlib.suppress(Interrupted):
            injector.call(lambda: textwrap.dedent(" x"))
        assert bool(injector.place) == bool(target)
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)
