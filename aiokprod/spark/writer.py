"""The writer that Spark pickles. Spark calls `write` in tasks, `commit` and `abort` on the driver.

One class supports all versions since 4.0. Spark 4.0 has no stream writer for Arrow, but it passes
RecordBatches to a stream writer that is also a `DataSourceArrowWriter`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)

from aiokprod import __version__
from aiokprod._log_fields import log_fields
from aiokprod.errors import ConfigError
from aiokprod.spark import job_report
from aiokprod.spark.commit_messages import Prepared, TaskReport
from aiokprod.spark.context import check_version, current_task
from aiokprod.spark.driver_commit import TransactionEnder
from aiokprod.spark.options import AT_LEAST_ONCE, SealedOptions, SinkOptions
from aiokprod.spark.tasks import run_task
from aiokprod.spark.traceback_redaction import redacted
from aiokprod.spark.worker_loop import loop_thread

if TYPE_CHECKING:
    from aiokprod.spark.sink_schema import SinkColumns

logger = logging.getLogger("aiokprod.spark")


class AiokprodWriter(DataSourceStreamWriter, DataSourceArrowWriter):
    """Writes the RecordBatches of a task to Kafka.

    Args:
        options: the options that Spark passes. They have already been checked, and are checked
            again where they are used.
        columns: positions of the columns in the DataFrame.
        job: name of this batch job, shared by its tasks and its commit. None for streams, which
            commit with another instance.
    """

    def __init__(self, options: SealedOptions, columns: SinkColumns, job: str | None) -> None:
        self._options = options
        self._columns = columns
        self._job = job
        self._version = __version__

    def __repr__(self) -> str:
        return f"<AiokprodWriter {self._options!r}>"

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Send all rows. Returns once all rows are acknowledged.

        Raises:
            SinkError: a row failed. The text contains the number of rows by outcome.
        """
        with redacted(self._options):
            check_version(self._version)
            options = SinkOptions.parse(self._options)
            task = current_task(options)
            if options.delivery != AT_LEAST_ONCE and task.speculation:
                raise ConfigError(
                    f"delivery={options.delivery} excludes spark.speculation=true: a second "
                    "attempt of a task would fence the first one. Turn speculation off for this "
                    "query"
                )
            return run_task(options, self._columns, task, iterator, job=self._job)

    def commit(
        self, messages: Sequence[WriterCommitMessage | None], batchId: int | None = None
    ) -> None:
        """Commit the transactions of the tasks and write the report. Spark calls this on the driver
        after all tasks have succeeded."""
        with redacted(self._options):
            self._commit(messages, batchId)

    def _commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int | None) -> None:
        options = SinkOptions.parse(self._options)
        done = [one for one in messages if isinstance(one, TaskReport)]
        batch_id = options.batch_id if batch_id is None else batch_id
        if options.delivery != AT_LEAST_ONCE:
            if len(done) != len(messages):
                raise RuntimeError(
                    f"aiokprod: {len(messages) - len(done)} of {len(messages)} tasks left no "
                    "message: the batch cannot be committed"
                )
            prepared = [one for one in done if isinstance(one, Prepared)]
            ender = TransactionEnder(options, batch_id)
            loop_thread(options.loop).run(ender.commit(prepared))
        job_report.committed(options, done, batch_id)

    def abort(
        self, messages: Sequence[WriterCommitMessage | None], batchId: int | None = None
    ) -> None:
        """Abort transactions that may be open. Spark calls this on the driver after a failed job or
        commit. Never raises, because Spark would show that error instead of the cause."""
        try:
            options = SinkOptions.parse(self._options)
            prepared = [one for one in messages if isinstance(one, Prepared) and not one.skipped]
            if prepared:
                ender = TransactionEnder(options, batch_id=None)  # only a commit needs the batch
                loop_thread(options.loop).run(ender.abort(prepared))
        except BaseException as error:
            logger.warning(
                "aborting the transactions failed: %s: %s", type(error).__name__, error,
                extra=log_fields("abort_failed", error=error),
            )  # fmt: skip
