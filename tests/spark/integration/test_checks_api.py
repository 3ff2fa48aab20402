"""Checks 1, 2, 3, 5, 6, 24, 26: the API with real Spark and a real broker."""

from __future__ import annotations

import datetime
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from aiokprod.spark import register
from aiokprod.testing.kafka_cluster import KafkaCluster
from tests.spark.integration.conftest import ROOT
from tests.spark.integration.spark_helpers import (
    ALL_COLUMNS,
    Read,
    assert_numbers,
    batches_done,
    numbers,
    rate,
    read_back,
    sink,
    start_stream,
    wait_for,
)

pytestmark = pytest.mark.slow

MOMENT = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=datetime.UTC)
MOMENT_MS = 1767323045678


def rows_of_all_kinds(topic: str) -> list[tuple[Any, ...]]:
    """Return (key, value, topic, partition, timestamp, headers) tuples."""
    return [
        (b"k", b"v", topic, 0, MOMENT, [("a", b"1"), ("b", None)]),
        (None, b"no key", topic, 1, MOMENT, []),
        (b"tombstone", None, topic, 2, MOMENT, None),
        (b"", b"", topic, 0, MOMENT, [("", b"")]),
        (b"\x00\xff" * 50, bytes(range(256)) * 40, topic, 1, MOMENT, [("ü", "ß".encode())]),
    ]


