"""The driver's report of a job: a log line, and a line of JSON if the option reportPath is set."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiokprod import __version__
from aiokprod._log_fields import log_fields
from aiokprod.environment import unix_ms
from aiokprod.spark.commit_messages import Prepared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiokprod.spark.commit_messages import TaskReport
    from aiokprod.spark.options import SinkOptions

logger = logging.getLogger("aiokprod.spark")

FILE_NAME = "aiokprod-report.jsonl"


def committed(options: SinkOptions, tasks: Sequence[TaskReport], batch_id: int | None) -> None:
    """Report a committed job or micro-batch. A report that cannot be written only logs a warning:
    the rows are in Kafka, and a failure of the batch would write them again."""
    rows = sum(task.rows for task in tasks)
    logger.info(
        "%s rows in %s tasks acknowledged%s",
        rows, len(tasks), "" if batch_id is None else f", batch {batch_id}",
        extra=log_fields("spark_job_done", records=rows, tasks=len(tasks), batch_id=batch_id),
    )  # fmt: skip
    if options.report_path is None:
        return
    try:
        folder = Path(options.report_path)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / FILE_NAME).open("a", encoding="utf-8") as file:
            file.write(json.dumps(report(tasks, batch_id)) + "\n")
    except OSError as error:
        logger.warning(
            "the report in %s cannot be written: %s", options.report_path, error,
            extra=log_fields("spark_report_failed", error=error),
        )  # fmt: skip


def report(tasks: Sequence[TaskReport], batch_id: int | None) -> dict[str, Any]:
    """Return one job as plain data. `ranges` is a list of [topic, partition, first, last, count]
    per task.

    A task of a replayed batch is `skipped` if an earlier attempt committed it. Its rows are in
    Kafka, but only the driver of that attempt received their offsets.
    """
    return {
        "time_ms": unix_ms(),
        "version": __version__,
        "query_id": next((task.query_id for task in tasks if task.query_id), None),
        "batch_id": batch_id,
        "rows": sum(task.rows for task in tasks),
        "bytes": sum(task.size for task in tasks),
        "tasks": [
            {
                "partition": task.partition,
                "attempt": task.attempt,
                "host": task.host,
                "rows": task.rows,
                "seconds": task.seconds,
                "ranges": [list(one) for one in task.ranges],
                "trimmed": task.trimmed,
                "skipped": isinstance(task, Prepared) and task.skipped,
            }
            for task in tasks
        ],
    }
