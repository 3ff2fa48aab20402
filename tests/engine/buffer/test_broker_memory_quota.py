"""How much of the buffer each broker may hold, and the queues of calls that wait for a broker."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from dataclasses import dataclass

import pytest

from aiokprod._core.batch import BatchCore
from aiokprod._core.memory import MemoryBudget
from aiokprod._core.slots import PartitionSlot
from aiokprod._engine.buffer.broker_memory_quota import BrokerMemoryQuota, QuotaWaiter
from aiokprod.errors import BufferTimeout, Outcome, ProducerClosed
from tests.core.core_harness import LOOPS
from tests.engine.engine_harness import CROWD, crowd, quiet, virtual
from tests.simulation.call_interrupts import Injector, Interrupt, stepped


def two_brokers(memory: int = 100) -> BrokerMemoryQuota:
    return BrokerMemoryQuota(memory, lambda: True)


def forever() -> float:
    return asyncio.get_running_loop().time() + 3600


def interrupt() -> None:
    raise Interrupt


def add(quota: BrokerMemoryQuota, node: int | None, size: int) -> None:
    quota.account(node).bytes += size


def remove(quota: BrokerMemoryQuota, node: int | None, size: int) -> None:
    quota.account(node).bytes -= size
    quota.returned(node)


@dataclass(eq=False)
class Queue:
    """A queue that has a leader."""

    node: int | None = 1


def start(
    quota: BrokerMemoryQuota, queue: int | Queue = 1, earlier: QuotaWaiter | None = None
) -> asyncio.Task[QuotaWaiter]:
    queue = queue if isinstance(queue, Queue) else Queue(queue)
    return asyncio.ensure_future(quota.wait(queue, forever(), earlier))


def test_half_of_the_memory_is_one_brokers_limit() -> None:
    quota = two_brokers()
    add(quota, 1, 50)
    assert not quota.exceeded(1)
    add(quota, 1, 1)
    assert quota.exceeded(1)
    assert not quota.exceeded(2)
    assert quota.reserved_bytes(1) == 51
    remove(quota, 1, 51)
    assert quota.reserved_bytes(1) == 0


def test_single_broker_has_no_limit() -> None:
    quota = BrokerMemoryQuota(100, lambda: False)
    add(quota, 1, 100)
    assert not quota.exceeded(1)


def test_more_given_back_than_held_is_a_bug() -> None:
    quota = two_brokers()
    slot = PartitionSlot("t", 0)
    slot.follow(quota.account(1))
    core = BatchCore("t", 0, None, 100)  # type: ignore[arg-type]
    core.buffered_bytes = 5
    slot.hold(core)
    slot.hold(core)  # already counted
    assert quota.reserved_bytes(1) == slot.reserved_bytes == 5
    memory = MemoryBudget(100)
    with pytest.raises(AssertionError, match="more bytes than are reserved"):
        slot.let_go(core, memory)
    memory.used = 5
    core.reserved_bytes = 6
    with pytest.raises(AssertionError, match="more bytes than are reserved"):
        slot.let_go(core, memory)
    core.reserved_bytes = 5
    assert slot.let_go(core, memory) == 5
    assert slot.let_go(core, memory) == 0
    assert quota.reserved_bytes(1) == slot.reserved_bytes == memory.used == 0


@virtual
async def test_turn_that_is_dropped_ends() -> None:
    quota = two_brokers()
    permit = await quota.wait(Queue(1), forever())
    assert permit.granted
    assert quota.has_waiters(1)
    del permit
    assert not quota.has_waiters(1)


@pytest.mark.parametrize("kind", LOOPS)
def test_turn_dropped_in_another_thread_passes_to_the_next_one(kind: str) -> None:
    """The garbage collector may run in any thread and delete the slot in the traceback of an
    interrupted call."""

    async def main() -> None:
        quota = two_brokers()
        held = [await quota.wait(Queue(1), forever())]
        assert held[0].granted
        waiter = start(quota)
        await asyncio.sleep(0)
        assert quota.waiting == 1
        threading.Timer(0.05, held.clear).start()
        permit = await asyncio.wait_for(waiter, 30)
        assert permit.granted
        quota.release(permit)

    with asyncio.Runner(loop_factory=LOOPS[kind], debug=True) as runner:
        runner.run(main())


@virtual
async def test_wait_interrupted_at_any_bytecode_keeps_no_permit_and_no_place() -> None:
    for step in itertools.count(1):
        quota = two_brokers()
        injector = Injector(step, interrupt)
        try:
            await stepped(quota.wait(Queue(1), forever()), injector)
        except Interrupt:
            pass
        else:
            assert not injector.has_struck
            assert step > 50  # bytecodes of one wait
            return
        await quiet()
        permit = await asyncio.wait_for(quota.wait(Queue(1), forever()), 1.0)
        assert permit.granted
        quota.release(permit)
        assert not quota.has_waiters(1)


@virtual
async def test_one_waiter_at_a_time_gets_the_permit_in_order_of_arrival() -> None:
    quota = two_brokers()
    add(quota, 1, 60)
    waiters = [start(quota) for _ in range(3)]
    await quiet()
    assert quota.waiting == 3
    assert quota.has_waiters(1)
    remove(quota, 1, 20)
    await quiet()
    assert [w.done() for w in waiters] == [True, False, False]
    quota.release(waiters[0].result())
    await quiet()
    assert [w.done() for w in waiters] == [True, True, False]
    add(quota, 1, 20)
    quota.release(waiters[1].result())
    await quiet()
    assert not waiters[2].done(), "the room is used up again"
    remove(quota, 1, 60)
    await quiet()
    assert waiters[2].done()
    quota.release(waiters[2].result())
    assert not quota.has_waiters(1)
    assert quota.waiting == 0


@virtual
async def test_lines_of_two_brokers_are_independent() -> None:
    quota = two_brokers()
    add(quota, 1, 60)
    add(quota, 2, 60)
    first, second = start(quota, 1), start(quota, 2)
    await quiet()
    remove(quota, 2, 60)
    await quiet()
    assert second.done()
    assert not first.done()
    first.cancel()
    await quiet()


@virtual
async def test_waiter_without_room_after_all_waits_at_the_front() -> None:
    quota = two_brokers()
    add(quota, 1, 60)
    first, second = start(quota), start(quota)
    await quiet()
    remove(quota, 1, 60)
    await quiet()
    assert first.done()
    add(quota, 1, 60)
    again = start(quota, earlier=first.result())
    await quiet()
    remove(quota, 1, 60)
    await quiet()
    assert again.done()
    assert not second.done()
    quota.release(again.result())
    await quiet()
    assert second.done()
    quota.release(second.result())


@virtual
async def test_deadline_ends_the_wait_and_names_the_broker() -> None:
    quota = two_brokers()
    add(quota, 7, 60)
    loop = asyncio.get_running_loop()
    start_time = loop.time()
    with pytest.raises(BufferTimeout) as caught:
        await quota.wait(Queue(7), start_time + 3)
    assert loop.time() == start_time + 3
    assert caught.value.outcome is Outcome.NOT_SENT
    assert "broker 7" in str(caught.value)
    add(quota, None, 60)
    with pytest.raises(BufferTimeout, match="without a leader"):
        await quota.wait(Queue(None), start_time + 4)
    assert not quota.has_waiters(7)
    assert not quota.has_waiters(None)


@virtual
async def test_cancelled_waiter_leaves_the_queue() -> None:
    quota = two_brokers()
    add(quota, 1, 60)
    first, second = start(quota), start(quota)
    await quiet()
    first.cancel()
    await quiet()
    assert quota.waiting == 1
    remove(quota, 1, 60)
    await quiet()
    assert second.done()
    quota.release(second.result())


@virtual
async def test_waiter_cancelled_with_the_permit_passes_it_on() -> None:
    quota = two_brokers()
    add(quota, 1, 60)
    first, second = start(quota), start(quota)
    await quiet()
    remove(quota, 1, 60)
    first.cancel()  # it has the permit but has not run yet
    await quiet()
    assert first.cancelled()
    assert second.done()
    quota.release(second.result())
    assert not quota.has_waiters(1)


@virtual
async def test_waiter_cancelled_before_its_permit_is_granted_takes_no_other() -> None:
    quota = two_brokers()
    add(quota, 1, 60)
    first, second, third = start(quota), start(quota), start(quota)
    await quiet()
    first.cancel()
    remove(quota, 1, 60)
    await quiet()
    assert second.done()
    assert not third.done(), "one at a time"
    quota.release(second.result())
    await quiet()
    quota.release(third.result())


@virtual
async def test_waiter_cancelled_at_its_deadline_takes_no_other_permit() -> None:
    quota = two_brokers()
    add(quota, 1, 60)
    loop = asyncio.get_running_loop()
    first = asyncio.ensure_future(quota.wait(Queue(1), loop.time() + 1))
    second, third = start(quota), start(quota)
    await quiet()
    loop.call_at(loop.time() + 1, first.cancel)
    loop.call_at(loop.time() + 1, remove, quota, 1, 60)
    await asyncio.sleep(2)
    assert first.done()
    assert second.done()
    assert not third.done(), "one at a time"
    third.cancel()
    await quiet()
    quota.release(second.result())
    assert not quota.has_waiters(1)


@virtual
async def test_close_fails_everyone_now_and_later() -> None:
    quota = two_brokers()
    add(quota, 1, 60)
    waiters = [start(quota), start(quota), start(quota)]
    await quiet()
    waiters[2].cancel()
    error = ProducerClosed("closed")
    quota.close(error)
    await quiet()
    errors = [waiter.exception() for waiter in waiters[:2]]
    assert all(isinstance(e, ProducerClosed) and e is not error for e in errors)
    assert waiters[2].cancelled()
    with pytest.raises(ProducerClosed):
        await quota.wait(Queue(1), forever())
    remove(quota, 1, 60)
    assert quota.waiting == 0


@virtual
async def test_waiter_cancelled_by_the_close_is_cancelled() -> None:
    quota = two_brokers()
    add(quota, 1, 60)
    waiter = start(quota)
    await quiet()
    quota.close(ProducerClosed("closed"))
    waiter.cancel()
    await quiet()
    assert waiter.cancelled()


@virtual
async def test_line_moves_when_the_cluster_has_one_broker_left() -> None:
    several = [True]
    quota = BrokerMemoryQuota(100, lambda: several[0])
    add(quota, 1, 60)
    waiter = start(quota)
    await quiet()
    several[0] = False
    quota.on_nodes_changed()
    await quiet()
    assert waiter.done()
    quota.release(waiter.result())


def test_pressure_is_the_fullest_brokers() -> None:
    several = [True]
    quota = BrokerMemoryQuota(100, lambda: several[0])
    assert quota.pressure == 0.0
    add(quota, 1, 10)
    add(quota, 2, 25)
    assert quota.pressure == 0.5
    add(quota, 2, 100)
    assert quota.pressure == 1.0
    several[0] = False
    assert quota.pressure == 0.0


@pytest.mark.parametrize("seed", range(20))
@virtual
async def test_random_use_serves_in_order_and_forgets_nobody(seed: int) -> None:
    rng = random.Random(seed)
    quota = two_brokers(1000)
    served: list[int] = []
    gone: set[int] = set()
    loop = asyncio.get_running_loop()

    async def user(number: int) -> None:
        size = rng.randint(1, 300)
        if quota.exceeded(1) or quota.has_waiters(1):
            try:
                permit = await quota.wait(Queue(1), loop.time() + rng.choice([0.2, 5, 500]))
            except BufferTimeout:
                gone.add(number)
                return
            assert not quota.exceeded(1)
            served.append(number)
            add(quota, 1, size)
            quota.release(permit)
        else:
            served.append(number)
            add(quota, 1, size)
        try:
            await asyncio.sleep(rng.random())
        finally:
            remove(quota, 1, size)

    gone |= await crowd(user, rng, every=0.05)
    assert quota.waiting == 0
    assert not quota.has_waiters(1)
    assert quota.reserved_bytes(1) == 0
    assert served == sorted(served)
    assert set(served) | gone == set(range(CROWD))


# -- partitions that move -------------------------------------------------------------------------


@virtual
async def test_waiter_goes_to_the_queue_of_its_partitions_new_leader() -> None:
    quota = two_brokers()
    for node in (1, 2, None):
        add(quota, node, 60)
    moves, stays, leaderless = Queue(1), Queue(1), Queue(None)
    waiters = [start(quota, queue) for queue in (moves, stays, leaderless)]
    await quiet()
    moves.node = leaderless.node = 2
    quota.follow({1, None})
    assert quota.waiting == 3
    assert not quota.has_waiters(None)
    remove(quota, 2, 60)
    await quiet()
    assert [w.done() for w in waiters] == [True, False, False], "one at a time"
    quota.release(waiters[0].result())
    await quiet()
    assert [w.done() for w in waiters] == [True, False, True]
    quota.release(waiters[2].result())
    remove(quota, 1, 60)
    await quiet()
    quota.release(waiters[1].result())
    assert quota.waiting == 0
    assert not any(quota.has_waiters(node) for node in (1, 2, None))


@virtual
async def test_waiter_that_moves_to_a_broker_with_room_gets_the_permit() -> None:
    quota = two_brokers()
    add(quota, 1, 60)
    queue = Queue(1)
    waiter = start(quota, queue)
    await quiet()
    queue.node = 2
    quota.follow({1})
    await quiet()
    assert waiter.result().granted
    assert quota.has_waiters(2)
    quota.release(waiter.result())
    assert not quota.has_waiters(2)


@virtual
async def test_waiters_that_move_keep_their_place_by_arrival() -> None:
    quota = two_brokers()
    add(quota, 1, 60)
    add(quota, 2, 60)
    queues = [Queue(1 + number % 2) for number in range(6)]
    waiters = [start(quota, queue) for queue in queues]
    await quiet()
    for queue in queues:
        queue.node = 2
    quota.follow({1})
    remove(quota, 2, 60)
    for number, waiter in enumerate(waiters):
        await quiet()
        assert [w.done() for w in waiters] == [True] * (number + 1) + [False] * (5 - number)
        quota.release(waiter.result())


@virtual
async def test_caller_with_the_permit_of_the_old_leader_waits_in_order_for_the_new_one() -> None:
    quota = two_brokers()
    add(quota, 1, 60)
    add(quota, 2, 60)
    earlier, queue, later = Queue(2), Queue(1), Queue(2)
    waiters = [start(quota, one) for one in (earlier, queue, later)]
    await quiet()
    remove(quota, 1, 60)
    await quiet()
    queue.node = 2
    again = start(quota, queue, waiters[1].result())
    await quiet()
    assert not quota.has_waiters(1), "it gave that permit up"
    remove(quota, 2, 60)
    for waiter in (waiters[0], again, waiters[2]):
        await quiet()
        assert waiter.done()
        quota.release(waiter.result())
    assert quota.waiting == 0


@virtual
async def test_waiter_that_moved_ends_at_its_deadline_in_the_new_queue() -> None:
    quota = two_brokers()
    add(quota, 1, 60)
    add(quota, 2, 60)
    queue = Queue(1)
    loop = asyncio.get_running_loop()
    waiter = asyncio.ensure_future(quota.wait(queue, loop.time() + 1))
    await quiet()
    queue.node = 2
    quota.follow({1})
    with pytest.raises(BufferTimeout, match="broker 2"):
        await waiter
    assert quota.waiting == 0


@virtual
async def test_waiter_of_a_queue_that_is_gone_returns_without_the_permit() -> None:
    quota = two_brokers()
    add(quota, 1, 60)
    gone, other = Queue(1), Queue(1)
    first, second = start(quota, gone), start(quota, other)
    await quiet()
    quota.forget([gone])
    await quiet()
    assert not first.result().granted
    assert quota.waiting == 1
    second.cancel()
    await quiet()
    assert quota.waiting == 0
    assert not quota.has_waiters(1)
