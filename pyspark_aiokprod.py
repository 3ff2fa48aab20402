"""Registers `format("aiokprod")` with Spark, which imports every module named `pyspark_*` and uses
its `DefaultSource`.

Importing this module starts nothing and does not import aiokprod. All errors are suppressed,
because an error here would also hide the data sources of other packages.
"""

from __future__ import annotations

import contextlib
from typing import Any

with contextlib.suppress(Exception):  # pyspark is missing or too old
    from pyspark.sql.datasource import DataSource

    class DefaultSource(DataSource):
        """Delegates to `aiokprod.spark.AiokprodDataSource`."""

        @classmethod
        def name(cls) -> str:
            """Return the name used in `format(...)`."""
            return "aiokprod"

        def __init__(self, options: Any) -> None:
            from aiokprod.spark.source import AiokprodDataSource

            self._source = AiokprodDataSource(options)

        def writer(self, schema: Any, overwrite: bool) -> Any:
            """See `AiokprodDataSource.writer`."""
            return self._source.writer(schema, overwrite)

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            """See `AiokprodDataSource.streamWriter`."""
            return self._source.streamWriter(schema, overwrite)
