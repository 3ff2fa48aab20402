"""The sink with a driver that crashes at a chosen point in the commit of a chosen batch.

The test passes the point as the query's name ("batch:point"), an option that the sink ignores.
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
    """A writer that crashes instead of finishing one commit, and leaves the state at that
    moment."""

    def commit(self, messages: Any, batchId: int | None = None) -> None:
        """Commit up to the chosen point, then raise."""
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
        """Do nothing, because a dead driver aborts nothing."""


class CrashingSource(AiokprodDataSource):
    """The source of `format("aiokprod-crashing")`."""

    @classmethod
    def name(cls) -> str:
        return "aiokprod-crashing"

    def streamWriter(self, schema: Any, overwrite: bool) -> AiokprodWriter:
        writer = super().streamWriter(schema, overwrite)
        return CrashingWriter(writer._options, writer._columns, None)


def register(spark: Any) -> None:
    """Register the source with a session."""
    spark.dataSource.register(CrashingSource)
