"""`foreach_batch`: the sink for streams that Spark's stream sinks do not support, such as those in
output mode update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aiokprod.errors import ConfigError
from aiokprod.spark.context import QUERY_ID
from aiokprod.spark.options import EXACTLY_ONCE, SealedOptions


def foreach_batch(
    options: Mapping[str, str], *, query_id: str | None = None
) -> Callable[[Any, int], None]:
    """Return a function for `writeStream.foreachBatch` that writes each micro-batch to Kafka.

    ::

        agg.writeStream.outputMode("update").foreachBatch(foreach_batch(options)).start()

    Args:
        options: the options of `format("aiokprod")`; delivery may be at_least_once or exactly_once.
        query_id: a name of this query that does not change at a restart and that no other query
            uses. None uses Spark's id of the query, which is available in classic mode only. On
            Spark Connect, exactly_once needs a name.

    Raises:
        ConfigError: an option is missing or wrong. The returned function raises it if exactly_once
            has no query id.
    """
    from aiokprod.spark.options import SinkOptions

    sealed = SealedOptions(options)
    SinkOptions.parse(sealed)
    return _ForeachBatch(sealed, query_id)


class _ForeachBatch:
    """The function that `foreach_batch` returns. Spark Connect pickles it and sends it to the
    server."""

    def __init__(self, options: SealedOptions, query_id: str | None) -> None:
        self._options = options
        self._query_id = query_id
        self.__name__ = "aiokprod_foreach_batch"

    def __call__(self, frame: Any, batch_id: int) -> None:
        from aiokprod.spark.registration import register

        session = frame.sparkSession
        register(session)
        writer = frame.write.format("aiokprod").mode("append").options(**self._options)
        query_id = self._query_id or _query_id(session)
        if query_id is not None:
            writer = writer.option("batchId", str(batch_id)).option("queryId", query_id)
        elif self._options.get("delivery", "").lower() == EXACTLY_ONCE:
            raise ConfigError(
                "foreach_batch: Spark Connect does not provide the query id, which exactly_once "
                "needs: call foreach_batch(options, query_id=...) with a name that stays the same "
                "after a restart and is used by no other query"
            )
        writer.save()


def _query_id(session: Any) -> str | None:
    """Return Spark's id of the running query, or None on Spark Connect."""
    context = getattr(session, "_sc", None)
    return None if context is None else context.getLocalProperty(QUERY_ID)
