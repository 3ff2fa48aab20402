"""Registers `format("aiokprod-audit")` with Spark; see `pyspark_aiokprod`."""

from __future__ import annotations

import contextlib
from typing import Any

with contextlib.suppress(Exception):  # pyspark is missing or too old
    from pyspark.sql.datasource import DataSource

    class DefaultSource(DataSource):
        """Delegates to `aiokprod.spark.AiokprodAuditSource`."""

        @classmethod
        def name(cls) -> str:
            """Return the name used in `format(...)`."""
            return "aiokprod-audit"

        def __init__(self, options: Any) -> None:
            from aiokprod.spark.source import AiokprodAuditSource

            self._source = AiokprodAuditSource(options)

        def schema(self) -> Any:
            """See `AiokprodAuditSource.schema`."""
            return self._source.schema()

        def reader(self, schema: Any) -> Any:
            """See `AiokprodAuditSource.reader`."""
            return self._source.reader(schema)
