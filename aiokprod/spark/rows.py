"""Converts Spark's RecordBatches to the columns that the producer sends, and checks their rows.

All functions work on whole columns. pyarrow is imported only by the functions that need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aiokprod.errors import ConfigError, Outcome

if TYPE_CHECKING:
    from aiokprod.spark.sink_schema import SinkColumns

AUDIT_HEADER: Final = "akp.id"


class RowError(ConfigError):
    """A row cannot be sent."""


def row_error(row: int, text: str) -> RowError:
    """Return the error of a row. `row` is its number within the task, from 0."""
    return RowError(f"row {row} of this task: {text}", outcome=Outcome.NOT_SENT)


def project(batch: Any, columns: SinkColumns, *, topic: str | None, first_row: int) -> Any:
    """Return the columns key, value, headers, timestamp, partition and topic as a RecordBatch.

    It leaves out missing columns, and the topic column if the option topic is set. No data are
    copied.

    Args:
        first_row: number of the batch's first row within the task, for errors.

    Raises:
        RowError: a topic or the name of a header is null, or a partition is negative.
    """
    import pyarrow as pa

    arrays: dict[str, Any] = {"value": batch.column(columns.value)}
    if columns.key is not None:
        arrays["key"] = batch.column(columns.key)
    if columns.headers is not None:
        arrays["headers"] = _headers(batch.column(columns.headers), first_row)
    if columns.timestamp is not None:
        arrays["timestamp"] = batch.column(columns.timestamp)
    if columns.partition is not None:
        arrays["partition"] = _partitions(batch.column(columns.partition), first_row)
    if columns.topic is not None and topic is None:
        arrays["topic"] = _topics(batch.column(columns.topic), first_row)
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def _first_null(column: Any) -> int:
    return int(column.is_null().index(True).as_py())


def _topics(column: Any, first_row: int) -> Any:
    if column.null_count:
        raise row_error(
            first_row + _first_null(column),
            "the topic is null: fill it, filter such rows, or set option('topic', ...)",
        )
    return column


def _partitions(column: Any, first_row: int) -> Any:
    import pyarrow.compute as pc

    least = pc.min(column).as_py()
    if least is not None and least < 0:
        row = int(pc.less(column, 0).index(True).as_py())
        raise row_error(
            first_row + row,
            f"partition {column[row].as_py()} is negative: use null to let the partitioner choose",
        )
    return column


def _headers(column: Any, first_row: int) -> Any:
    names = column.flatten().field("key")  # `flatten` returns only the rows of this slice
    if names.null_count:
        row = _row_of(column, _first_null(names))
        raise row_error(first_row + row, "the key of a header is null: name it or drop the header")
    return column


def _row_of(lists: Any, element: int) -> int:
    """Return the row whose list contains this element of the flattened lists."""
    seen = 0
    for row, size in enumerate(lists.value_lengths().to_pylist()):
        seen += size or 0
        if element < seen:
            return row
    return len(lists)


def check_partitions(batch: Any, counts: dict[str, int], *, topic: str | None,
                     first_row: int) -> None:  # fmt: skip
    """Reject partitions that a topic does not have. `counts` is the number of partitions by topic.

    Raises:
        RowError: a partition is out of range. The text names the row, its partition and the number
            of partitions.
    """
    import pyarrow.compute as pc

    column = batch.column("partition")
    greatest = pc.max(column).as_py()
    if greatest is None or greatest < min(counts.values(), default=0):
        return
    count = len(column)
    topics = [topic] * count if topic is not None else batch.column("topic").to_pylist()
    for row, partition in enumerate(column.to_pylist()):
        name = str(topics[row])
        if partition is not None and partition >= counts[name]:
            raise row_error(
                first_row + row,
                f"partition {partition} is out of range: topic {name!r} has {counts[name]}, "
                "numbered from 0",
            )


def with_audit_header(table: Any, prefix: str, first_row: int) -> Any:
    """Append the header `AUDIT_HEADER` to every row. Its value is `prefix` and the number of the
    row within the task.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    count = table.num_rows
    texts = pa.array(np.arange(first_row, first_row + count)).cast(pa.string())
    ids = pc.binary_join_element_wise(prefix, texts, "").cast(pa.binary())
    names = pa.repeat(AUDIT_HEADER, count)
    sizes = np.zeros(count, np.int64)
    if "headers" in table.schema.names:
        own = table.column("headers")
        sizes = pc.fill_null(own.value_lengths(), 0).to_numpy(zero_copy_only=False)
        flat = own.flatten()
        names = pa.concat_arrays([flat.field("key").cast(pa.string()), names])
        ids = pa.concat_arrays([flat.field("value").cast(pa.binary()), ids])
    ends = np.cumsum(sizes + 1)
    places: Any = np.ones(int(ends[-1]) if count else 0, bool)
    places[ends - 1] = False  # the audit header is the last header of each row
    order: Any = np.empty(len(places), np.int64)
    order[places] = np.arange(len(places) - count)
    order[~places] = np.arange(len(places) - count, len(places))
    inner = pa.StructArray.from_arrays([names.take(order), ids.take(order)], names=["key", "value"])
    offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
    headers = pa.ListArray.from_arrays(offsets, inner)
    kept = {name: table.column(name) for name in table.schema.names if name != "headers"}
    return pa.RecordBatch.from_arrays([*kept.values(), headers], names=[*kept, "headers"])
