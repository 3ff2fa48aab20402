"""The compiled core: encoded bytes, the states of a batch, and the awaitable handle on asyncio and
uvloop.

A plain encoder and the readers of other clients check the bytes. The tests use public names only,
because members of compiled classes cannot be patched.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import functools
import gc
import pickle
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aiokprod._core import batch as hot
from aiokprod._core.batch import BatchCore, Delivery, RecordMetadata, handle_of
from aiokprod._core.bulk_append import append_column
from aiokprod._wire.batch_reader import Record
from aiokprod._wire.record_batch import batch_header
from aiokprod.errors import BrokerError, KafkaError, Outcome, RecordRejected, error_code
from tests.core.core_harness import (
    LOOPS,
    NOW_MS,
    CoreHarness,
    IdleLoop,
    idle_harness,
    on_both_loops,
)
from tests.hang import HANG_S
from tests.reference.records import PlainRecord, encode_records
from tests.wire.test_peer_batches import PEERS, read_by_peer

MAX_TIMESTAMP = 2**63 - 1

NULLABLE = st.none() | st.binary(max_size=12) | st.binary(min_size=120, max_size=140)
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=6)), max_size=3)
REAL_TIMES = st.integers(0, 2**42) | st.integers(NOW_MS, NOW_MS + 1000)
ANY_TIMES = REAL_TIMES | st.sampled_from([0, 1, 63, 64, 2**31, 2**32, 2**62, MAX_TIMESTAMP])


def records(timestamps: st.SearchStrategy[int] = ANY_TIMES, size: int = 12) -> Any:
    record = st.builds(PlainRecord, timestamps, NULLABLE, NULLABLE, HEADERS.map(tuple))
    return st.lists(record, min_size=1, max_size=size)


def append_all(harness: CoreHarness, plain: list[PlainRecord]) -> list[Delivery]:
    return [harness.append(r.value, r.key, r.timestamp, list(r.headers)) for r in plain]


def error(text: str = "refused", **options: Any) -> BrokerError:
    return BrokerError(text, outcome=Outcome.REJECTED, **options)


# -- bytes ----------------------------------------------------------------------------------------


@given(plain=records())
@example(plain=[PlainRecord(MAX_TIMESTAMP), PlainRecord(0), PlainRecord(MAX_TIMESTAMP)])
@example(plain=[PlainRecord(0, b"", b"", (("", b""), ("", None)))] * 200)
@settings(max_examples=300, deadline=None)
def test_encoding_equals_the_reference(plain: list[PlainRecord]) -> None:
    harness = idle_harness()
    append_all(harness, plain)
    core = harness.core
    expected = encode_records(plain, plain[0].timestamp)
    assert core.size == len(expected)
    assert core.count == core.record_count == len(plain)
    assert core.base_timestamp == plain[0].timestamp
    assert core.max_timestamp == max(record.timestamp for record in plain)
    assert core.finish() == expected


@pytest.mark.parametrize("peer", PEERS)
@given(plain=records(REAL_TIMES))
@settings(max_examples=60, deadline=None)
def test_encoding_is_what_other_clients_read(peer: str, plain: list[PlainRecord]) -> None:
    harness = idle_harness()
    append_all(harness, plain)
    core = harness.core
    payload = core.finish()
    header = batch_header(
        payload,
        count=core.record_count,
        base_timestamp=core.base_timestamp,
        max_timestamp=core.max_timestamp,
    )
    seen, batch = read_by_peer(peer, header + payload)
    assert seen == [
        Record(offset, r.timestamp, r.key, r.value, tuple(r.headers))
        for offset, r in enumerate(plain)
    ]
    assert batch.max_timestamp == core.max_timestamp


def test_many_records_grow_the_buffer_without_losing_any() -> None:
    harness = idle_harness()
    plain = [PlainRecord(NOW_MS + i % 7, b"k%d" % i, b"v" * (i % 300)) for i in range(5000)]
    append_all(harness, plain)
    assert harness.core.finish() == encode_records(plain, NOW_MS)


@pytest.mark.parametrize("capacity", [0, 1, 10, 4096])
def test_first_capacity_does_not_show(capacity: int) -> None:
    harness = idle_harness(capacity=capacity)
    harness.append(b"x" * 100, timestamp=5)
    assert harness.core.finish() == encode_records([PlainRecord(5, None, b"x" * 100)], 5)


def test_large_record_crosses_every_varint_length() -> None:
    for size in (0, 1, 62, 63, 64, 8190, 8191, 8192, 1 << 20):
        harness = idle_harness()
        harness.append(b"x" * size, b"y" * size, 1, [("h" * size, b"z" * size)])
        record = PlainRecord(1, b"y" * size, b"x" * size, [("h" * size, b"z" * size)])
        assert harness.core.finish() == encode_records([record], 1)


def test_finished_bytes_never_change() -> None:
    harness = idle_harness()
    harness.append(b"v")
    payload = harness.core.finish()
    kept = bytes(bytearray(payload))
    harness.topic.slots[0].core = None
    harness.append(b"w")
    harness.core.acknowledge(1)
    assert payload == kept


def test_finished_batch_of_nothing_is_empty() -> None:
    harness = idle_harness()
    core = BatchCore("t", 0, harness.loop, 100)
    assert core.finish() == b""
    assert core.record_count == 0


def test_memory_error_leaves_what_is_in_the_batch() -> None:
    """The test runs in a separate process, because a limit of the address space applies to the
    whole process."""
    code = """
        import resource
        from tests.core.core_harness import idle_harness
        class Owner:
            emptied = 0
            def on_emptied(self):
                self.emptied += 1
        harness = idle_harness()
        harness.append(b"kept", timestamp=5)
        owner = harness.core.owner = Owner()
        large = bytes(300 << 20)
        used = int(open("/proc/self/statm").read().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20), -1))
        for _ in range(3):
            try:
                harness.append(large, timestamp=5)
            except MemoryError:
                pass
            else:
                raise SystemExit("no MemoryError")
        assert owner.emptied == 0
        harness.core.seal()
        harness.owner = owner
        used = harness.memory.used
        try:
            harness.append(large, timestamp=5)
        except MemoryError:
            pass
        assert owner.emptied == 1, "a new batch without records must not be sent"
        assert harness.memory.used == used, "nothing was counted"
        assert harness.opened[0].count == 1
        payload = harness.opened[0].finish()
        from tests.reference.records import PlainRecord, encode_records
        assert payload == encode_records([PlainRecord(5, None, b"kept")], 5)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=300)


