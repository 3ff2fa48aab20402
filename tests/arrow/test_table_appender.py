"""`TableAppender` writes the same bytes as the plain reference encoder, and chooses the same
batches and partitions as `append_column`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiokprod._arrow.c_data import Chunk, open_table
from aiokprod._arrow.table_appender import TableAppender
from aiokprod._client.table_schema import ROLES, layout_of
from aiokprod._core.bulk_append import append_column
from aiokprod._core.bulk_tracker import BulkTracker
from aiokprod._core.record_fields import RECORD_OVERHEAD
from aiokprod._core.slots import TopicSlot
from aiokprod.errors import BrokerError, Outcome
from tests.arrow.capsules import Column, binary, offsets, table
from tests.core.core_harness import NOW_MS, CoreHarness, idle_harness, on_both_loops
from tests.reference.records import PlainRecord, encode_records

NAMES: dict[str, str | None] = {role: role for role in ROLES}
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def bound(exported: Any, topic: str | None = "t") -> Chunk:
    stream = open_table(exported)
    chunk = stream.next()
    assert chunk is not None
    chunk.bind(layout_of(stream.schema, topic, NAMES))
    return chunk


def append(harness: CoreHarness, exported: Any, *, start: int = 0) -> tuple[int, BulkTracker]:
    """Append rows of one topic. Return the index of the first row not appended, and the tracker of
    the appended rows."""
    tracker = BulkTracker()
    chunk = bound(exported)
    return TableAppender(harness.appender, tracker).append(chunk, harness.topic, start), tracker


def error() -> BrokerError:
    return BrokerError("refused", outcome=Outcome.REJECTED)


sizes = st.sampled_from([0, 1, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 200, 9000])
blobs = st.none() | sizes.map(lambda size: bytes(i & 255 for i in range(size)))
times = st.none() | st.sampled_from([0, 1, 63, 64, 2**31, 2**40, 2**62, NOW_MS, NOW_MS + 64])
header_lists = st.none() | st.lists(
    st.tuples(st.text(max_size=70), st.none() | st.binary(max_size=70)), max_size=3
)


FAR = 1_000_000
"""Base offset of the second batch. The third batch has twice this offset, and so on."""


@settings(max_examples=300, deadline=None)
@given(
    rows=st.lists(st.tuples(times, blobs, blobs, header_lists), max_size=30),
    limit=st.sampled_from([1, 100, 1000, 1 << 20]),
    ratio=st.sampled_from([0.3, 1.0, 1.5]),
    capacity=st.sampled_from([0, 1000, 1 << 20]),
    partitions=st.sampled_from([1, 4]),
)
def test_bytes_and_batches_are_those_of_the_reference_and_of_columns(
    rows: list[tuple[Any, ...]], limit: int, ratio: float, capacity: int, partitions: int
) -> None:
    stamps, keys, values, headers = ([row[i] for row in rows] for i in range(4))
    exported = pa.record_batch(
        {
            "timestamp": pa.array(stamps, pa.int64()),
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "headers": pa.array(
                [h and [{"key": key, "value": value} for key, value in h] for h in headers],
                HEADERS,
            ),
        }
    )
    options = {"limit": limit, "ratio": ratio, "capacity": capacity}
    one, other = idle_harness(partitions, **options), idle_harness(partitions, **options)
    done, tracker = append(one, exported)
    assert done == len(rows) == tracker.count
    append_column(other.appender, BulkTracker(), other.topic, values, keys, stamps, headers, -1, 0)
    assert one.rolls == other.rolls
    assert one.memory.used == other.memory.used
    assert one.topic.sticky_bytes == other.topic.sticky_bytes
    payloads = []
    for number, (core, twin) in enumerate(zip(one.opened, other.opened, strict=True)):
        assert (core.count, core.base_timestamp, core.max_timestamp, core.buffered_bytes) == (
            twin.count, twin.base_timestamp, twin.max_timestamp, twin.buffered_bytes,
        )  # fmt: skip
        assert core.partition == twin.partition
        assert core.unwatched == 0
        payloads.append(core.finish())
        assert payloads[-1] == twin.finish()
        core.acknowledge(number * FAR)
    records: list[list[PlainRecord]] = [[] for _ in payloads]
    for row, stamp in enumerate(stamps):
        number, index = divmod(tracker.position(row)[1] or 0, FAR)
        assert index == len(records[number])  # the rows keep their order
        records[number].append(
            PlainRecord(
                NOW_MS if stamp is None else stamp, keys[row], values[row], headers[row] or ()
            )
        )
    for core, payload, content in zip(one.opened, payloads, records, strict=True):
        assert payload == encode_records(content, core.base_timestamp)
        assert core.max_timestamp == max(record.timestamp for record in content)


def test_no_row_costs_an_allocation() -> None:
    """Allocation number 101 fails, but all 20 000 rows are appended."""
    testcapi = pytest.importorskip(
        "_testcapi", reason="CPython's own tests make allocations fail; some builds lack them"
    )
    entry = [{"key": "h", "value": b"x"}]
    exported = pa.record_batch(
        {
            "value": [b"%d" % number for number in range(20_000)],
            "key": [b"%d" % number if number % 3 else None for number in range(20_000)],
            "headers": pa.array([entry] * 20_000, HEADERS),
            "topic": pa.array(["t", "u"] * 10_000),
        }
    )
    harness = idle_harness(3, capacity=1 << 21, limit=1 << 21)
    harness.appender.topics["u"] = harness.topic
    chunk, tracker = bound(exported, None), BulkTracker()
    appender = TableAppender(harness.appender, tracker)
    testcapi.set_nomemory(100)
    try:
        done = appender.append(chunk, None, 0)
    finally:
        testcapi.remove_mem_hooks()
    assert done == tracker.count == 20_000


def test_row_of_64_mib_is_encoded_whole() -> None:
    value = bytes(range(256)) * (1 << 18)
    harness = idle_harness(capacity=0)
    assert append(harness, pa.record_batch({"value": pa.array([value], pa.large_binary())}))[0] == 1
    assert harness.core.finish() == encode_records([PlainRecord(NOW_MS, None, value)], NOW_MS)


# -- where an append stops ----------------------------------------------------------------------


def values(*cells: bytes) -> Column:
    return table(binary("value", *cells))


def test_stops_at_the_row_that_memory_cannot_hold_and_goes_on_there() -> None:
    harness = idle_harness(memory=200)
    done, tracker = append(harness, values(*(b"x" * 50 for _ in range(5))))
    assert done == tracker.count == 3
    assert (
        harness.memory.used
        == sum(core.buffered_bytes for core in harness.opened)
        == harness.core.size
    )
    harness.memory.used = 0
    more, tracker = append(harness, values(*(b"x" * 50 for _ in range(5))), start=4)
    assert (more, tracker.count) == (5, 1)


def test_stops_while_others_wait_for_memory() -> None:
    harness = idle_harness()
    harness.memory.has_waiters = True
    assert append(harness, values(b"x"))[0] == 0


def test_stops_at_a_row_that_no_request_can_carry() -> None:
    harness = idle_harness(max_request_size=200)
    most = 200 - 61 - RECORD_OVERHEAD
    done, _ = append(harness, values(b"a", b"b" * (most + 1), b"b" * most, b"c"))
    assert done == 1
    assert append(harness, values(b"b" * most))[0] == 1


def test_stops_if_no_batch_may_be_opened() -> None:
    class Refusing(CoreHarness):
        def open_new_batch(
            self, topic: TopicSlot, partition: int, size: int, permit: object
        ) -> Any:
            if len(self.opened) == 2:
                return None
            return super().open_new_batch(topic, partition, size, permit)

    harness = Refusing(loop=idle_harness().loop, limit=1)
    assert append(harness, values(b"a", b"b", b"c"))[0] == 2
    assert [core.count for core in harness.opened] == [1, 1]


def test_error_of_the_engine_leaves_what_was_appended() -> None:
    harness = idle_harness(limit=1)
    tracker = BulkTracker()

    def fail_at_the_third() -> None:
        if len(harness.rolls) == 3:
            raise MemoryError

    harness.on_roll = fail_at_the_third
    appender = TableAppender(harness.appender, tracker)
    chunk = bound(values(b"a", b"b", b"c"))
    with pytest.raises(MemoryError):
        appender.append(chunk, harness.topic, 0)
    assert tracker.count == 2
    assert appender.append(chunk, harness.topic, 2) == 3
    assert [core.finish()[-3:-1] for core in harness.opened] == [b"\x02a", b"\x02b", b"\x02c"]


@pytest.mark.parametrize(
    "columns",
    [
        {"value": pa.array([b"a", b"b"]), "partition": pa.array([0, 2])},
        {"value": pa.array([b"a", b"b"]), "partition": pa.array([0, -1])},
        {"value": pa.array([b"a", b"b"]), "partition": pa.array([0, 2**31])},
        {"value": pa.array([b"a", b"b"]), "timestamp": pa.array([0, -1])},
        {"value": pa.array([b"a", b"b"]), "timestamp": pa.array([0, -1], pa.timestamp("us"))},
        {"value": pa.array([b"a", b"b"]), "timestamp": pa.array([0, 2**60], pa.timestamp("s"))},
        {
            "value": pa.array([b"a", b"b"]),
            "headers": pa.array([None, [None]], HEADERS),
        },
        {
            "value": pa.array([b"a", b"b"]),
            "headers": pa.array([[], [{"key": None, "value": b""}]], HEADERS),
        },
    ],
    ids=range(8),
)
def test_stops_at_a_row_that_needs_a_closer_look(columns: dict[str, pa.Array]) -> None:
    harness = idle_harness(2)
    assert append(harness, pa.record_batch(columns))[0] == 1


@pytest.mark.parametrize(
    "bad",
    [
        Column("value", "z", 2, [None, offsets(0, 1, 0), b"abc"]),
        Column("value", "z", 2, [b"\3", offsets(0, 1, 0), b"abc"]),
        Column("value", "z", 2, [None, offsets(0, 1, -7), b"abc"]),
        Column("value", "i", 2, [None, offsets(0, 9)], dictionary=binary("", b"a")),
    ],
    ids=range(4),
)
def test_stops_where_the_table_is_damaged(bad: Column) -> None:
    harness = idle_harness()
    assert append(harness, table(bad))[0] == 1


def test_stops_at_a_row_that_is_null_as_a_whole() -> None:
    value = binary("value", b"a", b"b", b"c")
    harness = idle_harness()
    assert append(harness, Column("", "+s", 3, [b"\5"], [value]))[0] == 1


def test_yields_when_the_slice_is_over() -> None:
    harness = idle_harness(slice_length=-1.0)
    rows = [b"x"] * 5000
    assert append(harness, values(*rows))[0] == 1024
    large = [b"x" * 100_000] * 20
    assert append(idle_harness(slice_length=-1.0), values(*large))[0] == 3


def test_topics_of_a_column() -> None:
    harness = idle_harness()
    other = harness.appender.topics["other"] = TopicSlot("other", 1 << 20)
    other.slots.extend(harness.topic.slots[:0])
    exported = pa.record_batch({"value": [b"a", b"b", b"c"], "topic": ["t", "t", "other"]})
    tracker = BulkTracker()
    appender = TableAppender(harness.appender, tracker)
    chunk = bound(exported, None)
    assert appender.append(chunk, None, 0) == 2  # `other` has no partitions yet
    other.slots.extend(idle_harness(3).topic.slots)
    assert appender.append(chunk, None, 2) == 3
    assert appender.append(bound(values(b"x")), None, 0) == 0  # the table has no topic column
    assert appender.append(bound(values(b"x")), TopicSlot("empty", 1 << 20), 0) == 0


@pytest.mark.parametrize("count", [1, 63, 64, 65, 500])
def test_many_topics_alternate(count: int) -> None:
    harness = idle_harness()
    names = [f"topic-{number}" for number in range(count)]
    for name in names:
        slot = harness.appender.topics[name] = TopicSlot(name, 1 << 20)
        slot.slots.append(idle_harness().topic.slots[0])
    exported = pa.record_batch({"value": [name.encode() for name in names * 3], "topic": names * 3})
    assert TableAppender(harness.appender, BulkTracker()).append(
        bound(exported, None), None, 0
    ) == (3 * count)
    for name in names:
        core = harness.appender.topics[name].slots[0].core
        assert core.finish() == encode_records(
            [PlainRecord(NOW_MS, None, name.encode())] * 3, NOW_MS
        )


def test_closed_or_unbound_chunk_is_refused() -> None:
    harness = idle_harness()
    appender = TableAppender(harness.appender, BulkTracker())
    chunk = bound(values(b"x"))
    with pytest.raises(ValueError, match="negative"):
        appender.append(chunk, harness.topic, -1)
    assert appender.append(chunk, harness.topic, 5) == 5
    chunk.close()
    with pytest.raises(ValueError, match="closed"):
        appender.append(chunk, harness.topic, 0)


@on_both_loops
async def test_tables_and_single_records_share_batches() -> None:
    harness = CoreHarness()
    trackers = [BulkTracker(), BulkTracker()]
    harness.topic.sticky = 0
    harness.append(b"single")
    for tracker in trackers:
        chunk = bound(values(*(b"%d" % number for number in range(100))))
        assert TableAppender(harness.appender, tracker).append(chunk, harness.topic, 0) == 100
        harness.append(b"single")
    (core,) = harness.opened
    assert core.count == 203
    assert core.unwatched == 3
    core.acknowledge(1000)
    assert trackers[0].position(0) == (0, 1001, None)
    assert trackers[1].position(99) == (0, 1201, None)
    assert trackers[0].ranges() == [("t", 0, 100, 1001, 1100)]
    assert trackers[1].ranges() == [("t", 0, 100, 1102, 1201)]


def test_ranges_leave_out_what_failed_and_follow_what_was_split() -> None:
    harness = idle_harness(3)
    tracker = BulkTracker()
    appender = TableAppender(harness.appender, tracker)
    for partition in range(3):
        columns = {"value": [b"x" * 50] * 4, "partition": [partition] * 4}
        assert appender.append(bound(pa.record_batch(columns)), harness.topic, 0) == 4
    good, failed, split = harness.opened
    good.acknowledge(10)
    failed.fail(error())
    parts = split.split(split.finish(), 120)
    assert [part.count for part in parts] == [2, 2]
    parts[0].acknowledge(20)
    parts[1].fail(error())
    assert sorted(tracker.ranges()) == [
        ("t", 0, 4, 10, 13),
        ("t", 2, 1, 20, 20),
        ("t", 2, 1, 21, 21),
    ]
    assert tracker.failed() == [4, 5, 6, 7, 10, 11]
