"""The findings of the audit's jobs on generated logs, with real Spark and without a broker."""

from __future__ import annotations

import copy
import datetime
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as f

from aiokprod.spark import audit_jobs as jobs
from aiokprod.spark import register
from aiokprod.spark.audit_reader import SCHEMA
from aiokprod.spark.commit_messages import Ranges, TaskReport
from aiokprod.spark.job_report import committed
from aiokprod.spark.options import SinkOptions
from aiokprod.spark.rows import AUDIT_HEADER

pytestmark = pytest.mark.slow

EXPECTED = (
    "id string, key string, value string, topic string, partition int, "
    "headers array<struct<value:binary,key:string>>"
)
WHEN = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)

Header = tuple[str, bytes | None]


def row(number: int, **change: Any) -> dict[str, Any]:
    """Return a row of the source together with its record. The number of headers is 0, 1 or 2 in
    turn."""
    headers: list[Header] = [("a", b"1"), ("b", None)][: number % 3]
    plain = {"key": f"k{number}", "value": f"v{number}", "topic": "t", "partition": number % 2}
    return {"id": str(number), **plain, "headers": headers} | change


def source(spark: Any, rows: Sequence[dict[str, Any]]) -> Any:
    made = [
        (one["id"], one["key"], one["value"], one["topic"], one["partition"],
         [(value, key) for key, value in one["headers"]] or None)
        for one in rows
    ]  # fmt: skip
    return spark.createDataFrame(made, EXPECTED)


def log_of(spark: Any, rows: Sequence[dict[str, Any]], *, audited: bool = True) -> Any:
    """Return the log in the form of `read_log` and `with_audit_id`. Offsets count over all
    partitions."""
    made = []
    for offset, one in enumerate(rows):
        headers = list(one["headers"])
        if audited and one["id"] is not None:
            place = f"run/{one.get('batch', 0)}/{one.get('task', 0)}/{one['id']}"
            headers.append((AUDIT_HEADER, place.encode()))
        value = None if one["value"] is None else bytearray(one["value"].encode())
        made.append(
            (one["topic"], one["partition"], offset, WHEN, bytearray(one["key"].encode()), value,
             headers, one.get("producer", 5), one.get("epoch", 0), offset, 0)
        )  # fmt: skip
    log = jobs.with_audit_id(spark.createDataFrame(made, SCHEMA))
    return log.withColumn("id", log["seq"].cast("string"))


def integrity(spark: Any, log: Any, expected: Any) -> list[tuple[str, list[str]]]:
    return sorted((one.id, one.differs) for one in jobs.integrity(expected, log).collect())


def test_clean_log_has_no_findings(spark: Any) -> None:
    rows = [row(number) for number in range(9)]
    expected, log = source(spark, rows), log_of(spark, rows)
    for found in (
        jobs.loss(expected, log),
        jobs.extra(expected, log),
        jobs.duplicates(log),
        jobs.integrity(expected, log),
        jobs.integrity(expected.select("id", "value"), log),
    ):
        assert found.collect() == []


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"value": "other"}, ["value"]),
        ({"value": None}, ["value"]),
        ({"key": "other"}, ["key"]),
        ({"topic": "u"}, ["topic"]),
        ({"partition": 1}, ["partition"]),
        ({"headers": []}, ["headers"]),
        ({"headers": [("a", b"1"), ("b", b"")]}, ["headers"]),
        ({"headers": [("b", None), ("a", b"1")]}, ["headers"]),
        ({"headers": [("a", b"1"), ("b", None), ("c", b"2")]}, ["headers"]),
        ({"key": "other", "partition": 1}, ["key", "partition"]),
    ],
)
def test_integrity_names_what_differs(
    spark: Any, change: dict[str, Any], differs: list[str]
) -> None:
    rows = [row(number) for number in range(9)]
    spoilt = [one | change if one["id"] == "8" else one for one in rows]
    assert integrity(spark, log_of(spark, spoilt), source(spark, rows)) == [("8", differs)]


