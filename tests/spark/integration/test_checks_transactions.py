"""Checks 17, 19, 20, 21, 22, 23: exactly-once streams and transactional batches with a real
broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from aiokprod.testing.kafka_cluster import KafkaCluster
from tests.spark.integration.spark_helpers import (
    arrived,
    assert_numbers,
    commits,
    numbers,
    rate,
    read_back,
    sink,
    stable,
    start_stream,
    wait_for,
)

ONCE = {"delivery": "exactly_once", "transactionalIdPrefix": "p"}
ROWS = 500


def run_until(spark: Any, servers: str, topic: str, folder: Path, batches: int, **more: Any) -> Any:
    """Run the stream until the checkpoint contains this many batches. Return its last failure, or
    None."""
    frame = more.pop("frame", None) or rate(spark, ROWS)
    query = start_stream(frame, servers, topic, folder, **(ONCE | more))
    wait_for(lambda: commits(folder) >= batches or not query.isActive, "batches", 90)
    failure = query.exception()
    query.stop()
    if failure is None:
        last = start_stream(frame, servers, topic, folder, finish=True, **(ONCE | more))
        assert last.awaitTermination(90)
    return failure


def test_check_17_no_fault_each_row_once(
    spark: Any, broker: KafkaCluster, topic: str, folder: Path
) -> None:
    run_until(spark, broker.bootstrap_servers, topic, folder, 3)
    done = commits(folder)
    run_until(spark, broker.bootstrap_servers, topic, folder, done + 2)
    records = read_back(broker.bootstrap_servers, topic)
    assert len(records) >= ROWS * (done + 2)
    assert_numbers(records, len(records))


def failing_once(flag: Path, where: str) -> Any:
    """Return a column that kills its task the first time it gets row 700."""

    @f.udf("string")  # type: ignore[untyped-decorator]
    def column(value: str) -> str:
        import os

        if int(value) == 700 and not flag.exists():
            flag.write_text(where)
            if where == "kill":
                os.kill(os.getpid(), 9)
            raise RuntimeError("fails once")
        return value

    return column


@pytest.mark.slow
@pytest.mark.parametrize("how", ["raise", "kill"])
def test_check_17_task_fails_once(
    spark: Any, broker: KafkaCluster, topic: str, folder: Path, how: str
) -> None:
    column = failing_once(folder / "failed", how)
    frame = rate(spark, ROWS).withColumn("value", column(f.col("value")))
    run_until(spark, broker.bootstrap_servers, topic, folder, 3, frame=frame)
    assert (folder / "failed").exists()
    records = read_back(broker.bootstrap_servers, topic)
    assert_numbers(records, len(records))


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    ["before EndTxn", "after 1 EndTxn", "after all EndTxn"],
)
def test_check_17_driver_fails_in_the_commit(
    spark: Any, broker: KafkaCluster, topic: str, folder: Path, point: str
) -> None:
    """The commit of batch 1 raises at the given point, and leaves the same state as a driver crash
    there."""
    run_until(spark, broker.bootstrap_servers, topic, folder, 1)
    done = commits(folder)
    failure = crash(spark, broker, topic, folder, done, point)
    assert "crash on purpose" in str(failure)
    run_until(spark, broker.bootstrap_servers, topic, folder, done + 2)
    records = read_back(broker.bootstrap_servers, topic)
    assert len(records) >= ROWS * (done + 2)
    assert_numbers(records, len(records))


def crash(
    spark: Any, broker: KafkaCluster, topic: str, folder: Path, batch: int, point: str
) -> BaseException | None:
    """Run with a source whose commit crashes in batch `batch`. Return the query's failure."""
    from tests.spark.integration import crashing

    crashing.register(spark)
    frame = rate(spark, ROWS)
    query = (
        frame.writeStream.format("aiokprod-crashing")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("topic", topic)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .options(**ONCE)
        .option("queryName", f"{batch}:{point}")
        .start()
    )
    wait_for(lambda: not query.isActive, "the crash", 90)
    error: BaseException | None = query.exception()
    return error


@pytest.mark.slow
def test_check_19_changed_partitions_between_crash_and_replay_fail_loudly(
    spark: Any, broker: KafkaCluster, topic: str, folder: Path
) -> None:
    run_until(spark, broker.bootstrap_servers, topic, folder, 1)
    done = commits(folder)
    crash(spark, broker, topic, folder, done, "after 1 EndTxn")
    before = read_back(broker.bootstrap_servers, topic)
    failure = run_until(
        spark, broker.bootstrap_servers, topic, folder, done + 2,
        frame=rate(spark, ROWS).coalesce(1),
    )  # fmt: skip
    assert "NonDeterministicReplay" in str(failure)
    assert "Nothing more of it was committed" in str(failure)
    assert sorted(read_back(broker.bootstrap_servers, topic)) == sorted(before)
    run_until(spark, broker.bootstrap_servers, topic, folder, done + 2)
    records = read_back(broker.bootstrap_servers, topic)
    assert_numbers(records, len(records))


