"""The task attempt that this process runs. Only this module reads Spark's internal properties."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aiokprod import __version__
from aiokprod.errors import ConfigError

if TYPE_CHECKING:
    from aiokprod.spark.options import SinkOptions

BATCH_ID: Final = "streaming.sql.batchId"
QUERY_ID: Final = "sql.streaming.queryId"
RUN_ID: Final = "spark.jobGroup.id"
SPECULATION: Final = "spark.speculation"


@dataclass(frozen=True, slots=True)
class Task:
    """One task attempt.

    Attributes:
        partition: index of the Spark partition.
        attempt: number of the attempt, from 0.
        batch_id, query_id: ids set by the stream or by `foreach_batch`; None in a batch job.
        run_id: id of the stream's run; None in a batch job.
        speculation: True if Spark may run a second attempt in parallel.
    """

    partition: int
    attempt: int
    host: str
    batch_id: int | None
    query_id: str | None
    run_id: str | None
    speculation: bool


def audit_prefix(options: SinkOptions, task: Task, job: str | None) -> str | None:
    """Return the prefix of a task's audit headers (run, batch and task), or None without audit
    headers.

    The run of a batch job is an id created by this package, because Spark's id is the same for all
    jobs of a job group.
    """
    if not options.audit_headers:
        return None
    run = job if task.batch_id is None else task.run_id or task.query_id
    return f"{run}/{task.batch_id or 0}/{task.partition}/"


def check_version(driver: str) -> None:
    """Check that the driver has the same version of this package as this executor.

    Raises:
        ConfigError: the versions differ.
    """
    if driver != __version__:
        raise ConfigError(
            f"aiokprod is {driver} on the driver and {__version__} on this executor: install the "
            "same version on both"
        )


def current_task(options: SinkOptions) -> Task:
    """Return the attempt that this process runs. Options set by `foreach_batch` take precedence.

    Raises:
        ConfigError: this process does not run a Spark task.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise ConfigError("aiokprod's writer runs within Spark tasks only")
    batch_id = context.getLocalProperty(BATCH_ID)
    return Task(
        partition=context.partitionId(),
        attempt=context.attemptNumber(),
        host=socket.gethostname(),
        batch_id=options.batch_id if batch_id is None or options.batch_id is not None
        else int(batch_id),
        query_id=options.query_id or context.getLocalProperty(QUERY_ID),
        run_id=context.getLocalProperty(RUN_ID),
        speculation=str(context.getLocalProperty(SPECULATION)).lower() == "true",
    )  # fmt: skip
