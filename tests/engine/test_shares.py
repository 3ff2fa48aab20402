"""How much of the buffer each broker may hold, and the lines before the brokers."""

from __future__ import annotations

import asyncio
import random
import threading
from dataclasses import dataclass

import pytest

from aiokprod.engine.shares import NodeShares, Place
from aiokprod.errors import BufferTimeout, Outcome, ProducerClosed
from aiokprod.hot.append import PartitionSlot
from aiokprod.hot.core import BatchCore, MemoryBudget
from tests.engine.world import CROWD, crowd, quiet, virtual
from tests.hot.desk import LOOPS


def two_brokers(memory: int = 100) -> NodeShares:
    return NodeShares(memory, lambda: True)


def forever() -> float:
    return asyncio.get_running_loop().time() + 3600


def add(shares: NodeShares, node: int | None, size: int) -> None:
    shares.account(node).bytes += size


def remove(shares: NodeShares, node: int | None, size: int) -> None:
    shares.account(node).bytes -= size
    shares.returned(node)


@dataclass(eq=False)
class Queue:
    """What has a leader."""

    node: int | None = 1


def start(
    shares: NodeShares, queue: int | Queue = 1, place: Place | None = None
) -> asyncio.Task[Place]:
    queue = queue if isinstance(queue, Queue) else Queue(queue)
    return asyncio.ensure_future(shares.wait(queue, forever(), place))


def test_half_of_the_memory_is_one_brokers_limit() -> None:
    shares = two_brokers()
    add(shares, 1, 50)
    assert not shares.exceeded(1)
    add(shares, 1, 1)
    assert shares.exceeded(1)
    assert not shares.exceeded(2)
    assert shares.held(1) == 51
    remove(shares, 1, 51)
    assert shares.held(1) == 0


def test_single_broker_has_no_limit() -> None:
    shares = NodeShares(100, lambda: False)
    add(shares, 1, 100)
    assert not shares.exceeded(1)


def test_more_given_back_than_held_is_a_bug() -> None:
    shares = two_brokers()
    slot = PartitionSlot("t", 0)
    slot.follow(shares.account(1))
    core = BatchCore("t", 0, None, 100)  # type: ignore[arg-type]
    core.charged = 5
    slot.hold(core)
    slot.hold(core)  # counted before
    assert shares.held(1) == slot.held == 5
    memory = MemoryBudget(100)
    with pytest.raises(AssertionError, match="more than is held"):
        slot.let_go(core, memory)
    memory.used = 5
    core.held = 6
    with pytest.raises(AssertionError, match="more than is held"):
        slot.let_go(core, memory)
    core.held = 5
    assert slot.let_go(core, memory) == 5
    assert slot.let_go(core, memory) == 0
    assert shares.held(1) == slot.held == memory.used == 0


@virtual
async def test_turn_that_is_dropped_ends() -> None:
    shares = two_brokers()
    place = await shares.wait(Queue(1), forever())
    assert place.has_turn
    assert shares.has_waiters(1)
    del place
    assert not shares.has_waiters(1)


@pytest.mark.parametrize("kind", LOOPS)
def test_turn_dropped_in_another_thread_passes_to_the_next_one(kind: str) -> None:
    """The garbage collector may find it there, in the traceback of an interrupted call."""

    async def main() -> None:
        shares = two_brokers()
        held = [await shares.wait(Queue(1), forever())]
        assert held[0].has_turn
        waiter = start(shares)
        await asyncio.sleep(0)
        assert shares.waiting == 1
        threading.Timer(0.05, held.clear).start()
        place = await asyncio.wait_for(waiter, 30)
        assert place.has_turn
        shares.end_turn(place)

    with asyncio.Runner(loop_factory=LOOPS[kind], debug=True) as runner:
        runner.run(main())


@virtual
async def test_one_waiter_at_a_time_gets_the_turn_in_order_of_arrival() -> None:
    shares = two_brokers()
    add(shares, 1, 60)
    waiters = [start(shares) for _ in range(3)]
    await quiet()
    assert shares.waiting == 3
    assert shares.has_waiters(1)
    remove(shares, 1, 20)
    await quiet()
    assert [w.done() for w in waiters] == [True, False, False]
    shares.end_turn(waiters[0].result())
    await quiet()
    assert [w.done() for w in waiters] == [True, True, False]
    add(shares, 1, 20)
    shares.end_turn(waiters[1].result())
    await quiet()
    assert not waiters[2].done(), "the room is used up again"
    remove(shares, 1, 60)
    await quiet()
    assert waiters[2].done()
    shares.end_turn(waiters[2].result())
    assert not shares.has_waiters(1)
    assert shares.waiting == 0


@virtual
async def test_lines_of_two_brokers_are_independent() -> None:
    shares = two_brokers()
    add(shares, 1, 60)
    add(shares, 2, 60)
    first, second = start(shares, 1), start(shares, 2)
    await quiet()
    remove(shares, 2, 60)
    await quiet()
    assert second.done()
    assert not first.done()
    first.cancel()
    await quiet()


