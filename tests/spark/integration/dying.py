"""The sink in workers that are killed right after `write` returned, in the first attempt at each
task."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext

from aiokprod.spark.source import AiokprodDataSource
from aiokprod.spark.writer import AiokprodWriter


class DyingWriter(AiokprodWriter):
    """Writes everything; in the first attempt its process is killed afterwards."""

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
