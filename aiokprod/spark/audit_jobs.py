"""The queries of an audit, as DataFrames over `format("aiokprod-audit")`.

Each function takes and returns lazy DataFrames. An empty result means that nothing was found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aiokprod.spark.rows import AUDIT_HEADER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame, SparkSession


_PLACE: Final = ("topic", "partition", "offset")
_COMPARED: Final = ("value", "key", "topic", "partition", "headers")


def read_log(spark: SparkSession, options: Mapping[str, str], **more: object) -> DataFrame:
    """The records of one or more topics.

    Args:
        options: of `format("aiokprod-audit")`: kafka.*, topic, isolation.
        more: further options, e.g. ``isolation="read_uncommitted"``, ``values="false"``.
    """
    merged = dict(options) | {key: str(value) for key, value in more.items()}
    return spark.read.format("aiokprod-audit").options(**merged).load()


def loss(expected: DataFrame, log: DataFrame, *, by: str = "id") -> DataFrame:
    """Rows of `expected` whose column `by` no record of `log` has, and rows without an id. If a row
    is twice in `expected`, one record is enough for both; see `duplicates`."""
    return expected.join(log.select(by), on=by, how="left_anti")


def extra(expected: DataFrame, log: DataFrame, *, by: str = "id") -> DataFrame:
    """Records whose column `by` no row of `expected` has, or is null: those of other writers or
    earlier runs: (by, topic, partition, offset)."""
    return log.select(by, *_PLACE).join(expected.select(by), on=by, how="left_anti")


def duplicates(log: DataFrame, *, by: str = "id") -> DataFrame:
    """Values of `by` that several records have: (by, copies, producers).

    `producers` >= 2 is a repeated attempt (a retried task, a replayed batch). 1 means that one
    producer wrote all copies: an attempt was repeated in a process that kept its producer (option
    reuseProducer), or the rows were twice in the DataFrame. An idempotent producer does not store
    a record twice.
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
        task: column that identifies the task attempt. `producerId` does so only with
            reuseProducer=false, as otherwise one producer writes for many tasks. With the columns
            of `with_audit_id`, use run, batch and task together, e.g. in a struct.
        seq: column that increases with the rows of a task.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    window = Window.partitionBy("topic", "partition", task).orderBy("offset")
    return log.withColumn("before", f.lag(seq).over(window)).where(f.col(seq) < f.col("before"))


def integrity(expected: DataFrame, log: DataFrame, *, by: str = "id") -> DataFrame:
    """Records that differ from the row of `expected` with the same `by`: (by, topic, partition,
    offset, differs), the last one an array of column names.

    Compared are those of the sink's columns value, key, topic, partition and headers that
    `expected` has; rows whose partition is null leave it to the partitioner. Headers that option
    auditHeaders adds are left out.
    """
    from pyspark.sql import functions as f

    names = [name for name in _COMPARED if name in expected.columns and name != by]
    wanted = expected.select(by, *(_normal(name).alias(f"wanted_{name}") for name in names))
    found = log.select(by, *_PLACE, *(_normal(name).alias(f"found_{name}") for name in names))
    differing = [
        f.when(~f.col(f"found_{name}").eqNullSafe(f.col(f"wanted_{name}"))
               & (f.col("wanted_partition").isNotNull() if name == "partition" else f.lit(True)),
               f.lit(name))
        for name in names
    ]  # fmt: skip
    differs = f.array_compact(f.array(*differing)).cast("array<string>")
    joined = found.join(wanted, on=by).withColumn("differs", differs)
    return joined.where(f.size("differs") > 0).select(by, *_PLACE, "differs")


def _normal(name: str) -> Column:
    """One of the sink's columns as stored in the log, short enough for a join."""
    from pyspark.sql import functions as f

    if name in ("value", "key"):
        return f.sha2(f.col(name).cast("binary"), 256)
    if name != "headers":
        return f.col(name)
    own = f.filter("headers", lambda one: one["key"] != AUDIT_HEADER)
    plain = f.transform(
        own, lambda one: f.struct(one["key"].alias("key"), one["value"].alias("value"))
    )
    return f.when(f.size(plain) > 0, plain)


def aborted_visible(committed: DataFrame, uncommitted: DataFrame) -> DataFrame:
    """Records that read_committed shows and read_uncommitted does not: there must be none."""
    places = ["topic", "partition", "offset"]
    return committed.select(places).subtract(uncommitted.select(places))


def aborted(committed: DataFrame, uncommitted: DataFrame) -> DataFrame:
    """Records of transactions that were aborted or are open: (topic, partition, offset)."""
    places = ["topic", "partition", "offset"]
    return uncommitted.select(places).subtract(committed.select(places))


def ranges(spark: SparkSession, report_path: str, log: DataFrame) -> DataFrame:
    """Ranges of the reports (option reportPath) that have fewer records in the log than were
    acknowledged: (topic, partition, first, last, count, found).

    Records of other writers in a range are counted too. Ranges without offsets, and those left out
    of a report because there were too many, are not compared; `trimmed` in the report says of each
    task whether some were left out.
    """
    from pyspark.sql import functions as f

    reports = spark.read.json(report_path)
    reported = reports.select(f.explode("tasks.ranges").alias("of_task")).select(
        f.explode("of_task").alias("one")
    )
    fields = {"topic": "string", "partition": "int", "first": "long", "last": "long",
              "count": "long"}  # fmt: skip
    reported = reported.select(
        *(f.col("one")[i].cast(kind).alias(name) for i, (name, kind) in enumerate(fields.items()))
    ).where("first is not null")
    inside = (
        (log["topic"] == reported["topic"])
        & (log["partition"] == reported["partition"])
        & log["offset"].between(reported["first"], reported["last"])
    )
    joined = reported.join(log, on=inside, how="left")
    counted = joined.groupBy(*(reported[name] for name in fields)).agg(
        f.count(log["offset"]).alias("found")
    )
    return counted.where(f.col("found") < f.col("count"))


def with_audit_id(log: DataFrame) -> DataFrame:
    """`log` with the parts of the header that option auditHeaders adds: id, run, batch, task and
    seq; null without it. The last such header is used: a row that was read from an audited topic
    has that topic's header as well, and the sink adds its header at the end."""
    from pyspark.sql import functions as f

    matching = f.filter("headers", lambda one: one["key"] == AUDIT_HEADER)
    text = f.try_element_at(matching, f.lit(-1))["value"].cast("string")
    parts = f.split("id", "/")
    kinds: tuple[tuple[str, Any], ...] = (
        ("run", "string"), ("batch", "long"), ("task", "int"), ("seq", "long"),
    )  # fmt: skip
    found = log.withColumn("id", text)
    for index, (name, kind) in enumerate(kinds):
        found = found.withColumn(name, f.get(parts, f.lit(index)).cast(kind))
    return found
