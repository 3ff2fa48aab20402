"""The sink in workers whose first attempt at each task is killed right after `write` returned."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext

from aiokprod.spark.source import AiokprodDataSource
from aiokprod.spark.writer import AiokprodWriter


class DyingWriter(AiokprodWriter):
    """Writes everything; then, in the first attempt, its process is gone."""

    def write(self, iterator: Iterator[Any]) -> Any:
        """As the sink's, but the result of the first attempt is lost."""
        message = super().write(iterator)
        context = TaskContext.get()
        assert context is not None, "in a task"
        if context.attemptNumber() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return message


class DyingSource(AiokprodDataSource):
    """`format("aiokprod-dying")`."""

    @classmethod
    def name(cls) -> str:
        return "aiokprod-dying"

    def writer(self, schema: Any, overwrite: bool) -> AiokprodWriter:
        writer = super().writer(schema, overwrite)
        return DyingWriter(writer._options, writer._columns, writer._job)


def register(spark: Any) -> None:
    """Make it known to a session."""
    spark.dataSource.register(DyingSource)
