"""What an audit asks of a topic, as DataFrames over `format("aiokprod-audit")`.

Each function takes and returns lazy DataFrames: an empty result means nothing was found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiokprod.spark.rows import AUDIT_HEADER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession


def read_log(spark: SparkSession, options: Mapping[str, str], **more: object) -> DataFrame:
    """The records of one or more topics.

    Args:
        options: of `format("aiokprod-audit")`: kafka.*, topic, isolation.
        more: further options, e.g. ``isolation="read_uncommitted"``, ``values="false"``.
    """
    merged = dict(options) | {key: str(value) for key, value in more.items()}
    return spark.read.format("aiokprod-audit").options(**merged).load()


def loss(expected: DataFrame, log: DataFrame, *, by: str = "id") -> DataFrame:
    """Rows of `expected` whose column `by` no record of `log` has."""
    return expected.join(log.select(by), on=by, how="left_anti")


def duplicates(log: DataFrame, *, by: str = "id") -> DataFrame:
    """Values of `by` that several records have: (by, copies, producers).

    `producers` 2 or more are repeated attempts (a retried task, a replayed batch). 1 means that one
    producer session wrote all copies: an attempt repeated in a process that kept its producer
    (option reuseProducer), or rows that were twice in the DataFrame; idempotence lets a producer
    never store one record twice.
    """
    from pyspark.sql import functions as f

    session = f.struct("producerId", "producerEpoch")
    found = log.groupBy(by).agg(
        f.count("*").alias("copies"), f.countDistinct(session).alias("producers")
    )
    return found.where("copies > 1")


def order(log: DataFrame, *, task: str, seq: str) -> DataFrame:
    """Records that come before an earlier row of the same task in their partition.

    Args:
        task: column that names the task attempt, e.g. producerId; seq: column that grows with the
            rows of a task.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    window = Window.partitionBy("topic", "partition", task).orderBy("offset")
    return log.withColumn("before", f.lag(seq).over(window)).where(f.col(seq) < f.col("before"))


def integrity(expected: DataFrame, log: DataFrame, *, by: str = "id") -> DataFrame:
    """Records whose value differs from that of the row of `expected` with the same `by`:
    (by, topic, partition, offset)."""
    from pyspark.sql import functions as f

    wanted = expected.select(by, f.sha2(f.col("value"), 256).alias("wanted"))
    found = log.withColumn("found", f.sha2(f.col("value"), 256)).join(wanted, on=by)
    differs = ~f.col("found").eqNullSafe(f.col("wanted"))
    return found.where(differs).select(by, "topic", "partition", "offset")


def aborted_visible(committed: DataFrame, uncommitted: DataFrame) -> DataFrame:
    """Records that read_committed shows and read_uncommitted does not: there must be none."""
    places = ["topic", "partition", "offset"]
    return committed.select(places).subtract(uncommitted.select(places))


def aborted(committed: DataFrame, uncommitted: DataFrame) -> DataFrame:
    """Records of transactions that were aborted or are open: (topic, partition, offset)."""
    places = ["topic", "partition", "offset"]
    return uncommitted.select(places).subtract(committed.select(places))


def ranges(spark: SparkSession, report_path: str, log: DataFrame) -> DataFrame:
    """Acknowledged ranges of the reports (option reportPath) that the log does not fill:
    (topic, partition, first, last, count, found). Other writers may fill a range further. Ranges
    whose offsets the brokers did not tell, or that were too many for a report, are not compared:
    reports say of each task whether they are complete."""
    from pyspark.sql import functions as f

    reports = spark.read.json(report_path)
    told = reports.select(f.explode("tasks.ranges").alias("of_task")).select(
        f.explode("of_task").alias("one")
    )
    fields = {"topic": "string", "partition": "int", "first": "long", "last": "long",
              "count": "long"}  # fmt: skip
    told = told.select(
        *(f.col("one")[i].cast(kind).alias(name) for i, (name, kind) in enumerate(fields.items()))
    ).where("first is not null")
    inside = (
        (log["topic"] == told["topic"])
        & (log["partition"] == told["partition"])
        & log["offset"].between(told["first"], told["last"])
    )
    joined = told.join(log, on=inside, how="left")
    counted = joined.groupBy(*(told[name] for name in fields)).agg(
        f.count(log["offset"]).alias("found")
    )
    return counted.where(f.col("found") < f.col("count"))


def with_audit_id(log: DataFrame) -> DataFrame:
    """`log` with the parts of the header that option auditHeaders adds: id, run, batch, task and
    seq; null without it."""
    from pyspark.sql import functions as f

    matching = f.filter("headers", lambda one: one["key"] == AUDIT_HEADER)
    text = f.get(matching, f.lit(0))["value"].cast("string")
    parts = f.split("id", "/")
    kinds: tuple[tuple[str, Any], ...] = (
        ("run", "string"), ("batch", "long"), ("task", "int"), ("seq", "long"),
    )  # fmt: skip
    found = log.withColumn("id", text)
    for index, (name, kind) in enumerate(kinds):
        found = found.withColumn(name, f.get(parts, f.lit(index)).cast(kind))
    return found
