"""The data sources that Spark finds by name: `aiokprod` (sink) and `aiokprod-audit` (reader)."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from aiokprod.errors import ConfigError
from aiokprod.spark.audit_reader import SCHEMA, AuditOptions, AuditReader
from aiokprod.spark.options import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    TRANSACTIONAL,
    SealedOptions,
    SinkOptions,
    refuse_shown_key,
)
from aiokprod.spark.orphans import JOB_DIGITS, end_orphans
from aiokprod.spark.preflight import preflight
from aiokprod.spark.sink_schema import check_schema
from aiokprod.spark.traceback_redaction import redacted
from aiokprod.spark.writer import AiokprodWriter

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from pyspark.sql.types import StructType


class AiokprodDataSource(DataSource):
    """`format("aiokprod")`: writes DataFrames to Kafka, batch and streaming. See docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "aiokprod"

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options: Any = SealedOptions(options)

    def writer(self, schema: StructType, overwrite: bool) -> AiokprodWriter:
        """Check everything that can be checked on the driver.

        Raises:
            ConfigError: an option or the schema is wrong.
            PreflightError: the cluster does not meet a requirement of the job.
        """
        with redacted(self.options):
            if overwrite:
                raise ConfigError(
                    "mode('overwrite') is refused: Kafka topics are only appended to; use "
                    "mode('append')"
                )
            return self._writer(schema, job=uuid.uuid4().hex[:JOB_DIGITS])

    def streamWriter(self, schema: StructType, overwrite: bool) -> AiokprodWriter:
        """Return the writer of a streaming query, with the checks of `writer`. `overwrite=True`
        stands for Spark's output mode `complete`, but every result is appended nevertheless."""
        with redacted(self.options):
            refuse_shown_key(self.options, "a stream")
            return self._writer(schema, job=None)

    def _writer(self, schema: StructType, job: str | None) -> AiokprodWriter:
        options = SinkOptions.parse(self.options)
        _check_delivery(options, streaming=job is None)
        columns = check_schema(schema, topic=options.topic, unknown_columns=options.unknown_columns)
        if options.preflight:
            preflight(options)
        if options.delivery == TRANSACTIONAL:
            end_orphans(options)
        return AiokprodWriter(self.options, columns, job)


def _check_delivery(options: SinkOptions, *, streaming: bool) -> None:
    if streaming and (options.batch_id is not None or options.query_id is not None):
        raise ConfigError(
            "options batchId and queryId are for foreach_batch, which sets them; Spark tells a "
            "stream's tasks their own: leave them out"
        )
    within_batch = options.batch_id is not None and options.query_id is not None
    if options.delivery == EXACTLY_ONCE and not streaming and not within_batch:
        raise ConfigError(
            "delivery=exactly_once is for streams and foreach_batch: use delivery=transactional "
            "for a batch job, whose failed attempts then stay invisible"
        )
    if options.delivery == TRANSACTIONAL and streaming:
        raise ConfigError("delivery=transactional is for batch jobs: use delivery=exactly_once")
    if options.delivery == AT_LEAST_ONCE and (options.batch_id is None) != (
        options.query_id is None
    ):
        raise ConfigError("options batchId and queryId belong together: give both or none")


class AiokprodAuditSource(DataSource):
    """`format("aiokprod-audit")`: reads topics for audits. See docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "aiokprod-audit"

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Check the options. The check is here because Spark creates the source before it shows the
        options in plans.

        Raises:
            ConfigError: an option is unknown, missing or wrong.
        """
        self.options: Any = SealedOptions(options)
        with redacted(self.options):
            AuditOptions.parse(self.options)

    def schema(self) -> str:
        """Return the fixed schema, which has one row per record."""
        return SCHEMA

    def reader(self, schema: StructType) -> AuditReader:
        """Return a reader with these options."""
        return AuditReader(self.options)
