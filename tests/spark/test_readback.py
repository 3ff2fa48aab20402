"""The compiled decoder compared with the reference reader, and row hashes compared with their
definition."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiokprod._wire.batch_reader import RecordBatch, read_batches
from aiokprod._wire.record_batch import batch_header
from aiokprod.spark._readback import RecordColumns, RowHashes
from aiokprod.spark.audit_reader import record_batch
from aiokprod.spark.markers import hash_rows
from tests.reference.records import PlainRecord, encode_records

BLOB = st.none() | st.binary(max_size=200)
RECORD = st.tuples(
    st.integers(0, 2**41),
    BLOB,
    BLOB,
    st.lists(st.tuples(st.text(max_size=5), BLOB), max_size=3),
)


def built(rows: list[tuple[int, bytes | None, bytes | None, list[Any]]]) -> bytes:
    """Return a batch that the reference encoder has built."""
    records = [PlainRecord(*row) for row in rows]
    base = records[0].timestamp
    payload = encode_records(records, base)
    latest = max(one.timestamp for one in records)
    head = batch_header(payload, count=len(records), base_timestamp=base, max_timestamp=latest)
    return head + payload


def columns_of(batch: RecordBatch, **how: bool) -> RecordColumns:
    found = RecordColumns(**how)
    add(found, batch)
    return found


def add(columns: RecordColumns, batch: RecordBatch, first: int = 0, end: int = 2**62) -> None:
    header = batch.header
    columns.add(
        batch.payload, header.count, header.base_offset, header.base_timestamp,
        header.max_timestamp if header.is_log_append_time else -1, header.producer_id,
        header.producer_epoch, header.base_sequence, header.attributes, first, end,
    )  # fmt: skip


@given(st.lists(RECORD, min_size=1, max_size=20))
@settings(max_examples=60, deadline=None)
def test_readback_equals_the_reference_reader(rows: list[Any]) -> None:
    (batch,) = read_batches(built(rows))
    table = record_batch("t", 3, columns_of(batch).take())
    table.validate(full=True)
    expected = batch.records()
    assert table.column("offset").to_pylist() == [one.offset for one in expected]
    assert table.column("key").to_pylist() == [one.key for one in expected]
    assert table.column("value").to_pylist() == [one.value for one in expected]
    stamps = table.column("timestamp").cast(pa.int64()).to_pylist()
    assert stamps == [one.timestamp * 1000 for one in expected]
    headers = [
        tuple((one["key"], one["value"]) for one in row)
        for row in table.column("headers").to_pylist()
    ]
    assert headers == [one.headers for one in expected]
    assert set(table.column("topic").to_pylist()) == {"t"}


@given(st.lists(RECORD, min_size=1, max_size=5), st.randoms())
@settings(max_examples=60, deadline=None)
def test_readback_of_damaged_bytes_raises_or_reads(rows: list[Any], rng: random.Random) -> None:
    """The decoder must not read beyond the available bytes."""
    (batch,) = read_batches(built(rows))
    damaged = bytearray(batch.payload)
    for _ in range(3):
        damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    columns = RecordColumns()
    try:
        columns.add(bytes(damaged[: rng.randrange(len(damaged) + 1)]), batch.header.count,
                    0, 0, -1, -1, -1, -1, 0, 0, 10)  # fmt: skip
    except (ValueError, OverflowError):
        return
    record_batch("t", 0, columns.take())


def test_readback_takes_the_range_only_and_starts_afresh() -> None:
    (batch,) = read_batches(built([(i, b"k", b"v%d" % i, []) for i in range(10)]))
    columns = RecordColumns(values=False, headers=False)
    add(columns, batch, 3, 5)
    assert columns.count == 2
    table = record_batch("t", 0, columns.take())
    assert table.column("offset").to_pylist() == [3, 4]
    assert table.column("value").null_count == 2
    assert table.column("headers").null_count == 2
    assert columns.count == 0
    add(columns, batch, 9, 10)
    assert record_batch("t", 0, columns.take()).column("offset").to_pylist() == [9]


def test_readback_headers_start_afresh_after_they_were_taken() -> None:
    rows: list[tuple[int, bytes | None, bytes | None, list[Any]]] = [
        (1, b"k", b"v", [("a", b"1"), ("b", None)]),
        (2, b"k", b"v", [("c", b"3")]),
    ]
    (batch,) = read_batches(built(rows))
    columns = RecordColumns()
    for _ in range(2):
        add(columns, batch)
        headers = record_batch("t", 0, columns.take()).column("headers").to_pylist()
        found = [[(header["key"], header["value"]) for header in row] for row in headers]
        assert found == [row[3] for row in rows]


@pytest.mark.parametrize("cut", [1, 3, 7])
def test_readback_of_cut_payload_is_refused(cut: int) -> None:
    (batch,) = read_batches(built([(1, b"k", b"v", [("h", b"x")])]))
    with pytest.raises(ValueError, match=r"batch|record"):
        RecordColumns().add(batch.payload[:-cut], 1, 0, 0, -1, -1, -1, -1, 0, 0, 10)


def table_of(rows: list[tuple[bytes | None, bytes | None]], large: bool = False) -> pa.RecordBatch:
    kind = pa.large_binary() if large else pa.binary()
    keys = pa.array([row[0] for row in rows], kind)
    values = pa.array([row[1] for row in rows], kind)
    return pa.RecordBatch.from_arrays([keys, values], names=["key", "value"])


ROWS = st.lists(st.tuples(BLOB, BLOB), max_size=20)


@given(ROWS, st.randoms())
@settings(max_examples=60, deadline=None)
def test_hash_is_the_same_for_every_order_split_and_width(
    rows: list[tuple[bytes | None, bytes | None]], rng: random.Random
) -> None:
    whole = hash_rows(table_of(rows))
    shuffled = rng.sample(rows, len(rows))
    assert hash_rows(table_of(shuffled)) == whole
    assert hash_rows(table_of(rows, large=True)) == whole
    at = rng.randrange(len(rows) + 1)
    table = table_of(rows)
    parts = hash_rows(table.slice(0, at)) + hash_rows(table.slice(at))
    assert parts % 2**64 == whole


@given(ROWS, ROWS)
@settings(max_examples=100, deadline=None)
def test_hash_tells_different_rows_apart(one: list[Any], other: list[Any]) -> None:
    same = sorted(map(repr, one)) == sorted(map(repr, other))
    assert (hash_rows(table_of(one)) == hash_rows(table_of(other))) is same


def test_hash_tells_null_from_empty_and_key_from_value() -> None:
    tables: list[Any] = [[(None, b"")], [(b"", None)], [(b"", b"")], [(None, None)], [(b"a", b"b")],
              [(b"b", b"a")], [(b"ab", b"")], [(b"", b"ab")]]  # fmt: skip
    assert len({hash_rows(table_of(rows)) for rows in tables}) == len(tables)


def test_hash_covers_other_columns() -> None:
    base = table_of([(b"k", b"v")])
    for name, values in (("topic", ["a", "b"]), ("partition", [1, 2])):
        found = {
            hash_rows(
                pa.RecordBatch.from_arrays(
                    [*base.columns, pa.array([value])], names=["key", "value", name]
                )
            )
            for value in values
        }
        assert len(found) == 2


HEADER_TYPE = pa.struct([("key", pa.string()), ("value", pa.binary())])
HEADER = st.builds(lambda key, value: {"key": key, "value": value}, st.text(max_size=3), BLOB)
HEADERS = st.none() | st.lists(HEADER, max_size=3)
INTEGER = st.none() | st.integers(-(2**15), 2**15 - 1)
WIDE_ROW = st.tuples(HEADERS, INTEGER, INTEGER)


def wide_table(
    rows: list[tuple[Any, ...]], *, large: bool = False, swapped: bool = False
) -> pa.RecordBatch:
    """Return a table with headers, partition and timestamp, in one of the type variants that Spark
    uses."""
    fields = list(HEADER_TYPE)[:: -1 if swapped else 1]
    lists = (pa.large_list if large else pa.list_)(pa.struct(fields))
    stamps = pa.timestamp("us", tz="Asia/Kathmandu" if large else "UTC")
    columns = {
        "value": pa.array([b"v"] * len(rows)),
        "headers": pa.array([row[0] for row in rows], lists),
        "partition": pa.array([row[1] for row in rows], pa.int16() if large else pa.int32()),
        "timestamp": pa.array([row[2] for row in rows], pa.int64()).cast(stamps),
    }
    return pa.RecordBatch.from_pydict(columns)


@given(st.lists(WIDE_ROW, max_size=12), st.randoms())
@settings(max_examples=80, deadline=None)
def test_hash_of_headers_partition_and_timestamp_is_the_same_for_every_order_split_and_type(
    rows: list[tuple[Any, ...]], rng: random.Random
) -> None:
    whole = hash_rows(wide_table(rows))
    assert hash_rows(wide_table(rng.sample(rows, len(rows)))) == whole
    assert hash_rows(wide_table(rows, large=True)) == whole
    assert hash_rows(wide_table(rows, swapped=True)) == whole
    at = rng.randrange(len(rows) + 1)
    table = wide_table(rows)
    assert (hash_rows(table.slice(0, at)) + hash_rows(table.slice(at))) % 2**64 == whole


@given(st.lists(WIDE_ROW, max_size=6), st.lists(WIDE_ROW, max_size=6))
@settings(max_examples=150, deadline=None)
def test_hash_tells_different_headers_partitions_and_timestamps_apart(
    one: list[tuple[Any, ...]], other: list[tuple[Any, ...]]
) -> None:
    same = sorted(map(repr, one)) == sorted(map(repr, other))
    assert (hash_rows(wide_table(one)) == hash_rows(wide_table(other))) is same


def test_hash_tells_headers_of_one_row_from_those_of_the_next() -> None:
    one, two = {"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}
    tables: list[list[Any]] = [
        [[one], [two]], [[one, two], []], [[two, one], []], [[one, two], None],
        [[one], [{"key": "b", "value": None}]], [[one], [{"key": "b2", "value": b""}]],
    ]  # fmt: skip
    found = {hash_rows(wide_table([(h, 1, 2) for h in table])) for table in tables}
    assert len(found) == len(tables)


def test_hash_of_headers_passes_over_what_lies_beneath_a_null() -> None:
    """The buffers of a null list may still contain elements, which must not change the hash."""
    inner = pa.array([{"key": "x", "value": b"1"}, {"key": "y", "value": b"2"}], HEADER_TYPE)
    hollow = pa.ListArray.from_arrays(
        pa.array([0, 1, 2], pa.int32()), inner, mask=pa.array([True, False])
    )
    plain = pa.array([None, [{"key": "y", "value": b"2"}]], hollow.type)
    assert hollow.to_pylist() == plain.to_pylist()
    tables = [pa.RecordBatch.from_pydict({"headers": array}) for array in (hollow, plain)]
    assert hash_rows(tables[0]) == hash_rows(tables[1])


def test_hash_is_this_number() -> None:
    """The hash must never change: a replay compares its hash with a committed hash, which another
    version of aiokprod, Python or pyarrow may have computed."""
    headers = [{"key": "h", "value": b"\x00\xff"}, {"key": "", "value": None}]
    table = wide_table([(headers, 3, 1_700_000_000_123), (None, None, None), ([], -1, -1)])
    assert hash_rows(table) == 0x999177BFB7F5C7D2
    assert hash_rows(table.slice(3)) == 0


def test_hash_refuses_columns_the_sink_does_not_take() -> None:
    for values in (pa.array([1.5]), pa.array(["a"]).dictionary_encode(), pa.array([True])):
        with pytest.raises(TypeError, match="cannot be hashed"):
            hash_rows(pa.RecordBatch.from_pydict({"value": values}))


def test_hash_refuses_buffers_that_are_too_small() -> None:
    with pytest.raises(ValueError, match="offsets buffer"):
        RowHashes(2).binary(None, 0, b"\0" * 8, 4, b"")
    with pytest.raises(ValueError, match="outside"):
        RowHashes(1).binary(None, 0, b"\0\0\0\0\x05\0\0\0", 4, b"abc")
    with pytest.raises(ValueError, match="validity"):
        RowHashes(1).binary(b"", 0, b"\0" * 8, 4, b"")
    for width in (2, 4, 8):
        with pytest.raises(ValueError, match="data buffer"):
            RowHashes(2).fixed(None, 0, b"\0" * (2 * width - 1), width)
        with pytest.raises(ValueError, match="data buffer"):
            RowHashes(1).fixed(None, 1, b"\0" * (2 * width - 1), width)
    with pytest.raises(ValueError, match="data buffer"):
        RowHashes(1).fixed(None, 0, b"\0" * 8, 3)
    with pytest.raises(ValueError, match="validity"):
        RowHashes(9).fixed(b"\0", 0, b"\0" * 36, 4)
    # Each call has one wrong argument. All other arguments are correct.
    with pytest.raises(ValueError, match="data buffer"):
        RowHashes(1).fixed(None, -1, b"\0" * 64, 4)
    elements = RowHashes(1)
    for start, width in ((-1, 4), (0, 2), (0, 16)):
        with pytest.raises(ValueError, match="offsets buffer"):
            RowHashes(1).lists(None, start, b"\0" * 64, width, elements, 0)
    with pytest.raises(ValueError, match="offsets buffer"):
        RowHashes(2).lists(None, 0, b"\0" * 8, 4, elements, 0)
    with pytest.raises(ValueError, match="validity"):
        RowHashes(1).lists(b"", 0, b"\0" * 8, 4, elements, 0)
    for low, high, first in ((0, 2, 0), (1, 0, 0), (0, 1, 1), (-1, 0, 0)):
        ends = low.to_bytes(4, "little", signed=True) + high.to_bytes(4, "little")
        with pytest.raises(ValueError, match="outside"):
            RowHashes(1).lists(None, 0, ends, 4, elements, first)
