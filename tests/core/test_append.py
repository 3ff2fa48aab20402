"""The append path: records on the fast path, exact accounting, and the choice of the partition."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from aiokprod._core.batch import Delivery
from aiokprod._core.record_fields import (
    DELIVERY_CHARGE,
    RECORD_OVERHEAD,
    murmur2,
    record_size_bound,
)
from aiokprod.errors import BrokerError, Outcome
from tests.core.core_harness import (
    NOW_MS,
    CoreHarness,
    IdleLoop,
    PassCount,
    idle_harness,
    on_both_loops,
)
from tests.core.test_batch import ANY_TIMES, HEADERS, NULLABLE
from tests.reference.records import PlainRecord, encode_records

MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1


def error() -> BrokerError:
    return BrokerError("refused", outcome=Outcome.REJECTED)


class Str(str):
    __slots__ = ()


class Bytes(bytes):
    __slots__ = ()


# -- the fast path --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        {"topic": "t"},
        {"topic": "t", "value": b"v", "key": b"k"},
        {"topic": "t", "value": None, "key": b""},
        {"topic": "t", "value": b"v", "partition": 0},
        {"topic": "t", "value": b"v", "partition": 1},
        {"topic": "t", "value": b"v", "timestamp_ms": 0},
        {"topic": "t", "value": b"v", "timestamp_ms": MAX_INT64},
        {"topic": "t", "value": b"v", "headers": []},
        {"topic": "t", "value": b"v", "headers": ()},
        {"topic": "t", "value": b"v", "headers": [("h", b"x"), ("", None)]},
        {"topic": "t", "value": b"v", "headers": (("h", b"x"),)},
    ],
)
def test_plain_record_is_appended_at_once(call: dict[str, Any]) -> None:
    harness = idle_harness(2)
    delivery = harness.appender.try_append(**call)
    assert isinstance(delivery, Delivery)
    assert len(harness.opened) == 1


@pytest.mark.parametrize(
    "call",
    [
        {"topic": "unknown"},
        {"topic": None},
        {"topic": b"t"},
        {"topic": Str("t")},
        {"topic": ["t"]},
        {"topic": "t", "value": "text"},
        {"topic": "t", "value": bytearray(b"v")},
        {"topic": "t", "value": memoryview(b"v")},
        {"topic": "t", "value": Bytes(b"v")},
        {"topic": "t", "value": 5},
        {"topic": "t", "key": "text"},
        {"topic": "t", "key": bytearray(b"v")},
        {"topic": "t", "partition": -1},
        {"topic": "t", "partition": 2},
        {"topic": "t", "partition": 2**31},
        {"topic": "t", "partition": 2**70},
        {"topic": "t", "partition": -(2**70)},
        {"topic": "t", "partition": True},
        {"topic": "t", "partition": 0.0},
        {"topic": "t", "partition": "0"},
        {"topic": "t", "timestamp_ms": -1},
        {"topic": "t", "timestamp_ms": 2**63},
        {"topic": "t", "timestamp_ms": 2**200},
        {"topic": "t", "timestamp_ms": True},
        {"topic": "t", "timestamp_ms": 1.5},
        {"topic": "t", "headers": {"h": b"x"}},
        {"topic": "t", "headers": "h"},
        {"topic": "t", "headers": [("h",)]},
        {"topic": "t", "headers": [("h", b"x", b"y")]},
        {"topic": "t", "headers": [["h", b"x"]]},
        {"topic": "t", "headers": [(b"h", b"x")]},
        {"topic": "t", "headers": [("h", "x")]},
        {"topic": "t", "headers": [("h", bytearray(b"x"))]},
        {"topic": "t", "headers": [(Str("h"), b"x")]},
        {"topic": "t", "headers": [("\ud800", b"x")]},
        {"topic": "t", "headers": [None]},
        {"topic": "t", "headers": iter([("h", b"x")])},
    ],
)
def test_anything_else_needs_a_decision_and_leaves_no_trace(call: dict[str, Any]) -> None:
    harness = idle_harness(2)
    assert harness.appender.try_append(**call) is None
    assert harness.opened == []
    assert harness.memory.used == 0


def test_disabled_path_takes_nothing() -> None:
    harness = idle_harness()
    harness.appender.enabled = False
    assert harness.appender.try_append("t", b"v") is None


def test_other_thread_takes_nothing() -> None:
    harness = idle_harness()
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(harness.appender.try_append("t", b"v")))
    thread.start()
    thread.join()
    assert results == [None]
    assert harness.memory.used == 0


def test_loop_that_does_not_run_takes_nothing() -> None:
    loop = asyncio.new_event_loop()
    try:
        harness = CoreHarness(loop=loop)
        assert harness.appender.try_append("t", b"v") is None
    finally:
        loop.close()


def test_record_above_max_request_size_needs_a_decision() -> None:
    harness = idle_harness(max_request_size=1000)
    size = 1000 - 61 - RECORD_OVERHEAD
    assert harness.appender.try_append("t", b"x" * size) is not None
    assert harness.appender.try_append("t", b"x" * (size + 1)) is None
    assert harness.appender.try_append("t", b"x" * (size - 1), b"kk") is None


def test_wall_clock_is_read_once_per_pass() -> None:
    harness = idle_harness()
    for _ in range(5):
        harness.append(timestamp=None)
    assert harness.clock_reads == 1
    loop: Any = harness.loop
    assert isinstance(loop, IdleLoop)
    for call in loop.calls:
        call()
    harness.append(timestamp=None)
    assert harness.clock_reads == 2
    assert harness.core.max_timestamp == NOW_MS


# -- accounting -----------------------------------------------------------------------------------


@given(
    rows=st.lists(st.tuples(NULLABLE, NULLABLE, ANY_TIMES, HEADERS), min_size=1, max_size=10),
    limit=st.sampled_from([100, 300, 10_000]),
)
@settings(max_examples=150, deadline=None)
def test_memory_is_the_bytes_written_and_a_charge_per_handle(rows: Any, limit: int) -> None:
    harness = idle_harness(limit=limit)
    for value, key, timestamp, headers in rows:
        before = harness.memory.used
        bound = record_size_bound(value, key, headers)
        harness.append(value, key, timestamp, headers)
        assert harness.memory.used - before <= bound + DELIVERY_CHARGE
    assert harness.memory.used == sum(core.buffered_bytes for core in harness.opened)
    for core in harness.opened:
        assert core.buffered_bytes == core.size + core.count * DELIVERY_CHARGE


def test_memory_that_is_short_needs_a_decision() -> None:
    bound = record_size_bound(b"v" * 100, None, None) + DELIVERY_CHARGE
    harness = idle_harness(memory=bound)
    assert harness.appender.try_append("t", b"v" * 101) is None
    assert harness.appender.try_append("t", b"v" * 100) is not None
    assert harness.appender.try_append("t", b"") is None
    assert len(harness.opened) == 1


def test_nobody_overtakes_those_who_wait_for_memory() -> None:
    harness = idle_harness()
    harness.memory.has_waiters = True
    assert harness.appender.try_append("t", b"v") is None
    assert harness.memory.used == 0
    delivery = harness.append(b"v", reserved=500)
    assert delivery.core.buffered_bytes == harness.memory.used < 500, (
        "it has waited: 500 were counted before"
    )


def test_surplus_of_a_reservation_goes_back() -> None:
    harness = idle_harness()
    size = record_size_bound(b"v", None, None) + DELIVERY_CHARGE
    harness.append(b"v", reserved=size)
    assert harness.memory.used == harness.core.buffered_bytes < size


def test_refused_roll_counts_nothing() -> None:
    harness = idle_harness()

    def refuse() -> None:
        raise error()

    harness.on_roll = refuse
    with pytest.raises(BrokerError):
        harness.append(b"v")
    assert harness.memory.used == 0
    assert harness.topic.sticky_bytes == 0


def test_roll_without_a_batch_counts_nothing() -> None:
    harness = idle_harness()
    appender = type(harness.appender)(
        memory=harness.memory,
        open_new_batch=lambda topic, partition, size, permit: topic.slots[partition],
        slow_submit=harness.slow_submit,
        unix_ms=harness.unix_ms,
        yield_queue=harness.yield_queue,
        max_request_size=1000,
    )
    result = appender.append(harness.topic, 0, b"v", None, None, None)
    assert result.delivery is None
    assert result.over_quota is harness.topic.slots[0]
    assert harness.memory.used == 0


def test_headers_changed_by_someone_else_while_a_batch_is_rolled_do_no_harm() -> None:
    """Opening a batch may compress the previous batch. Other threads run during the compression and
    may change the headers, but the record must have the headers of the call."""
    harness = idle_harness()
    headers: list[tuple[str, bytes | None]] = [("h", b"x")]

    def grow() -> None:
        headers.extend(("more" * 100, b"y" * 1000) for _ in range(1000))

    harness.on_roll = grow
    harness.append(b"v", timestamp=1, headers=headers)
    record = PlainRecord(1, None, b"v", [("h", b"x")])
    assert harness.core.finish() == encode_records([record], 1)


# -- partitions -----------------------------------------------------------------------------------

JAVA_MURMUR2 = {
    # Values of org.apache.kafka.common.utils.UtilsTest.testMurmur2.
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "hashed"), JAVA_MURMUR2.items())
def test_key_chooses_the_partition_as_java_does(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed
    for count in (1, 2, 3, 7, 100):
        harness = idle_harness(count)
        delivery = harness.append(b"v", key, partition=None)
        assert delivery.partition == (hashed & 0x7FFFFFFF) % count
        assert harness.appender.try_append("t", b"v", key).partition == delivery.partition  # type: ignore[union-attr]


@given(key=st.binary(max_size=40), count=st.integers(1, 50))
@settings(deadline=None)
def test_every_key_stays_within_the_partitions(key: bytes, count: int) -> None:
    harness = idle_harness(count)
    assert (
        harness.append(b"v", key, partition=None).partition == (murmur2(key) & 0x7FFFFFFF) % count
    )


def test_explicit_partition_comes_before_the_key() -> None:
    harness = idle_harness(5)
    for partition in range(5):
        assert harness.append(b"v", b"key", partition=partition).partition == partition
    assert harness.topic.sticky == -1
    assert harness.topic.sticky_bytes == 0


def test_empty_key_is_hashed_and_none_is_sticky() -> None:
    harness = idle_harness(7)
    harness.sticky = 6
    assert harness.append(b"v", b"", partition=None).partition == (murmur2(b"") & 0x7FFFFFFF) % 7
    assert harness.append(b"v", None, partition=None).partition == 6


def test_ignored_keys_are_sticky() -> None:
    harness = idle_harness(7, ignore_keys=True)
    harness.sticky = 3
    for key in (b"a", b"b", b"c"):
        assert harness.append(b"v", key, partition=None).partition == 3
    assert harness.append(b"v", b"a", partition=2).partition == 2


def test_sticky_partition_is_asked_for_once_and_bytes_are_counted() -> None:
    harness = idle_harness(3)
    harness.sticky = 2
    for _ in range(3):
        assert harness.append(b"v", partition=None).partition == 2
    assert harness.rolls[0][0] == -1
    assert len(harness.rolls) == 1
    assert harness.topic.sticky_bytes == harness.core.size
    harness.append(b"v", b"key", partition=None)
    harness.append(b"v", partition=0)
    assert harness.topic.sticky_bytes == harness.opened[0].size, (
        "keyed and explicit ones do not count"
    )


def test_full_sticky_batch_asks_for_a_partition_again() -> None:
    harness = idle_harness(3, limit=100)
    harness.sticky = 1
    harness.append(b"x" * 60, partition=None)
    harness.sticky = 2
    assert harness.append(b"x" * 60, partition=None).partition == 2
    assert [partition for partition, _ in harness.rolls] == [-1, -1]


def test_full_batch_of_a_named_or_keyed_partition_keeps_the_partition() -> None:
    harness = idle_harness(3, limit=100)
    for _ in range(2):
        harness.append(b"x" * 60, partition=1)
    keyed = [harness.append(b"x" * 60, b"key", partition=None).partition for _ in range(2)]
    assert [partition for partition, _ in harness.rolls] == [1, 1, keyed[0], keyed[0]]


def test_sticky_partition_changes_at_twice_the_limit_even_if_the_batch_has_room() -> None:
    harness = idle_harness(3, limit=1 << 20, sticky_limit=1000)
    harness.sticky = 1
    appended = 0
    while harness.append(b"x" * 100, partition=None).partition == 1:
        harness.sticky = 2
        appended += 1
    assert 2000 / 120 < appended < 2000 / 100


def test_partition_out_of_range_is_an_error_not_a_crash() -> None:
    harness = idle_harness(2)
    with pytest.raises(IndexError):
        harness.append(b"v", partition=2)
    with pytest.raises(IndexError):
        harness.append(b"v", partition=MAX_INT32)
    for partition in (2**31, -(2**31) - 1, 2**70):
        with pytest.raises(OverflowError):
            harness.append(b"v", partition=partition)
    harness.topic.sticky = 5
    with pytest.raises(IndexError):
        harness.append(b"v", partition=None)
    for timestamp in (2**63, -(2**63) - 1):
        with pytest.raises(OverflowError):
            harness.append(b"v", timestamp=timestamp)
    assert harness.memory.used == 0


def test_topic_without_partitions_needs_a_decision() -> None:
    harness = idle_harness(0)
    for key in (b"key", None):
        result = harness.appender.append(harness.topic, None, b"v", key, None, None)
        assert result.delivery is None
        assert result.over_quota is None


def test_wrong_types_in_the_checked_path_are_errors() -> None:
    harness = idle_harness()
    for arguments in (
        (None, 0, b"v", None, None, None),
        ("t", 0, b"v", None, None, None),
        (harness.topic, "0", b"v", None, None, None),
        (harness.topic, 0, "v", None, None, None),
        (harness.topic, 0, b"v", "k", None, None),
        (harness.topic, 0, b"v", None, "1", None),
    ):
        with pytest.raises(TypeError):
            harness.appender.append(*arguments)
    assert harness.memory.used == 0


# -- submit ---------------------------------------------------------------------------------------


@on_both_loops
async def test_submit_admits_before_it_is_awaited() -> None:
    harness = CoreHarness()
    awaitable = harness.appender.submit("t", b"v", key=b"k")
    assert harness.core.count == 1
    delivery = await awaitable
    assert isinstance(delivery, Delivery)
    assert harness.core.count == 1


@on_both_loops
async def test_submit_that_needs_a_decision_takes_the_slow_path() -> None:
    harness = CoreHarness()
    waiting = harness.appender.submit("t", "text", key=5, partition=0, timestamp_ms=7, headers={})
    assert inspect.isawaitable(waiting)
    assert await waiting == "slow"  # type: ignore[comparison-overlap]
    assert harness.slow == [("t", "text", 5, 0, 7, {}, None, None)]


@on_both_loops
async def test_admission_works_as_a_coroutine_for_tasks_and_groups() -> None:
    harness = CoreHarness()
    task = asyncio.ensure_future(harness.appender.submit("t", b"1"))
    async with asyncio.TaskGroup() as group:
        admission: Any = harness.appender.submit("t", b"2")
        other = group.create_task(admission)
    first, second = await task, other.result()
    harness.core.acknowledge(0)
    assert [(await first).offset, (await second).offset] == [0, 1]
    gathered = await asyncio.gather(*(harness.appender.submit("t", b"v") for _ in range(3)))
    assert all(isinstance(delivery, Delivery) for delivery in gathered)


def test_submit_without_memory_for_its_awaitable_appends_no_record() -> None:
    testcapi = pytest.importorskip("_testcapi")
    harness = idle_harness()
    submit: Any = harness.appender.submit
    made = [submit("t", b"v", partition=0) for _ in range(1_100)]  # more than the free list holds
    failed = 0
    for start in range(10):
        before = harness.core.count
        awaitable = None
        testcapi.set_nomemory(start, start + 1)
        try:
            awaitable = submit("t", b"v", partition=0)
        except MemoryError:
            failed += 1
        finally:
            testcapi.remove_mem_hooks()
        assert harness.core.count == before + (awaitable is not None)
        made.append(awaitable)
    assert failed >= 2, "one for the handle, one for the awaitable"


@on_both_loops
async def test_admission_can_be_closed_and_thrown_into() -> None:
    harness = CoreHarness()
    awaitable: Any = harness.appender.submit("t", b"v")
    awaitable.close()
    with pytest.raises(asyncio.CancelledError):
        awaitable.throw(asyncio.CancelledError())
    with pytest.raises(StopIteration) as stop:
        awaitable.send(None)
    assert isinstance(stop.value.value, Delivery)
    assert iter(awaitable) is awaitable


@on_both_loops
async def test_submitting_task_waits_for_its_turn_when_its_slice_is_over() -> None:
    harness = CoreHarness(slice_length=-1.0)  # the slice ends before it begins
    with PassCount() as counted:
        for _ in range(66 + 10 * 257):
            await harness.appender.submit("t", b"v")
    assert 20 <= counted.passes <= 26, "two passes for every turn of 256 records"
    assert harness.core.count == 66 + 10 * 257


@on_both_loops
async def test_slice_is_measured_with_the_clock_of_the_loop() -> None:
    harness = CoreHarness(slice_length=0.001)
    await harness.appender.submit("t", b"v")
    end = time.monotonic() + 0.002
    while time.monotonic() < end:
        pass
    assert harness.yield_queue.slice_is_over()


@pytest.mark.parametrize("base", [asyncio.SelectorEventLoop, uvloop.Loop])
def test_slice_is_measured_with_a_clock_that_replaces_that_of_the_loop(base: Any) -> None:
    class Replaced(base):  # type: ignore[misc]  # the base is a parameter
        seconds = 0.0

        def time(self) -> float:
            return self.seconds

    async def main() -> None:
        harness = CoreHarness(slice_length=100.0)
        await harness.appender.submit("t", b"v")
        assert not harness.yield_queue.slice_is_over()
        Replaced.seconds = 101.0
        assert harness.yield_queue.slice_is_over()

    with asyncio.Runner(loop_factory=Replaced) as runner:
        runner.run(main())


@on_both_loops
async def test_pass_whose_time_is_over_lets_light_tasks_through() -> None:
    harness = CoreHarness(slice_length=-1.0)
    passes: list[list[str]] = [[]]

    async def user(name: str, records: int) -> None:
        for _ in range(records):
            passes[-1].append(name)
            assert isinstance(await harness.appender.submit("t", b"v"), Delivery)

    tasks = [asyncio.ensure_future(user("first", 64))]  # the 64th record reads the clock
    tasks += [asyncio.ensure_future(user(f"light {n}", 1)) for n in range(300)]
    tasks += [asyncio.ensure_future(user("greedy", 6))]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        passes.append([])
    used = [names for names in passes if names]
    assert used[0][:64] == ["first"] * 64
    assert len(used[0]) == 64 + 300 + 2, "all light tasks, and two of the greedy one's"
    assert used[1] == ["greedy"] * 4, "then it had to wait"


@on_both_loops
async def test_callbacks_are_not_taken_for_one_greedy_task() -> None:
    harness = CoreHarness(slice_length=-1.0)
    loop = asyncio.get_running_loop()
    awaitables: list[Any] = []
    for _ in range(200):
        loop.call_soon(lambda: awaitables.append(harness.appender.submit("t", b"v")))
    await asyncio.sleep(0)
    with PassCount() as counted:
        for awaitable in awaitables:
            await awaitable
    assert len(awaitables) == 200
    assert counted.passes == 0


@on_both_loops
async def test_nobody_waits_in_a_pass_that_has_just_begun() -> None:
    harness = CoreHarness(slice_length=-1.0)
    awaitables = [harness.appender.submit("t", b"v") for _ in range(1000)]
    with PassCount() as counted:
        for awaitable in awaitables:
            await awaitable
    assert counted.passes <= 4, (
        "the first one waits; for all others the time was over in an earlier pass"
    )


@on_both_loops
async def test_greedy_tasks_take_turns_and_none_is_left_behind() -> None:
    harness = CoreHarness(slice_length=-1.0)
    sent = [0] * 300

    async def user(number: int) -> None:
        while True:
            await harness.appender.submit("t", b"v")
            sent[number] += 1

    tasks = [asyncio.ensure_future(user(number)) for number in range(len(sent))]
    while min(sent) < 200:  # noqa: ASYNC110
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    assert max(sent) <= 16 * min(sent) + 64, "its turn, or a few in its first pass"


@on_both_loops
async def test_task_cancelled_while_it_waits_for_its_turn() -> None:
    harness = CoreHarness(slice_length=-1.0)

    async def user() -> None:
        while True:
            await harness.appender.submit("t", b"v")

    task = asyncio.ensure_future(user())
    await asyncio.sleep(0)
    assert harness.core.count == 65, "in line with the record after the look at the clock"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for _ in range(300):
        await harness.appender.submit("t", b"v")
    assert harness.core.count == 365


@on_both_loops
async def test_submitting_task_keeps_the_loop_within_its_slice() -> None:
    harness = CoreHarness(slice_length=3600.0)
    turns: list[int] = []
    asyncio.get_running_loop().call_soon(turns.append, 1)
    for _ in range(640):
        await harness.appender.submit("t", b"v")
    assert turns == []
    assert not harness.yield_queue.slice_is_over()
