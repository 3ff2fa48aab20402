"""What the audit's jobs find, on logs made up here: real Spark, no broker."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import pytest

from aiokprod.spark import audit_jobs as jobs
from aiokprod.spark.audit_reader import SCHEMA
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
    """As `read_log` and `with_audit_id` give it."""
    made = []
    for offset, one in enumerate(rows):
        headers = list(one["headers"])
        if audited and one["id"] is not None:
            headers.append((AUDIT_HEADER, f"run/0/0/{one['id']}".encode()))
        value = None if one["value"] is None else bytearray(one["value"].encode())
        made.append(
            (one["topic"], one["partition"], offset, WHEN, bytearray(one["key"].encode()), value,
             headers, 5, 0, offset, 0)
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