# -- free space in a batch ------------------------------------------------------------------------


def test_first_record_of_any_size_has_room() -> None:
    core = BatchCore("t", 0, idle_harness().loop, 10)
    assert core.fits(1 << 40)


@pytest.mark.parametrize("ratio", [1.0, 0.5, 0.1])
def test_room_counts_what_is_there_by_its_ratio_and_the_new_record_in_full(ratio: float) -> None:
    harness = idle_harness(limit=1000, ratio=ratio)
    harness.append(b"x" * 500)
    used = harness.core.size
    room = int(1000 - used * ratio)
    assert harness.core.fits(room)
    assert not harness.core.fits(room + 1)


def test_record_that_does_not_fit_rolls_and_one_that_fits_exactly_does_not() -> None:
    harness = idle_harness(limit=200)
    harness.append(b"x" * 90, timestamp=1)
    one = harness.core.size
    harness.append(b"x" * (200 - one - (one - 90)), timestamp=1)
    assert len(harness.opened) == 1
    assert harness.core.size == 200
    harness.append(b"", timestamp=1)
    assert len(harness.opened) == 2


def test_sealed_or_finished_batch_has_no_room() -> None:
    harness = idle_harness()
    core = BatchCore("t", 0, harness.loop, 100)
    core.seal()
    assert core.state == hot.SEALED
    assert not core.fits(1)
    core.seal()
    core.finish()
    core.seal()
    assert core.state == hot.FINISHED
    assert not core.fits(1)


# -- withdrawal -----------------------------------------------------------------------------------


@given(plain=records(size=8), data=st.data())
@settings(max_examples=150, deadline=None)
def test_withdrawn_records_are_left_out_and_the_others_move_up(
    plain: list[PlainRecord], data: st.DataObject
) -> None:
    harness = idle_harness()
    deliveries = append_all(harness, plain)
    order = data.draw(st.permutations(range(len(plain))))
    gone = order[: data.draw(st.integers(0, len(plain)))]
    for index in gone:
        assert deliveries[index].cancel()
        assert deliveries[index].withdrawn
    core = harness.core
    left = [index for index in range(len(plain)) if index not in gone]
    assert core.record_count == len(left)
    assert core.withdrawn == (sorted(gone) or None)
    payload = core.finish()
    if left:
        kept = [plain[index] for index in left]
        assert payload == encode_records(kept, kept[0].timestamp)
        assert core.base_timestamp == kept[0].timestamp
        assert core.max_timestamp == max(record.timestamp for record in kept)
    else:
        assert payload == b""
    core.acknowledge(100)
    for position, index in enumerate(left):
        assert deliveries[index].result().offset == 100 + position
        assert deliveries[index].result().timestamp_ms == plain[index].timestamp
    for index in gone:
        assert deliveries[index].cancelled()


def test_withdrawing_the_last_record_tells_the_owner_once() -> None:
    class Owner:
        emptied = 0

        def on_emptied(self) -> None:
            self.emptied += 1

    harness = idle_harness()
    deliveries = harness.deliveries(3)
    owner = harness.core.owner = Owner()
    for delivery in deliveries[:2]:
        delivery.cancel()
    assert owner.emptied == 0
    deliveries[2].cancel()
    assert owner.emptied == 1


def test_nothing_is_withdrawn_from_a_finished_batch() -> None:
    harness = idle_harness()
    delivery = harness.append()
    harness.core.finish()
    assert not harness.core.withdraw(0)
    assert delivery.cancel()
    assert not delivery.withdrawn
    assert "unknown" in str(delivery._make_cancelled_error())


def test_sealed_batch_still_gives_records_back() -> None:
    harness = idle_harness()
    deliveries = harness.deliveries(2)
    harness.core.seal()
    assert deliveries[0].cancel()
    assert deliveries[0].withdrawn
    assert "not in the log" in str(deliveries[0]._make_cancelled_error())


def test_record_errors_belong_to_positions_among_the_sent_records() -> None:
    harness = idle_harness()
    deliveries = harness.deliveries(4)
    deliveries[1].cancel()
    harness.core.finish()
    harness.core.fail(error("batch"), {1: error("record two")})
    assert [str(deliveries[i].exception()) for i in (0, 2, 3)] == ["batch", "record two", "batch"]


# -- splitting ------------------------------------------------------------------------------------


def run_calls(harness: CoreHarness) -> None:
    """Run the callbacks that are scheduled on an `IdleLoop`."""
    loop = cast(IdleLoop, harness.loop)
    calls, loop.calls = loop.calls, []
    for call in calls:
        call()


