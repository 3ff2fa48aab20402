"""The byte budget: exact accounting, first come first served (Java BufferPoolTest)."""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

import pytest

from aiokprod._core.memory import Reservation
from aiokprod._engine.buffer.buffer_memory import BufferMemory
from aiokprod.errors import BufferTimeout, Outcome, ProducerClosed
from tests.core.core_harness import LOOPS
from tests.engine.engine_harness import CROWD, crowd, quiet, virtual
from tests.simulation.call_interrupts import Injector, Interrupt, stepped

T = TypeVar("T")


class Exhausted:
    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


def budget(limit: int = 100) -> tuple[BufferMemory, Exhausted]:
    exhausted = Exhausted()
    return BufferMemory(limit, exhausted), exhausted


def interrupt() -> None:
    raise Interrupt


def forever() -> float:
    return asyncio.get_running_loop().time() + 3600


def take(memory: BufferMemory, size: int) -> bool:
    """Reserve bytes for another caller until `release`."""
    reservation = Reservation(memory)
    taken = memory.try_reserve(size, reservation)
    _held.append(reservation)
    return taken


def release(memory: BufferMemory, size: int) -> None:
    memory.used -= size
    memory.returned()


def test_refusal_is_noted_until_bytes_are_returned() -> None:
    memory, exhausted = budget()
    assert take(memory, 90)
    for _ in range(3):
        memory.on_refused()
    assert (memory.refused, exhausted.times) == (True, 1)  # the sender is not woken again
    release(memory, 1)
    assert (memory.refused, exhausted.times) == (False, 1)
    memory.on_refused()
    assert (memory.refused, exhausted.times) == (True, 2)


async def reserve(memory: BufferMemory, size: int, deadline: float) -> None:
    """Reserve memory as the slow path does."""
    reservation = Reservation(memory)
    _held.append(reservation)
    try:
        await memory.reserve(size, reservation, deadline)
    except BaseException:
        memory.give_back(reservation)
        raise


_held: list[Reservation] = []
"""Keeps the reservations, because a deleted reservation releases its bytes."""


def start(memory: BufferMemory, size: int, deadline: float | None = None) -> asyncio.Task[None]:
    deadline = forever() if deadline is None else deadline
    return asyncio.ensure_future(reserve(memory, size, deadline))


@virtual
async def test_reserve_with_room_does_not_suspend() -> None:
    memory, exhausted = budget()
    coroutine = reserve(memory, 100, forever())
    with pytest.raises(StopIteration):
        coroutine.send(None)
    assert memory.used == 100
    assert exhausted.times == 0
    release(memory, 100)
    assert memory.used == 0


def test_try_reserve_takes_what_is_there_and_nothing_else() -> None:
    memory, _ = budget()
    assert take(memory, 60)
    assert not take(memory, 41)
    assert take(memory, 40)
    assert not take(memory, 1)
    release(memory, 100)
    assert memory.used == 0


@virtual
async def test_reservation_that_is_dropped_gives_its_bytes_back() -> None:
    memory, _ = budget()
    reservation = Reservation(memory)
    await memory.reserve(60, reservation, forever())
    assert memory.used == 60
    assert reservation.size == 60
    del reservation
    assert memory.used == 0


@virtual
async def test_reservation_that_is_dropped_wakes_those_who_wait() -> None:
    """For example, the reservation of a call in whose `finally` a signal handler raised."""
    memory, _ = budget()
    dropped = Reservation(memory)
    assert memory.try_reserve(100, dropped)
    waiters = [start(memory, 60), start(memory, 40)]
    await quiet()
    assert memory.waiting == 2
    del dropped
    await quiet()
    assert all(waiter.done() for waiter in waiters)
    assert memory.used == 100
    assert not memory.has_waiters


@virtual
async def test_reserve_interrupted_at_any_bytecode_keeps_no_bytes_and_no_place() -> None:
    for step in itertools.count(1):
        memory, _ = budget()
        held = Reservation(memory)
        assert memory.try_reserve(100, held)
        injector = Injector(step, interrupt)
        call = stepped(memory.reserve(60, Reservation(memory), forever()), injector)
        task = asyncio.ensure_future(call)
        await quiet()
        if not task.done():
            assert not injector.has_struck
            assert step > 50  # bytecodes until it waits
            task.cancel()
            return
        with pytest.raises(Interrupt):
            task.result()
        del call, task, held
        await quiet()
        await asyncio.wait_for(memory.reserve(100, Reservation(memory), forever()), 1.0)
        assert memory.used == memory.waiting == 0


