"""`send_table` with a fake cluster: the log contains the records that `send_many` would have sent.

Hypothesis generates the tables: every column layout of Arrow, nulls, slices, and batches of any
size, including empty ones.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import gc
import itertools
import threading
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiokprod import BulkProgress, BulkResult, Producer, ProducerRecord
from aiokprod._arrow.c_data import ArrowImportError
from aiokprod._client.send_table import TableReader
from aiokprod._core.yielding import YieldQueue
from aiokprod.errors import (
    AbortableTransactionError,
    ConfigError,
    InvalidTopic,
    KafkaError,
    Outcome,
    ProducerClosed,
    RecordTooLarge,
    SerializationError,
    UnknownTopic,
)
from aiokprod.testing import fake_cluster as faults
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.memory import MemoryNetwork
from tests.arrow import capsules
from tests.arrow.capsules import Batches, Column, binary
from tests.core.core_harness import LOOPS
from tests.hang import HANG_S
from tests.scenarios.scenario_helpers import (
    History,
    clock,
    harness,
    make_producer,
    now,
    play,
    runtime_of,
    scenario,
)

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
    """Make one call on a new cluster. Return its result, and the log of each partition by topic."""
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


def same(
    table: Any, records: list[ProducerRecord[Any, Any]], topic: str | None, **options: Any
) -> None:
    """Send the table to one cluster, and `records` with `send_many` to another.

    Every row must be at the reported place, in order. Rows with a key or a partition must be in the
    partition that `send_many` chose.
    """

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
            partition, offset = partitions[row], offsets[row]
            assert partition is not None
            assert offset is not None
            place = record.topic, partition
            # No other record is in the log, and the order is kept.
            assert offset == ends.get(place, 0)
            ends[place] = offset + 1
            assert logs[place[0]][place[1]][offset] == stored(record, offset)
            if record.key is not None or record.partition is not None:
                assert partitions[row] == expected.partitions[row]
        assert sum(ends.values()) == sum(len(log) for topic in TOPICS for log in logs[topic])
        if options.get("partitions") == 1:
            assert logs == expected_logs

    play(both)


def stored(record: ProducerRecord[Any, Any], offset: int) -> tuple[Any, ...]:
    """Return the record as it must be in the log."""
    timestamp = NOW_MS if record.timestamp_ms is None else record.timestamp_ms
    return offset, timestamp, record.key, record.value, tuple(record.headers)


@st.composite
def bytes_columns(draw: st.DrawFn, size: int) -> tuple[pa.Array, list[bytes | None]]:
    """Return a column of bytes or text in some layout, and the contents of its cells."""
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
    """Return a table in batches, and its rows as arguments of a record."""
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
    records: list[ProducerRecord[Any, Any]] = [ProducerRecord("t", b"a"), ProducerRecord("t", b"b")]
    same(table, records, "t")


# -- failed rows --------------------------------------------------------------------------------


def numbered(count: int, size: int = 20) -> pa.Table:
    return pa.table({"value": [b"%0*d" % (size, number) for number in range(count)]})


@scenario(partitions=2, max_request_size=5000, batch_size=5000, buffer_memory=100_000)
async def test_row_that_fails_hides_no_other(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    value = [b"row-0", b"x" * 6000, b"row-2", b"row-3", b"row-4", b"row-5", b"row-6", b"row-7"]
    table = pa.table(
        {
            "value": value,
            "topic": ["t", "t", None, "no/topic", "t", "t", "t", "t"],
            "partition": pa.array([0, 0, 0, 0, -1, 0, 2**40, 1]),
            "timestamp": pa.array([0, 0, 0, 0, 0, -1, 0, 0], pa.timestamp("ms")),
        }
    )
    result = await producer.send_table(None, table)
    assert not result.ok
    assert result.interrupted is None
    assert {row: type(error) for row, error in result.errors.items()} == {
        1: RecordTooLarge, 2: ConfigError, 3: ConfigError, 4: ConfigError, 5: ConfigError,
        6: ConfigError,
    }  # fmt: skip
    assert "row 2: its topic is null" in str(result.errors[2])
    assert "partition -1 is not in the range" in str(result.errors[4])
    assert "timestamp_ms -1 is not in the range" in str(result.errors[5])
    assert all(error.outcome is Outcome.NOT_SENT for error in result.errors.values())
    assert [result.partitions[0], result.partitions[7]] == [0, 1]
    assert cluster.values("t", 0) == [b"row-0"]
    assert cluster.values("t", 1) == [b"row-7"]
    assert result.ranges == {("t", 0): (1, 0, 0), ("t", 1): (1, 0, 0)}
    with pytest.raises(RecordTooLarge):
        result.raise_for_errors()


@scenario(partitions=1)
async def test_null_rows_and_header_names_are_errors_of_their_rows(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    struct = pa.StructArray.from_arrays(
        [pa.array([b"a", b"b", b"c"])], ["value"], mask=pa.array([False, True, False])
    )
    result = await producer.send_table("t", struct)
    assert list(result.errors) == [1]
    assert "row 1: the whole row is null" in str(result.errors[1])
    headers = pa.array([None, [("a", b"")], [None]], pa.list_(HEADERS.value_type))
    result = await producer.send_table("t", pa.table({"value": [b"x"] * 3, "headers": headers}))
    assert "row 2: its headers[0] is null" in str(result.errors[2])
    assert cluster.values("t", 0) == [b"a", b"c", b"x", b"x"]


@scenario(partitions=2, max_block_ms=1000)
async def test_partitions_that_are_not_there_cost_one_wait_in_all(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    rows = 1000
    table = pa.table({"value": [b"x"] * rows, "partition": [row % 4 for row in range(rows)]})
    started = now()
    result = await producer.send_table("t", table)
    assert now() - started < 3
    assert list(result.errors) == [row for row in range(rows) if row % 4 > 1]
    assert all(isinstance(error, UnknownTopic) for error in result.errors.values())
    assert "no partition 3" in str(result.errors[3])
    assert result.errors[2] is not result.errors[6]
    assert [len(log) for log in cluster.logs("t")] == [250, 250]


@scenario(partitions=1)
async def test_bad_first_row_says_nothing_of_its_topic(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    table = pa.table(
        {
            "value": [b"row-0", b"row-1", b"row-2"],
            "timestamp": pa.array([-1, 0, 0], pa.timestamp("ms")),
        }
    )
    result = await producer.send_table("t", table)
    assert list(result.errors) == [0]
    assert cluster.values("t", 0) == [b"row-1", b"row-2"]


@scenario(partitions=1)
async def test_topic_the_broker_calls_invalid_hides_no_other(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    def condemn(message: Any) -> Any:
        topics = [
            dataclasses.replace(t, error_code=17, partitions=[]) if t.name == "bad" else t
            for t in message.topics
        ]
        return dataclasses.replace(message, topics=topics)

    cluster.control(3, faults.edit(condemn))
    table = pa.table({"value": [b"0", b"1", b"2", b"3"], "topic": ["bad", "t", "bad", "t"]})
    result = await producer.send_table(None, table)
    assert {row: type(error) for row, error in result.errors.items()} == {
        0: InvalidTopic, 2: InvalidTopic
    }  # fmt: skip
    assert result.interrupted is None
    assert cluster.values("t", 0) == [b"1", b"3"]


@scenario(partitions=1, max_block_ms=1000)
async def test_topic_created_meanwhile_is_used(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    clock().call_later(0.5, cluster.create_topic, "late", 1)
    result = await producer.send_table("late", numbered(10))
    assert result.ok
    assert len(cluster.log("late", 0)) == 10


@scenario(partitions=3, batch_size=2000, buffer_memory=20_000)
async def test_little_memory_is_waited_for_and_order_kept(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    result = await producer.send_table("t", numbered(5000, 50))
    assert result.ok
    values: list[list[Any]] = [cluster.values("t", partition) for partition in range(3)]
    assert all(log == sorted(log) for log in values)
    assert sorted(itertools.chain(*values)) == numbered(5000, 50)["value"].to_pylist()
    assert producer.metrics()["buffer_available_bytes"] == 20_000


@scenario(partitions=1)
async def test_refused_rows_leave_the_loop_its_turns(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    passes = clock().passes
    table = pa.table({"value": [b"x"] * 6400, "topic": pa.nulls(6400, pa.string())})
    result = await producer.send_table(None, table)
    assert len(result.errors) == 6400
    assert clock().passes - passes >= 100


@scenario(partitions=1)
async def test_batches_that_fail_are_told_row_by_row(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await producer.warm(["t"])
    cluster.fail_produce(("t", 0), 10)  # MESSAGE_TOO_LARGE: the batch is split
    result = await producer.send_table("t", numbered(100))
    assert result.ok
    assert result.offsets == list(range(100))
    assert result.ranges == {("t", 0): (100, 0, 99)}
    cluster.fail_produce(("t", 0), 87)  # INVALID_RECORD
    result = await producer.send_table("t", numbered(100))
    assert not result.ok
    assert len(result.errors) == 100
    assert result.ranges == {}


@scenario(partitions=1, acks=0, enable_idempotence=False)
async def test_without_acknowledgments_offsets_are_unknown(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    result = await producer.send_table("t", numbered(5))
    assert result.ok
    assert result.ranges == {("t", 0): (5, None, None)}


# -- hooks --------------------------------------------------------------------------------------


class Upper:
    """An interceptor that changes values and records the outcomes."""

    def __init__(self) -> None:
        self.ended: list[Any] = []

    def on_send(self, record: ProducerRecord[Any, Any]) -> ProducerRecord[Any, Any]:
        return dataclasses.replace(record, value=(record.value or b"").upper())

    def on_acknowledgement(self, metadata: Any, error: Any) -> None:
        self.ended.append((metadata, error))

    def close(self) -> None:
        """Do nothing: no resource is open."""


def test_interceptors_and_partitioners_see_every_row() -> None:
    interceptor = Upper()
    keys = []

    def partitioner(topic: str, key: Any, *rest: Any) -> int:
        keys.append(key)
        return 2

    async def send(producer: Producer[Any, Any]) -> BulkResult:
        return await producer.send_table("t", pa.table({"value": ["a", "b"], "key": [b"k", None]}))

    async def main() -> None:
        result, logs = await log_of(send, interceptors=[interceptor], partitioner=partitioner)
        assert result.partitions == [2, 2]
        assert [record[3] for record in logs["t"][2]] == [b"A", b"B"]
        assert keys == [b"k", None]
        assert [end[1] for end in interceptor.ended] == [None, None]

    play(main)


# -- serializers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [True, False])
def test_serializers_get_text_as_str_and_other_cells_as_bytes(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[Any] = []

    class Upper:
        def serialize(self, topic: str, headers: list[Any], data: Any) -> bytes:
            called.append((topic, data))
            headers.append(("h", b"1"))
            return b"S" + (data.encode() if isinstance(data, str) else data).upper()

    columns: dict[str, Any] = {
        "string": (pa.array(["a", "é", None, "b"]), ["a", "é", "b"]),
        "large_string": (pa.array(["a", None], pa.large_string()), ["a"]),
        "dictionary": (pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
        "binary": (pa.array([b"a", None, b"\xff"], pa.binary()), [b"a", b"\xff"]),
    }

    async def main() -> None:
        async with harness(value_serializer=Upper(), linger_ms=0) as (cluster, producer, _):
            await producer.send("t", None, partition=0)  # the fast path needs the topic's metadata
            if not compiled:
                runtime_of(producer).fast_path.stop()
            else:
                monkeypatch.setattr(producer._slow_path, "append", None)
            for values, given in columns.values():
                called.clear()
                before = len(cluster.values("t", 0))
                keys = pa.array(["k"] * len(values))
                partitions = pa.array([0] * len(values))
                table = pa.table({"key": keys, "value": values, "partition": partitions})
                result = await producer.send_table("t", table)
                result.raise_for_errors()
                assert called == [("t", value) for value in given]
                stored = cluster.log("t", 0)[before:]
                assert [record.key for record in stored] == [b"k"] * len(values)
                assert [record.value is None for record in stored] == [
                    value is None for value in values.to_pylist()
                ]
                assert [len(record.headers) for record in stored] == [
                    value is not None for value in values.to_pylist()
                ]

    play(main)


@pytest.mark.parametrize("slice_length", [0.001, -1.0])
def test_rows_whose_serializers_fail_or_wait_do_not_affect_others(
    slice_length: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows belong to several topics. Each serializer is called once for each row."""
    monkeypatch.setattr(
        "aiokprod._client.runtime.YieldQueue",
        functools.partial(YieldQueue, slice_length=slice_length),
    )
    called: list[Any] = []

    def serializer(data: str) -> Any:
        async def later() -> bytes:
            await asyncio.sleep(0.01)
            return data.encode()

        called.append(data)
        if data.startswith("bad"):
            raise ValueError(data)
        return later() if data.startswith("late") else data.encode()

    async def main() -> None:
        async with harness(value_serializer=serializer, linger_ms=0) as (cluster, producer, _):
            cluster.create_topic("u", 1)
            for topic in "tu":
                await producer.send(topic, None, partition=0)
            texts = ["a", "bad", "late", "b", "late2", "bad2", "c", "null"]
            table = pa.table({
                "value": texts, "topic": ["t", "u"] * 4, "partition": [0] * 8,
                "timestamp": [1, 2, 3, 4, 5, 6, -7, 8],
            })  # fmt: skip
            result = await producer.send_table(None, table)
            assert sorted(result.errors) == [1, 5, 6]
            assert isinstance(result.errors[1], SerializationError)
            assert isinstance(result.errors[6], ConfigError)
            assert called == [text for text in texts if text != "c"]
            assert result.offsets == [1, None, 2, 1, 3, None, None, 2]

    play(main)