@given(plain=records(size=20), limit=st.integers(1, 600), data=st.data())
@settings(max_examples=150, deadline=None)
def test_parts_hold_all_records_in_order_within_the_limit(
    plain: list[PlainRecord], limit: int, data: st.DataObject
) -> None:
    harness = idle_harness()
    gone = data.draw(st.sets(st.integers(0, len(plain) - 1), max_size=len(plain) - 1))
    watched = data.draw(st.sets(st.integers(0, len(plain) - 1)))
    called: list[int] = []

    def note(index: int, metadata: RecordMetadata | None, error: BaseException | None) -> None:
        called.append(index)

    deliveries = [
        harness.append(
            r.value,
            r.key,
            r.timestamp,
            list(r.headers),
            on_delivery=functools.partial(note, index) if index in watched else None,
        )
        for index, r in enumerate(plain)
    ]
    core = harness.core
    for index in gone:
        deliveries[index].cancel()
    run_calls(harness)
    called.clear()
    left = [index for index in range(len(plain)) if index not in gone]
    parts = core.split(core.finish(), limit)
    assert core.state == hot.SPLIT
    assert not core.settled
    position = 0
    where: dict[int, tuple[int, int]] = {}
    for number, part in enumerate(parts):
        indices = left[position : position + part.count]
        kept = [plain[index] for index in indices]
        where.update((index, (number, i)) for i, index in enumerate(indices))
        # The timestamp deltas now refer to the first record of the part, so they may need a few
        # bytes more.
        assert part.size <= limit + 9 * part.count or part.count == 1
        assert part.base_timestamp == kept[0].timestamp
        assert part.max_timestamp == max(record.timestamp for record in kept)
        assert part.finish() == encode_records(kept, kept[0].timestamp)
        position += part.count
    assert position == len(left)
    assert not any(deliveries[index].done() for index in left)
    for number, part in enumerate(parts):
        part.acknowledge(1000 * number)
    for index in left:
        number, place = where[index]
        assert deliveries[index].result().offset == 1000 * number + place
    run_calls(harness)
    assert called == [index for index in left if index in watched], "in order, part by part"


def test_parts_can_be_split_again_and_handles_follow() -> None:
    harness = idle_harness()
    deliveries = harness.deliveries(8)
    late = deliveries[7]
    deliveries[3].add_done_callback(lambda delivery: None)
    size = harness.core.size // 8
    halves = harness.core.split(harness.core.finish(), 4 * size)
    assert [half.count for half in halves] == [4, 4]
    quarters = [part for half in halves for part in half.split(half.finish(), 2 * size)]
    assert [quarter.count for quarter in quarters] == [2] * 4
    for number, quarter in enumerate(quarters):
        quarter.finish()
        quarter.acknowledge(10 * number)
    assert [d.result().offset for d in deliveries] == [0, 1, 10, 11, 20, 21, 30, 31]
    calls: list[Delivery] = []
    late.add_done_callback(calls.append)
    harness.loop.calls[-1]()  # type: ignore[attr-defined]
    assert calls == [late]


def test_handle_made_before_a_split_is_done_with_the_last_part() -> None:
    harness = idle_harness()
    harness.deliveries(3)
    probe = handle_of(harness.core)
    parts = harness.core.split(harness.core.finish(), 1)
    parts[0].acknowledge(0)
    parts[1].acknowledge(1)
    assert not probe.done()
    parts[2].acknowledge(2)
    assert probe.done()


def test_parts_settle_each_on_its_own() -> None:
    harness = idle_harness()
    deliveries = harness.deliveries(2)
    parts = harness.core.split(harness.core.finish(), 1)
    parts[1].fail(error())
    assert [d.done() for d in deliveries] == [False, True]
    parts[0].acknowledge(5)
    assert deliveries[0].result().offset == 5
    with pytest.raises(BrokerError):
        deliveries[1].result()


def test_only_a_finished_batch_can_be_split() -> None:
    harness = idle_harness()
    harness.append()
    with pytest.raises(asyncio.InvalidStateError):
        harness.core.split(b"", 10)
    payload = harness.core.finish()
    harness.core.split(payload, 10)
    with pytest.raises(asyncio.InvalidStateError):
        harness.core.split(payload, 10)


@pytest.mark.parametrize(
    "payload",
    [b"\x80", b"\xff" * 11, b"\x00", b"\x01", b"\x7f", b"\x06ab", b"\x02\x00\x80", b"\x02\x00"],
)
def test_damaged_payload_is_not_split(payload: bytes) -> None:
    harness = idle_harness()
    first, _ = harness.append(), harness.append()
    whole = harness.core.finish()
    with pytest.raises(ValueError, match="damaged"):
        harness.core.split(whole + payload, 1)
    harness.core.fail(error())
    with pytest.raises(BrokerError):
        first.result()


def test_batch_gives_the_same_bytes_until_they_are_dropped() -> None:
    harness = idle_harness()
    harness.append()
    payload = harness.core.finish()
    assert harness.core.finish() is payload, "the first caller may have been interrupted"
    harness.core.drop_payload()
    with pytest.raises(asyncio.InvalidStateError):
        harness.core.finish()


def test_payload_is_dropped_with_the_outcome() -> None:
    harness = idle_harness()
    harness.append()
    harness.core.finish()
    harness.core.acknowledge(0)
    with pytest.raises(asyncio.InvalidStateError):
        harness.core.finish()


