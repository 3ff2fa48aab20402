"""Every public coroutine in every situation in which it may have to wait.

| situation | what happens | what the call must do |
|---|---|---|
| unanswered once | the response to the first request of each kind is lost | success |
| unanswered | there are no more responses | end in time, by a `KafkaError` at most |
| answered twice | every response arrives twice, a few times | success |
| loop stalled | the loop is blocked for 0.6 s | success |
| loop stalled long | it is blocked for 40 s, longer than every time limit | end at once after it |
| network stalled | no data passes for 3 s, without a reset | success |
| memory full | memory is free after 2 s | success |
| memory full for good | Produce gets no response | end in time; at once without records |

Afterwards the producer works and no resource of the call remains. Cancellation at every await is
tested in `test_cancellation.py` and, in transactions, below. `test_no_public_coroutine_is_left_out`
fails if a coroutine has no row here.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from aiokprod import Producer
from aiokprod.errors import BufferFull, BufferTimeout, KafkaError, TransactionError
from aiokprod.records import ProducerRecord, TopicPartition
from aiokprod.testing import fake_cluster as faults
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.memory import MemoryNetwork
from tests.scenarios.scenario_helpers import RECOVERY, TICK, clock, make_producer, now, play
from tests.scenarios.test_cancellation import CALLS as CANCELLED
from tests.scenarios.test_cancellation import cancelled_at

REQUEST_S, BLOCK_S, DELIVERY_S = 1.0, 8.0, 10.0
OPTIONS = {
    "request_timeout_ms": 1_000,
    "socket_connection_setup_timeout_ms": 1_000,
    "max_block_ms": 8_000,
    "delivery_timeout_ms": 10_000,
    "max_request_size": 9_000,
}
FULL = {"buffer_memory": 10_000}
SIZE = 900
VICTIM = b"victim".ljust(SIZE, b".")
FILLER = b"filler".ljust(1_000, b".")
ROOM = "room"


@dataclass(frozen=True)
class Call:
    """One way to call one method.

    Attributes:
        api: name of the method.
        run: calls the method and checks its result.
        before: preparation before the fault.
        needs: ROOM if the call submits records.
        limit_s: maximum seconds in the worst case.
    """

    api: str
    run: Callable[[Any], Any]
    before: Callable[[Any], Any] | None = None
    needs: str = ""
    limit_s: float = BLOCK_S + DELIVERY_S


async def deliver(producer: Any) -> Any:
    return await (await producer.submit("t", VICTIM, partition=0))


async def many(producer: Any, *arguments: Any, **options: Any) -> Any:
    result = await producer.send_many(*arguments, **options)
    result.raise_for_errors()
    return result


async def table(producer: Any) -> Any:
    result = await producer.send_table("t", pa.table({"value": [VICTIM] * 3}))
    result.raise_for_errors()
    return result


async def pending(producer: Any) -> None:
    """Submit a record that a flush or the end of a transaction has to wait for."""
    await producer.submit("t", VICTIM, partition=0)


async def begun(producer: Any) -> None:
    await producer.begin_transaction()


async def begun_with_record(producer: Any) -> None:
    await producer.begin_transaction()
    await producer.submit("t", VICTIM, partition=0)


async def whole_transaction(producer: Any) -> None:
    async with producer.transaction():
        await crowd(producer)


async def crowd(sender: Any) -> None:
    """Submit more records than fit into a small buffer."""
    for _ in range(12):
        await sender.submit("t", FILLER, partition=1)
    await sender.submit("t", VICTIM, partition=0)


async def prepared(producer: Any) -> Any:
    await producer.flush()
    return await producer.prepare_transaction()


STEPS = 3
"""Begin, memory for records, end: each of them may wait for max_block_ms."""
OFFSETS = {TopicPartition("source", 0): 5}

CALLS = {
    "send": Call("send", lambda p: p.send("t", VICTIM, partition=0), needs=ROOM),
    "send-within": Call("send", lambda p: p.send("t", VICTIM, timeout=9.0), needs=ROOM),
    "submit": Call("submit", deliver, needs=ROOM),
    "send_many-columns": Call("send_many", lambda p: many(p, "t", [VICTIM] * 3), needs=ROOM),
    "send_many-records": Call(
        "send_many", lambda p: many(p, [ProducerRecord("t", VICTIM, partition=1)]), needs=ROOM
    ),
    "send_table": Call("send_table", table, needs=ROOM),
    "flush": Call("flush", lambda p: p.flush(), before=pending),
    "flush-within": Call("flush", lambda p: p.flush(9.0), before=pending),
    "start": Call("start", lambda p: p.start()),
    "partitions_for": Call("partitions_for", lambda p: p.partitions_for("t")),
    "refresh_metadata": Call("refresh_metadata", lambda p: p.refresh_metadata()),
    "warm": Call("warm", lambda p: p.warm(["t"])),
    "check": Call("check", lambda p: p.check(["t"])),
    "close": Call("close", lambda p: p.close(), before=pending),
    "close-within": Call("close", lambda p: p.close(5.0), before=pending, limit_s=5.0),
}
IN_TRANSACTIONS = {
    "transaction": Call("transaction", whole_transaction, limit_s=STEPS * BLOCK_S),
    "begin": Call("begin_transaction", lambda p: p.begin_transaction()),
    "commit": Call(
        "commit_transaction", lambda p: p.commit_transaction(), before=begun_with_record
    ),
    "abort": Call("abort_transaction", lambda p: p.abort_transaction(), before=begun_with_record),
    "prepare": Call("prepare_transaction", prepared, before=begun),
    "send_offsets": Call(
        "send_offsets_to_transaction",
        lambda p: p.send_offsets_to_transaction(OFFSETS, "group"),
        before=begun,
    ),
    "run_transaction": Call(
        "run_transaction",
        lambda p: p.run_transaction(lambda _: crowd(p), retries=1),
        limit_s=2 * STEPS * BLOCK_S,
    ),
}


def test_no_public_coroutine_is_left_out() -> None:
    public = {
        name
        for name, member in inspect.getmembers(Producer)
        if not name.startswith("_") and inspect.iscoroutinefunction(member)
    }
    covered = {call.api for call in (*CALLS.values(), *IN_TRANSACTIONS.values())}
    # `submit` returns an awaitable, `transaction` a context manager.
    assert covered == public | {"submit", "transaction"}
    swept = {name.split("_timeout")[0] for name in CANCELLED} - {"send_records"}
    assert swept == {call.api for call in CALLS.values()}


# -- situations ---------------------------------------------------------------------------------

Undo = Callable[[], None]


def unanswered_once(cluster: FakeCluster) -> Undo:
    served: set[int] = set()

    def first_of_its_kind(request: Any) -> Any:
        if request.api_key in served:
            return None
        served.add(request.api_key)
        return faults.lose_answer()

    return cluster.control(None, first_of_its_kind)


def unanswered(cluster: FakeCluster) -> Undo:
    return cluster.control(None, faults.lose_answer())


def answered_twice(cluster: FakeCluster) -> Undo:
    return cluster.control(None, faults.edit_frame(lambda frame: frame + frame), times=4)


def loop_stalled(cluster: FakeCluster, seconds: float = 0.6) -> Undo:
    loop = clock()
    loop.world_at(loop.time() + 0.0008, loop.stall, seconds)
    return lambda: None


def loop_stalled_long(cluster: FakeCluster) -> Undo:
    return loop_stalled(cluster, 40.0)


def network_stalled(cluster: FakeCluster) -> Undo:
    def heal() -> None:
        for broker in cluster.brokers.values():
            cluster.network.heal(broker.host, broker.port)

    for broker in cluster.brokers.values():
        cluster.network.blackhole(broker.host, broker.port)
    clock().world_at(now() + 3.0, heal)
    return heal


def memory_full(cluster: FakeCluster) -> Undo:
    return cluster.control(0, faults.delay(0.9), times=2)


def memory_full_for_good(cluster: FakeCluster) -> Undo:
    return cluster.control(0, faults.lose_request())


SUCCEEDS = {
    "unanswered once": unanswered_once,
    "answered twice": answered_twice,
    "loop stalled": loop_stalled,
    "network stalled": network_stalled,
    "memory full": memory_full,
}
ENDS = {
    "unanswered": unanswered,
    "loop stalled long": loop_stalled_long,
    "memory full for good": memory_full_for_good,
}
SITUATIONS = {**SUCCEEDS, **ENDS}


def fill(producer: Any) -> None:
    """Use up the memory; no broker may hold all of it."""
    for size in (1_000, 100, 1):
        for partition in (0, 1):
            with contextlib.suppress(BufferFull):
                while True:
                    producer.try_submit("t", FILLER[:size], partition=partition)


# -- the matrix ---------------------------------------------------------------------------------


async def one_case(call: Call, situation: str, *, is_warm: bool, tv: int | None) -> None:
    fills = situation.startswith("memory")
    cluster = FakeCluster(network=MemoryNetwork(), transaction_version=tv)
    cluster.create_topic("t", 2)
    cluster.create_topic("source", 1)
    transactional = {} if tv is None else {"transactional_id": "awaits"}
    options: dict[str, Any] = {**OPTIONS, **(FULL if fills else {}), **transactional}
    producer = make_producer(cluster, **options)
    try:
        if is_warm:
            await warm_up(producer, tv)
        undo = SITUATIONS[situation](cluster) if call.before is None else None
        if call.before is not None:
            await call.before(producer)
            undo = SITUATIONS[situation](cluster)
        # A transactional call without `before` uses up the memory itself.
        if fills and (tv is None or call.before is not None):
            fill(producer)
        started = now()
        task = asyncio.ensure_future(call.run(producer))
        done, _ = await asyncio.wait({task}, timeout=call.limit_s + 40 + RECOVERY)
        assert done, "it hangs"
        judge(call, situation, task, now() - started)
        assert undo is not None
        undo()
        if call.api != "close":
            await works_again(cluster, producer, tv)
    finally:
        await producer.close(30.0)
    check_logs(cluster)


async def warm_up(producer: Any, tv: int | None) -> None:
    if tv is None:
        for partition in (0, 1):
            await producer.send("t", b"first", partition=partition)
        return
    async with producer.transaction():
        for partition in (0, 1):
            await producer.send("t", b"first", partition=partition)
    await asyncio.sleep(1.0)


def judge(call: Call, situation: str, task: asyncio.Task[Any], took: float) -> None:
    error = task.exception()
    assert error is None or isinstance(error, KafkaError), repr(error)
    if situation in SUCCEEDS:
        assert error is None, repr(error)
    stalled = 40.0 if situation == "loop stalled long" else 0.0
    assert took <= call.limit_s + stalled + TICK, f"took {took} s"
    if situation == "memory full for good":
        if call.needs == ROOM:
            assert isinstance(error, BufferTimeout), repr(error)
        elif call.api in ("partitions_for", "warm", "start"):
            assert error is None
            assert took < TICK, "it needs no room"


async def works_again(cluster: FakeCluster, producer: Any, tv: int | None) -> None:
    """Check that everything submitted ends, no memory is held, and another record is delivered."""
    await asyncio.sleep(0.01)  # the call may have been faster than the fault
    await asyncio.wait_for(producer.flush(), DELIVERY_S + RECOVERY)
    if tv is None:
        started = now()
        metadata = await producer.send("t", b"after", partition=0)
        # A connection without a reset is detected after the request timeout.
        assert now() - started < REQUEST_S + RECOVERY
        assert cluster.log("t", 0)[metadata.offset].value == b"after"
    # The memory of a batch that expired in flight is held until its request ends.
    until = now() + REQUEST_S + RECOVERY
    while now() < until:
        metrics = producer.metrics()
        if metrics["buffer_available_bytes"] == metrics["buffer_total_bytes"]:
            break
        await asyncio.sleep(0.1)
    assert metrics["buffer_available_bytes"] == metrics["buffer_total_bytes"]
    assert metrics["waiting_sends"] == metrics["batches_incomplete"] == 0


def check_logs(cluster: FakeCluster) -> None:
    stored = [record.value for log in cluster.logs("t") for record in log]
    assert stored.count(VICTIM) <= 3
    assert stored.count(b"after") <= 1
    assert cluster.violations == []
    assert cluster.network.mutated == []


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("is_warm", [True, False], ids=["warm", "cold"])
@pytest.mark.parametrize("name", CALLS)
def test_call_in_situation(name: str, is_warm: bool, situation: str) -> None:
    call = CALLS[name]
    if not is_warm and (call.before is not None or situation.startswith("memory")):
        is_warm = True  # the records that it waits for have been submitted
    play(lambda: one_case(call, situation, is_warm=is_warm, tv=None))


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("tv", [1, 2], ids=["TV1", "TV2"])
@pytest.mark.parametrize("name", IN_TRANSACTIONS)
def test_transactional_call_in_situation(name: str, tv: int, situation: str) -> None:
    play(lambda: one_case(IN_TRANSACTIONS[name], situation, is_warm=True, tv=tv))


# -- cancellation in transactions ---------------------------------------------------------------


async def cancelled_case(call: Call, tv: int, number: int, late_s: float | None) -> bool:
    cluster = FakeCluster(network=MemoryNetwork(), transaction_version=tv)
    cluster.create_topic("t", 2)
    cluster.create_topic("source", 1)
    producer = make_producer(cluster, transactional_id="awaits", **OPTIONS)
    try:
        await warm_up(producer, tv)
        if call.before is not None:
            await call.before(producer)
        reached = await cancelled_at(call.run(producer), number, late_s)
        # An open transaction can be aborted; a repeated call waits for the same result.
        for end in (producer.abort_transaction, producer.commit_transaction):
            with contextlib.suppress(TransactionError):
                await end()
        async with producer.transaction():
            metadata = await producer.send("t", b"after", partition=0)
        assert b"after" in cluster.committed_values("t", 0)
        assert metadata.offset is not None
        metrics = producer.metrics()
        assert metrics["buffer_available_bytes"] == metrics["buffer_total_bytes"]
    finally:
        await producer.close(30.0)
    assert cluster.committed_values("t", 0).count(VICTIM) <= 1
    check_logs(cluster)
    return reached


@pytest.mark.parametrize("tv", [1, 2], ids=["TV1", "TV2"])
@pytest.mark.parametrize("name", IN_TRANSACTIONS)
def test_transactional_call_cancelled_at_every_await(name: str, tv: int) -> None:
    call = IN_TRANSACTIONS[name]
    for late_s in (None, 0.0004, 0.2):
        number = 0
        while play(partial(cancelled_case, call, tv, number, late_s)):
            number += 1
            assert number < 60, "a call that never stops suspending"