@pytest.mark.parametrize("kind", LOOPS)
def test_reservation_dropped_in_another_thread_wakes_the_loop(kind: str) -> None:
    """The garbage collector may run in any thread and delete the reservation in the traceback of
    its call."""

    async def main() -> None:
        memory, _ = budget()
        held = [Reservation(memory)]
        assert memory.try_reserve(100, held[0])
        waiter = start(memory, 60)
        await asyncio.sleep(0)
        assert memory.waiting == 1
        threading.Timer(0.05, held.clear).start()
        await asyncio.wait_for(waiter, 30)
        assert memory.used == 60

    with asyncio.Runner(loop_factory=LOOPS[kind], debug=True) as runner:
        runner.run(main())


@virtual
async def test_reservation_dropped_between_look_and_wait_is_not_missed() -> None:
    """The reservation is dropped by a garbage collection during the creation of the awaited
    future."""
    memory, _ = budget()
    held = [Reservation(memory)]
    assert memory.try_reserve(100, held[0])
    loop = asyncio.get_running_loop()
    create_future = loop.create_future

    def collect() -> asyncio.Future[None]:
        held.clear()
        return create_future()

    loop.create_future = collect  # type: ignore[method-assign]
    try:
        waiter = start(memory, 60)
        await quiet()
    finally:
        loop.create_future = create_future  # type: ignore[method-assign]
    assert waiter.done()
    assert memory.used == 60
    assert not memory.has_waiters


def at_bytecode(number: int, action: Callable[[], object], step: Callable[[], T]) -> tuple[T, bool]:
    """Run a step with `action` before the bytecode with this number. Return the result of the step,
    and whether there were this many bytecodes."""
    seen = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal seen
        if frame.f_code.co_filename != BufferMemory.reserve.__code__.co_filename:
            return None
        frame.f_trace = trace
        frame.f_trace_opcodes = True
        if event == "opcode":
            seen += 1
            if seen == number:
                action()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return step(), seen >= number
    finally:
        sys.settrace(before)


@virtual
async def test_reservation_dropped_at_any_moment_of_a_call_that_begins_to_wait_is_not_missed() -> (
    None
):
    """The call checks for free memory, joins the queue, and checks again. Another thread or a
    garbage collection may free memory at every bytecode of these steps."""
    number = moments = waited = 0
    while number == moments:
        number += 1
        memory, _ = budget()
        held = [Reservation(memory)]
        assert memory.try_reserve(100, held[0])
        call = memory.reserve(60, Reservation(memory), forever())

        def step(call: Any = call) -> Any:
            try:
                return call.send(None)
            except StopIteration:
                return None

        future, reached = at_bytecode(number, held.clear, step)
        moments += reached
        held.clear()
        if future is not None:
            waited += 1
            await quiet()
            assert future.done(), f"missed before bytecode {number}"
            assert step() is None
        assert memory.used == 0, "the reservation of the call, too, is dropped"
        assert not memory.has_waiters
    assert moments > 50
    assert 0 < waited < moments


def test_reservation_dropped_after_its_loop_was_closed_is_given_back() -> None:
    memory, _ = budget()
    dropped = Reservation(memory)
    assert memory.try_reserve(100, dropped)

    async def leave() -> None:
        start(memory, 1)
        await asyncio.sleep(0)

    asyncio.run(leave())
    memory.has_waiters = True  # as if the waiting call had never ended
    del dropped
    assert memory.used == 0


def test_release_of_more_than_was_reserved_is_a_bug() -> None:
    memory, _ = budget()
    take(memory, 1)
    with pytest.raises(AssertionError):
        release(memory, 2)


@virtual
async def test_waiters_are_served_in_order_and_only_those_that_fit() -> None:
    memory, exhausted = budget()
    take(memory, 100)
    waiters = [start(memory, size) for size in (30, 50, 30)]
    await quiet()
    assert memory.waiting == 3
    assert memory.has_waiters
    assert exhausted.times == 3
    release(memory, 20)
    await quiet()
    assert [w.done() for w in waiters] == [False] * 3
    release(memory, 20)
    await quiet()
    assert [w.done() for w in waiters] == [True, False, False]
    assert memory.used == 90
    release(memory, 40)
    await quiet()
    assert [w.done() for w in waiters] == [True, True, False]
    assert memory.used == 100
    release(memory, 100)
    await quiet()
    assert all(w.done() for w in waiters)
    assert memory.used == 30
    assert not memory.has_waiters


@virtual
async def test_large_waiter_is_not_starved_by_small_ones() -> None:
    memory, _ = budget()
    take(memory, 100)
    large = start(memory, 80)
    small = [start(memory, 1) for _ in range(5)]
    await quiet()
    release(memory, 50)
    await quiet()
    assert not take(memory, 1), "who comes later stands in line"
    assert not any(w.done() for w in small)
    release(memory, 30)
    await quiet()
    assert large.done()
    assert not any(w.done() for w in small), "20 bytes are held by others still"
    release(memory, 20)
    await quiet()
    assert all(w.done() for w in small)
    assert memory.used == 85
    release(memory, 85)


