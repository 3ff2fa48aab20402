"""Exceptions of signal handlers, and MemoryError, within calls. See `tests.interrupts`.

These tests cover a sample of bytecodes. `python -m tests.interrupts` covers a million random
bytecodes, and with `--every` each bytecode of a few calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import re
import sys
import textwrap
import types
from typing import Any

import pytest

from aiokprod import KafkaError, Outcome, ProducerFailed
from aiokprod._client.record_hooks import RecordHooks
from aiokprod._client.send_many import BulkSender
from aiokprod._client.slow_path import SlowPath
from aiokprod._core.batch import BatchCore, Delivery
from aiokprod._engine.buffer import accumulator
from aiokprod._engine.buffer.accumulator import RecordAccumulator
from aiokprod._engine.buffer.producer_batch import ProducerBatch
from aiokprod._engine.sender.batch_completion import BatchCompletion
from aiokprod.testing.virtual import UnhandledError, run
from tests.interrupts import bursts
from tests.interrupts.inject import KINDS, Aimed, Injector, Interrupted, Survey
from tests.interrupts.parallel import draw, every_bytecode, quiet
from tests.interrupts.scenes import OPTIONS, SCENES, TOPIC, InterruptHarness
from tests.liveness_check import check_passes

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


@pytest.mark.parametrize("options", [name for name in OPTIONS if name != "idempotent"])
def test_exception_in_a_call_of_any_producer_loses_no_record(options: str) -> None:
    assert every_bytecode(options, "full_batch", Interrupted, stride=7).raised


@pytest.mark.parametrize("scene", ["records", "submit_slowly", "send_that_times_out"])
def test_exception_in_a_call_loses_no_report_to_interceptors_and_plugins(scene: str) -> None:
    assert every_bytecode("watched", scene, Interrupted, stride=13).raised > 10


@pytest.mark.parametrize("method", ["end", "settled"])
def test_report_that_an_exception_lost_is_found(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RecordHooks, method, lambda self, *arguments: None)
    with pytest.raises(AssertionError, match="sent, "):
        every_bytecode("watched", "submit_slowly", Interrupted, stride=13)


def test_outcome_that_on_delivery_does_not_get_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    append = SlowPath.append

    async def lost(
        self: SlowPath, record: Any, deadline: float, *others: Any, **options: Any
    ) -> Delivery:
        for reservation in others[:1]:
            reservation.on_delivery = None
        return await append(self, record, deadline, *others, **options)

    monkeypatch.setattr(SlowPath, "append", lost)
    with pytest.raises(AssertionError, match=r": \[\]"):
        every_bytecode("plain", "submit_slowly", Interrupted, stride=13)


@pytest.mark.parametrize("seed", range(2))
def test_signal_handler_that_raises_anywhere_loses_no_record(seed: int) -> None:
    assert draw(seed, 60, alarm=True).calls == 60


@pytest.mark.parametrize("alarm", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_exceptions_in_many_calls_at_once_lose_no_record(seed: int, alarm: bool) -> None:
    figures = bursts.draw(seed, 150, alarm=alarm)
    assert figures.raised > (0 if alarm else 75)
    assert set(figures.shapes) <= set(bursts.SHAPES)


def test_aimed_exceptions_reach_every_bytecode() -> None:
    """`Survey` numbers the bytecodes that `Injector` counts. `Aimed` raises before each of them,
    also in generators that are entered several times."""
    survey, counted = Survey(), Injector(0)
    survey.call(asyncio_names)
    counted.call(asyncio_names)
    assert sum(survey.lengths) == counted.count > 100
    one_by_one = [Injector(target) for target in range(1, counted.count + 1)]
    aimed = [
        Aimed(activation, target, Interrupted)
        for activation, length in enumerate(survey.lengths)
        for target in range(1, length + 1)
    ]
    for injector in (*one_by_one, *aimed):
        with pytest.raises(Interrupted):
            injector.call(asyncio_names)
    places = [sorted(injector.place for injector in each) for each in (one_by_one, aimed)]
    assert places[0] == places[1]


def asyncio_names() -> None:
    """Call functions of modules outside the tests, including a generator."""
    list(itertools.islice(types.DynamicClassAttribute.__mro__, 1))
    list(asyncio.sleep(0).__await__())
    inspect.unwrap(textwrap.indent)
    textwrap.indent("a\nb", "  ")


def test_batch_opened_before_the_sender_knows_is_found_and_narrowed_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The original defect of interrupted calls: records that are later appended to such a batch are
    never sent."""

    def open_first(self: RecordAccumulator, queue: Any) -> bool:
        opened = queue.opened
        self._maybe_add_partition(queue.topic_partition)
        now = self._loop.time()
        core = BatchCore(queue.topic, queue.partition, self._loop, 1_900, 1.0, 0)
        order = (next(self._orders),)
        batch = ProducerBatch(core, queue, order, now, now + queue.settings.delivery_timeout)
        done: bool = queue.open(core, opened, batch, queue.batches, self.incomplete)
        self.expires_at = min(self.expires_at, batch.deadline)
        self._changed[queue] = None
        self._wakeup()
        return done

    # The injector does not interrupt functions of tests, so the function gets the globals of
    # `accumulator`.
    interrupted = types.FunctionType(open_first.__code__, vars(accumulator))
    monkeypatch.setattr(RecordAccumulator, "_open", interrupted)
    with pytest.raises(Exception, match=r"no outcome|overlooked by the sender") as found:
        draw_rounds(60)  # ends with the first seed that finds the defect
    with contextlib.suppress(AssertionError):
        check_passes()  # discards the failures that this test provoked
    suffice = re.match(r"(\d+) exceptions suffice", found.value.__notes__[-1])
    assert suffice is not None
    assert int(suffice[1]) < 20, "of 180"