@scenario(partitions=1, value_serializer=str.encode)
async def test_text_that_is_not_utf8_is_refused_alone(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await producer.send("t", None, partition=0)
    damaged = pa.array([b"a", b"\xff", b"b"], pa.binary()).cast(pa.string(), safe=False)
    result = await producer.send_table("t", pa.table({"value": damaged, "partition": [0] * 3}))
    assert list(result.errors) == [1]
    assert "not UTF-8" in str(result.errors[1])
    assert cluster.values("t", 0) == [None, b"a", b"b"]


@scenario(partitions=1, buffer_memory=20_000, max_request_size=9_000)
async def test_cancelled_call_has_the_outcomes_of_the_rows_that_were_appended(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await producer.warm(["t"])
    cluster.pause(1)
    values = [b"%d" % number + b"x" * 900 for number in range(100)]
    progress = BulkProgress()
    table = pa.table({"value": pa.array(values, pa.binary())})
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await producer.send_table("t", table, progress=progress)
    cluster.resume(1)
    result = await progress.result()
    assert 5 < len(result) == progress.position < 30
    assert result.offsets == list(range(len(result)))
    assert cluster.values("t", 0) == values[: len(result)]
    assert result.interrupted is not None


# -- tables that are rejected as a whole --------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (None, "not NoneType"),
        ([{"value": b"x"}], "not list"),
        ({"value": [b"x"]}, "__arrow_c_stream__"),
        (pa.table({"value": [1]}), "column 'value' is int64"),
        (pa.table({"valeu": [b"x"]}), "no column 'value'"),
        (pa.array([1]), "single column of int64"),
        (pa.schema([]), "not Schema"),
    ],
    ids=range(7),
)
@scenario(partitions=1)
async def test_wrong_table_is_refused_before_anything_is_sent(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History, table: Any, text: str
) -> None:
    with pytest.raises(ConfigError, match=text) as info:
        await producer.send_table("t", table)
    assert info.value.outcome is Outcome.NOT_SENT
    assert cluster.log("t", 0) == []


