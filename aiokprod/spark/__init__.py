"""Write PySpark DataFrames to Kafka without a JVM connector, with `format("aiokprod")`.

    from aiokprod.spark import register

    register(spark)
    df.write.format("aiokprod").mode("append").option("kafka.bootstrap.servers", "b:9092") \
        .option("topic", "t").save()

The names below are the public API of the extra `spark`. Importing them needs neither pyspark nor
pyarrow, and starts nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from aiokprod.spark.foreach_batch import foreach_batch
    from aiokprod.spark.registration import register
    from aiokprod.spark.source import AiokprodAuditSource, AiokprodDataSource

__all__ = ["AiokprodAuditSource", "AiokprodDataSource", "foreach_batch", "register"]

_HOME: Final = {
    "AiokprodAuditSource": "source",
    "AiokprodDataSource": "source",
    "foreach_batch": "foreach_batch",
    "register": "registration",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    # The import of the submodule `foreach_batch` bound this name to the module. Bind it to the
    # function instead.
    globals()[name] = found
    return found
