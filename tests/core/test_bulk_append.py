"""Bulk appends of columns, rows and iterables of records, compared with appends of single records.
Columns are C arrays internally, so the tests cover their bounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiokprod._client.record_serializers import RecordSerializers
from aiokprod._core.bulk_append import RecordSource, append_column, append_objects, append_records
from aiokprod._core.bulk_tracker import BulkTracker
from aiokprod._core.record_fields import (
    DELIVERY_CHARGE,
    murmur2,
)
from aiokprod._core.serialization import SerializedRecord
from aiokprod.records import ProducerRecord
from tests.core.core_harness import (
    CoreHarness,
    IdleLoop,
    idle_harness,
)
from tests.core.test_batch import ANY_TIMES, HEADERS, NULLABLE

MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1

COLUMN = st.lists(
    st.tuples(NULLABLE, NULLABLE, st.none() | ANY_TIMES, st.none() | HEADERS),
    min_size=1,
    max_size=25,
)


@given(
    rows=COLUMN, limit=st.sampled_from([80, 300, 1 << 20]), partition=st.sampled_from([-1, 0, 2])
)
@settings(max_examples=200, deadline=None)
def test_column_is_appended_as_its_records_one_by_one(
    rows: Any, limit: int, partition: int
) -> None:
    single, column = idle_harness(3, limit=limit), idle_harness(3, limit=limit)
    deliveries = [
        single.append(v, k, t, h, partition=None if partition < 0 else partition)
        for v, k, t, h in rows
    ]
    tracker = BulkTracker()
    columns = [[row[i] for row in rows] for i in range(4)]
    assert append_column(
        column.appender,
        tracker,
        column.topic,
        columns[0],
        columns[1],
        columns[2],
        columns[3],
        partition,
        0,
    ) == len(rows)
    assert tracker.count == len(rows)
    assert column.rolls == single.rolls
    assert column.memory.used == single.memory.used - DELIVERY_CHARGE * len(rows)
    for number, (one, many) in enumerate(zip(single.opened, column.opened, strict=True)):
        assert many.finish() == one.finish()
        assert (many.base_timestamp, many.max_timestamp) == (one.base_timestamp, one.max_timestamp)
        for core in (one, many):
            core.acknowledge(1000 * number)
    for index, delivery in enumerate(deliveries):
        metadata = delivery.result()
        assert tracker.position(index) == (metadata.partition, metadata.offset, None)
    assert tracker.failed() == []


@pytest.mark.parametrize("ignore_keys", [False, True])
@pytest.mark.parametrize("first", [0, 1, 300, 511])
def test_column_with_keys_only_is_partitioned_as_its_records_one_by_one(
    first: int, ignore_keys: bool
) -> None:
    """A column of keys without explicit partitions is appended without a decision per record. A few
    hundred keys are hashed at a time."""
    harness = idle_harness(7, ignore_keys=ignore_keys)
    harness.sticky = 3
    for partition in range(7):
        harness.append(partition=partition)
    tracker = BulkTracker()
    keys = [b"key-%d" % number for number in range(700)]
    values = [b"v"] * 700
    assert append_column(
        harness.appender, tracker, harness.topic, values, keys, None, None, -1, first
    ) == len(keys)
    for core in harness.opened:
        core.acknowledge(0)
    expected = [3 if ignore_keys else (murmur2(key) & 0x7FFFFFFF) % 7 for key in keys[first:]]
    assert [tracker.position(i)[0] for i in range(tracker.count)] == expected


def columns_of(*values: Any) -> list[Any]:
    return list(values)


def test_column_stops_before_a_record_that_needs_a_decision() -> None:
    harness = idle_harness()
    tracker = BulkTracker()
    for bad in ("text", bytearray(b"x"), 5):
        values = columns_of(b"a", b"b", bad, b"c")
        assert (
            append_column(harness.appender, tracker, harness.topic, values, None, None, None, 0, 0)
            == 2
        )
        assert (
            append_column(harness.appender, tracker, harness.topic, values, None, None, None, 0, 3)
            == 4
        )
    good = [b"v"] * 3
    wrong: list[tuple[int, Any]] = [
        (4, "key"), (5, -1), (5, 2**63), (5, True), (6, {"h": b"x"}),
    ]  # fmt: skip
    for column, bad in wrong:
        arguments: list[Any] = [tracker, harness.topic, good, None, None, None, 0, 0]
        arguments[column - 1] = [None, bad, None]
        assert append_column(harness.appender, *arguments) == 1


def test_column_stops_when_memory_is_short_and_goes_on_later() -> None:
    harness = idle_harness(memory=1000)
    tracker = BulkTracker()
    values = [b"x" * 80] * 50
    position = append_column(
        harness.appender, tracker, harness.topic, values, None, None, None, 0, 0
    )
    assert 0 < position < 50
    assert harness.memory.used <= 1000
    assert append_column(
        harness.appender, tracker, harness.topic, values, None, None, None, 0, position
    ) == (position)
    harness.memory.used = 0
    more = append_column(
        harness.appender, tracker, harness.topic, values, None, None, None, 0, position
    )
    assert more > position
    assert tracker.count == more


def test_column_stops_at_the_end_of_the_slice() -> None:
    harness = idle_harness(slice_length=-1.0)
    tracker = BulkTracker()
    values = [b"v"] * 5000
    position = 0
    stops = []
    while position < 5000:
        position = append_column(
            harness.appender, tracker, harness.topic, values, None, None, None, 0, position
        )
        stops.append(position)
    assert stops == [1024, 2048, 3072, 4096, 5000]
    assert harness.yield_queue.slice_is_over()


def test_empty_column_is_nothing() -> None:
    harness = idle_harness()
    assert (
        append_column(harness.appender, BulkTracker(), harness.topic, [], None, None, None, 0, 0)
        == 0
    )
    assert (
        append_column(
            harness.appender, BulkTracker(), harness.topic, [b"v"], None, None, None, 0, 5
        )
        == 5
    )
    assert harness.opened == []


def test_columns_of_different_length_are_refused() -> None:
    harness = idle_harness()
    for position in (3, 4, 5):
        for length in (0, 2, 4):
            arguments: list[Any] = [
                BulkTracker(),
                harness.topic,
                [b"v"] * 3,
                None,
                None,
                None,
                0,
                0,
            ]
            arguments[position] = [None] * length
            with pytest.raises(ValueError, match="length"):
                append_column(harness.appender, *arguments)
    assert harness.memory.used == 0


def test_column_bounds_are_errors_not_crashes() -> None:
    harness = idle_harness(2)
    tracker = BulkTracker()
    with pytest.raises(IndexError):
        append_column(harness.appender, tracker, harness.topic, [b"v"], None, None, None, 2, 0)
    with pytest.raises(OverflowError):
        append_column(harness.appender, tracker, harness.topic, [b"v"], None, None, None, 2**31, 0)
    with pytest.raises(ValueError, match="negative"):
        append_column(harness.appender, tracker, harness.topic, [b"v"], None, None, None, 0, -5)
    with pytest.raises(TypeError):
        append_column(harness.appender, tracker, harness.topic, (b"v",), None, None, None, 0, 0)  # type: ignore[arg-type]
    empty = idle_harness(0)
    with pytest.raises(IndexError):
        append_column(empty.appender, tracker, empty.topic, [b"v"], [b"k"], None, None, -1, 0)
    assert tracker.count == 0


class SteppedLoop(IdleLoop):
    """A loop whose clock the test sets."""

    now = 0.0

    def time(self) -> float:
        return self.now


@pytest.mark.parametrize("form", ["column", "list", "generator"])
def test_slow_serializer_holds_the_loop_for_one_slice_and_one_call(form: str) -> None:
    loop = SteppedLoop()

    def serializer(data: str) -> bytes:
        loop.now += 0.0004
        return data.encode()

    harness = CoreHarness(
        loop=loop,  # type: ignore[arg-type]
        serializers=RecordSerializers(None, serializer),
    )
    tracker = BulkTracker()
    records: list[ProducerRecord[Any, Any]] = [
        ProducerRecord("t", "v", partition=0) for _ in range(10)
    ]
    source = RecordSource(
        iter(records) if form == "list" else (record for record in records), ProducerRecord
    )
    counts = []
    while tracker.count < 10:
        began = loop.now
        if form == "column":
            left = append_objects(
                harness.appender,
                tracker,
                harness.topic,
                ["v"] * 10,
                None,
                None,
                None,
                0,
                tracker.count,
            )
        else:
            left = append_records(harness.appender, tracker, source)
        assert left is None
        assert loop.now - began < 0.001 + 0.0005
        counts.append(tracker.count)
        harness.yield_queue.close_pass()
    assert counts == [3, 6, 9, 10]


def test_generator_is_timed_without_serializers_and_a_list_after_some_records() -> None:
    loop = SteppedLoop()

    def slow() -> Iterator[ProducerRecord[Any, Any]]:
        for _ in range(100):
            loop.now += 0.002
            yield ProducerRecord("t", b"v", partition=0)

    harness = CoreHarness(loop=loop)  # type: ignore[arg-type]
    tracker = BulkTracker()
    append_records(harness.appender, tracker, RecordSource(slow(), ProducerRecord))
    assert tracker.count == 1
    harness.yield_queue.close_pass()
    records: list[ProducerRecord[Any, Any]] = [ProducerRecord("t", b"v", partition=0)] * 200
    source = RecordSource(iter(records), ProducerRecord)
    append_records(harness.appender, tracker, source)
    assert tracker.count == 201
    assert source.ended
    assert not source.has_record


def test_rows_that_are_not_appended_are_returned_with_the_results_of_their_serializers() -> None:
    harness = idle_harness(memory=1_000, serializers=RecordSerializers(None, str.encode))
    tracker = BulkTracker()
    left = append_objects(
        harness.appender, tracker, harness.topic, ["v" * 300] * 5, None, None, None, 0, 0
    )
    assert isinstance(left, SerializedRecord)
    assert left.value == b"v" * 300
    assert 0 < tracker.count < 5
    columns: Any = (tracker, harness.topic, ["v"], ["k", "l"], None, None, 0, 0)
    with pytest.raises(ValueError, match="different lengths"):
        append_objects(harness.appender, *columns)
    with pytest.raises(ValueError, match="negative"):
        append_objects(harness.appender, tracker, harness.topic, [], None, None, None, 0, -1)