def test_bulk_records_count_as_awaited_also_after_a_split() -> None:
    from aiokprod._core.bulk_tracker import BulkTracker

    harness = idle_harness()
    tracker = BulkTracker()
    assert (
        append_column(harness.appender, tracker, harness.topic, [b"v"] * 4, None, None, None, 0, 0)
        == 4
    )
    assert harness.core.unwatched == 0
    parts = harness.core.split(harness.core.finish(), 20)
    assert len(parts) > 1
    assert [part.unwatched for part in parts] == [0] * len(parts)


# -- outcomes -------------------------------------------------------------------------------------


def test_first_outcome_stands() -> None:
    harness = idle_harness()
    delivery = harness.append()
    core = harness.core
    assert core.acknowledge(7)
    assert not core.acknowledge(8)
    assert not core.fail(error())
    assert delivery.result().offset == 7
    assert core.state == hot.ACKNOWLEDGED
    assert core.error is None

    harness.topic.slots[0].core = None
    delivery = harness.append()
    core = harness.core
    assert core.fail(error("first"))
    assert not core.fail(error("second"))
    assert not core.acknowledge(8)
    assert str(delivery.exception()) == "first"
    assert core.state == hot.FAILED


def test_open_batch_can_expire() -> None:
    harness = idle_harness()
    delivery = harness.append()
    harness.core.fail(error())
    assert delivery.done()
    assert not delivery.cancel()
    with pytest.raises(asyncio.InvalidStateError):
        harness.core.finish()


@pytest.mark.parametrize(("base", "offset"), [(-1, None), (0, 1), (2**62, 2**62 + 1)])
def test_offset_is_base_and_index_or_unknown(base: int, offset: int | None) -> None:
    harness = idle_harness()
    delivery = harness.deliveries(2)[1]
    harness.core.acknowledge(base)
    assert delivery.result().offset == offset


def test_metadata_tells_sizes_and_times() -> None:
    harness = idle_harness()
    first = harness.append(b"value", b"key", 5)
    second = harness.append(None, None, 4)
    third = harness.append(b"", b"", None)
    harness.core.acknowledge(0)
    assert first.result() == RecordMetadata("t", 0, 0, 5, 3, 5)
    assert second.result() == RecordMetadata("t", 0, 1, 4, -1, -1)
    assert third.result() == RecordMetadata("t", 0, 2, NOW_MS, 0, 0)
    assert (first.topic, first.partition, first.timestamp_ms) == ("t", 0, 5)


def test_log_append_time_takes_the_place_of_all_timestamps() -> None:
    harness = idle_harness()
    deliveries = harness.deliveries(2)
    harness.core.acknowledge(0, 77)
    assert [d.result().timestamp_ms for d in deliveries] == [77, 77]


def test_unwatched_counts_neither_awaited_nor_withdrawn_records() -> None:
    harness = idle_harness()
    deliveries = harness.deliveries(7)
    core = harness.core
    assert core.unwatched == 7
    for delivery in (deliveries[0], deliveries[2], deliveries[5], deliveries[6]):
        delivery.add_done_callback(print)
    deliveries[2].cancel()
    deliveries[3].cancel()
    assert core.unwatched == 2
    core.finish()
    deliveries[5].cancel()
    assert core.unwatched == 3, "nothing waits for it any more"
    deliveries[6].remove_done_callback(print)
    assert core.unwatched == 4
    core.fail(error())
    assert core.watched == 4


def test_batch_is_settled_by_success_as_by_failure_and_by_nothing_before() -> None:
    ends: tuple[Callable[[BatchCore], bool], ...] = (
        lambda core: core.acknowledge(0),
        lambda core: core.fail(error()),
    )
    for end in ends:
        harness = idle_harness()
        harness.deliveries(2)
        seen = [harness.core.settled]
        for step in (harness.core.seal, harness.core.finish):
            step()
            seen.append(harness.core.settled)
        assert seen == [False] * 3
        end(harness.core)
        assert harness.core.settled


# -- the handle without a loop --------------------------------------------------------------------


def test_pending_handle_has_no_result() -> None:
    delivery = idle_harness().append()
    assert not delivery.done()
    assert not delivery.cancelled()
    assert "pending" in repr(delivery)
    with pytest.raises(asyncio.InvalidStateError):
        delivery.result()
    with pytest.raises(asyncio.InvalidStateError):
        delivery.exception()


def test_cancelled_handle_raises_cancelled_error() -> None:
    delivery = idle_harness().append()
    assert delivery.cancel("why")
    assert not delivery.cancel()
    assert delivery.done()
    assert delivery.cancelled()
    assert "cancelled" in repr(delivery)
    for ask in (delivery.result, delivery.exception):
        with pytest.raises(asyncio.CancelledError):
            ask()


def test_settled_handle_cannot_be_cancelled() -> None:
    harness = idle_harness()
    delivery = harness.append()
    harness.core.acknowledge(0)
    assert not delivery.cancel()
    assert not delivery.cancelled()
    assert delivery.exception() is None
    assert "done" in repr(delivery)


def test_handle_cannot_be_made_by_hand() -> None:
    class Fake(Delivery):
        def __init__(self) -> None:
            pass

    makers: tuple[Callable[[], Delivery], ...] = (
        Delivery,
        lambda: Delivery.__new__(Delivery),
        Fake,
        lambda: Delivery.__new__(Fake),
    )
    for make in makers:
        with pytest.raises(TypeError, match="submit and try_submit"):
            make()
    delivery = idle_harness().append()
    for copying in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            copying(delivery)