@virtual
async def test_waiter_without_room_after_all_waits_at_the_front() -> None:
    shares = two_brokers()
    add(shares, 1, 60)
    first, second = start(shares), start(shares)
    await quiet()
    remove(shares, 1, 60)
    await quiet()
    assert first.done()
    add(shares, 1, 60)
    again = start(shares, place=first.result())
    await quiet()
    remove(shares, 1, 60)
    await quiet()
    assert again.done()
    assert not second.done()
    shares.end_turn(again.result())
    await quiet()
    assert second.done()
    shares.end_turn(second.result())


@virtual
async def test_deadline_ends_the_wait_and_names_the_broker() -> None:
    shares = two_brokers()
    add(shares, 7, 60)
    loop = asyncio.get_running_loop()
    start_time = loop.time()
    with pytest.raises(BufferTimeout) as caught:
        await shares.wait(Queue(7), start_time + 3)
    assert loop.time() == start_time + 3
    assert caught.value.outcome is Outcome.NOT_SENT
    assert "broker 7" in str(caught.value)
    add(shares, None, 60)
    with pytest.raises(BufferTimeout, match="without a leader"):
        await shares.wait(Queue(None), start_time + 4)
    assert not shares.has_waiters(7)
    assert not shares.has_waiters(None)


@virtual
async def test_cancelled_waiter_leaves_the_line() -> None:
    shares = two_brokers()
    add(shares, 1, 60)
    first, second = start(shares), start(shares)
    await quiet()
    first.cancel()
    await quiet()
    assert shares.waiting == 1
    remove(shares, 1, 60)
    await quiet()
    assert second.done()
    shares.end_turn(second.result())


@virtual
async def test_waiter_cancelled_with_the_turn_passes_it_on() -> None:
    shares = two_brokers()
    add(shares, 1, 60)
    first, second = start(shares), start(shares)
    await quiet()
    remove(shares, 1, 60)
    first.cancel()  # it has the turn but did not run yet
    await quiet()
    assert first.cancelled()
    assert second.done()
    shares.end_turn(second.result())
    assert not shares.has_waiters(1)


@virtual
async def test_waiter_cancelled_before_its_turn_takes_nobody_elses() -> None:
    shares = two_brokers()
    add(shares, 1, 60)
    first, second, third = start(shares), start(shares), start(shares)
    await quiet()
    first.cancel()
    remove(shares, 1, 60)
    await quiet()
    assert second.done()
    assert not third.done(), "one at a time"
    shares.end_turn(second.result())
    await quiet()
    shares.end_turn(third.result())


@virtual
async def test_waiter_cancelled_at_its_deadline_takes_nobody_elses_turn() -> None:
    shares = two_brokers()
    add(shares, 1, 60)
    loop = asyncio.get_running_loop()
    first = asyncio.ensure_future(shares.wait(Queue(1), loop.time() + 1))
    second, third = start(shares), start(shares)
    await quiet()
    loop.call_at(loop.time() + 1, first.cancel)
    loop.call_at(loop.time() + 1, remove, shares, 1, 60)
    await asyncio.sleep(2)
    assert first.done()
    assert second.done()
    assert not third.done(), "one at a time"
    third.cancel()
    await quiet()
    shares.end_turn(second.result())
    assert not shares.has_waiters(1)


@virtual
async def test_close_fails_everyone_now_and_later() -> None:
    shares = two_brokers()
    add(shares, 1, 60)
    waiters = [start(shares), start(shares), start(shares)]
    await quiet()
    waiters[2].cancel()
    error = ProducerClosed("closed")
    shares.close(error)
    await quiet()
    errors = [waiter.exception() for waiter in waiters[:2]]
    assert all(isinstance(e, ProducerClosed) and e is not error for e in errors)
    assert waiters[2].cancelled()
    with pytest.raises(ProducerClosed):
        await shares.wait(Queue(1), forever())
    remove(shares, 1, 60)
    assert shares.waiting == 0


@virtual
async def test_waiter_cancelled_by_the_close_is_cancelled() -> None:
    shares = two_brokers()
    add(shares, 1, 60)
    waiter = start(shares)
    await quiet()
    shares.close(ProducerClosed("closed"))
    waiter.cancel()
    await quiet()
    assert waiter.cancelled()


@virtual
async def test_line_moves_when_the_cluster_has_one_broker_left() -> None:
    several = [True]
    shares = NodeShares(100, lambda: several[0])
    add(shares, 1, 60)
    waiter = start(shares)
    await quiet()
    several[0] = False
    shares.look_again()
    await quiet()
    assert waiter.done()
    shares.end_turn(waiter.result())


def test_pressure_is_the_fullest_brokers() -> None:
    several = [True]
    shares = NodeShares(100, lambda: several[0])
    assert shares.pressure == 0.0
    add(shares, 1, 10)
    add(shares, 2, 25)
    assert shares.pressure == 0.5
    add(shares, 2, 100)
    assert shares.pressure == 1.0
    several[0] = False
    assert shares.pressure == 0.0


