"""Sinks that accept all rows and send nothing, to measure the cost of a sink."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)


class NullWriter(DataSourceStreamWriter, DataSourceArrowWriter):
    """Only counts rows, which shows the minimum cost of a Python sink."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Read all batches and count their rows."""
        rows = 0
        for batch in iterator:
            rows += batch.num_rows
        return WriterCommitMessage()

    def commit(self, messages: Any, batchId: int | None = None) -> None:
        """Do nothing, because there is nothing to commit."""

    def abort(self, messages: Any, batchId: int | None = None) -> None:
        """Do nothing, because there is nothing to abort."""


class EncodeWriter(NullWriter):
    """Encodes all rows into sealed record batches, with headers and CRC-32C, and drops them."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Partition, encode and drop all rows."""

        async def work() -> None:
            from aiokprod._arrow.c_data import open_table
            from aiokprod._client.table_schema import layout_of
            from benchmarks.columns import BATCH_SIZE, NAMES, Press

            press = Press(3, BATCH_SIZE)
            for batch in iterator:
                stream = open_table(batch)
                chunk = stream.next()
                assert chunk is not None, "a record batch is one chunk"
                chunk.bind(layout_of(stream.schema, "t", NAMES))
                press.run(chunk)
                chunk.close()

        asyncio.run(work())
        return WriterCommitMessage()


class NullSource(DataSource):
    """`format("null-arrow")`: a sink that only counts rows."""

    writer_class: type[NullWriter] = NullWriter

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "null-arrow"

    def writer(self, schema: Any, overwrite: bool) -> NullWriter:
        """Return the writer of a batch job."""
        return self.writer_class()

    def streamWriter(self, schema: Any, overwrite: bool) -> NullWriter:
        """Return the writer of a stream."""
        return self.writer_class()


class EncodeSource(NullSource):
    """`format("encode-only")`: a sink that encodes rows and drops them."""

    writer_class = EncodeWriter

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "encode-only"
