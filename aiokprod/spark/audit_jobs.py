"""The queries of an audit, as DataFrames over `format("aiokprod-audit")`.

Each function takes and returns lazy DataFrames. An empty result means that there are no findings.
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
    """Return the records of one or more topics.

    Args:
        options: the options of `format("aiokprod-audit")`: kafka.*, topic, isolation.
        more: further options, e.g. ``isolation="read_uncommitted"``, ``values="false"``.
    """
    merged = dict(options) | {key: str(value) for key, value in more.items()}
    return spark.read.format("aiokprod-audit").options(**merged).load()


def compare(expected: DataFrame, log: DataFrame, *, by: str = "id") -> DataFrame:
    """Compare the rows of `expected` with the records of `log`, in one pass over both. This covers
    the checks of `loss`, `extra`, `duplicates` and `integrity`.

    Returns one row (by, finding, rows, records) for each id with a finding. `rows` is the number of
    rows of `expected` with this id, `records` the number of records of `log`.

    The finding is the first of these that applies: "no id" (`by` is null), "lost" (fewer records
    than rows), "extra" (records but no row), "duplicate" (more records than rows), "differs" (equal
    numbers, but different contents). All of the sink's columns that `expected` has are compared.
    `integrity` also reports which columns differ, and the partitions and offsets of the records.
    """
    from pyspark.sql import functions as f

    names = [name for name in _COMPARED if name in expected.columns and name != by]
    partitioned = "partition" in names
    contents = [name for name in names if name != "partition"]

    def side(frame: DataFrame, *, is_log: bool) -> DataFrame:
        digest = _digest(contents) if contents else f.lit(0).cast("long")
        place = f.col("partition").cast("long") if partitioned else f.lit(None).cast("long")
        return frame.select(
            f.col(by), digest.alias("digest"), place.alias("place"),
            f.lit(int(is_log)).cast("long").alias("is_log"),
        )  # fmt: skip

    # Compare sums of hashes, because they do not depend on the order of the records.
    low = f.col("digest").bitwiseAND(f.lit(2**32 - 1))
    high = f.shiftrightunsigned("digest", 32)
    placed = f.shiftrightunsigned(f.xxhash64("digest", "place"), 32)
    is_log, is_row = f.col("is_log"), 1 - f.col("is_log")
    sign = is_log - is_row
    found = (
        side(expected, is_log=False)
        .unionByName(side(log, is_log=True))
        .groupBy(by)
        .agg(
            f.sum(is_row).alias("rows"),
            f.sum(is_log).alias("records"),
            f.sum(sign * low).alias("low"),
            f.sum(sign * high).alias("high"),
            f.sum(sign * placed).alias("placed"),
            f.sum(f.when(f.col("place").isNull(), 1).otherwise(0)).alias("open"),
        )
    )
    rows, records = f.col("rows"), f.col("records")
    moved = (f.col("placed") != 0) & (f.col("open") == 0)
    finding = (
        f.when(f.col(by).isNull(), "no id")
        .when(records < rows, "lost")
        .when(rows == 0, "extra")
        .when(records > rows, "duplicate")
        .when((f.col("low") != 0) | (f.col("high") != 0) | moved, "differs")
    )
    named = found.withColumn("finding", finding).where("finding is not null")
    return named.select(by, "finding", "rows", "records")


def _digest(names: list[str]) -> Column:
    """Return a hash of these columns as stored in the log. xxhash64 skips nulls, so an `isNull`
    flag is added for each value."""
    from pyspark.sql import functions as f

    parts: list[Column] = []
    for name in names:
        if name == "headers":
            column = f.transform(
                _own_headers(),
                lambda one: f.struct(one["key"], one["value"], one["value"].isNull()),
            )
            column = f.when(f.size(column) > 0, column)
        else:
            column = f.col(name) if name == "topic" else f.col(name).cast("binary")
        parts += [column, column.isNull()]
    return f.xxhash64(*parts)


def loss(expected: DataFrame, log: DataFrame, *, by: str = "id") -> DataFrame:
    """Return the rows of `expected` whose value of `by` occurs in fewer records of `log` than rows
    of `expected`, and the rows without an id."""
    from pyspark.sql import functions as f

    wanted = expected.groupBy(by).agg(f.count("*").alias("rows"))
    stored = log.groupBy(by).agg(f.count("*").alias("records"))
    missing = wanted.join(stored, on=by, how="left").where(
        f.col("rows") > f.coalesce("records", f.lit(0))
    )
    lost = missing.select(f.col(by).alias("lost_id"))
    return expected.join(lost, expected[by].eqNullSafe(lost["lost_id"]), how="left_semi")


def extra(expected: DataFrame, log: DataFrame, *, by: str = "id") -> DataFrame:
    """Return (by, topic, partition, offset) of the records whose `by` is null or occurs in no row
    of `expected`. Such records come from other writers or earlier runs."""
    return log.select(by, *_PLACE).join(expected.select(by), on=by, how="left_anti")


def duplicates(log: DataFrame, *, by: str = "id", expected: DataFrame | None = None) -> DataFrame:
    """Return (by, copies, producers) for each value of `by` that occurs in several records.

    If `producers` >= 2, an attempt was repeated (a retried task, a replayed batch). If it is 1, one
    producer wrote all copies: either an attempt was repeated in a process that kept its producer
    (option reuseProducer), or the DataFrame contained the row twice. An idempotent producer does
    not store a record twice.

    Args:
        expected: the source. If given, a value is returned only if it occurs in more records than
            rows of `expected`.
    """
    from pyspark.sql import functions as f

    session = f.struct("producerId", "producerEpoch")
    found = log.groupBy(by).agg(
        f.count("*").alias("copies"), f.countDistinct(session).alias("producers")
    )
    several = found.where("copies > 1")
    if expected is None:
        return several
    wanted = expected.groupBy(by).agg(f.count("*").alias("rows"))
    joined = several.join(wanted, on=by, how="left").where(
        f.col("copies") > f.coalesce("rows", f.lit(1))
    )
    return joined.select(*several.columns)


def order(log: DataFrame, *, task: str | Column | None = None, seq: str = "seq") -> DataFrame:
    """Return the records that are stored after a later row of the same task and partition.

    Args:
        task: column that identifies the task attempt. None uses the columns of `with_audit_id`
            together with the producer id and epoch, because a reused producer writes for many tasks
            (option reuseProducer), and a repeated task writes its rows again. `producerId` alone
            identifies a task only with reuseProducer=false.
        seq: column that increases with the rows of a task.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    if task is None:
        task = f.struct("run", "batch", "task", "producerId", "producerEpoch")
    window = Window.partitionBy("topic", "partition", task).orderBy("offset")
    return log.withColumn("before", f.lag(seq).over(window)).where(f.col(seq) < f.col("before"))


