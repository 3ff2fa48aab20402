"""`send_table`: appends the rows of Arrow tables.

Rows that cannot be appended at once (no memory, unknown topic, too large) are converted to Python
objects and take the slow path of a single record. If the producer has serializers, interceptors,
plug-ins or a custom partitioner, every row is converted. For other rows no objects are created.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from aiokprod._arrow.c_data import ArrowImportError, InvalidRow, Stream, exports_array, open_table
from aiokprod._arrow.table_appender import TableAppender
from aiokprod._client.record_serializers import close_coroutines
from aiokprod._client.send_many import BulkSender, unreadable
from aiokprod._client.table_schema import layout_of
from aiokprod._core.batch import Delivery
from aiokprod.errors import ConfigError, KafkaError, Outcome
from aiokprod.records import validate_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aiokprod._arrow.c_data import Chunk, Layout
    from aiokprod._client.bulk_result import BulkProgress, BulkResult
    from aiokprod._client.runtime import Runtime
    from aiokprod._client.slow_path import SlowPath
    from aiokprod._core.serialization import SerializedRecord

_SLOW_RUN: Final = 64
"""Number of rows on the slow path after which the call yields to the loop. Rows that fail do not
suspend it."""


class TableReader:
    """Reads the record batches of a table without blocking the event loop.

    A single batch is available at once. Reading a stream may run a query, so a worker thread reads
    one batch ahead. The thread also releases the batches that were processed.
    """

    def __init__(self, stream: Stream, loop: asyncio.AbstractEventLoop) -> None:
        self._stream = stream
        self._loop = loop
        self._ahead: asyncio.Future[Chunk | None] | None = None
        self.schema = stream.schema

    @classmethod
    async def open(cls, table: Any, loop: asyncio.AbstractEventLoop) -> TableReader:
        """Open a table.

        Raises:
            ConfigError: the object is not a table, or its export failed.
        """
        try:
            if exports_array(table):
                return cls(open_table(table), loop)
            return cls(await loop.run_in_executor(None, open_table, table), loop)
        except TypeError as error:
            if hasattr(table, "__arrow_c_array__") or hasattr(table, "__arrow_c_stream__"):
                raise _no_export(table, error) from error
            raise ConfigError(
                "send_table takes a table with the Arrow C data interface (__arrow_c_array__ or "
                "__arrow_c_stream__), like those of pyarrow, polars, duckdb and nanoarrow; not "
                f"{type(table).__name__}"
            ) from None
        except ArrowImportError as error:
            raise ConfigError(
                f"the table of type {type(table).__name__} is damaged: {error}"
            ) from None
        except Exception as error:
            raise _no_export(table, error) from error

    async def next(self, done: Chunk | None) -> Chunk | None:
        """Release `done` and return the next batch, or None at the end.

        Raises the exceptions that the stream raises. After a cancellation, `close` releases the
        batch that was read ahead.
        """
        if self._stream.is_single:
            return _exchange(self._stream, done)
        waiting = self._ahead or self._read(None)
        self._ahead = None
        try:
            chunk = await waiting
        except Exception:
            if done is not None:
                done.close()  # release it now, because the traceback keeps a reference
            raise
        self._ahead = self._read(done) if chunk is not None else None
        if chunk is None and done is not None:
            await self._loop.run_in_executor(None, done.close)
        return chunk

    def _read(self, done: Chunk | None) -> asyncio.Future[Chunk | None]:
        reading = self._loop.run_in_executor(None, _exchange, self._stream, done)
        reading.add_done_callback(_look_at)
        return reading

    def close(self) -> None:
        """Release the batches that `next` has not returned."""
        ahead = self._ahead
        if ahead is not None and not ahead.cancel() and not ahead.cancelled():
            chunk = None if ahead.exception() else ahead.result()
            if chunk is not None:
                chunk.close()
        self._stream.close()


def _exchange(stream: Stream, done: Chunk | None) -> Chunk | None:
    if done is not None:
        done.close()
    return stream.next()


def _look_at(reading: asyncio.Future[Chunk | None]) -> None:
    if not reading.cancelled():
        reading.exception()  # mark as retrieved: `next` may have been cancelled


def _no_export(table: Any, error: Exception) -> ConfigError:
    return ConfigError(
        f"the table of type {type(table).__name__} could not be exported by the Arrow C data "
        f"interface ({type(error).__name__}, chained)"
    )


class TableSender(BulkSender):
    """One `send_table` call."""

    def __init__(
        self,
        runtime: Runtime,
        slow_path: SlowPath,
        check: Callable[[], None],
        max_block: float,
        progress: BulkProgress | None = None,
    ) -> None:
        super().__init__(runtime, slow_path, check, max_block, progress)
        self._slow_rows = 0

    async def send_table(
        self, topic: str | None, table: Any, names: Mapping[str, str | None]
    ) -> BulkResult:
        """See `Producer.send_table`.

        Args:
            names: the column of each role.
        """
        with self.awaiting():
            await self._append_table(topic, table, names)
            return await self._finish()

    async def append(self, topic: str | None, table: Any, names: Mapping[str, str | None]) -> None:
        """Like `send_table`, but return once every row is in a batch or has failed.

        The attributes contain the outcomes, which are complete once all batches in `tracker` have
        an outcome. A transaction with a failed row can only be aborted, as with `send_table`.
        Intended for callers that send many tables and check the outcomes later.
        """
        await self._append_table(topic, table, names)
        self.tell_refused()

    async def _append_table(
        self, topic: str | None, table: Any, names: Mapping[str, str | None]
    ) -> None:
        if topic is not None:
            topic = validate_topic(topic)
        reader = await TableReader.open(table, self._runtime.loop)
        try:
            layout = layout_of(reader.schema, topic, names, self._slow_path.serialized_parts)
            await self._send_all(reader, layout, topic)
        finally:
            reader.close()

    async def _send_all(self, reader: TableReader, layout: Layout, topic: str | None) -> None:
        appender = TableAppender(self._runtime.appender, self.tracker)
        chunk: Chunk | None = None
        try:
            while (chunk := await self._next(reader, chunk, layout)) is not None:
                await self._send_chunk(appender, chunk, topic)
        finally:
            if chunk is not None:
                chunk.close()

    async def _next(self, reader: TableReader, done: Chunk | None, layout: Layout) -> Chunk | None:
        """Return the next batch, bound to the layout, or None at the end or if reading failed."""
        if self.interrupted is not None:
            if done is not None:
                done.close()
            return None
        chunk = None
        try:
            chunk = await reader.next(done)
            if chunk is not None:
                chunk.bind(layout)
            return chunk
        except Exception as error:
            if chunk is not None:
                chunk.close()
            broken = unreadable("table", "row", self.position, error)
            if not self.position:
                raise broken from error
            self._break_off(broken)
            return None

    async def _send_chunk(self, appender: TableAppender, chunk: Chunk, topic: str | None) -> None:
        base = self.position
        end = base + len(chunk)
        try:
            while self.position < end:
                await self._advance_table(appender, chunk, topic, base)
        except KafkaError as error:
            self._fail_rest(range(self.position, end), error)
            self.interrupted = error

    async def _advance_table(
        self, appender: TableAppender, chunk: Chunk, topic: str | None, base: int
    ) -> None:
        """Append as many rows as possible without waiting, or one row by the slow path."""
        self._check()
        before = self.position
        slot = None if topic is None else self._slot(topic, None)
        serialized = None
        if self._runtime.appender.enabled and (topic is None or slot is not None):
            with contextlib.suppress(MemoryError):  # the slow path retries the row
                if self._runtime.appender.calls_user:
                    serialized = appender.append_objects(chunk, topic, before - base)
                else:
                    appender.append(chunk, slot, before - base)
        # If user code was already called for this row, append it without suspending: the results
        # are not kept.
        if (
            serialized is None
            and self.position > before
            and self._runtime.yield_queue.slice_is_over()
        ):
            await asyncio.sleep(0)
        elif self.position - base < len(chunk):
            await self._row(chunk, topic, base, serialized)

    async def _row(
        self,
        chunk: Chunk,
        topic: str | None,
        base: int,
        serialized: Delivery | SerializedRecord | None,
    ) -> None:
        """Convert a row to Python objects, and append or refuse it. User code that was already
        called for the row is not called again."""
        position = self.position
        if isinstance(serialized, Delivery):
            self._note(position, serialized)
            return
        self._slow_rows += 1
        if serialized is None and not self._slow_rows % _SLOW_RUN:
            await asyncio.sleep(0)
        try:
            own_topic, value, key, partition, timestamp, headers = chunk.row(position - base)
        except InvalidRow as error:
            self.refused[position] = ConfigError(f"row {position}: {error}")
            return
        except MemoryError as error:
            own = KafkaError(f"no memory to read row {position}", outcome=Outcome.NOT_SENT)
            own.__cause__ = error
            self.refused[position] = own
            if serialized is not None:
                self._slow_path.report_refused(topic or "", None, serialized, own)
            close_coroutines(serialized)
            return
        name = own_topic if topic is None else topic
        assert name is not None, "a row has a topic where the table has a column for it"
        await self._one(position, (name, value, key, partition, timestamp, headers), serialized)
