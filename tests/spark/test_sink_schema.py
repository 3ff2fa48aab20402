"""Check 6 without Spark: every rule of the schema, with the text of its error."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from aiokprod import ConfigError
from aiokprod.spark.rows import RowError, check_partitions, project, with_audit_header
from aiokprod.spark.sink_schema import SinkColumns, check_schema

HEADERS = t.ArrayType(
    t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())])
)
SWAPPED = t.ArrayType(
    t.StructType([t.StructField("value", t.BinaryType()), t.StructField("key", t.StringType())])
)


def schema(**columns: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in columns.items()])


def check(topic: str | None = "t", unknown: str = "error", **columns: t.DataType) -> SinkColumns:
    return check_schema(schema(**columns), topic=topic, unknown_columns=unknown)


def test_schema_of_all_columns() -> None:
    found = check_schema(
        schema(headers=HEADERS, timestamp=t.TimestampType(), topic=t.StringType(),
               partition=t.IntegerType(), value=t.BinaryType(), key=t.StringType()),
        topic=None, unknown_columns="error",
    )  # fmt: skip
    assert found == SinkColumns(
        headers=0, timestamp=1, topic=2, partition=3, value=4, key=5, timestamp_type="timestamp"
    )


@pytest.mark.parametrize("kind", [t.TimestampType(), t.TimestampNTZType(), t.LongType()])
def test_schema_timestamp_types(kind: t.DataType) -> None:
    assert check(value=t.StringType(), timestamp=kind).timestamp == 1


def test_schema_small_partition_and_swapped_header_fields() -> None:
    found = check(value=t.StringType(), partition=t.ShortType(), headers=SWAPPED)
    assert not found.header_key_first


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (
            {"k": t.StringType()},
            "column 'k' is none of key, value, topic, partition, headers, timestamp: drop it, pack "
            "it into 'value', or set option('unknownColumns', 'ignore') to leave it out as Spark's "
            "Kafka sink does",
        ),
        (
            {"key": t.StringType()},
            "column 'value' is missing, the DataFrame has 'key': select the bytes to send as "
            "'value', e.g. df.select(to_json(struct('*')).alias('value'))",
        ),
        (
            {"Value": t.StringType()},
            "column 'Value' differs only in case from 'value': rename it, "
            "df.withColumnRenamed('Value', 'value')",
        ),
        (
            {"value": t.IntegerType()},
            "column 'value' has type int, allowed is binary or string: cast it, "
            "col('value').cast('string')  # or to_json(struct('*')) for a whole row",
        ),
        (
            {"value": t.StringType(), "key": t.LongType()},
            "column 'key' has type bigint, allowed is binary or string: cast it, "
            "col('key').cast('string')",
        ),
        (
            {"value": t.StringType(), "partition": t.LongType()},
            "column 'partition' has type bigint, allowed is int or smallint: cast it, "
            "col('partition').cast('int')",
        ),
        (
            {"value": t.StringType(), "topic": t.BinaryType()},
            "column 'topic' has type binary, allowed is string: cast it, "
            "col('topic').cast('string')",
        ),
        (
            {"value": t.StringType(), "timestamp": t.DoubleType()},
            "column 'timestamp' has type double, allowed is timestamp or timestamp_ntz or bigint: "
            "cast it, col('timestamp').cast('timestamp')",
        ),
        (
            {"value": t.StringType(), "headers": t.MapType(t.StringType(), t.BinaryType())},
            "column 'headers' has type map<string,binary>, allowed is "
            "array<struct<key:string,value:binary>>: cast it, array(struct(lit('name')."
            "alias('key'), col('x').cast('binary').alias('value')))",
        ),
    ],
)
def test_schema_wrong_is_refused_with_its_text(columns: dict[str, t.DataType], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_schema(schema(**columns), topic="t", unknown_columns="error")
    assert str(caught.value) == text


def test_schema_no_topic() -> None:
    with pytest.raises(ConfigError) as caught:
        check(topic=None, value=t.StringType())
    assert str(caught.value) == (
        "no topic: set option('topic', ...), or add a string column 'topic' to the DataFrame"
    )


def test_schema_column_that_is_there_twice_is_refused() -> None:
    """Spark allows such a schema, but the sink cannot determine which of the columns is meant."""
    value, key = t.StructField("value", t.BinaryType()), t.StructField("key", t.StringType())
    with pytest.raises(ConfigError) as caught:
        check_schema(t.StructType([value, key, key]), topic="t", unknown_columns="ignore")
    assert str(caught.value) == "column 'key' is there twice: drop or rename one"


def test_schema_without_columns_is_told_so() -> None:
    with pytest.raises(ConfigError, match="the DataFrame has no columns: select"):
        check()


@pytest.mark.parametrize(
    "fields",
    [
        {"key": t.BinaryType(), "value": t.BinaryType()},
        {"key": t.StringType(), "value": t.StringType()},
        {"Key": t.StringType(), "value": t.BinaryType()},
        {"key": t.StringType()},
        {"key": t.StringType(), "value": t.BinaryType(), "more": t.BinaryType()},
    ],
)
def test_schema_headers_have_a_string_and_bytes_and_nothing_else(
    fields: dict[str, t.DataType],
) -> None:
    with pytest.raises(ConfigError, match="column 'headers' has type array<struct<"):
        check(value=t.StringType(), headers=t.ArrayType(schema(**fields)))
    with pytest.raises(ConfigError, match="column 'headers' has type array<string>"):
        check(value=t.StringType(), headers=t.ArrayType(t.StringType()))


def test_schema_unknown_columns_ignored_on_demand() -> None:
    assert check(unknown="ignore", x=t.DateType(), value=t.StringType()).value == 1


def test_schema_case_is_an_error_even_if_unknown_columns_are_ignored() -> None:
    with pytest.raises(ConfigError, match="differs only in case"):
        check(unknown="ignore", Key=t.StringType(), value=t.StringType())


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def test_rows_topic_null_names_the_row_in_the_task() -> None:
    table = batch(value=pa.array([b"a", b"b"]), topic=pa.array(["t", None]))
    with pytest.raises(RowError, match=r"^row 11 of this task: the topic is null"):
        project(table, SinkColumns(value=0, topic=1), topic=None, first_row=10)
    assert project(table, SinkColumns(value=0, topic=1), topic="t", first_row=0).schema.names == [
        "value"
    ]


def test_rows_header_key_null_names_the_row() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([None, [], [{"key": "a", "value": None}], [{"key": None, "value": b""}]],
                       kind)  # fmt: skip
    table = batch(value=pa.array([b""] * 4), headers=headers)
    with pytest.raises(RowError, match=r"^row 3 of this task: the key of a header is null"):
        project(table, SinkColumns(value=0, headers=1), topic="t", first_row=0)
    with pytest.raises(RowError, match=r"^row 1 of this task"):
        project(table.slice(2), SinkColumns(value=0, headers=1), topic="t", first_row=0)
    project(table.slice(0, 3), SinkColumns(value=0, headers=1), topic="t", first_row=0)


def test_rows_partition_negative_or_too_large() -> None:
    table = batch(value=pa.array([b""] * 3), partition=pa.array([0, None, -1], pa.int32()))
    with pytest.raises(RowError, match=r"^row 2 of this task: partition -1 is negative"):
        project(table, SinkColumns(value=0, partition=1), topic="t", first_row=0)
    large = batch(value=pa.array([b""] * 2), partition=pa.array([2, 3], pa.int16()))
    table = project(large, SinkColumns(value=0, partition=1), topic="t", first_row=0)
    check_partitions(table, {"t": 4}, topic="t", first_row=0)
    with pytest.raises(RowError) as caught:
        check_partitions(table, {"t": 3}, topic="t", first_row=5)
    assert str(caught.value) == (
        "row 6 of this task: partition 3 is out of range: topic 't' has 3, numbered from 0"
    )


def test_rows_partition_is_checked_by_topic() -> None:
    table = batch(
        value=pa.array([b""] * 2), partition=pa.array([2, 2]), topic=pa.array(["wide", "narrow"])
    )
    with pytest.raises(RowError, match=r"row 1 .* topic 'narrow' has 1"):
        check_partitions(table, {"wide": 4, "narrow": 1}, topic=None, first_row=0)


def headers_of(table: pa.RecordBatch) -> list[list[tuple[str, bytes | None]]]:
    return [
        [(one["key"], one["value"]) for one in row] for row in table.column("headers").to_pylist()
    ]


def test_audit_header_is_added_behind_the_rows_own() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    own = pa.array(
        [None, [], [{"key": "a", "value": None}, {"key": "b", "value": b"2"}], [{"key": "c",
         "value": b""}]], kind,
    )  # fmt: skip
    table = batch(value=pa.array([b"1", b"2", b"3", b"4"]), headers=own)
    found = with_audit_header(table, "r/0/1/", 10)
    found.validate(full=True)
    assert headers_of(found) == [
        [("akp.id", b"r/0/1/10")],
        [("akp.id", b"r/0/1/11")],
        [("a", None), ("b", b"2"), ("akp.id", b"r/0/1/12")],
        [("c", b""), ("akp.id", b"r/0/1/13")],
    ]
    assert found.column("value").to_pylist() == [b"1", b"2", b"3", b"4"]
    sliced = with_audit_header(table.slice(2), "r/", 0)
    assert headers_of(sliced) == [
        [("a", None), ("b", b"2"), ("akp.id", b"r/0")], [("c", b""), ("akp.id", b"r/1")],
    ]  # fmt: skip


def test_audit_header_without_headers_or_rows() -> None:
    table = batch(value=pa.array([b"1", b"2"]))
    assert headers_of(with_audit_header(table, "x/", 0)) == [
        [("akp.id", b"x/0")], [("akp.id", b"x/1")],
    ]  # fmt: skip
    assert with_audit_header(table.slice(2), "x/", 0).num_rows == 0