def integrity(expected: DataFrame, log: DataFrame, *, by: str = "id") -> DataFrame:
    """Return (by, topic, partition, offset, differs) for each record that differs from the rows of
    `expected` with the same `by`; differs is an array of column names. If several rows have the
    same `by`, a record must be equal to one of them.

    The compared columns are value, key, topic, partition and headers, as far as `expected` has
    them. The partition is not compared for rows whose partition is null. Headers added by the
    option auditHeaders are ignored.
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
    joined = found.join(wanted, on=by).select(by, *_PLACE, differs.alias("differs"))
    nearest = joined.groupBy(by, *_PLACE).agg(
        f.min_by("differs", f.size("differs")).alias("differs")
    )
    return nearest.where(f.size("differs") > 0)


def _own_headers() -> Column:
    """Return the headers column without the headers added by the option auditHeaders."""
    from pyspark.sql import functions as f

    return f.filter("headers", lambda one: one["key"] != AUDIT_HEADER)


def _normal(name: str) -> Column:
    """Return one of the sink's columns as stored in the log; value and key are hashed, so that a
    join is cheap."""
    from pyspark.sql import functions as f

    if name in ("value", "key"):
        return f.sha2(f.col(name).cast("binary"), 256)
    if name != "headers":
        return f.col(name)
    plain = f.transform(
        _own_headers(), lambda one: f.struct(one["key"].alias("key"), one["value"].alias("value"))
    )
    return f.when(f.size(plain) > 0, plain)


def aborted_visible(committed: DataFrame, uncommitted: DataFrame) -> DataFrame:
    """Return the records that read_committed returns and read_uncommitted does not. A correct log
    has none."""
    places = ["topic", "partition", "offset"]
    return committed.select(places).subtract(uncommitted.select(places))


def aborted(committed: DataFrame, uncommitted: DataFrame) -> DataFrame:
    """Return (topic, partition, offset) of the records of aborted or open transactions."""
    places = ["topic", "partition", "offset"]
    return uncommitted.select(places).subtract(committed.select(places))


def ranges(spark: SparkSession, report_path: str, log: DataFrame) -> DataFrame:
    """Return (topic, partition, first, last, count, found) for each range of the reports (option
    reportPath) that has fewer records in the log than were acknowledged.

    Records of other writers in a range are counted too; use `extra` or `compare` to find them.
    Ranges without offsets are not compared. A report leaves out ranges if a task has too many; its
    field `trimmed` is then true for that task.
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
    ends = reported.select("topic", "partition", f.col("first").alias("end")).union(
        reported.select("topic", "partition", (f.col("last") + 1).alias("end"))
    )
    below = _records_below(log, ends.distinct())
    until = below.select("topic", "partition", (f.col("end") - 1).alias("last"),
                         f.col("below").alias("until"))  # fmt: skip
    since = below.select("topic", "partition", f.col("end").alias("first"),
                         f.col("below").alias("since"))  # fmt: skip
    counted = reported.join(since, on=["topic", "partition", "first"]).join(
        until, on=["topic", "partition", "last"]
    )
    counted = counted.withColumn("found", f.col("until") - f.col("since"))
    return counted.where(f.col("found") < f.col("count")).select(*fields, "found")