def test_every_look_at_a_failure_gets_a_copy_of_its_own() -> None:
    harness = idle_harness()
    delivery = harness.append()
    original = error("refused", code=error_code(87))
    harness.core.fail(original)
    copies = [delivery.exception(), delivery.exception()]
    for _ in range(2):
        with pytest.raises(BrokerError) as caught:
            delivery.result()
        copies.append(caught.value)
    assert len({id(c) for c in copies} | {id(original)}) == 5
    for c in copies:
        assert isinstance(c, KafkaError)
        assert c.__cause__ is original
        assert (c.outcome, c.code, str(c)) == (original.outcome, original.code, str(original))
    assert original.__traceback__ is None


def test_record_error_comes_before_that_of_the_batch() -> None:
    harness = idle_harness()
    deliveries = harness.deliveries(2)
    harness.core.fail(error(), {1: RecordRejected("no key", outcome=Outcome.REJECTED)})
    assert type(deliveries[0].exception()) is BrokerError
    assert type(deliveries[1].exception()) is RecordRejected


# -- callbacks ------------------------------------------------------------------------------------


@on_both_loops
async def test_callbacks_run_through_the_loop_in_append_order() -> None:
    harness = CoreHarness()
    deliveries = harness.deliveries(4)
    seen: list[Delivery] = []
    for index in (2, 0, 3, 1):
        deliveries[index].add_done_callback(seen.append)
    harness.core.acknowledge(0)
    assert seen == []
    await asyncio.sleep(0)
    assert seen == deliveries


@on_both_loops
async def test_callback_after_the_outcome_runs_in_the_next_pass() -> None:
    harness = CoreHarness()
    delivery = harness.append()
    harness.core.acknowledge(0)
    seen: list[Delivery] = []
    delivery.add_done_callback(seen.append)
    assert seen == []
    await asyncio.sleep(0)
    assert seen == [delivery]


@on_both_loops
async def test_callbacks_are_removed_by_equality() -> None:
    harness = CoreHarness()
    delivery = harness.append()
    seen: list[Delivery] = []
    other: list[Delivery] = []
    assert delivery.remove_done_callback(seen.append) == 0
    delivery.add_done_callback(seen.append)
    delivery.add_done_callback(other.append)
    delivery.add_done_callback(seen.append)
    assert delivery.remove_done_callback(seen.append) == 2
    harness.core.acknowledge(0)
    await asyncio.sleep(0)
    assert (seen, other) == ([], [delivery])
    assert delivery.remove_done_callback(other.append) == 0


@on_both_loops
async def test_callback_runs_in_its_context() -> None:
    harness = CoreHarness()
    delivery = harness.append()
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="outside")
    seen: list[str] = []

    def callback(delivery: Delivery) -> None:
        seen.append(variable.get())

    context = contextvars.copy_context()
    context.run(variable.set, "given")
    delivery.add_done_callback(callback, context=context)
    variable.set("present")
    delivery.add_done_callback(callback)
    variable.set("later")
    harness.core.acknowledge(0)
    await asyncio.sleep(0)
    assert seen == ["given", "present"]


@on_both_loops
async def test_callback_that_fails_is_told_and_the_others_run() -> None:
    loop = asyncio.get_running_loop()
    told: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: told.append(context))
    harness = CoreHarness()
    seen: list[Delivery] = []

    def failing(delivery: Delivery) -> None:
        raise RuntimeError("a bug of the user")

    deliveries = harness.deliveries(3)
    for delivery in deliveries:
        delivery.add_done_callback(failing)
        delivery.add_done_callback(seen.append)
    harness.core.acknowledge(0)
    await asyncio.sleep(0)
    assert seen == deliveries
    assert [str(context["exception"]) for context in told] == ["a bug of the user"] * 3
    assert all("failing" in context["message"] for context in told)
    loop.set_exception_handler(None)


@pytest.mark.parametrize("kind", LOOPS)
@pytest.mark.parametrize("ending", [KeyboardInterrupt, SystemExit])
def test_callback_that_ends_the_process_leaves_the_others_to_the_next_pass(
    ending: type[BaseException], kind: str
) -> None:
    seen: list[Delivery] = []

    def interrupting(delivery: Delivery) -> None:
        raise ending

    async def settle() -> list[Delivery]:
        harness = CoreHarness()
        deliveries = harness.deliveries(3)
        for delivery in deliveries:
            delivery.add_done_callback(seen.append)
        deliveries[0].add_done_callback(interrupting)
        harness.core.acknowledge(0)
        return deliveries

    loop = LOOPS[kind]()
    task = loop.create_task(settle())
    with pytest.raises(ending):
        loop.run_until_complete(asyncio.sleep(1))
    deliveries = task.result()
    if kind == "asyncio":  # uvloop finishes the iteration before it raises
        assert seen == deliveries[:1]
    loop.run_until_complete(asyncio.sleep(0))
    assert seen == deliveries
    for pending in asyncio.all_tasks(loop):
        pending.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


@on_both_loops
async def test_callbacks_keep_their_place_among_others_of_the_loop() -> None:
    loop = asyncio.get_running_loop()
    harness = CoreHarness()
    seen: list[str] = []
    for delivery in harness.deliveries(3):
        delivery.add_done_callback(lambda delivery: seen.append("callback"))
    loop.call_soon(seen.append, "before")
    harness.core.acknowledge(0)
    loop.call_soon(seen.append, "after")
    await asyncio.sleep(0)
    assert seen == ["before", "callback", "callback", "callback", "after"]


