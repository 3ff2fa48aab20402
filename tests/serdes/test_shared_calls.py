"""Calls that several tasks share, when tasks are cancelled, loops are closed, or signal handlers
raise."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aiokprod.serdes._shared_calls import RepeatableProblem, SharedCalls
from aiokprod.testing.virtual import run
from tests.simulation.call_interrupts import Injector, TimeUp, stepped
from tests.virtual_time import in_virtual_time

Make = Callable[[], Awaitable[str]]


def described(error: Exception) -> RepeatableProblem:
    return RepeatableProblem(type(error).__name__)


def shared(*, limit: int = 10, keeps_running: bool = True) -> SharedCalls[str, str]:
    return SharedCalls(limit, keeps_running, described)


class Answers:
    """The function of a shared call. It counts its calls."""

    def __init__(self, *failures: Exception, delay: float = 1.0) -> None:
        self.failures = list(failures)
        self.delay = delay
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        if self.delay:
            await asyncio.sleep(self.delay)
        if self.failures:
            raise self.failures.pop(0)
        return f"answer {self.calls}"


@in_virtual_time
async def test_failure_is_remembered_for_a_second_and_each_gets_a_copy() -> None:
    calls, make = shared(), Answers(RepeatableProblem("refused"))
    found: list[BaseException] = []
    for _ in range(3):
        with pytest.raises(RepeatableProblem, match="refused") as caught:
            await calls.result("a", make)
        found.append(caught.value)
    assert len({id(error) for error in found}) == 3
    assert make.calls == 1
    await asyncio.sleep(1.0)
    assert await calls.result("a", make) == "answer 2"


@in_virtual_time
async def test_oldest_failure_is_forgotten_beyond_the_limit() -> None:
    calls, make = shared(limit=2), Answers(*[KeyError() for _ in range(3)], delay=0)
    for key in ("a", "b", "c"):
        with pytest.raises(RepeatableProblem, match="KeyError"):
            await calls.result(key, make)
    assert calls.failure("a") is None
    for key in ("b", "c"):
        assert isinstance(calls.failure(key), RepeatableProblem)
    assert await calls.result("a", make) == "answer 4"


@pytest.mark.parametrize("keeps_running", [False, True])
@in_virtual_time
async def test_call_ends_with_its_last_waiter_unless_it_keeps_running(keeps_running: bool) -> None:
    calls, make = shared(keeps_running=keeps_running), Answers()
    tasks = [asyncio.create_task(calls.result("a", make)) for _ in range(2)]
    for task in tasks:
        await asyncio.sleep(0.2)
        task.cancel()
    await asyncio.sleep(0.2)
    assert await calls.result("a", make) == ("answer 1" if keeps_running else "answer 2")
    assert [task.cancelled() for task in tasks] == [True, True]


@in_virtual_time
async def test_waiter_that_is_cancelled_while_the_call_ends_does_not_disturb_the_others() -> None:
    calls = shared()
    gate: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def make() -> str:
        return await gate

    first, second = (asyncio.create_task(calls.result("a", make)) for _ in range(2))
    await asyncio.sleep(0.1)
    gate.set_result("answer")
    first.cancel()  # the task continues after the call has ended
    assert await second == "answer"
    with pytest.raises(asyncio.CancelledError):
        await first


@in_virtual_time
async def test_those_who_wait_for_an_abandoned_call_get_an_error_and_the_next_begins_anew() -> None:
    calls, make = shared(), Answers()
    waiting = asyncio.create_task(calls.result("a", make))
    await asyncio.sleep(0.5)
    calls.abandon()
    with pytest.raises(RepeatableProblem, match="the request was abandoned"):
        await waiting
    assert await calls.result("a", make) == "answer 2"


@in_virtual_time
async def test_call_that_is_abandoned_before_its_task_runs_ends() -> None:
    calls, make = shared(), Answers()
    waiting = asyncio.create_task(calls.result("a", make))
    await asyncio.sleep(0)
    calls.abandon()
    with pytest.raises(RepeatableProblem, match="the request was abandoned"):
        await waiting
    assert await calls.result("a", make) == "answer 1"


def test_without_a_loop_there_is_no_failure_and_nothing_to_abandon() -> None:
    calls = shared()
    with pytest.raises(RepeatableProblem, match="KeyError"):
        run(lambda: calls.result("a", Answers(KeyError())))
    assert calls.failure("a") is None
    calls.abandon()


def test_failures_belong_to_a_loop() -> None:
    calls, make = shared(), Answers(KeyError())
    with pytest.raises(RepeatableProblem):
        run(lambda: calls.result("a", make))
    assert run(lambda: calls.result("a", make)) == "answer 2"


@in_virtual_time
async def test_call_that_ends_while_its_task_is_made_has_its_answer() -> None:
    """This simulates `asyncio.eager_task_factory`, which Python 3.11 lacks."""
    loop = asyncio.get_running_loop()
    calls = shared()

    def eager(loop: Any, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        with contextlib.suppress(StopIteration):
            coroutine.send(None)

        async def ended() -> None:
            """A coroutine in place of a call that has already ended."""

        return asyncio.Task(ended(), loop=loop)

    waiting = loop.create_task(calls.result("a", Answers(delay=0)))
    loop.set_task_factory(eager)
    async with asyncio.timeout(1.0):
        assert await waiting == "answer 1"
    loop.set_task_factory(None)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("keeps_running", [False, True])
def test_exception_of_a_signal_handler_does_not_block_later_calls(keeps_running: bool) -> None:
    async def main() -> None:
        ends: set[str] = set()
        for step in range(1, 1_000):
            calls, make = shared(keeps_running=keeps_running), Answers()

            def strike() -> None:
                raise TimeUp

            injector = Injector(step, strike)
            try:
                ends.add(await stepped(calls.result("a", make), injector))
            except TimeUp:
                ends.add("raised")
            if not injector.has_struck:
                break
            async with asyncio.timeout(10.0):
                assert (await calls.result("a", make)).startswith("answer")
            calls.abandon()
        else:
            raise AssertionError("the call never ends")
        assert step > 50, "the tracer saw the call"
        assert ends == {"raised", "answer 1"}

    run(main, debug=False)
