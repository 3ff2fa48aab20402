"""Checks 12 to 16: at-least-once delivery with real Spark and a real broker."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from aiokprod.spark import register
from aiokprod.testing.kafka_cluster import KafkaCluster
from tests.spark.integration.spark_helpers import (
    arrived,
    assert_numbers,
    numbers,
    rate,
    read_back,
    sink,
    start_stream,
    wait_for,
)

pytestmark = pytest.mark.slow

ATTEMPTS = 2
"""Attempts per task on the master that the tests use."""


def fails_once(flag: Path, at: int, how: str) -> Any:
    """Return a column that breaks its task the first time it gets row `at`."""

    @f.udf("string")  # type: ignore[untyped-decorator]
    def column(value: str) -> str:
        import os

        if int(value) == at and not flag.exists():
            flag.write_text(how)
            if how == "kill":
                os.kill(os.getpid(), 9)
            raise RuntimeError("fails once")
        return value

    return column


@pytest.mark.parametrize("how", ["raise", "kill"])
def test_check_12_task_that_fails_once_loses_nothing(
    spark: Any, broker: KafkaCluster, topic: str, folder: Path, how: str
) -> None:
    column = fails_once(folder / "failed", 40_000, how)
    frame = spark.range(0, 100_000, 1, 2).select(column(f.col("id").cast("string")).alias("key"),
                                                 f.lit("v").alias("value"))  # fmt: skip
    sink(frame, broker.bootstrap_servers, topic).save()
    assert (folder / "failed").exists()
    assert_numbers(read_back(broker.bootstrap_servers, topic), 100_000, exactly=False)


def test_check_12_broker_restart_loses_nothing(
    spark: Any, broker: KafkaCluster, topic: str, make_topic: Callable[..., None]
) -> None:
    make_topic(topic)
    failed: list[str] = []

    def restart() -> None:
        try:
            wait_for(lambda: arrived(broker, topic), "first records")
            asyncio.run(broker.kill(1))
            time.sleep(1)
            asyncio.run(broker.start_node(1))
        except BaseException as error:
            failed.append(repr(error))

    thread = threading.Thread(target=restart)
    thread.start()
    sink(numbers(spark, 3_000_000), broker.bootstrap_servers, topic).save()
    thread.join(90)
    assert not failed
    records = read_back(broker.bootstrap_servers, topic)
    assert len({record.key for record in records}) == 3_000_000
    assert len(records) == 3_000_000  # idempotence: a retried request causes no duplicate


def test_check_13_fault_free_has_no_duplicates_and_keeps_order(
    spark: Any, broker: KafkaCluster, topic: str, make_topic: Callable[..., None]
) -> None:
    make_topic(topic, 4)
    frame = spark.range(0, 200_000, 1, 2).select(
        (f.col("id") % 100).cast("string").alias("key"),
        f.concat_ws("/", f.spark_partition_id(), f.col("id")).alias("value"),
    )
    sink(frame, broker.bootstrap_servers, topic).save()
    records = read_back(broker.bootstrap_servers, topic)
    assert len(records) == 200_000
    last: dict[tuple[bytes | None, bytes], int] = {}
    for record in sorted(records, key=lambda one: (one.partition, one.offset)):
        task, number = (record.value or b"").split(b"/")
        assert last.get((record.key, task), -1) < int(number)
        last[record.key, task] = int(number)


def test_check_14_worker_killed_right_after_write_returned_loses_nothing(
    spark: Any, broker: KafkaCluster, topic: str
) -> None:
    """The worker dies before its commit message arrives. By then all rows are in Kafka, and the
    second attempt writes them again."""
    from tests.spark.integration import dying

    dying.register(spark)
    writer = numbers(spark, 50_000).write.format("aiokprod-dying").mode("append")
    writer = writer.option("kafka.bootstrap.servers", broker.bootstrap_servers)
    writer.option("topic", topic).save()
    records = read_back(broker.bootstrap_servers, topic)
    assert_numbers(records, 50_000, exactly=False)
    assert set(Counter(record.key for record in records).values()) == {2}


def cancel_in_thread(
    spark: Any, servers: str, topic: str, started: Callable[[], object], rows: int, **more: object
) -> tuple[list[str], float]:
    """Start a job, and cancel it when `started` returns true. Return its error and the seconds
    until it ended."""
    from pyspark import InheritableThread

    failed: list[str] = []

    def work() -> None:
        register(spark)
        spark.sparkContext.setJobGroup(topic, "to be cancelled", interruptOnCancel=True)
        try:
            sink(numbers(spark, rows), servers, topic, **more).save()
        except Exception as error:
            failed.append(str(error))

    thread = InheritableThread(target=work)
    thread.start()
    wait_for(started, "the job's start")
    spark.sparkContext.cancelJobGroup(topic)
    begun = time.monotonic()
    thread.join(60)
    return failed, time.monotonic() - begun


def test_check_15_cancelled_job_stops_producing(
    spark: Any, broker: KafkaCluster, topic: str, make_topic: Callable[..., None]
) -> None:
    make_topic(topic)
    servers = broker.bootstrap_servers

    def seconds_of_a_small_job() -> float:
        begun = time.monotonic()
        sink(numbers(spark, 10), servers, topic + "-next").save()
        return time.monotonic() - begun

    usual = seconds_of_a_small_job()
    failed, took = cancel_in_thread(
        spark, servers, topic, lambda: arrived(broker, topic), 20_000_000
    )
    assert failed
    assert took < 30
    time.sleep(5)
    ends = asyncio.run(broker.end_offsets(topic))
    time.sleep(3)
    assert asyncio.run(broker.end_offsets(topic)) == ends
    assert sum(ends.values()) < 20_000_000
    # A small job is not slower than usual, so the workers are free again.
    assert seconds_of_a_small_job() < 2 * usual + 30


def test_check_15_stopped_query_stops_producing(
    spark: Any, broker: KafkaCluster, topic: str, folder: Path, make_topic: Callable[..., None]
) -> None:
    """The query is stopped during a micro-batch."""
    make_topic(topic)
    endless = rate(spark, rows=20_000_000)
    query = start_stream(endless, broker.bootstrap_servers, topic, folder)
    wait_for(lambda: arrived(broker, topic), "first records")
    begun = time.monotonic()
    query.stop()
    assert time.monotonic() - begun < 30
    time.sleep(5)
    ends = asyncio.run(broker.end_offsets(topic))
    time.sleep(3)
    assert asyncio.run(broker.end_offsets(topic)) == ends
    assert sum(ends.values()) < 20_000_000


def test_check_15_unreachable_broker_does_not_hang_a_cancelled_job(spark: Any, topic: str) -> None:
    begun = time.monotonic()
    failed, _ = cancel_in_thread(
        spark, "127.0.0.1:9", topic, lambda: time.monotonic() - begun > 4, 1000, preflight="false"
    )
    assert failed
    assert time.monotonic() - begun < 60


def test_check_16_record_too_large_fails_with_the_counts(
    spark: Any, broker: KafkaCluster, topic: str, make_topic: Callable[..., None]
) -> None:
    make_topic(topic, 1)
    frame = spark.range(0, 10, 1, 1).select(
        f.when(f.col("id") == 5, f.expr("repeat('x', 3000000)")).otherwise("v").alias("value")
    )
    with pytest.raises(PySparkException) as caught:
        sink(frame, broker.bootstrap_servers, topic).save()
    text = str(caught.value)
    assert "RecordTooLarge" in text or "MESSAGE_TOO_LARGE" in text
    assert "not retriable" in text
    assert "row 5 of this task: " in text
    assert "raise kafka.max.request.size" in text
    assert "rows of this attempt: " in text
    assert "every attempt will fail for this reason until it is removed" in text
    assert "rows already acknowledged may appear again" in text


def test_check_16_brokers_refusal_fails_with_the_counts(
    spark: Any, broker: KafkaCluster, topic: str, make_topic: Callable[..., None]
) -> None:
    make_topic(topic, 1, **{"max.message.bytes": "2000"})
    frame = spark.range(0, 10, 1, 1).select(f.expr("repeat('x', 3000)").alias("value"))
    with pytest.raises(PySparkException, match="MESSAGE_TOO_LARGE") as caught:
        sink(frame, broker.bootstrap_servers, topic).save()
    assert "0 acknowledged, 0 unknown, 10 unsent" in str(caught.value)


def test_check_16_topic_deleted_fails_within_the_delivery_timeout(
    spark: Any, broker: KafkaCluster, topic: str, make_topic: Callable[..., None]
) -> None:
    make_topic(topic, 1)
    deleted: list[float] = []

    def delete() -> None:
        wait_for(lambda: arrived(broker, topic), "first records")
        asyncio.run(broker.delete_topic(topic))
        deleted.append(time.monotonic())

    thread = threading.Thread(target=delete)
    thread.start()
    settings = {
        "kafka.delivery.timeout.ms": "6000",
        "kafka.request.timeout.ms": "3000",
        "kafka.max.block.ms": "6000",  # for the next attempt, which finds no topic
        "kafka.allow.auto.create.topics": "false",
    }
    with pytest.raises(PySparkException) as caught:
        sink(numbers(spark, 20_000_000), broker.bootstrap_servers, topic, **settings).save()
    ended = time.monotonic()
    thread.join(60)
    assert ended - deleted[0] < ATTEMPTS * (6 + 5) + 30
    assert f"aiokprod: {topic}" in str(caught.value)
    assert "rows of this attempt: " in str(caught.value)


def test_check_16_no_answer_fails_within_the_delivery_timeout(
    spark: Any, broker: KafkaCluster, topic: str, make_topic: Callable[..., None]
) -> None:
    make_topic(topic, 1)
    settings = {
        "kafka.delivery.timeout.ms": "6000",
        "kafka.request.timeout.ms": "3000",
        "preflight": "false",
    }
    sink(numbers(spark, 10), broker.bootstrap_servers, topic, **settings).save()  # warm-up
    asyncio.run(broker.pause(1))
    begun = time.monotonic()
    try:
        with pytest.raises(PySparkException) as caught:
            sink(numbers(spark, 10, 1), broker.bootstrap_servers, topic, **settings).save()
    finally:
        asyncio.run(broker.resume(1))
    assert time.monotonic() - begun < ATTEMPTS * (6 + 5) + 30
    assert "aiokprod: " in str(caught.value)
    assert "rows of this attempt" in str(caught.value)