class FailingLoop(IdleLoop):
    """A loop whose first `failures` calls of `call_soon` raise the given error."""

    def __init__(self, error: type[BaseException], failures: int) -> None:
        super().__init__()
        self.error, self.failures = error, failures
        self.told: list[BaseException] = []

    def call_soon(self, *args: Any, **options: Any) -> None:
        if self.failures:
            self.failures -= 1
            raise self.error
        super().call_soon(*args, **options)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.told.append(context["exception"])


@pytest.mark.parametrize("failures", [1, 2])
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_batch_is_settled_although_call_soon_fails(
    error: type[BaseException], failures: int
) -> None:
    """After one failure all callbacks are called. After two failures only this handle's callback is
    lost."""
    loop = FailingLoop(error, 0)
    harness = CoreHarness(loop=loop)  # type: ignore[arg-type]
    delivery = harness.append()
    seen: list[Delivery] = []
    delivery.add_done_callback(seen.append)
    loop.calls.clear()
    loop.failures = failures
    assert harness.core.acknowledge(0)
    assert [type(told) for told in loop.told] == [error] * failures
    for call in loop.calls:
        call()
    assert seen == [delivery][: 2 - failures]


def test_nested_run_of_the_loop_sees_the_rest_of_the_batch() -> None:
    """A callback runs an iteration of the event loop, as nest_asyncio does in notebooks."""
    seen: list[str] = []

    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        harness = CoreHarness()

        def nested(delivery: Delivery) -> None:
            loop._run_once()
            seen.append("first")

        def note(name: str, delivery: Delivery) -> None:
            seen.append(name)

        for number, delivery in enumerate(harness.deliveries(3)):
            name = f"callback {number}"
            delivery.add_done_callback(nested if number == 0 else functools.partial(note, name))
        harness.core.acknowledge(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert seen == ["callback 1", "callback 2", "first"]


@pytest.mark.parametrize("callback", [None, 5, "text"])
def test_what_cannot_be_called_is_refused_as_a_callback(callback: Any) -> None:
    with pytest.raises(TypeError):
        idle_harness().append().add_done_callback(callback)


def test_coroutine_function_is_refused_as_a_callback() -> None:
    async def callback(delivery: Delivery) -> None: ...

    with pytest.raises(TypeError):
        idle_harness().append().add_done_callback(callback)


@on_both_loops
async def test_callback_of_a_withdrawn_record_runs() -> None:
    harness = CoreHarness()
    delivery = harness.append()
    seen: list[Delivery] = []
    delivery.add_done_callback(seen.append)
    delivery.cancel()
    await asyncio.sleep(0)
    assert seen == [delivery]
    harness.core.acknowledge(0)
    await asyncio.sleep(0)
    assert seen == [delivery]


# -- handles awaited by tasks ---------------------------------------------------------------------


async def _await(delivery: Delivery) -> RecordMetadata:
    return await delivery


@on_both_loops
async def test_await_before_and_after_the_outcome() -> None:
    harness = CoreHarness()
    delivery = harness.append(b"v")
    task = asyncio.ensure_future(_await(delivery))
    await asyncio.sleep(0)
    assert not task.done()
    harness.core.acknowledge(4)
    assert (await task).offset == 4
    assert (await delivery).offset == 4
    assert (await delivery) == (await delivery)


@on_both_loops
async def test_await_of_a_failure_raises_a_copy_per_awaiter() -> None:
    harness = CoreHarness()
    delivery = harness.append()
    tasks = [asyncio.ensure_future(_await(delivery)) for _ in range(3)]
    await asyncio.sleep(0)
    original = error()
    harness.core.fail(original)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert len({id(result) for result in results}) == 3
    assert all(isinstance(r, BrokerError) and r.__cause__ is original for r in results)


@on_both_loops
async def test_await_after_withdrawals_finds_its_offset() -> None:
    harness = CoreHarness()
    first, second = harness.deliveries(2)
    first.cancel()
    harness.core.finish()
    harness.core.acknowledge(9)
    assert (await second).offset == 9
    with pytest.raises(asyncio.CancelledError):
        await first


@on_both_loops
async def test_await_through_a_split() -> None:
    harness = CoreHarness()
    deliveries = harness.deliveries(4)
    tasks = [asyncio.ensure_future(_await(d)) for d in deliveries[:2]]
    await asyncio.sleep(0)
    parts = harness.core.split(harness.core.finish(), 1)
    tasks += [asyncio.ensure_future(_await(d)) for d in deliveries[2:]]
    await asyncio.sleep(0)
    for number, part in enumerate(parts):
        part.finish()
        part.acknowledge(10 * number)
    assert [md.offset for md in await asyncio.gather(*tasks)] == [0, 10, 20, 30]


@on_both_loops
async def test_gather() -> None:
    harness = CoreHarness()
    deliveries = harness.deliveries(3)
    gathering = asyncio.gather(*deliveries, deliveries[0])
    harness.core.acknowledge(5)
    assert [md.offset for md in await gathering] == [5, 6, 7, 5]
    harness.topic.slots[0].core = None
    failing = asyncio.gather(harness.append(), return_exceptions=True)
    harness.core.fail(error())
    assert [type(result) for result in await failing] == [BrokerError]


@on_both_loops
async def test_cancelling_gather_withdraws_what_is_in_open_batches() -> None:
    harness = CoreHarness()
    deliveries = harness.deliveries(2)
    task = asyncio.ensure_future(_gather(deliveries))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [d.withdrawn for d in deliveries] == [True, True]
    assert harness.core.record_count == 0


async def _gather(deliveries: list[Delivery]) -> list[RecordMetadata]:
    return await asyncio.gather(*deliveries)


@on_both_loops
async def test_wait() -> None:
    harness = CoreHarness(partitions=2)
    fast, slow = harness.append(partition=0), harness.append(partition=1)
    harness.opened[0].acknowledge(0)
    done, pending = await asyncio.wait([fast, slow], return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
    assert (done, pending) == ({fast}, {slow})
    harness.opened[1].acknowledge(1)
    done, pending = await asyncio.wait([slow])  # type: ignore[type-var]
    assert (done, pending) == ({slow}, set())


@on_both_loops
async def test_wait_for() -> None:
    harness = CoreHarness()
    delivery = harness.append()
    asyncio.get_running_loop().call_soon(harness.core.acknowledge, 3)
    assert (await asyncio.wait_for(delivery, HANG_S)).offset == 3
    assert (await asyncio.wait_for(delivery, None)).offset == 3


@on_both_loops
async def test_wait_for_that_times_out_withdraws_the_record() -> None:
    harness = CoreHarness()
    delivery = harness.append()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(delivery, 0)
    assert delivery.withdrawn


@on_both_loops
async def test_wait_for_in_flight_that_times_out_only_stops_waiting() -> None:
    harness = CoreHarness()
    delivery = harness.append()
    payload = harness.core.finish()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(delivery, 0)
    assert delivery.cancelled()
    assert not delivery.withdrawn
    assert len(payload) > 0
    harness.core.acknowledge(0)
    with pytest.raises(asyncio.CancelledError):
        await delivery


@on_both_loops
async def test_shield_keeps_the_record_when_its_waiter_is_cancelled() -> None:
    harness = CoreHarness()
    delivery = harness.append()
    task = asyncio.ensure_future(_shielded(delivery))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not delivery.cancelled()
    harness.core.acknowledge(8)
    assert (await asyncio.shield(delivery)).offset == 8
    await asyncio.sleep(0)


async def _shielded(delivery: Delivery) -> RecordMetadata:
    return await asyncio.shield(delivery)


@on_both_loops
async def test_as_completed() -> None:
    harness = CoreHarness(partitions=3)
    deliveries = [harness.append(partition=p) for p in range(3)]
    for number in (2, 0, 1):
        asyncio.get_running_loop().call_soon(harness.opened[number].acknowledge, number)
    offsets = [(await next_one).offset for next_one in asyncio.as_completed(deliveries)]
    assert sorted(offset for offset in offsets if offset is not None) == [0, 1, 2]


@on_both_loops
async def test_task_group() -> None:
    harness = CoreHarness()
    deliveries = harness.deliveries(3)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_await(d)) for d in deliveries]
        group.create_task(_settle(harness))
    assert [task.result().offset for task in tasks] == [0, 1, 2]


