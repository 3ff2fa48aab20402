"""Callbacks of handles: their contexts, their order, and callbacks that affect other callbacks."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import weakref
from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiokprod._core.batch import Delivery
from tests.core.core_harness import CoreHarness, idle_harness, on_both_loops

VARIABLES: list[ContextVar[object]] = [ContextVar(f"variable {n}", default=None) for n in range(2)]
EQUAL = [1, True, 1.0]
"""Equal values that are different objects. Contexts that hold them compare equal, too."""


# -- contexts: a random program of registrations and settings, run with handles and with futures --

_actions = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 1), st.sampled_from(EQUAL)),
        st.tuples(st.just("register"), st.integers(0, 3), st.sampled_from([None, *EQUAL])),
        st.tuples(st.just("register set and reset"), st.integers(0, 3), st.sampled_from(EQUAL)),
        st.tuples(st.just("register given"), st.integers(0, 3), st.integers(0, 1)),
        st.tuples(st.just("cancel"), st.integers(0, 3), st.none()),
    ),
    max_size=12,
)


def _play(actions: list[tuple[str, int, Any]], futures: list[Any], settle: Any) -> list[object]:
    """Run the actions and return what each callback observed. A callback reads both variables and
    may set one."""
    loop = futures[0].get_loop()
    seen: list[object] = []
    given_contexts = [contextvars.copy_context(), contextvars.copy_context()]

    def look(number: int, value: object, reset: bool, future: object) -> None:
        seen.append((number, [(type(v.get()), v.get()) for v in VARIABLES]))
        if value is not None:
            token = VARIABLES[number % 2].set(value)
            if reset:
                VARIABLES[number % 2].reset(token)
        loop.call_soon(lambda: seen.append(("later", number, VARIABLES[number % 2].get())))

    for number, (action, which, value) in enumerate(actions):
        if action == "set":
            VARIABLES[which].set(value)
        elif action == "cancel":
            futures[which].cancel()
        elif action == "register given":
            call = functools.partial(look, number, number + 1, False)
            futures[which].add_done_callback(call, context=given_contexts[value])
        else:
            reset = action == "register set and reset"
            futures[which].add_done_callback(functools.partial(look, number, value, reset))
    settle()
    return seen


@settings(deadline=None)
@given(actions=_actions)
def test_contexts_and_order_are_those_of_asyncio(actions: list[tuple[str, int, Any]]) -> None:
    async def with_futures() -> list[object]:
        futures: list[asyncio.Future[None]] = [asyncio.Future() for _ in range(4)]

        def settle() -> None:
            for future in futures:
                if not future.done():
                    future.set_result(None)

        seen = _play(actions, futures, settle)
        for _ in range(3):
            await asyncio.sleep(0)
        return seen

    async def with_handles() -> list[object]:
        harness = CoreHarness()
        handles = harness.deliveries(4)
        seen = _play(actions, handles, lambda: harness.core.acknowledge(0))
        for _ in range(3):
            await asyncio.sleep(0)
        return seen

    assert asyncio.run(with_handles()) == asyncio.run(with_futures())


@on_both_loops
async def test_variable_set_between_two_registrations_is_seen_by_the_second_callback_only() -> None:
    harness = CoreHarness()
    seen: list[object] = []
    for delivery, value in zip(harness.deliveries(4), [1, 1, 2, 1], strict=True):
        VARIABLES[0].set(value)
        delivery.add_done_callback(lambda _: seen.append(VARIABLES[0].get()))
    VARIABLES[0].set("later")
    harness.core.acknowledge(0)
    await asyncio.sleep(0)
    assert seen == [1, 1, 2, 1]


@on_both_loops
async def test_variable_that_a_callback_sets_is_seen_by_no_other_callback() -> None:
    harness = CoreHarness()
    seen: list[object] = []

    def callback(value: object, delivery: Delivery) -> None:
        seen.append(VARIABLES[0].get())
        VARIABLES[0].set(value)

    VARIABLES[0].set("registered")
    for number, delivery in enumerate(harness.deliveries(3)):
        delivery.add_done_callback(functools.partial(callback, number))
        delivery.add_done_callback(functools.partial(callback, number))
    harness.core.acknowledge(0)
    await asyncio.sleep(0)
    assert seen == ["registered"] * 6
    assert VARIABLES[0].get() == "registered"


@on_both_loops
async def test_tasks_with_variables_of_their_own_take_turns_in_one_batch() -> None:
    harness = CoreHarness()
    seen: list[tuple[object, object]] = []
    deliveries = iter(harness.deliveries(30))

    async def task(name: str) -> None:
        VARIABLES[1].set(name)
        for _ in range(10):
            next(deliveries).add_done_callback(lambda _: seen.append((name, VARIABLES[1].get())))
            await asyncio.sleep(0)

    await asyncio.gather(*(task(name) for name in "abc"))
    harness.core.acknowledge(0)
    await asyncio.sleep(0)
    assert seen == [(name, name) for name in "abc"] * 10


@on_both_loops
async def test_nested_run_of_the_loop_does_not_enter_a_context_twice() -> None:
    harness = CoreHarness()
    loop: Any = asyncio.get_running_loop()
    if not hasattr(loop, "_run_once"):
        return
    seen: list[object] = []

    def nested(delivery: Delivery) -> None:
        VARIABLES[0].set("of the outer callback")
        loop._run_once()
        seen.append(VARIABLES[0].get())

    VARIABLES[0].set("registered")
    deliveries = harness.deliveries(3)
    deliveries[0].add_done_callback(nested)
    for delivery in deliveries[1:]:
        delivery.add_done_callback(lambda _: seen.append(VARIABLES[0].get()))
    harness.core.acknowledge(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert seen == ["registered", "registered", "of the outer callback"]


@on_both_loops
async def test_context_that_is_entered_already_is_reported_and_the_others_run() -> None:
    harness = CoreHarness()
    loop = asyncio.get_running_loop()
    told: list[str] = []
    handler = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: told.append(str(context["exception"])))
    entered: list[Context] = []
    task = asyncio.current_task()
    assert task is not None
    entered.append(contextvars.copy_context())
    seen: list[Delivery] = []
    deliveries = harness.deliveries(3)
    for delivery in deliveries:
        delivery.add_done_callback(seen.append, context=entered[0])
    ack = asyncio.Event()

    def within() -> None:
        harness.core.acknowledge(0)
        ack.set()

    entered[0].run(within)
    await asyncio.sleep(0)
    assert (seen, told) == (deliveries, [])

    # The first callback runs the other callbacks while their common context is entered.
    harness = CoreHarness()
    run_once = getattr(loop, "_run_once", None)
    first, second, third = harness.deliveries(3)
    first.add_done_callback(lambda _: run_once and run_once(), context=entered[0])
    second.add_done_callback(seen.append, context=entered[0])
    third.add_done_callback(seen.append)
    harness.core.acknowledge(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    if run_once is None:
        assert (seen[3:], told) == ([second, third], [])
    else:
        assert seen[3:] == [third]
        assert len(told) == 1
        assert "already entered" in told[0]
    loop.set_exception_handler(handler)


# -- order, and callbacks that affect other callbacks ---------------------------------------------


@on_both_loops
async def test_several_callbacks_of_one_handle_run_in_the_order_of_their_registration() -> None:
    harness = CoreHarness()
    seen: list[tuple[str, int]] = []

    def note(name: str, number: int, delivery: Delivery) -> None:
        seen.append((name, number))

    first, second = harness.deliveries(2)
    for number in range(100):
        for name, delivery in (("first", first), ("second", second)):
            delivery.add_done_callback(functools.partial(note, name, number))
    harness.core.acknowledge(0)
    await asyncio.sleep(0)
    assert seen == [(name, number) for name in ("first", "second") for number in range(100)]


@on_both_loops
async def test_callback_may_cancel_and_remove_and_add_without_effect_on_those_that_are_due() -> (
    None
):
    """As with futures, all due callbacks are already scheduled when the first one runs."""
    harness = CoreHarness()
    deliveries = harness.deliveries(4)
    seen: list[Delivery] = []
    late: list[Delivery] = []

    def interfere(delivery: Delivery) -> None:
        for other in deliveries:
            assert not other.cancel()
            assert other.remove_done_callback(seen.append) == 0
            other.add_done_callback(late.append)

    deliveries[0].add_done_callback(interfere)
    for delivery in deliveries:
        delivery.add_done_callback(seen.append)
    harness.core.acknowledge(0)
    await asyncio.sleep(0)
    assert (seen, late) == (deliveries, [])
    await asyncio.sleep(0)
    assert late == deliveries


@on_both_loops
async def test_removal_after_the_outcome_and_before_the_callbacks_has_no_effect() -> None:
    harness = CoreHarness()
    delivery = harness.append()
    seen: list[Delivery] = []
    delivery.add_done_callback(seen.append)
    harness.core.acknowledge(0)
    assert delivery.remove_done_callback(seen.append) == 0
    await asyncio.sleep(0)
    assert seen == [delivery]


@on_both_loops
async def test_callback_that_appends_and_cancels_in_the_next_batch() -> None:
    harness = CoreHarness()
    seen: list[tuple[str, bool]] = []
    delivery = harness.append()
    core = harness.core

    def submit(done: Delivery) -> None:
        core.seal()
        harness.topic.slots[0].core = None
        nested = harness.append()
        nested.add_done_callback(lambda again: seen.append(("nested", again.withdrawn)))
        assert nested.cancel()

    delivery.add_done_callback(submit)
    core.acknowledge(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert seen == [("nested", True)]


@on_both_loops
async def test_callback_runs_once_if_the_outcome_follows_the_cancellation_at_once() -> None:
    for in_flight in (False, True):
        harness = CoreHarness()
        first, second = harness.deliveries(2)
        seen: list[Delivery] = []
        for delivery in (first, second):
            delivery.add_done_callback(seen.append)
            delivery.add_done_callback(seen.append)
        if in_flight:
            harness.core.finish()
        assert second.cancel()
        assert not second.cancel()
        harness.core.finish()
        harness.core.acknowledge(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert seen == [second, second, first, first]


@on_both_loops
async def test_callbacks_follow_their_records_through_a_split() -> None:
    harness = CoreHarness()
    deliveries = harness.deliveries(4)
    seen: list[int] = []

    def note(number: int, delivery: Delivery) -> None:
        seen.append(number)

    VARIABLES[0].set("registered")
    for number, delivery in enumerate(deliveries):
        delivery.add_done_callback(functools.partial(note, number))
        delivery.add_done_callback(functools.partial(note, 10 + number))
    deliveries[1].cancel()
    parts = harness.core.split(harness.core.finish(), 1)
    assert deliveries[2].remove_done_callback(note) == 0  # type: ignore[arg-type]
    parts[2].acknowledge(7)
    parts[0].acknowledge(5)
    parts[1].acknowledge(6)
    for _ in range(2):
        await asyncio.sleep(0)
    assert seen == [1, 11, 3, 13, 0, 10, 2, 12]


class Meddler:
    """A callback whose comparison has a side effect."""

    def __init__(self, meddle: Callable[[], object]) -> None:
        self.meddle: Callable[[], object] = meddle
        self.calls = 0

    def __call__(self, delivery: Delivery) -> None:
        self.calls += 1

    def __eq__(self, other: object) -> bool:
        meddle, self.meddle = self.meddle, lambda: None
        meddle()
        return self is other

    __hash__ = object.__hash__


@on_both_loops
async def test_comparison_that_settles_or_removes_calls_each_callback_at_most_once() -> None:
    for meddling in ("acknowledge", "cancel", "remove"):
        await _remove_with_meddler(meddling)


async def _remove_with_meddler(meddling: str) -> None:
    harness = CoreHarness()
    delivery = harness.append()
    other: list[Delivery] = []
    meddle: dict[str, Callable[[], object]] = {
        "acknowledge": lambda: harness.core.acknowledge(0),
        "cancel": delivery.cancel,
        "remove": lambda: delivery.remove_done_callback(other.append),
    }
    meddler = Meddler(meddle[meddling])
    delivery.add_done_callback(other.append)
    delivery.add_done_callback(meddler)
    delivery.add_done_callback(other.append)
    delivery.remove_done_callback(meddler)
    harness.core.acknowledge(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert meddler.calls <= 1
    assert len(other) <= 2
    if meddling != "remove":
        assert (meddler.calls, other) == (1, [delivery, delivery])


@on_both_loops
async def test_removed_callbacks_can_be_registered_again() -> None:
    harness = CoreHarness()
    delivery = harness.append()
    seen: list[Delivery] = []
    for _ in range(3):
        delivery.add_done_callback(seen.append)
        delivery.add_done_callback(seen.append)
        assert delivery.remove_done_callback(seen.append) == 2
    assert harness.core.unwatched == 1
    delivery.add_done_callback(seen.append)
    assert harness.core.unwatched == 0
    harness.core.acknowledge(0)
    await asyncio.sleep(0)
    assert seen == [delivery]


def test_interrupting_callback_leaves_the_further_ones_of_its_handle() -> None:
    """KeyboardInterrupt propagates to the event loop. This test has no running loop and calls the
    scheduled callbacks itself."""
    harness = idle_harness()
    seen: list[str] = []

    def interrupt(delivery: Delivery) -> None:
        raise KeyboardInterrupt

    first, second = harness.deliveries(2)
    first.add_done_callback(lambda _: seen.append("first"))
    first.add_done_callback(interrupt)
    first.add_done_callback(lambda _: seen.append("first again"))
    second.add_done_callback(lambda _: seen.append("second"))
    loop: Any = harness.loop
    loop.calls.clear()
    harness.core.acknowledge(0)
    with pytest.raises(KeyboardInterrupt):
        loop.calls.pop(0)()
    assert seen == ["first"]
    assert loop.calls, "an entry for the others"
    for call in loop.calls:
        call()
    assert seen == ["first", "first again", "second"]


# -- memory ---------------------------------------------------------------------------------------


def test_callbacks_cost_the_collector_no_object_each() -> None:
    harness = idle_harness()
    deliveries = harness.deliveries(2_001)
    seen: list[Delivery] = []
    note = seen.append
    deliveries[0].add_done_callback(note)
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        for delivery in deliveries[1:]:
            delivery.add_done_callback(note)
        after = len(gc.get_objects())
    finally:
        gc.enable()
    assert after - before < 10
    assert not any(isinstance(item, list) and len(item) == 2_001 and item is not deliveries
                   for item in gc.get_objects())  # fmt: skip
    harness.core.acknowledge(0)
    for call in harness.loop.calls:  # type: ignore[attr-defined]
        call()
    assert seen == deliveries


def test_context_of_callbacks_is_released_with_the_outcome() -> None:
    class Value:
        pass

    def register(delivery: Delivery, value: Value) -> None:
        VARIABLES[0].set(value)
        delivery.add_done_callback(lambda _: None)

    harness = idle_harness()
    deliveries = harness.deliveries(3)
    gone = []
    for delivery in deliveries:
        value = Value()
        gone.append(weakref.ref(value))
        contextvars.copy_context().run(register, delivery, value)
        del value
    assert all(alive() is not None for alive in gone)
    harness.core.acknowledge(0)
    for call in harness.loop.calls:  # type: ignore[attr-defined]
        call()
    harness.loop.calls.clear()  # type: ignore[attr-defined]
    assert all(alive() is None for alive in gone), "though the handles and the batch still exist"


def test_callback_is_released_once_it_has_run() -> None:
    class Callback:
        def __call__(self, delivery: Delivery) -> None: ...

    harness = idle_harness()
    deliveries = harness.deliveries(2)
    callback = Callback()
    gone = weakref.ref(callback)
    deliveries[0].add_done_callback(callback)
    del callback
    seen: list[object] = []
    deliveries[1].add_done_callback(lambda _: seen.append(gone()))
    harness.core.acknowledge(0)
    harness.loop.calls[-1]()  # type: ignore[attr-defined]
    assert seen == [None]