@pytest.mark.slow
def test_check_20_transaction_timeout_before_commit_fails_the_batch_and_replays(
    spark: Any, broker: KafkaCluster, topic: str, folder: Path
) -> None:
    run_until(spark, broker.bootstrap_servers, topic, folder, 1)
    done = commits(folder)

    @f.udf("string")  # type: ignore[untyped-decorator]
    def slow(value: str) -> str:
        if int(value) % ROWS == ROWS - 1 and not (folder / "slow").exists():
            (folder / "slow").write_text("")
            time.sleep(25)
        return value

    frame = rate(spark, ROWS).withColumn("value", slow(f.col("value")))
    failure = run_until(
        spark, broker.bootstrap_servers, topic, folder, done + 3, frame=frame,
        **{"kafka.transaction.timeout.ms": "5000"},
    )  # fmt: skip
    assert "kafka.transaction.timeout.ms" in str(failure)
    run_until(spark, broker.bootstrap_servers, topic, folder, done + 2)
    records = read_back(broker.bootstrap_servers, topic)
    assert_numbers(records, len(records))


@pytest.mark.slow
def test_check_17_batch_delivery_transactional(
    spark: Any, broker: KafkaCluster, topic: str, make_topic: Callable[..., None], folder: Path
) -> None:
    make_topic(topic)
    servers = broker.bootstrap_servers
    once = {"delivery": "transactional", "transactionalIdPrefix": "b"}
    sink(numbers(spark, 1000), servers, topic, **once).save()
    assert_numbers(read_back(servers, topic), 1000)
    bad = numbers(spark, 1000, 4, start=1000).withColumn(
        "partition", f.when(f.col("key").cast("string") == "1999", 77).cast("int")
    )
    with pytest.raises(PySparkException, match="partition 77 is out of range"):
        sink(bad, servers, topic, **once).save()
    wait_for(lambda: stable(servers, topic), "aborted transactions", 30)
    assert_numbers(read_back(servers, topic), 1000)
    assert len(read_back(servers, topic, committed=False)) >= 1000


@pytest.mark.slow
def test_check_21_speculation_is_refused(spark: Any, broker: KafkaCluster, topic: str) -> None:
    context = spark.sparkContext
    context.setLocalProperty("spark.speculation", "true")
    try:
        with pytest.raises(PySparkException, match=r"excludes spark\.speculation=true"):
            sink(
                numbers(spark, 10), broker.bootstrap_servers, topic,
                delivery="transactional", transactionalIdPrefix="s",
            ).save()  # fmt: skip
        sink(numbers(spark, 10), broker.bootstrap_servers, topic).save()
    finally:
        context.setLocalProperty("spark.speculation", None)


@pytest.mark.slow
def test_check_22_cancelled_batch_is_never_visible(
    spark: Any, broker: KafkaCluster, topic: str, make_topic: Callable[..., None]
) -> None:
    import threading

    from aiokprod.spark import register

    make_topic(topic)
    servers = broker.bootstrap_servers
    failed: list[str] = []
    context = spark.sparkContext

    def work() -> None:
        register(spark)
        context.setJobGroup("cancel-me", "check 22", interruptOnCancel=True)
        try:
            sink(
                numbers(spark, 20_000_000), servers, topic,
                delivery="transactional", transactionalIdPrefix="c",
            ).save()  # fmt: skip
        except Exception as error:
            failed.append(str(error))

    from pyspark import InheritableThread

    thread = InheritableThread(target=work)
    assert isinstance(thread, threading.Thread)
    thread.start()
    wait_for(lambda: arrived(broker, topic), "first records")
    context.cancelJobGroup("cancel-me")
    thread.join(60)
    assert failed
    wait_for(lambda: stable(servers, topic), "the abort", 60)
    assert read_back(servers, topic) == []
    assert arrived(broker, topic) > 1000, "more than markers"


@pytest.mark.slow
def test_check_23_abort_never_raises_with_the_broker_down() -> None:
    from aiokprod.spark.commit_messages import Prepared
    from aiokprod.spark.options import SealedOptions
    from aiokprod.spark.sink_schema import SinkColumns
    from aiokprod.spark.writer import AiokprodWriter

    options = SealedOptions({"kafka.bootstrap.servers": "127.0.0.1:9", "topic": "t"} | {
        key.lower(): value for key, value in ONCE.items()})  # fmt: skip
    message = Prepared(0, 0, "h", 1, 1, (), False, 0.1, "q", 1, transactional_id="p.q.0",
                       producer_id=1, epoch=1)  # fmt: skip
    started = time.monotonic()
    AiokprodWriter(options, SinkColumns(value=0), None).abort([message, None], 1)
    assert time.monotonic() - started < 60
    AiokprodWriter(SealedOptions({}), SinkColumns(value=0), None).abort([message], 1)


@pytest.mark.slow
def test_check_17_first_protocol_on_an_old_broker(
    spark: Any, kafka_3_broker: KafkaCluster, topic: str, folder: Path
) -> None:
    run_until(spark, kafka_3_broker.bootstrap_servers, topic, folder, 2)
    records = read_back(kafka_3_broker.bootstrap_servers, topic)
    assert len(records) >= 2 * ROWS
    assert_numbers(records, len(records))