async def _settle(harness: CoreHarness) -> None:
    await asyncio.sleep(0)
    harness.core.acknowledge(0)


@on_both_loops
async def test_task_group_that_fails_withdraws_the_others() -> None:
    harness = CoreHarness(partitions=2)
    failing, waiting = harness.append(partition=0), harness.append(partition=1)
    with pytest.raises(ExceptionGroup) as caught:
        await _group(harness, failing, waiting)
    assert isinstance(caught.value.exceptions[0], BrokerError)
    assert waiting.withdrawn


async def _group(harness: CoreHarness, *deliveries: Delivery) -> None:
    async with asyncio.TaskGroup() as group:
        for delivery in deliveries:
            group.create_task(_await(delivery))
        await asyncio.sleep(0)
        harness.opened[0].fail(error())


@on_both_loops
async def test_timeout_context_withdraws_an_open_record() -> None:
    harness = CoreHarness()
    delivery = harness.append()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await delivery
    assert delivery.withdrawn


@on_both_loops
async def test_ensure_future_takes_it_as_it_is() -> None:
    harness = CoreHarness()
    delivery: Any = harness.append()
    assert asyncio.isfuture(delivery)
    assert asyncio.ensure_future(delivery) is delivery
    assert delivery.get_loop() is asyncio.get_running_loop()


@on_both_loops
async def test_cancelling_the_task_that_awaits_withdraws_the_record() -> None:
    harness = CoreHarness()
    first, second = harness.deliveries(2)
    task = asyncio.ensure_future(_await(first))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError, match="not in the log"):
        await task
    assert first.withdrawn
    harness.core.finish()
    harness.core.acknowledge(0)
    assert (await second).offset == 0


@on_both_loops
async def test_interrupted_withdrawal_wakes_those_who_wait_and_says_what_became_of_it() -> None:
    class Interrupted(BaseException):
        pass

    class Owner:
        def on_emptied(self) -> None:
            raise Interrupted  # a signal handler may raise in the accumulator

    harness = CoreHarness()
    told: list[object] = []
    delivery = harness.append(on_delivery=lambda metadata, error: told.append(error))
    harness.core.owner = Owner()
    task = asyncio.ensure_future(_await(delivery))
    await asyncio.sleep(0)
    with pytest.raises(Interrupted):
        delivery.cancel()
    assert delivery.withdrawn
    with pytest.raises(asyncio.CancelledError, match="not in the log"):
        await asyncio.wait_for(task, HANG_S)
    assert len(told) == 1


@on_both_loops
async def test_cancelling_the_task_of_a_record_in_flight_says_unknown() -> None:
    harness = CoreHarness()
    delivery = harness.append()
    harness.core.finish()
    task = asyncio.ensure_future(_await(delivery))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError, match="unknown"):
        await task
    assert not delivery.withdrawn