@pytest.mark.parametrize("seed", range(20))
@virtual
async def test_random_use_serves_in_order_and_forgets_nobody(seed: int) -> None:
    rng = random.Random(seed)
    shares = two_brokers(1000)
    served: list[int] = []
    gone: set[int] = set()
    loop = asyncio.get_running_loop()

    async def user(number: int) -> None:
        size = rng.randint(1, 300)
        if shares.exceeded(1) or shares.has_waiters(1):
            try:
                place = await shares.wait(Queue(1), loop.time() + rng.choice([0.2, 5, 500]))
            except BufferTimeout:
                gone.add(number)
                return
            assert not shares.exceeded(1)
            served.append(number)
            add(shares, 1, size)
            shares.end_turn(place)
        else:
            served.append(number)
            add(shares, 1, size)
        try:
            await asyncio.sleep(rng.random())
        finally:
            remove(shares, 1, size)

    gone |= await crowd(user, rng, every=0.05)
    assert shares.waiting == 0
    assert not shares.has_waiters(1)
    assert shares.held(1) == 0
    assert served == sorted(served)
    assert set(served) | gone == set(range(CROWD))


# -- partitions that move -------------------------------------------------------------------------


@virtual
async def test_waiter_goes_to_the_line_of_its_partitions_new_leader() -> None:
    shares = two_brokers()
    for node in (1, 2, None):
        add(shares, node, 60)
    moves, stays, leaderless = Queue(1), Queue(1), Queue(None)
    waiters = [start(shares, queue) for queue in (moves, stays, leaderless)]
    await quiet()
    moves.node = leaderless.node = 2
    shares.follow({1, None})
    assert shares.waiting == 3
    assert not shares.has_waiters(None)
    remove(shares, 2, 60)
    await quiet()
    assert [w.done() for w in waiters] == [True, False, False], "one at a time"
    shares.end_turn(waiters[0].result())
    await quiet()
    assert [w.done() for w in waiters] == [True, False, True]
    shares.end_turn(waiters[2].result())
    remove(shares, 1, 60)
    await quiet()
    shares.end_turn(waiters[1].result())
    assert shares.waiting == 0
    assert not any(shares.has_waiters(node) for node in (1, 2, None))


@virtual
async def test_waiter_that_moves_to_a_broker_with_room_is_let_through() -> None:
    shares = two_brokers()
    add(shares, 1, 60)
    queue = Queue(1)
    waiter = start(shares, queue)
    await quiet()
    queue.node = 2
    shares.follow({1})
    await quiet()
    assert waiter.result().has_turn
    assert shares.has_waiters(2)
    shares.end_turn(waiter.result())
    assert not shares.has_waiters(2)


@virtual
async def test_waiters_that_move_keep_their_place_by_arrival() -> None:
    shares = two_brokers()
    add(shares, 1, 60)
    add(shares, 2, 60)
    queues = [Queue(1 + number % 2) for number in range(6)]
    waiters = [start(shares, queue) for queue in queues]
    await quiet()
    for queue in queues:
        queue.node = 2
    shares.follow({1})
    remove(shares, 2, 60)
    for number, waiter in enumerate(waiters):
        await quiet()
        assert [w.done() for w in waiters] == [True] * (number + 1) + [False] * (5 - number)
        shares.end_turn(waiter.result())


@virtual
async def test_caller_let_through_at_the_old_leader_waits_at_its_place_for_the_new_one() -> None:
    shares = two_brokers()
    add(shares, 1, 60)
    add(shares, 2, 60)
    earlier, queue, later = Queue(2), Queue(1), Queue(2)
    waiters = [start(shares, one) for one in (earlier, queue, later)]
    await quiet()
    remove(shares, 1, 60)
    await quiet()
    queue.node = 2
    again = start(shares, queue, waiters[1].result())
    await quiet()
    assert not shares.has_waiters(1), "its turn there has ended"
    remove(shares, 2, 60)
    for waiter in (waiters[0], again, waiters[2]):
        await quiet()
        assert waiter.done()
        shares.end_turn(waiter.result())
    assert shares.waiting == 0


@virtual
async def test_waiter_that_moved_ends_at_its_deadline_in_the_new_line() -> None:
    shares = two_brokers()
    add(shares, 1, 60)
    add(shares, 2, 60)
    queue = Queue(1)
    loop = asyncio.get_running_loop()
    waiter = asyncio.ensure_future(shares.wait(queue, loop.time() + 1))
    await quiet()
    queue.node = 2
    shares.follow({1})
    with pytest.raises(BufferTimeout, match="broker 2"):
        await waiter
    assert shares.waiting == 0


@virtual
async def test_waiter_of_a_queue_that_is_gone_looks_anew_without_the_turn() -> None:
    shares = two_brokers()
    add(shares, 1, 60)
    gone, other = Queue(1), Queue(1)
    first, second = start(shares, gone), start(shares, other)
    await quiet()
    shares.look_anew([gone])
    await quiet()
    assert not first.result().has_turn
    assert shares.waiting == 1
    second.cancel()
    await quiet()
    assert shares.waiting == 0
    assert not shares.has_waiters(1)