def draw_rounds(count: int) -> None:
    for seed in range(count):
        bursts.draw(seed, 200)


class Within(Injector):
    """Counts and raises in calls of one function only."""

    def __init__(self, function: Any, target: int, kind: type[BaseException]) -> None:
        super().__init__(target, kind)
        self._code = function.__code__

    def _call(self, frame: Any, event: str, argument: Any) -> Any:
        return super()._call(frame, event, argument) if frame.f_code is self._code else None


async def asynchronous(data: bytes) -> bytes:
    """A serializer with which bulk calls append each record on the slow path."""
    return data


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "function",
    [
        BulkSender._note, BulkSender._one, BulkSender._advance, BulkSender._advance_records,
        BulkSender._record,
    ],
)  # fmt: skip
def test_exception_while_a_record_of_a_bulk_call_is_noted_counts_it_once(
    function: Any, kind: type[BaseException]
) -> None:
    """The record counts once, as submitted or as rejected. Otherwise the next record is skipped,
    and later records get each other's outcomes."""
    raised = 0

    async def main() -> None:
        nonlocal raised
        harness = InterruptHarness({"value_serializer": asynchronous}, 1)
        await harness.start()
        while True:
            injector = Within(function, raised + 1, kind)
            with contextlib.suppress(kind):
                if function in (BulkSender._advance_records, BulkSender._record):
                    await harness.send_records(injector, 3, 50)
                else:
                    await harness.send_many(injector, 3, 50)
            await harness.check()
            if not injector.place:
                break
            raised += 1
        await harness.producer.close()

    with quiet():
        run(main, debug=False, collect_garbage=False)
    assert raised > 20


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["_acknowledge", "_complete_failed_attempt", "fail"])
def test_exception_in_the_settlement_ends_the_producer_definitely(
    where: str, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler raises in a callback of the event loop. Every record still gets an outcome,
    and `health` reports the failure."""
    raised: list[str] = []

    async def main() -> None:
        harness = InterruptHarness({}, 1)
        await harness.start()
        if where != "_acknowledge":
            harness.cluster.fail_produce((TOPIC, 0), 87 if where == "fail" else 6)
        original = getattr(BatchCompletion, where)

        def interrupted(self: BatchCompletion, *arguments: Any, **options: Any) -> Any:
            if raised:
                return original(self, *arguments, **options)
            raised.append(where)
            raise kind("by a signal handler")

        monkeypatch.setattr(BatchCompletion, where, interrupted)
        handles = [
            harness.producer.try_submit(TOPIC, harness.value(), partition=0) for _ in range(3)
        ]
        await asyncio.sleep(1)
        assert raised
        health = harness.producer.health()
        assert not health.ok
        assert health.state == "failed"
        with pytest.raises(ProducerFailed):
            harness.producer.try_submit(TOPIC, b"later")
        for handle in handles:
            assert handle.done()
            assert isinstance(handle.exception(), KafkaError)
        await asyncio.wait_for(harness.producer.close(), 10)

    unhandled = None
    try:
        run(main, debug=False, collect_garbage=False)
    except UnhandledError as error:
        unhandled = error
    assert (unhandled is None) or kind is Interrupted, "told to the loop, as any callback's error"


def test_batch_that_an_interrupted_callback_lost_expires() -> None:
    """The batch is neither in flight nor queued. It still expires at its deadline, with outcome
    UNKNOWN."""

    async def main() -> None:
        harness = InterruptHarness({}, 1)
        await harness.start()
        runtime = harness.producer._lifecycle.runtime
        handle = harness.producer.try_submit(TOPIC, b"v", partition=0)
        (batch,) = runtime.accumulator.incomplete
        runtime.accumulator.advance(asyncio.get_running_loop().time())
        runtime.accumulator.remove(batch)
        batch.attempts = 1
        started = asyncio.get_running_loop().time()
        await harness.producer.flush(60)
        assert asyncio.get_running_loop().time() - started < 8.5
        assert handle.exception().outcome is Outcome.UNKNOWN
        assert runtime.memory.used == 0
        await harness.producer.close()

    run(main, debug=False, collect_garbage=False)


@pytest.mark.parametrize("target", [0, 1], ids=["counts", "raises"])
def test_injector_leaves_the_tracer_that_was_there(target: int) -> None:
    """If the injector removed the tracer, coverage would measure nothing more in this process."""

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