_BUCKET: Final = 1 << 16
"""Number of offsets that `_records_below` counts together."""


def _records_below(log: DataFrame, ends: DataFrame) -> DataFrame:
    """Return (topic, partition, end, below), where below is the number of records of the partition
    with an offset less than `end`.

    A join of records and ends would be quadratic. Instead, records are counted per bucket of
    offsets, and each bucket is sorted to count the records before an end.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    bucket = f.floor(f.col("at") / _BUCKET).alias("bucket")
    records = log.select(
        "topic", "partition", f.col("offset").alias("at"), f.lit(1).alias("is_record")
    )
    marks = ends.select("topic", "partition", f.col("end").alias("at"), f.lit(0).alias("is_record"))
    marked = records.union(marks).select("topic", "partition", bucket, "at", "is_record")
    place = ["topic", "partition", "bucket"]
    # An end sorts before the record with the same offset, because that record is not below it.
    inside = (
        Window.partitionBy(*place)
        .orderBy("at", "is_record")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    in_bucket = marked.withColumn("in_bucket", f.sum("is_record").over(inside)).where(
        "is_record = 0"
    )
    earlier = (
        Window.partitionBy("topic", "partition")
        .orderBy("bucket")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    sizes = marked.groupBy(*place).agg(f.sum("is_record").alias("size"))
    before = sizes.withColumn("before", f.coalesce(f.sum("size").over(earlier), f.lit(0)))
    joined = in_bucket.join(before, on=place)
    below = (f.col("before") + f.col("in_bucket")).alias("below")
    return joined.select("topic", "partition", f.col("at").alias("end"), below)


def with_audit_id(log: DataFrame) -> DataFrame:
    """Return `log` with the parts of the audit header (option auditHeaders) as columns id, run,
    batch, task and seq. They are null without the header. The last audit header is used: a row that
    was read from an audited topic also has that topic's header, and the sink appends its own."""
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
