"""`send_table` through a cluster of bytes: what arrives is what `send_many` would have sent.

The tables are made by Hypothesis: every layout Arrow has for a column, nulls, slices, batches of
any size, empty ones too.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from aiokprod import BulkResult, Producer, ProducerRecord
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.memory import MemoryNetwork
from tests.faults.kit import make_producer, play

NOW_MS = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TOPICS = ("t", "u")

BYTES_TYPES = [pa.binary(), pa.large_binary(), pa.binary_view()]
TEXT_TYPES = [pa.string(), pa.large_string(), pa.string_view()]
TIME_TYPES = [pa.timestamp(unit, tz) for unit in ("s", "ms", "us", "ns") for tz in (None, "UTC")]
INT_TYPES = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()]

blobs = st.none() | st.binary(max_size=40)
texts = st.none() | st.text(max_size=20)
header_lists = st.none() | st.lists(
    st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=20)), max_size=3
)


async def log_of(
    send: Any, *, partitions: int = 3, **options: Any
) -> tuple[BulkResult, dict[str, Any]]:
    """The outcome of one call on a new cluster, and the logs by topic: batches of records."""
    cluster = FakeCluster(network=MemoryNetwork())
    for topic in TOPICS:
        cluster.create_topic(topic, partitions)
    options.setdefault("unix_ms", lambda: NOW_MS)
    producer = make_producer(cluster, **options)
    try:
        result = await send(producer)
    finally:
        await producer.close()
    logs = {
        topic: [
            [(r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in log]
            for log in cluster.logs(topic)
        ]
        for topic in TOPICS
    }
    return result, logs


def same(table: Any, records: list[ProducerRecord[Any, Any]], topic: str | None, **options: Any):
    """Send the table, and `records` by `send_many`, to clusters of their own: every row must be
    where the result says, in order; keyed and placed rows where `send_many` puts them."""

    async def by_table(producer: Producer[Any, Any]) -> BulkResult:
        return await producer.send_table(topic, table)

    async def by_records(producer: Producer[Any, Any]) -> BulkResult:
        return await producer.send_many(records)

    async def both() -> None:
        result, logs = await log_of(by_table, **options)
        expected, expected_logs = await log_of(by_records, **options)
        assert result.ok
        assert expected.ok
        assert len(result) == len(records)
        offsets, partitions = result.offsets, result.partitions
        ends: dict[tuple[str, int], int] = {}
        for row, record in enumerate(records):
            place = record.topic, partitions[row]
            assert offsets[row] == ends.get(place, 0)  # nothing else is there, and in this order
            ends[place] = offsets[row] + 1
            assert logs[place[0]][place[1]][offsets[row]] == stored(record, offsets[row])
            if record.key is not None or record.partition is not None:
                assert partitions[row] == expected.partitions[row]
        assert sum(ends.values()) == sum(len(log) for topic in TOPICS for log in logs[topic])
        if options.get("partitions") == 1:
            assert logs == expected_logs

    play(both)


def stored(record: ProducerRecord[Any, Any], offset: int) -> tuple[Any, ...]:
    """A record as it must be in the log."""
    timestamp = NOW_MS if record.timestamp_ms is None else record.timestamp_ms
    return offset, timestamp, record.key, record.value, tuple(record.headers)


@st.composite
def bytes_columns(draw: st.DrawFn, size: int) -> tuple[pa.Array, list[bytes | None]]:
    """A column of bytes or text in some layout, and what its cells are."""
    kind = draw(st.sampled_from([*BYTES_TYPES, *TEXT_TYPES, "dictionary", "fixed", "null"]))
    if kind == "null":
        return pa.nulls(size), [None] * size
    if kind == "fixed":
        width = draw(st.integers(0, 9))
        cells = draw(column(st.none() | st.binary(min_size=width, max_size=width), size))
        return pa.array(cells, pa.binary(width)), cells
    if kind in TEXT_TYPES:
        words = draw(column(texts, size))
        return pa.array(words, kind), [None if word is None else word.encode() for word in words]
    cells = draw(column(blobs, size))
    if kind == "dictionary":
        return pa.array(cells, pa.binary()).dictionary_encode(), cells
    return pa.array(cells, kind), cells


def column(cells: st.SearchStrategy[Any], size: int) -> st.SearchStrategy[list[Any]]:
    return st.lists(cells, min_size=size, max_size=size)


@st.composite
def headers_columns(draw: st.DrawFn, size: int) -> tuple[pa.Array, list[Any]]:
    cells = draw(column(header_lists, size))
    kind = draw(st.sampled_from(["list", "large", "swapped", "map"]))
    if kind == "map":
        return pa.array(cells, pa.map_(pa.string(), pa.binary())), cells
    fields = [("key", pa.string()), ("value", pa.binary())]
    entry = pa.struct(fields[::-1] if kind == "swapped" else fields)
    rows = [
        None if cell is None else [{"key": key, "value": value} for key, value in cell]
        for cell in cells
    ]
    return pa.array(rows, (pa.large_list if kind == "large" else pa.list_)(entry)), cells


PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}


@st.composite
def time_columns(draw: st.DrawFn, size: int) -> tuple[pa.Array, list[int | None]]:
    kind = draw(st.sampled_from([*TIME_TYPES, pa.int64()]))
    cells = draw(column(st.none() | st.integers(0, 2**40), size))
    array = pa.array(cells, pa.int64())
    if kind == pa.int64():
        return array, cells
    rate = PER_SECOND[kind.unit]
    return array.cast(kind), [None if cell is None else cell * 1000 // rate for cell in cells]


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.Table, list[dict[str, Any]]]:
    """A table, in batches, and its rows as arguments of a record."""
    size = draw(st.integers(0, 40))
    columns: dict[str, tuple[pa.Array, list[Any]]] = {"value": draw(bytes_columns(size))}
    if draw(st.booleans()):
        columns["key"] = draw(bytes_columns(size))
    if draw(st.booleans()):
        columns["headers"] = draw(headers_columns(size))
    if draw(st.booleans()):
        columns["timestamp"] = draw(time_columns(size))
    if draw(st.booleans()):
        cells = draw(column(st.none() | st.integers(0, 2), size))
        columns["partition"] = pa.array(cells, draw(st.sampled_from(INT_TYPES))), cells
    if draw(st.booleans()):
        cells = draw(column(st.sampled_from(TOPICS), size))
        array = pa.array(cells, draw(st.sampled_from(TEXT_TYPES)))
        columns["topic"] = array.dictionary_encode() if draw(st.booleans()) else array, cells
    names = draw(st.permutations(list(columns)))
    table = pa.table({name: columns[name][0] for name in names})
    start = draw(st.integers(0, size))
    stop = draw(st.integers(start, size))
    rows = [{name: columns[name][1][row] for name in names} for row in range(start, stop)]
    table = table.slice(start, stop - start)
    if draw(st.booleans()):
        batches = table.to_batches(max_chunksize=draw(st.integers(1, 7)))
        empty = table.slice(0, 0).combine_chunks().to_batches()
        table = pa.Table.from_batches([*empty, *batches, *empty], table.schema)
    return table, rows


def record_of(row: dict[str, Any], topic: str | None) -> ProducerRecord[Any, Any]:
    return ProducerRecord(
        topic or row["topic"],
        row["value"],
        row.get("key"),
        row.get("partition"),
        row.get("timestamp"),
        row.get("headers") or (),
    )


@settings(max_examples=150, deadline=None)
@given(
    made=tables(),
    batch_size=st.sampled_from([0, 60, 300, 131_072]),
    partitions=st.sampled_from([1, 3]),
)
def test_any_table_arrives_as_its_records_would(
    made: tuple[pa.Table, list[dict[str, Any]]], batch_size: int, partitions: int
) -> None:
    table, rows = made
    topic = None if "topic" in table.column_names else "t"
    records = [record_of(row, topic) for row in rows]
    partitions = max(partitions, *(1 + (record.partition or 0) for record in records), 1)
    same(table, records, topic, batch_size=batch_size, partitions=partitions)


def test_topic_given_overrides_the_column() -> None:
    table = pa.table({"value": [b"a", b"b"], "topic": ["u", None]})
    records = [ProducerRecord("t", b"a"), ProducerRecord("t", b"b")]
    same(table, records, "t")