@scenario(partitions=1)
async def test_wrong_topic_is_refused(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    topic: Any
    for topic in ("a/b", "", 5, b"t"):
        with pytest.raises(ConfigError, match="topic"):
            await producer.send_table(topic, numbered(1))
    with pytest.raises(ConfigError, match="no topic"):
        await producer.send_table(None, numbered(1))


@scenario(partitions=1)
async def test_object_whose_export_fails_is_refused(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    class Failing:
        def __init__(self, error: Exception) -> None:
            self.error = error

        def __arrow_c_array__(self, requested_schema: Any = None) -> None:
            raise self.error

    for error in (NotImplementedError("no"), TypeError("no"), ArrowImportError("no")):
        with pytest.raises(ConfigError, match="Failing"):
            await producer.send_table("t", Failing(error))
    broken = Batches(capsules.table(binary("value", b"a")), schema_code=5)
    with pytest.raises(ConfigError, match=r"ArrowStreamError, chained"):
        await producer.send_table("t", broken)
    assert broken.released == 1


@scenario(partitions=1)
async def test_closed_producer_is_refused(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await producer.close()
    with pytest.raises(ProducerClosed):
        await producer.send_table("t", numbered(1))


@scenario(partitions=1)
async def test_empty_tables_are_sent_at_once(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    for table in (numbered(0), numbered(0).to_batches(), pa.table({"value": pa.nulls(0)})):
        if isinstance(table, list):
            table = pa.Table.from_batches([], numbered(0).schema)
        result = await producer.send_table("t", table)
        assert result.ok
        assert len(result) == 0
        assert result.ranges == {}


# -- tables that fail midway, and producers that close or fail ----------------------------------


@scenario(partitions=1)
async def test_table_that_breaks_off_tells_what_was_sent(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    batch = capsules.table(binary("value", b"a", b"b"))
    broken = Batches(batch, code=5, text=b"secret=1")
    result = await producer.send_table("t", broken)
    assert not result.ok
    assert len(result) == 2
    assert result.errors == {}
    assert isinstance(result.interrupted, SerializationError)
    assert "after row 2 (ArrowStreamError, chained)" in str(result.interrupted)
    assert "secret" not in str(result.interrupted)
    assert "secret" in str(result.interrupted.__cause__)
    with pytest.raises(SerializationError):
        result.raise_for_errors()
    assert cluster.values("t", 0) == [b"a", b"b"]
    assert broken.released == 1
    assert batch.released == ["schema", "array"]
    empty = Batches(capsules.table(binary("value", b"a")), code=5)
    empty.tables.clear()
    with pytest.raises(SerializationError, match="after row 0"):
        await producer.send_table("t", empty)


@scenario(partitions=1)
async def test_batch_that_is_damaged_breaks_the_table_off(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    good = capsules.table(binary("value", b"a"))
    bad = capsules.table(Column("value", "z", 1, [None, None, b""]))
    result = await producer.send_table("t", Batches(good, bad))
    assert len(result) == 1
    assert result.interrupted is not None
    assert isinstance(result.interrupted.__cause__, ArrowImportError)
    assert bad.released == ["array"]


@scenario(partitions=1, batch_size=2000, buffer_memory=20_000, max_block_ms=60_000)
async def test_producer_closed_in_the_middle_tells_what_was_sent(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await producer.warm(["t"])
    cluster.throttle(100)
    table = pa.Table.from_batches(numbered(1000, 50).to_batches(max_chunksize=400))
    sending = asyncio.ensure_future(producer.send_table("t", table))
    await asyncio.sleep(0.001)
    closing = asyncio.ensure_future(producer.close())
    result = await sending
    await closing
    assert isinstance(result.interrupted, ProducerClosed)
    assert 0 < len(cluster.log("t", 0)) < 1000
    assert len(result) % 400 in (0, 200)  # whole batches only; the next batch was not read
    acknowledged = len(result) - len(result.errors)
    assert cluster.values("t", 0) == numbered(1000, 50)["value"].to_pylist()[:acknowledged]


@scenario(partitions=1, batch_size=2000, buffer_memory=20_000)
async def test_cancelled_call_gives_the_table_back(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await producer.warm(["t"])
    tables = [capsules.table(binary("value", *[b"x" * 50] * 1000)) for _ in range(3)]
    exported = Batches(*tables)
    sending = asyncio.ensure_future(producer.send_table("t", exported))
    await asyncio.sleep(0.001)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    gc.collect()
    assert exported.released == 1
    taken = 3 - len(exported.tables)
    assert [table.released.count("array") for table in tables] == [1] * taken + [0] * (3 - taken)
    await producer.flush()
    assert 0 < len(cluster.log("t", 0)) < 3000


@scenario(partitions=1)
async def test_memory_of_tables_is_given_back(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    async def send(table: Any) -> None:
        try:
            await producer.send_table("t", table)
        except KafkaError:
            return

    before = pa.total_allocated_bytes()
    for _ in range(5):
        await send(numbered(2000))
        await send(pa.Table.from_batches(numbered(2000).to_batches(max_chunksize=300)))
        await send(numbered(2000).rename_columns(["x"]))
        await send(pa.table({"value": [b"x"] * 100, "topic": pa.nulls(100)}))
    gc.collect()
    assert pa.total_allocated_bytes() == before


# -- transactions -------------------------------------------------------------------------------


@scenario(partitions=2, transactional_id="tx")
async def test_table_in_a_transaction_is_committed_with_it(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    async with producer.transaction():
        result = await producer.send_table("t", numbered(500))
        assert result.ok
    assert sum(len(cluster.committed_values("t", partition)) for partition in range(2)) == 500


@scenario(partitions=1, transactional_id="tx")
async def test_part_of_a_table_is_never_committed(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await producer.begin_transaction()
    broken = Batches(capsules.table(binary("value", b"a", b"b")), code=5)
    result = await producer.send_table("t", broken)
    assert isinstance(result.interrupted, SerializationError)
    with pytest.raises(AbortableTransactionError, match="failed after row 2"):
        await producer.commit_transaction()
    await producer.abort_transaction()
    assert cluster.committed_values("t", 0) == []
    async with producer.transaction():
        assert (await producer.send_table("t", numbered(3))).ok
    assert len(cluster.committed_values("t", 0)) == 3


# -- time ---------------------------------------------------------------------------------------


def test_streams_are_read_in_a_thread_one_batch_ahead() -> None:
    threads: list[int] = []
    reads = threading.Semaphore(0)
    tables = [capsules.table(binary("value", b"a", b"b")) for _ in range(4)]

    def noted() -> None:
        threads.append(threading.get_ident())
        reads.release()

    exported = Batches(*tables, on_next=noted)

    async def main() -> None:
        reader = await TableReader.open(exported, asyncio.get_running_loop())
        done = None
        for number in range(len(tables)):
            chunk = await reader.next(done)
            assert chunk is not None
            assert len(chunk) == 2
            # Wait until the next read has begun. The same job releases `done` before it reads.
            for _ in range(2 if number == 0 else 1):
                assert reads.acquire(timeout=HANG_S)
            assert len(threads) == number + 2
            released = [table.released.count("array") for table in tables]
            assert released == [1] * number + [0] * (len(tables) - number)
            done = chunk
        assert await reader.next(done) is None
        assert done is not None
        done.close()
        reader.close()

    asyncio.run(main())
    assert threading.get_ident() not in threads
    assert exported.released == 1
    assert [table.released.count("array") for table in tables] == [1] * 4


@pytest.mark.parametrize("kind", LOOPS)
def test_reader_closed_during_a_read_gives_all_back(kind: str) -> None:
    entered, leave = threading.Event(), threading.Event()

    def wait() -> None:
        entered.set()
        assert leave.wait(HANG_S)

    tables = [capsules.table(binary("value", b"a"))]
    exported = Batches(*tables, on_next=wait)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        reader = await TableReader.open(exported, loop)
        reading = asyncio.ensure_future(reader.next(None))
        await loop.run_in_executor(None, entered.wait, HANG_S)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        reader.close()
        assert exported.released == 0
        leave.set()

    with asyncio.Runner(loop_factory=LOOPS[kind]) as runner:
        runner.run(main())
    gc.collect()
    assert exported.released == 1
    assert tables[0].released == ["schema", "array"]


# -- submission without waiting for outcomes (as in the Spark sink) --------------------------------


NAMES = {
    name: name for name in ("key", "value", "headers", "timestamp", "partition", "topic")
}  # fmt: skip


@scenario(partitions=1, max_request_size=3000)
async def test_append_returns_before_outcomes_and_tells_refused_rows(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await producer.warm(["t"])
    cluster.pause(1)
    table = pa.table({"value": pa.array([b"a", b"x" * 9000, b"c"], pa.binary())})
    sender = producer.table_sender()
    await sender.append("t", table, NAMES)
    assert sorted(sender.refused) == [1]
    assert isinstance(sender.refused[1], RecordTooLarge)
    assert sender.tracker.count == 2
    assert sender.interrupted is None
    cluster.resume(1)
    await producer.flush()
    assert sender.tracker.failed() == []
    assert cluster.values("t", 0) == [b"a", b"c"]


@scenario(partitions=1, max_request_size=3000, transactional_id="x")
async def test_append_with_a_refused_row_spoils_the_transaction(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await producer.start()
    await producer.begin_transaction()
    table = pa.table({"value": pa.array([b"a", b"x" * 9000], pa.binary())})
    await producer.table_sender().append("t", table, NAMES)
    with pytest.raises(AbortableTransactionError):
        await producer.commit_transaction()
    await producer.abort_transaction()


@scenario(partitions=1)
async def test_row_for_which_there_is_no_memory_is_refused_alone(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    """The row takes the slow path, which converts it to objects."""
    await producer.warm(["t"])
    runtime_of(producer).fast_path.stop()

    class Chunk:
        """A chunk of three rows. Reading the second row raises MemoryError."""

        def __len__(self) -> int:
            return 3

        def row(self, index: int) -> Any:
            if index == 1:
                raise MemoryError
            return None, b"%d" % index, None, None, None, ()

    sender: Any = producer.table_sender()
    while sender.position < 3:
        await sender._advance_table(None, Chunk(), "t", 0)
    assert sorted(sender.refused) == [1]
    assert sender.refused[1].outcome is Outcome.NOT_SENT
    assert isinstance(sender.refused[1].__cause__, MemoryError)
    await producer.flush()
    assert cluster.values("t", 0) == [b"0", b"2"]
