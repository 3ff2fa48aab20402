"""Tables of other libraries are sent completely, for every layout and every export method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import duckdb
import nanoarrow
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from tests.client.test_send_table import log_of
from tests.scenarios.scenario_helpers import play

ROWS = 5000
DATA: dict[str, list[Any]] = {
    "key": [None if row % 7 == 0 else f"key-{row}" for row in range(ROWS)],
    "value": [f"value of row {row}, longer than a view holds in itself" for row in range(ROWS)],
    "partition": [row % 3 for row in range(ROWS)],
}


def arrow() -> pa.Table:
    return pa.table(DATA)


def struct_type() -> Any:
    return nanoarrow.struct(
        {"key": nanoarrow.string(), "value": nanoarrow.string(), "partition": nanoarrow.int64()}
    )


def from_ipc(codec: str | None, shift: int = 0) -> pa.Table:
    """Return the table as read from an IPC stream. Its buffers point into the stream's bytes where
    possible."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, arrow().schema, options=pa.ipc.IpcWriteOptions(compression=codec)
    ) as writer:
        writer.write_table(arrow())
    stream = pa.py_buffer(bytes(shift) + sink.getvalue().to_pybytes()).slice(shift)
    return pa.ipc.open_stream(stream).read_all()


MAKERS: dict[str, Callable[[], Any]] = {
    "pyarrow table": arrow,
    "pyarrow batch": lambda: arrow().combine_chunks().to_batches()[0],
    "pyarrow struct array": lambda: arrow().combine_chunks().to_struct_array().chunk(0),
    "pyarrow chunked struct": lambda: arrow().to_struct_array(),
    "pyarrow reader": lambda: pa.RecordBatchReader.from_batches(
        arrow().schema, arrow().to_batches(max_chunksize=999)
    ),
    "ipc": lambda: from_ipc(None),
    "ipc, not aligned": lambda: from_ipc(None, 1),
    "ipc lz4": lambda: from_ipc("lz4"),
    "ipc zstd": lambda: from_ipc("zstd"),
    "polars": lambda: pl.DataFrame(DATA),
    "polars in chunks": lambda: pl.concat(
        [pl.DataFrame(DATA)[:7], pl.DataFrame(DATA)[7:]], rechunk=False
    ),
    "polars categorical": lambda: pl.DataFrame(DATA).with_columns(
        pl.col("key").cast(pl.Categorical)
    ),
    "pandas": lambda: pd.DataFrame(DATA).astype({"key": "string"}),
    "duckdb": lambda: duckdb.from_arrow(arrow()),
    "duckdb query": lambda: duckdb.from_arrow(arrow()).query("t", "select * from t where true"),
    "nanoarrow": lambda: nanoarrow.Array(arrow().to_struct_array().chunk(0)),
    "nanoarrow stream": lambda: nanoarrow.ArrayStream(arrow()),
}


@pytest.mark.parametrize("maker", MAKERS)
def test_table_arrives_whole(maker: str) -> None:
    async def send(producer: Any) -> Any:
        return await producer.send_table("t", MAKERS[maker]())

    async def scenario() -> None:
        result, logs = await log_of(send)
        assert result.ok
        assert len(result) == ROWS
        for row, offset in enumerate(result.offsets):
            key = DATA["key"][row]
            _, _, stored_key, value, headers = logs["t"][row % 3][offset]
            assert stored_key == (None if key is None else key.encode())
            assert value == DATA["value"][row].encode()
            assert headers == ()

    play(scenario)


def test_polars_headers_and_times_arrive() -> None:
    frame = pl.DataFrame(
        {
            "value": [b"a", b"b", b"c"],
            "headers": [[{"key": "h", "value": b"1"}, {"key": "", "value": None}], [], None],
            "timestamp": pl.Series([1, 2, None], dtype=pl.Datetime("us", "UTC")),
        },
        schema_overrides={
            "headers": pl.List(pl.Struct({"key": pl.String, "value": pl.Binary})),
        },
    )

    async def send(producer: Any) -> Any:
        return await producer.send_table("t", frame)

    async def scenario() -> None:
        result, logs = await log_of(send, partitions=1)
        assert result.ok
        assert [(record[1], record[4]) for record in logs["t"][0]] == [
            (0, (("h", b"1"), ("", None))),
            (0, ()),
            (1_700_000_000_000, ()),
        ]

    play(scenario)
