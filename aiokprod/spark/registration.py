"""`register`: makes the formats known to a session."""

from __future__ import annotations

from typing import Any, Final

_KNOWN_ALREADY: Final = "DATA_SOURCE_ALREADY_EXISTS"


def register(spark: Any) -> None:
    """Make `format("aiokprod")` and `format("aiokprod-audit")` known to a SparkSession.

    Needed where Spark's own discovery of the module `pyspark_aiokprod` does not reach: in a thread
    other than the session's, beside another `pyspark_*` package that cannot be imported, on a
    Spark Connect client whose server has the package. May be called again; each `newSession()`
    and each thread needs its own call.

    In classic mode Spark looks data sources up in the thread's active session, so this also makes
    `spark` the active session of the calling thread.
    """
    from aiokprod.spark.source import AiokprodAuditSource, AiokprodDataSource

    for source in (AiokprodDataSource, AiokprodAuditSource):
        try:
            spark.dataSource.register(source)
        except Exception as error:
            if _KNOWN_ALREADY not in str(error):  # Spark 4.0 refuses what it discovered itself
                raise
    java = getattr(spark, "_jsparkSession", None)  # none on Spark Connect, which needs none
    if java is not None:
        spark._jvm.SparkSession.setActiveSession(java)