DAMAGE: dict[str, tuple[Callable[[list[dict[str, Any]]], object], set[tuple[str | None, str]]]] = {
    "lost": (lambda log: log.pop(4), {("4", "lost")}),
    "doubled": (lambda log: log.append(row(4)), {("4", "duplicate")}),
    "doubled by another producer": (
        lambda log: log.append(row(4, producer=6)), {("4", "duplicate")},
    ),
    "value changed": (lambda log: log[4].update(value="other"), {("4", "differs")}),
    "value is null": (lambda log: log[4].update(value=None), {("4", "differs")}),
    "key changed": (lambda log: log[4].update(key="other"), {("4", "differs")}),
    "headers gone": (lambda log: log[4].update(headers=[]), {("4", "differs")}),
    "header changed": (lambda log: log[5].update(headers=[("a", b"1"), ("b", b"")]),
                       {("5", "differs")}),
    "header added": (lambda log: log[3].update(headers=[("new", b"")]), {("3", "differs")}),
    "other partition": (lambda log: log[4].update(partition=1), {("4", "differs")}),
    "other topic": (lambda log: log[4].update(topic="u"), {("4", "differs")}),
    "phantom": (lambda log: log.append(row(77)), {("77", "extra")}),
    "record without an id": (lambda log: log.append(row(78, id=None)), {(None, "no id")}),
    "contents of two rows exchanged": (
        lambda log: (log[4].update(value="v6"), log[6].update(value="v4")),
        {("4", "differs"), ("6", "differs")},
    ),
    "partitions of two rows exchanged": (
        lambda log: (log[4].update(partition=1), log[5].update(partition=0)),
        {("4", "differs"), ("5", "differs")},
    ),
    "one row of two equal ones lost": (lambda log: log.pop(9), {("8", "lost")}),
    "one row lost and another doubled": (
        lambda log: log.__setitem__(4, row(6)), {("4", "lost"), ("6", "duplicate")},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_compare_finds_each_kind_of_damage_and_nothing_else(spark: Any, kind: str) -> None:
    """The source contains row 8 twice."""
    rows = [*(row(number) for number in range(9)), row(8)]
    log = copy.deepcopy(rows)
    damage, finding = DAMAGE[kind]
    damage(log)
    found = jobs.compare(source(spark, rows), log_of(spark, log))
    assert found.columns == ["id", "finding", "rows", "records"]
    assert {(one.id, one.finding) for one in found.collect()} == finding


def test_compare_of_a_clean_log_finds_nothing(spark: Any) -> None:
    rows = [*(row(number) for number in range(9)), row(8), row(8, value="same id")]
    expected, log = source(spark, rows), log_of(spark, rows)
    for wanted in (
        expected,
        expected.select("id"),
        expected.select("id", "value"),
        expected.withColumn("partition", f.lit(None).cast("int")),
        expected.withColumn("value", f.col("value").cast("binary")),
    ):
        assert jobs.compare(wanted, log).collect() == []
    by_key = log.withColumn("key", log["key"].cast("string"))
    assert jobs.compare(expected.select("key", "value"), by_key, by="key").collect() == []


def test_compare_of_equal_ids_tells_contents_and_places_apart(spark: Any) -> None:
    rows = [row(1, value="a", partition=0), row(1, value="b", partition=1)]
    expected = source(spark, rows)
    exchanged = [row(1, value="a", partition=1), row(1, value="b", partition=0)]
    for log in (exchanged, [rows[0], rows[0]], [rows[0], row(1, value="c", partition=1)]):
        (found,) = jobs.compare(expected, log_of(spark, log)).collect()
        assert (found.id, found.finding, found.rows, found.records) == ("1", "differs", 2, 2)


def test_integrity_of_equal_ids_wants_one_of_the_rows(spark: Any) -> None:
    rows = [row(1, value="a"), row(1, value="b"), row(2)]
    assert integrity(spark, log_of(spark, rows), source(spark, rows)) == []
    spoilt = [rows[0], row(1, value="c"), rows[2]]
    assert integrity(spark, log_of(spark, spoilt), source(spark, rows)) == [("1", ["value"])]


def test_duplicates_that_the_source_has_too_are_left_out(spark: Any) -> None:
    rows = [row(1), row(1), row(2), row(3)]
    log = log_of(spark, [*rows, row(2), row(77), row(77)])
    found = jobs.duplicates(log, expected=source(spark, rows)).collect()
    assert sorted((one.id, one.copies) for one in found) == [("2", 2), ("77", 2)]


def test_loss_of_one_of_two_equal_ids_is_found(spark: Any) -> None:
    rows = [row(1), row(1), row(2), row(2)]
    found = jobs.loss(source(spark, rows), log_of(spark, rows[1:])).collect()
    assert [one.id for one in found] == ["1", "1"]


def test_partition_that_the_source_leaves_open_is_not_compared(spark: Any) -> None:
    rows = [row(number) for number in range(4)]
    open_ones = [one | {"partition": None} for one in rows]
    assert integrity(spark, log_of(spark, rows), source(spark, open_ones)) == []


def test_extra_finds_records_that_are_not_in_the_source(spark: Any) -> None:
    rows = [row(number) for number in range(4)]
    foreign = [row(77), row(78, id=None)]
    log = log_of(spark, [*rows, *foreign])
    found = jobs.extra(source(spark, rows), log).collect()
    assert sorted((one.id, one.topic, one.offset) for one in found if one.id) == [("77", "t", 4)]
    assert [one.offset for one in found if one.id is None] == [5]
    assert jobs.loss(source(spark, rows), log).collect() == []


def test_audit_id_is_the_last_one_where_rows_brought_one_along(spark: Any) -> None:
    """The topic was copied with its headers, each row twice."""
    copied = [
        row(number, headers=[(AUDIT_HEADER, f"old/0/0/{number // 2}".encode())])
        for number in range(6)
    ]
    log = log_of(spark, copied)
    assert {one.run for one in log.collect()} == {"run"}
    assert sorted(one.seq for one in log.collect()) == list(range(6))
    assert jobs.duplicates(log).collect() == []
    plain = jobs.with_audit_id(log_of(spark, [row(0)], audited=False).drop("id", "seq"))
    assert plain.select("id", "run", "seq").collect() == [(None, None, None)]


def test_parts_of_the_audit_id_have_columns_of_their_own(spark: Any) -> None:
    log = jobs.with_audit_id(log_of(spark, [row(41, batch=7, task=3)]).drop("id", "seq"))
    names = ["id", "run", "batch", "task", "seq"]
    assert log.select(names).collect() == [("run/7/3/41", "run", 7, 3, 41)]
    kinds = {name: kind for name, kind in log.dtypes if name in names}
    assert kinds == {"id": "string", "run": "string", "batch": "bigint", "task": "int",
                     "seq": "bigint"}  # fmt: skip


def test_loss_finds_rows_without_a_record_and_rows_without_an_id(spark: Any) -> None:
    rows = [row(number) for number in range(4)]
    expected = source(spark, [*rows, row(5, id=None)])
    found = jobs.loss(expected, log_of(spark, [rows[0], rows[2], rows[2]])).collect()
    assert sorted((one.id or "", one.value) for one in found) == [
        ("", "v5"), ("1", "v1"), ("3", "v3"),
    ]  # fmt: skip
    by_key = log_of(spark, rows[:3])
    by_key = by_key.withColumn("key", by_key["key"].cast("string"))
    assert [one.key for one in jobs.loss(expected, by_key, by="key").collect()] == ["k3", "k5"]


def test_duplicates_are_counted_with_the_producers_that_wrote_them(spark: Any) -> None:
    copies = [
        row(1), row(1),
        row(2), row(2, producer=6),
        row(3), row(3, epoch=1), row(3, epoch=1), row(3, producer=6, epoch=1),
        row(4),
    ]  # fmt: skip
    log = log_of(spark, copies)
    found = jobs.duplicates(log)
    assert found.columns == ["id", "copies", "producers"]
    assert sorted(map(tuple, found.collect())) == [("1", 2, 1), ("2", 2, 2), ("3", 4, 3)]
    by = jobs.duplicates(log.withColumn("place", log["partition"]), by="place").collect()
    assert sorted(map(tuple, by)) == [(0, 3, 2), (1, 6, 3)]


def test_order_takes_a_kept_producer_and_a_repeated_task_for_no_disorder(spark: Any) -> None:
    """One producer writes for three tasks. Another producer repeats the last of these tasks."""
    log = log_of(spark, [
        row(5, partition=0), row(6, partition=0),
        row(0, partition=0, task=1), row(1, partition=0, task=1),
        row(0, partition=0, task=2), row(0, partition=0, task=2, producer=6),
        row(1, partition=0, task=2, producer=6),
    ])  # fmt: skip
    assert jobs.order(log).collect() == []
    swapped = log_of(spark, [row(6, partition=0), row(5, partition=0)])
    assert [one.seq for one in jobs.order(swapped).collect()] == [5]


def test_order_finds_records_that_come_before_an_earlier_row_of_their_task(spark: Any) -> None:
    """Records of other tasks, partitions and topics are not compared. A copy does not count as out
    of order."""
    log = log_of(spark, [
        row(0, partition=0), row(4, partition=0, task=1), row(2, partition=0),
        row(1, partition=0), row(1, partition=0), row(0, partition=1), row(0, topic="u"),
        row(5, partition=0, task=1), row(3, partition=0, task=1), row(3, partition=0),
    ])  # fmt: skip
    found = jobs.order(log, task="task", seq="seq")
    told = sorted((one.topic, one.partition, one.offset, one.seq, one.before)
                  for one in found.collect())  # fmt: skip
    assert told == [("t", 0, 3, 1, 2), ("t", 0, 8, 3, 5)]
    assert found.columns == [*log.columns, "before"]


def test_aborted_records_are_those_that_only_read_uncommitted_shows(spark: Any) -> None:
    rows = [row(number) for number in range(4)]
    everything = log_of(spark, rows)
    committed = everything.where("seq % 2 = 0")
    places = [("t", 1, 1), ("t", 1, 3)]
    assert sorted(map(tuple, jobs.aborted(committed, everything).collect())) == places
    assert jobs.aborted_visible(committed, everything).collect() == []
    assert sorted(map(tuple, jobs.aborted_visible(everything, committed).collect())) == places
    assert jobs.aborted(everything, everything).collect() == []


def test_acknowledged_ranges_that_the_log_does_not_fill_are_found(
    spark: Any, tmp_path: Path
) -> None:
    log = log_of(spark, [row(number, partition=0) for number in range(6)])
    told: list[Ranges] = [
        (("t", 0, 0, 2, 3), ("t", 0, 4, 8, 5)),
        (("t", 1, 0, 1, 2), ("u", 0, 3, 3, 1)),
        (("t", 0, None, None, 9), ("t", 0, 0, 5, 2)),
    ]
    tasks = [
        TaskReport(number, 0, "host", 9, 1, ranges, trimmed=False, seconds=0.1, query_id=None,
                   batch_id=None)
        for number, ranges in enumerate(told)
    ]  # fmt: skip
    folder = str(tmp_path / "reports")
    options = SinkOptions.parse({"kafka.bootstrap.servers": "b:9092", "reportPath": folder})
    committed(options, tasks[:1], None)
    committed(options, tasks[1:], 3)
    found = jobs.ranges(spark, folder, log)
    assert found.columns == ["topic", "partition", "first", "last", "count", "found"]
    assert sorted(map(tuple, found.collect())) == [
        ("t", 0, 4, 8, 5, 2), ("t", 1, 0, 1, 2, 0), ("u", 0, 3, 3, 1, 0),
    ]  # fmt: skip


def test_ranges_of_long_reports_are_counted_without_pairing_records(
    spark: Any, tmp_path: Path
) -> None:
    """The ranges of many tasks overlap across more than one bucket of offsets. Python code in the
    test counts the records for comparison."""
    size = 200_000
    rng = random.Random(7)
    missing = set(rng.sample(range(size), 50))
    told = []
    for _ in range(400):
        first = rng.randrange(size)
        last = min(size - 1, first + rng.randrange(2 * 70_000))
        gone = sum(first <= offset <= last for offset in missing)
        told.append((first, last, last - first + 1 - rng.choice([0, gone])))
    want = {
        (first, last, count): found
        for first, last, count in told
        if (found := last - first + 1 - sum(first <= offset <= last for offset in missing)) < count
    }
    report = TaskReport(0, 0, "host", 9, 1, tuple(("t", 3, *one) for one in told), trimmed=False,
                        seconds=0.1, query_id=None, batch_id=None)  # fmt: skip
    folder = str(tmp_path / "reports")
    committed(
        SinkOptions.parse({"kafka.bootstrap.servers": "b:9092", "reportPath": folder}), [report], 1
    )
    log = (
        spark.range(size)
        .where(~f.col("id").isin(*missing))
        .select(f.lit("t").alias("topic"), f.lit(3).alias("partition"), f.col("id").alias("offset"))
    )
    other = log.withColumn("partition", f.lit(4))
    found = jobs.ranges(spark, folder, log.union(other))
    assert {(one.first, one.last, one["count"]): one.found for one in found.collect()} == want
    plan = found._jdf.queryExecution().executedPlan().toString()
    assert "NestedLoop" not in plan
    assert "Cartesian" not in plan


def test_read_log_is_the_audit_format_with_its_options(spark: Any) -> None:
    register(spark)
    given = {"kafka.bootstrap.servers": "b:9092", "topic": "t", "isolation": "no such"}
    log = jobs.read_log(spark, given, isolation="read_uncommitted", offsetsPerTask=5)
    assert log.schema == spark.createDataFrame([], SCHEMA).schema
    with pytest.raises(Exception, match="option 'isolation' is 'no such'"):
        jobs.read_log(spark, given).schema  # noqa: B018
    with pytest.raises(Exception, match="option 'offsetsPerTask' is '0'"):
        jobs.read_log(spark, given, isolation="read_committed", offsetsPerTask=0).schema  # noqa: B018