def expected_of(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(
        (repr((key, value)), partition, MOMENT_MS, tuple(headers or ()))
        for key, value, _, partition, _, headers in rows
    )


def seen(records: list[Read]) -> list[tuple[Any, ...]]:
    return sorted(
        (repr((one.key, one.value)), one.partition, one.timestamp, one.headers) for one in records
    )


def test_check_01_batch_with_all_columns_is_read_back_byte_equal(
    spark: Any, broker: KafkaCluster, topic: str, make_topic: Callable[..., None]
) -> None:
    make_topic(topic)
    rows = rows_of_all_kinds(topic)
    sink(spark.createDataFrame(rows, ALL_COLUMNS), broker.bootstrap_servers, None).save()
    assert seen(read_back(broker.bootstrap_servers, topic)) == expected_of(rows)
    audit = (
        spark.read.format("aiokprod-audit")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("topic", topic)
        .load()
    )
    found = [
        (
            repr((None if row.key is None else bytes(row.key),
                  None if row.value is None else bytes(row.value))),
            row.partition,
            MOMENT_MS,
            tuple((h.key, None if h.value is None else bytes(h.value)) for h in row.headers),
        )
        for row in audit.collect()
    ]  # fmt: skip
    assert sorted(found) == expected_of(rows)


def test_check_01_stream_with_all_columns_is_read_back_byte_equal(
    spark: Any, broker: KafkaCluster, topic: str, make_topic: Callable[..., None], folder: Path
) -> None:
    make_topic(topic)
    rows = rows_of_all_kinds(topic)
    spark.createDataFrame(rows, ALL_COLUMNS).write.parquet(str(folder / "in"))
    frame = spark.readStream.schema(ALL_COLUMNS).parquet(str(folder / "in"))
    query = (
        frame.writeStream.format("aiokprod")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert seen(read_back(broker.bootstrap_servers, topic)) == expected_of(rows)


def test_check_01_keys_go_where_java_puts_them(
    spark: Any, broker: KafkaCluster, topic: str, make_topic: Callable[..., None]
) -> None:
    from kafka.partitioner.default import murmur2

    make_topic(topic, 7)
    sink(numbers(spark, 500), broker.bootstrap_servers, topic).save()
    records = read_back(broker.bootstrap_servers, topic)
    assert_numbers(records, 500)
    for record in records:
        assert record.partition == (murmur2(record.key) & 0x7FFFFFFF) % 7


def test_check_01_complete_mode_appends_each_result(
    spark: Any, broker: KafkaCluster, topic: str, folder: Path
) -> None:
    counts = rate(spark).groupBy((f.col("key") % 2).cast("string").alias("key")).count()
    frame = counts.select("key", f.col("count").cast("string").alias("value"))
    query = (
        frame.writeStream.format("aiokprod")
        .outputMode("complete")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("topic", topic)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    wait_for(lambda: batches_done(query) >= 2, "two batches")
    query.stop()
    values = [record.value for record in read_back(broker.bootstrap_servers, topic)]
    assert {b"250", b"500"} <= set(values)


def test_check_02_found_without_register_and_beside_a_broken_package(folder: Path) -> None:
    """Each case has its own process, because discovery happens once per JVM."""
    (folder / "pyspark_broken.py").write_text("raise RuntimeError('broken on purpose')\n")
    program = textwrap.dedent(
        """
        import sys
        from tests.spark.integration.conftest import session_of
        spark = session_of()
        frame = spark.createDataFrame([("k", "v")], "key string, value string")
        def attempt():
            try:
                frame.write.format("aiokprod").mode("append").save()
            except Exception as error:
                return str(error)
        print("FIRST", "kafka.bootstrap.servers' is missing" in attempt())
        from aiokprod.spark import register
        register(spark)
        print("REGISTERED", "kafka.bootstrap.servers' is missing" in attempt())
        """
    )
    for extra, first in (("", "True"), (f":{folder}", "False")):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONPATH": f"{ROOT}{extra}", "PATH": "/usr/bin:/bin:/usr/local/bin"}
            | ({"EXTRA": extra} if extra else {}),
            cwd=folder if extra else ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert f"FIRST {first}" in done.stdout
        assert "REGISTERED True" in done.stdout


def test_check_02_importing_the_module_is_quick_and_starts_nothing() -> None:
    program = (
        "import sys, threading, time, asyncio, pyspark.sql.datasource\n"
        "before = set(sys.modules)\n"
        "start = time.process_time()\n"
        "import pyspark_aiokprod, pyspark_aiokprod_audit\n"
        "took = time.process_time() - start\n"
        "assert took < 1.0, took\n"
        "assert threading.active_count() == 1\n"
        "assert not {name for name in sys.modules if name.startswith('aiokprod')}\n"
        "assert pyspark_aiokprod.DefaultSource.name() == 'aiokprod'\n"
        "assert pyspark_aiokprod_audit.DefaultSource.name() == 'aiokprod-audit'\n"
        "import aiokprod.spark.source\n"
        "assert threading.active_count() == 1\n"
        "assert asyncio._get_running_loop() is None\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=300)


def test_check_03_write_from_a_thread_after_register(
    spark: Any, broker: KafkaCluster, topic: str
) -> None:
    frame = numbers(spark, 10)
    errors: list[BaseException | None] = []

    def work() -> None:
        try:
            register(spark)
            sink(frame, broker.bootstrap_servers, topic).save()
            errors.append(None)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert errors == [None]
    assert_numbers(read_back(broker.bootstrap_servers, topic), 10)


def refused(spark: Any, frame: Any, servers: str, topic: str | None, **options: object) -> str:
    """Return the text of the error with which the driver rejects a write."""
    with pytest.raises(PySparkException) as caught:
        sink(frame, servers, topic, **options).save()
    return str(caught.value)


def test_check_05_wrong_options_fail_on_the_driver_and_show_no_secret(
    spark: Any, broker: KafkaCluster, topic: str
) -> None:
    frame = numbers(spark, 10)
    servers = broker.bootstrap_servers
    secret = "hunter2-hunter2"
    for options, text in (
        ({"kafka__sasl__password": secret, "kafka__linger__sm": 5}, "did you mean 'kafka.linger"),
        ({"kafka__ssl__key__password": secret, "Delivery": "x"}, "use at_least_once or"),
        (
            {
                "kafka__sasl__password": secret,
                "kafka__sasl__username": "me",
                "kafka__sasl__mechanism": "SCRAM-SHA-256",
                "kafka__security__protocol": "SASL_PLAINTEXT",
            },
            "nothing was sent",
        ),
        ({"kafka__sasl__jaas__config": secret}, "kafka.sasl.username and kafka.sasl.password"),
    ):
        found = refused(spark, frame, servers, topic, **options)
        assert text in found
        assert secret not in found


def test_check_05_topic_that_does_not_exist_fails_before_anything_is_sent(
    spark: Any, broker: KafkaCluster, topic: str
) -> None:
    found = refused(
        spark, numbers(spark, 10), broker.bootstrap_servers, topic,
        kafka__allow__auto__create__topics="false",
    )  # fmt: skip
    assert f"topic '{topic}' does not exist" in found
    assert "PreflightError" in found


def test_check_05_unreachable_brokers_fail_within_the_preflight_time(
    spark: Any, topic: str
) -> None:
    found = refused(spark, numbers(spark, 10), "127.0.0.1:9", topic)
    assert "no broker could be reached from the driver within 10 s" in found


def test_check_06_schema_refused_on_the_driver(
    spark: Any, broker: KafkaCluster, topic: str
) -> None:
    frame = spark.range(3)
    assert "column 'id' is none of key, value" in refused(
        spark, frame, broker.bootstrap_servers, topic
    )
    cased = frame.select(f.col("id").cast("string").alias("Value"))
    assert "differs only in case from 'value'" in refused(
        spark, cased, broker.bootstrap_servers, topic
    )


def test_check_06_rows_refused_in_the_task_by_number(
    spark: Any, broker: KafkaCluster, topic: str, make_topic: Callable[..., None]
) -> None:
    make_topic(topic)
    frame = spark.range(0, 10, 1, 1).select(
        f.lit("v").alias("value"),
        f.when(f.col("id") != 7, f.lit(topic)).alias("topic"),
        f.col("id").cast("int").alias("partition"),
    )
    found = refused(spark, frame, broker.bootstrap_servers, None)
    assert "row 7 of this task: the topic is null" in found
    found = refused(spark, frame.drop("topic"), broker.bootstrap_servers, topic)
    assert "row 3 of this task: partition 3 is out of range" in found
    illegal = frame.drop("partition").fillna("no topic", ["topic"])
    found = refused(spark, illegal, broker.bootstrap_servers, None)
    assert "row 7 of this task: topic 'no topic'" in found
    assert "every attempt will fail for this reason" in found
    assert read_back(broker.bootstrap_servers, topic) == []


def test_check_06_save_modes(spark: Any, broker: KafkaCluster, topic: str) -> None:
    writer = numbers(spark, 1).write.format("aiokprod")
    writer = writer.option("kafka.bootstrap.servers", broker.bootstrap_servers)
    writer = writer.option("topic", topic)
    with pytest.raises(PySparkException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        writer.save()
    with pytest.raises(PySparkException, match="mode\\('overwrite'\\) is refused"):
        writer.mode("overwrite").save()
    with pytest.raises(PySparkException, match="option 'path' is refused"):
        writer.mode("append").save("/somewhere")


def test_check_24_tasks_know_their_batch_and_query(
    spark: Any, broker: KafkaCluster, topic: str, folder: Path
) -> None:
    import json

    query = start_stream(
        rate(spark), broker.bootstrap_servers, topic, folder, reportPath=folder / "reports"
    )
    wait_for(lambda: batches_done(query) >= 2, "two batches")
    query.stop()
    lines = (folder / "reports" / "aiokprod-report.jsonl").read_text().splitlines()
    reports = [json.loads(line) for line in lines]
    assert [one["batch_id"] for one in reports][:2] == [0, 1]
    assert {one["query_id"] for one in reports} == {str(query.id)}
    assert all(one["rows"] == 500 for one in reports)


def test_check_26_other_version_on_the_driver_is_told() -> None:
    from aiokprod import ConfigError, __version__
    from aiokprod.spark.options import SealedOptions
    from aiokprod.spark.sink_schema import SinkColumns
    from aiokprod.spark.writer import AiokprodWriter

    writer = AiokprodWriter(SealedOptions({}), SinkColumns(value=0), None)
    writer._version = "0.0.9"
    with pytest.raises(ConfigError, match=f"0.0.9 on the driver and {__version__} on this"):
        writer.write(iter(()))
