"""The sink with a driver that crashes at a chosen point of the commit of a chosen batch.

The point travels as the query's name ("batch:point"), an option the sink leaves alone.
"""

from __future__ import annotations

from typing import Any

from aiokprod.spark.driver_commit import TransactionEnder
from aiokprod.spark.options import SinkOptions
from aiokprod.spark.source import AiokprodDataSource
from aiokprod.spark.worker_loop import loop_thread
from aiokprod.spark.writer import AiokprodWriter

SECONDS = 60.0


class CrashingWriter(AiokprodWriter):
    """Crashes instead of finishing one commit, and leaves everything in the state of that
    moment."""

    def commit(self, messages: Any, batchId: int | None = None) -> None:
        """As the sink's, up to the point."""
        batch, _, point = self._options["queryname"].partition(":")
        if batchId != int(batch):
            super().commit(messages, batchId)
            return
        options = SinkOptions.parse(self._options)
        ender = TransactionEnder(options, batchId)

        async def some() -> None:
            async with ender._cluster_client() as client:
                deadline = client.loop.time() + SECONDS
                await ender._decide(client, messages, deadline)
                ended = {"before EndTxn": [], "after 1 EndTxn": messages[:1]}.get(point, messages)
                await ender._end_all(client, ended, deadline, commit=True)

        loop_thread(options.loop).run(some())
        raise RuntimeError(f"crash on purpose: {point}")

    def abort(self, messages: Any, batchId: int | None = None) -> None:
        """A dead driver aborts nothing."""


class CrashingSource(AiokprodDataSource):
    """`format("aiokprod-crashing")`."""

    @classmethod
    def name(cls) -> str:
        return "aiokprod-crashing"

    def streamWriter(self, schema: Any, overwrite: bool) -> AiokprodWriter:
        writer = super().streamWriter(schema, overwrite)
        return CrashingWriter(writer._options, writer._columns, None)


def register(spark: Any) -> None:
    """Make it known to a session."""
    spark.dataSource.register(CrashingSource)
