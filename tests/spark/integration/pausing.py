"""The sink with a driver that waits for the test before it commits a chosen batch.

The test passes the batch and a folder as the query's name ("batch:folder"), an option that the sink
ignores. The driver creates the file `at-commit` in the folder, and continues when the file `go`
exists.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from aiokprod.spark.source import AiokprodDataSource
from aiokprod.spark.writer import AiokprodWriter

SECONDS = 120.0


class PausingWriter(AiokprodWriter):
    """A writer that waits before one commit."""

    def commit(self, messages: Any, batchId: int | None = None) -> None:
        """Commit as the sink does, after the test has created the file `go`."""
        batch, _, folder = self._options["queryname"].partition(":")
        if batchId == int(batch):
            (Path(folder) / "at-commit").touch()
            give_up = time.monotonic() + SECONDS
            while not (Path(folder) / "go").exists() and time.monotonic() < give_up:
                time.sleep(0.05)
        super().commit(messages, batchId)


class PausingSource(AiokprodDataSource):
    """The source of `format("aiokprod-pausing")`."""

    @classmethod
    def name(cls) -> str:
        return "aiokprod-pausing"

    def streamWriter(self, schema: Any, overwrite: bool) -> AiokprodWriter:
        writer = super().streamWriter(schema, overwrite)
        return PausingWriter(writer._options, writer._columns, None)


def register(spark: Any) -> None:
    """Register the source with a session."""
    spark.dataSource.register(PausingSource)
