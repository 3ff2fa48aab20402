"""What the audit's jobs find, on logs made up here: real Spark, no broker."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

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
    """A row of the source, and its record: every third with no header, one or two."""
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
    """As `read_log` and `with_audit_id` give it; offsets count over all partitions."""
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
    """A topic that was copied with its headers, each row twice."""
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


def test_order_finds_records_that_come_before_an_earlier_row_of_their_task(spark: Any) -> None:
    """Nothing is said about other tasks, partitions and topics; a copy does not count as out of
    order."""
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


def test_read_log_is_the_audit_format_with_its_options(spark: Any) -> None:
    register(spark)
    given = {"kafka.bootstrap.servers": "b:9092", "topic": "t", "isolation": "no such"}
    log = jobs.read_log(spark, given, isolation="read_uncommitted", offsetsPerTask=5)
    assert log.schema == spark.createDataFrame([], SCHEMA).schema
    with pytest.raises(Exception, match="option 'isolation' is 'no such'"):
        jobs.read_log(spark, given).schema  # noqa: B018
    with pytest.raises(Exception, match="option 'offsetsPerTask' is '0'"):
        jobs.read_log(spark, given, isolation="read_committed", offsetsPerTask=0).schema  # noqa: B018
