"""Lets Spark find `format("aiokprod")` by itself: it imports every module named `pyspark_*` and
takes its `DefaultSource`.

Imports nothing of aiokprod until the source is used, starts nothing, and swallows every error of
its own: an error here would hide the data sources of all other packages as well.
"""

from __future__ import annotations

import contextlib
from typing import Any

with contextlib.suppress(Exception):  # pyspark is missing or too old
    from pyspark.sql.datasource import DataSource

    class DefaultSource(DataSource):
        """Stands for `aiokprod.spark.AiokprodDataSource`."""

        @classmethod
        def name(cls) -> str:
            """The name in `format(...)`."""
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
