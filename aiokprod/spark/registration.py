"""`register`: registers the data sources with a Spark session."""

from __future__ import annotations

from typing import Any, Final

_KNOWN_ALREADY: Final = "DATA_SOURCE_ALREADY_EXISTS"


def register(spark: Any) -> None:
    """Register `format("aiokprod")` and `format("aiokprod-audit")` with a SparkSession.

    The call is needed where Spark does not discover the module `pyspark_aiokprod` itself: in a
    thread other than the session's, if another `pyspark_*` package cannot be imported, and on a
    Spark Connect client whose server has the package. It may be repeated. Each `newSession()` and
    each thread needs a separate call.

    In classic mode, Spark looks up data sources in the thread's active session, so this also makes
    `spark` the active session of the calling thread.
    """
    from aiokprod.spark.source import AiokprodAuditSource, AiokprodDataSource

    for source in (AiokprodDataSource, AiokprodAuditSource):
        try:
            spark.dataSource.register(source)
        except Exception as error:
            if _KNOWN_ALREADY not in str(error):  # Spark 4.0 rejects discovered sources
                raise
    java = getattr(spark, "_jsparkSession", None)  # absent, and not needed, on Spark Connect
    if java is not None:
        spark._jvm.SparkSession.setActiveSession(java)