@virtual
async def test_whole_budget_can_be_reserved_after_a_wait() -> None:
    memory, _ = budget()
    take(memory, 1)
    waiter = start(memory, 100)
    await quiet()
    release(memory, 1)
    await waiter
    assert memory.used == 100


@virtual
async def test_wait_ends_at_the_deadline_with_nothing_taken() -> None:
    memory, _ = budget()
    take(memory, 90)
    loop = asyncio.get_running_loop()
    start_time = loop.time()
    with pytest.raises(BufferTimeout) as caught:
        await reserve(memory, 20, start_time + 5)
    assert loop.time() == start_time + 5
    assert caught.value.outcome is Outcome.NOT_SENT
    for part in ("20 bytes", "90 of 100", "max_block_ms"):
        assert part in str(caught.value)
    assert memory.used == 90
    assert not memory.has_waiters


@virtual
async def test_deadline_of_the_head_lets_the_next_one_through() -> None:
    memory, _ = budget()
    take(memory, 50)
    loop = asyncio.get_running_loop()
    head = start(memory, 90, loop.time() + 1)
    following = start(memory, 50)
    await asyncio.sleep(2)
    assert isinstance(head.exception(), BufferTimeout)
    assert following.done()
    assert memory.used == 100


@virtual
async def test_cancelled_waiter_leaves_the_queue_and_the_next_one_is_granted() -> None:
    memory, _ = budget()
    take(memory, 50)
    head = start(memory, 90)
    following = start(memory, 50)
    await quiet()
    head.cancel()
    await quiet()
    assert following.done()
    assert memory.used == 100
    release(memory, 100)
    assert not memory.has_waiters


@virtual
async def test_waiter_cancelled_after_the_grant_passes_its_bytes_on() -> None:
    memory, _ = budget()
    take(memory, 100)
    head = start(memory, 60)
    following = start(memory, 60)
    await quiet()
    release(memory, 60)  # granted to the head, which has not run yet
    head.cancel()
    await quiet()
    assert head.cancelled()
    assert following.done()
    assert memory.used == 100
    release(memory, 100)
    assert memory.used == 0


@virtual
async def test_waiter_cancelled_in_the_pass_that_frees_memory_takes_nothing() -> None:
    memory, _ = budget()
    take(memory, 100)
    head = start(memory, 60)
    following = start(memory, 60)
    await quiet()
    head.cancel()
    release(memory, 60)
    await quiet()
    assert following.done()
    assert memory.used == 100


@virtual
async def test_waiter_cancelled_at_its_deadline_is_cancelled() -> None:
    memory, _ = budget()
    take(memory, 100)
    loop = asyncio.get_running_loop()
    waiter = start(memory, 60, loop.time() + 1)
    await quiet()
    loop.call_at(loop.time() + 1, waiter.cancel)
    with pytest.raises((asyncio.CancelledError, BufferTimeout)):
        await waiter
    assert memory.used == 100
    assert not memory.has_waiters


@virtual
async def test_close_fails_everyone_with_a_copy_now_and_later() -> None:
    memory, _ = budget()
    take(memory, 100)
    waiters = [start(memory, 10) for _ in range(3)]
    await quiet()
    waiters[2].cancel()
    error = ProducerClosed("closed")
    memory.close(error)
    await quiet()
    errors = [waiter.exception() for waiter in waiters[:2]]
    assert all(isinstance(e, ProducerClosed) and e is not error for e in errors)
    assert errors[0] is not errors[1]
    assert waiters[2].cancelled()
    assert not memory.has_waiters
    with pytest.raises(ProducerClosed):
        await reserve(memory, 1, forever())
    release(memory, 100)
    assert memory.used == 0


@virtual
async def test_waiter_cancelled_by_the_close_is_cancelled() -> None:
    memory, _ = budget()
    take(memory, 100)
    waiter = start(memory, 10)
    await quiet()
    memory.close(ProducerClosed("closed"))
    waiter.cancel()
    await quiet()
    assert waiter.cancelled()
    assert memory.used == 100


@pytest.mark.parametrize("seed", range(30))
@virtual
async def test_random_use_never_exceeds_the_limit_and_serves_in_order(seed: int) -> None:
    rng = random.Random(seed)
    memory, _ = budget(1000)
    loop = asyncio.get_running_loop()
    served: list[int] = []
    gone: set[int] = set()

    async def user(number: int) -> None:
        size = rng.randint(1, 600)
        try:
            await reserve(memory, size, loop.time() + rng.choice([0.5, 5, 50]))
        except BufferTimeout:
            gone.add(number)
            return
        served.append(number)
        assert memory.used <= 1000
        try:
            await asyncio.sleep(rng.random())
        finally:
            release(memory, size)

    gone |= await crowd(user, rng, every=0.1)
    assert memory.used == 0
    assert memory.waiting == 0
    assert not memory.has_waiters
    assert served == sorted(served)
    assert set(served) | gone == set(range(CROWD))