@on_both_loops
async def test_task_cancelled_after_the_outcome_is_cancelled_and_the_record_is_not() -> None:
    harness = CoreHarness()
    delivery = harness.append()
    task = asyncio.ensure_future(_await(delivery))
    await asyncio.sleep(0)
    harness.core.acknowledge(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not delivery.cancelled()
    assert delivery.result().offset == 0


@on_both_loops
async def test_many_awaiters_of_many_records() -> None:
    harness = CoreHarness()
    deliveries = harness.deliveries(500)
    tasks = [asyncio.ensure_future(_await(d)) for d in deliveries for _ in range(2)]
    await asyncio.sleep(0)
    harness.core.finish()
    harness.core.acknowledge(0)
    offsets = [md.offset for md in await asyncio.gather(*tasks)]
    assert offsets == [index // 2 for index in range(1000)]


# -- memory ---------------------------------------------------------------------------------------


def test_references_are_given_back() -> None:
    value, key, name, header = b"v" * 50, b"k" * 50, "name" * 5, b"h" * 50
    headers = [(name, header)]
    objects: list[Any] = [value, key, name, header, headers]
    before = [sys.getrefcount(item) for item in objects]
    for _ in range(200):
        harness = idle_harness()
        for _ in range(20):
            harness.append(value, key, 5, headers)
        harness.core.split(harness.core.finish(), 100)
    del harness
    gc.collect()
    after = [sys.getrefcount(item) for item in objects]
    assert after == before


@pytest.mark.parametrize("end", ["acknowledge", "fail", "expire open", "split"])
def test_settled_batch_is_freed_without_the_collector(end: str) -> None:
    class Owner:
        def __init__(self, core: BatchCore) -> None:
            self.core = core

        def on_emptied(self) -> None: ...

    gc.collect()
    gc.disable()
    try:
        harness = idle_harness()
        deliveries = harness.deliveries(2)
        deliveries.append(harness.append(on_delivery=lambda metadata, error: None))
        owner = Owner(harness.core)
        harness.core.owner = owner
        gone = weakref.ref(owner)
        deliveries[0].add_done_callback(lambda delivery: None)
        core = harness.core
        if end == "expire open":
            core.fail(error())
        elif end == "split":
            for part in core.split(core.finish(), 1):
                part.acknowledge(0)
        else:
            core.finish()
            assert core.acknowledge(0) if end == "acknowledge" else core.fail(error())
        harness.loop.calls.clear()  # type: ignore[attr-defined]
        del owner, core, harness, deliveries
        assert gone() is None, "owner and batch hold each other"
    finally:
        gc.enable()


def test_settled_handles_hold_no_callback() -> None:
    class Token:
        pass

    harness = idle_harness()
    token = Token()
    gone = weakref.ref(token)
    delivery = harness.append(
        on_delivery=functools.partial(lambda token, metadata, error: None, token)
    )
    delivery.add_done_callback(functools.partial(lambda token, delivery: None, token))
    del token
    harness.core.acknowledge(0)
    harness.loop.calls.clear()  # type: ignore[attr-defined]
    gc.collect()
    assert gone() is None


def test_error_of_a_batch_collects_no_tracebacks() -> None:
    harness = idle_harness()
    delivery = harness.append()
    original = error()
    harness.core.fail(original)
    before = sys.getrefcount(original)
    for _ in range(100):
        with pytest.raises(BrokerError):
            delivery.result()
    gc.collect()
    assert sys.getrefcount(original) <= before + 1
    assert original.__traceback__ is None


# -- RecordMetadata -------------------------------------------------------------------------------


def test_metadata_is_a_value() -> None:
    one = RecordMetadata("t", 3, 7, 5, 1, 2)
    assert one == RecordMetadata("t", 3, 7, 5, 1, 2)
    assert one != RecordMetadata("t", 3, 8, 5, 1, 2)
    columns: object = ("t", 3, 7, 5, 1, 2)
    assert one != columns
    assert hash(one) == hash(RecordMetadata("t", 3, 7, 5, 1, 2))
    assert pickle.loads(pickle.dumps(one)) == one
    assert copy.copy(one) == one
    assert "offset=7" in repr(one)
    match one:
        case RecordMetadata(topic, partition, offset):
            assert (topic, partition, offset) == ("t", 3, 7)


def test_metadata_refuses_what_does_not_fit() -> None:
    for arguments in (("t", 2**31, 0, 0), ("t", 0, 0, 2**63), ("t", 0, 0, 0, 2**31)):
        with pytest.raises(OverflowError):
            RecordMetadata(*arguments)
    with pytest.raises(TypeError):
        RecordMetadata(None, 0, 0, 0)  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        RecordMetadata("t", 0, 0, 0).offset = 5  # type: ignore[misc]


def test_handle_of_a_batch_is_done_with_it() -> None:
    harness = idle_harness()
    harness.deliveries(2)
    probe = handle_of(harness.core)
    assert not probe.done()
    harness.core.acknowledge(5)
    assert probe.result().offset == 6
    with pytest.raises(TypeError):
        handle_of(None)  # type: ignore[arg-type]


def test_batch_constructor_checks_its_arguments() -> None:
    loop: Any = IdleLoop()
    with pytest.raises(TypeError):
        BatchCore(None, 0, loop, 1)  # type: ignore[arg-type]
    with pytest.raises(OverflowError):
        BatchCore("t", 2**31, loop, 1)
    with pytest.raises(OverflowError):
        BatchCore("t", 0, loop, 2**63)
    with pytest.raises(MemoryError):
        BatchCore("t", 0, loop, 1, 1.0, 2**62)
