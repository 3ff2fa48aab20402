"""The sink in workers that are killed right after `write` has returned, in the first attempt of
each task."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext

from aiokprod.spark.source import AiokprodDataSource
from aiokprod.spark.writer import AiokprodWriter


class DyingWriter(AiokprodWriter):
    """A writer that writes all rows. In the first attempt its process is then killed."""

    def write(self, iterator: Iterator[Any]) -> Any:
        """Write as the sink does, but lose the result of the first attempt."""
        message = super().write(iterator)
        context = TaskContext.get()
        assert context is not None, "in a task"
        if context.attemptNumber() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return message


class DyingSource(AiokprodDataSource):
    """The source of `format("aiokprod-dying")`."""

    @classmethod
    def name(cls) -> str:
        return "aiokprod-dying"

    def writer(self, schema: Any, overwrite: bool) -> AiokprodWriter:
        writer = super().writer(schema, overwrite)
        return DyingWriter(writer._options, writer._columns, writer._job)


def register(spark: Any) -> None:
    """Register the source with a session."""
    spark.dataSource.register(DyingSource)
