"""Actions of operators on a job or query, with real Spark and a real broker.

The actions are: a timeout that is too short, a restored checkpoint, a deleted topic, and another
time zone.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from aiokprod.testing.kafka_cluster import KafkaCluster
from tests.spark.integration import crashing
from tests.spark.integration.spark_helpers import (
    arrived,
    assert_numbers,
    commits,
    numbers,
    rate,
    read_back,
    sink,
    stable,
    wait_for,
)

ROWS = 100
ONCE = {"delivery": "exactly_once", "transactionalIdPrefix": "o"}

pytestmark = pytest.mark.slow


def run_stream(
    frame: Any, broker: KafkaCluster, folder: Path, *, batches: int, crash: str | None = None
) -> BaseException | None:
    """Run the stream, which has a topic column, for `batches` more batches. Return its failure, or
    None.

    With `crash`, the driver crashes at this point in the commit of the next batch.
    """
    done = commits(folder)
    writer = frame.writeStream.format("aiokprod-crashing" if crash else "aiokprod").options(
        **{"kafka.bootstrap.servers": broker.bootstrap_servers, "missingMarkers": "fail"} | ONCE,
        checkpointLocation=str(folder / "checkpoint"),
    )
    if crash:
        writer = writer.option("queryName", f"{done}:{crash}")
    for _ in range(batches):
        query = writer.trigger(availableNow=True).start()
        wait_for(lambda: not query.isActive, "the end of the batch", 180)  # noqa: B023
        failure: BaseException | None = query.exception()
        if failure is not None:
            return failure
    return None


def keys(broker: KafkaCluster, topic: str) -> Counter[int]:
    wait_for(lambda: stable(broker.bootstrap_servers, topic), "the end of all transactions", 60)
    return Counter(int(one.key or b"") for one in read_back(broker.bootstrap_servers, topic))


def test_transaction_timeout_of_one_task_leaves_the_whole_job_invisible(
    spark: Any, broker: KafkaCluster, topic: str, make_topic: Callable[..., None], folder: Path
) -> None:
    """Task 0 receives no rows until the transaction of task 1 was aborted because of its
    timeout."""
    make_topic(topic)
    servers = broker.bootstrap_servers

    @f.udf("binary")  # type: ignore[untyped-decorator]
    def slow(key: bytes) -> bytes:
        give_up = time.monotonic() + 90
        while int(key) == 0 and not (folder / "aborted").exists() and time.monotonic() < give_up:
            time.sleep(0.1)
        return key

    def watch() -> None:
        wait_for(lambda: arrived(broker, topic), "records of task 1")
        wait_for(lambda: stable(servers, topic), "the abort of its transaction", 60)
        (folder / "aborted").write_text("")

    watcher = threading.Thread(target=watch)
    watcher.start()
    frame = numbers(spark, 4 * ROWS, 2).withColumn("key", slow(f.col("key")))
    job = sink(
        frame, servers, topic, delivery="transactional", transactionalIdPrefix="j",
        kafka__transaction__timeout__ms=10_000,
    )  # fmt: skip
    with pytest.raises(PySparkException) as caught:
        job.save()
    watcher.join()
    assert "of task 1 cannot be committed" in str(caught.value)
    assert "Nothing of this attempt was committed" in str(caught.value)
    assert keys(broker, topic) == {}
    job.save()
    wait_for(lambda: stable(servers, topic), "the commit", 30)
    assert_numbers(read_back(servers, topic), 4 * ROWS)


def test_checkpoint_put_back_is_refused_with_other_partitioning_too(
    spark: Any, broker: KafkaCluster, topic: str, make_topic: Callable[..., None], folder: Path
) -> None:
    make_topic(topic, 2)
    frame = rate(spark, ROWS).withColumn("topic", f.lit(topic))
    parted = frame.repartition(2, "topic")  # all rows are in one of the two tasks
    assert run_stream(parted, broker, folder, batches=1) is None
    shutil.copytree(folder / "checkpoint", folder / "copy")
    assert run_stream(parted, broker, folder, batches=2) is None
    before = keys(broker, topic)
    assert set(before.values()) == {1}
    shutil.rmtree(folder / "checkpoint")
    shutil.copytree(folder / "copy", folder / "checkpoint")
    failure = run_stream(frame.coalesce(1), broker, folder, batches=1)
    assert "the checkpoint was rolled back" in str(failure)
    assert keys(broker, topic) == before


@pytest.mark.parametrize("deleted", [0, 1])
def test_topic_deleted_after_a_crash_doubles_no_row_of_the_other(
    spark: Any, broker: KafkaCluster, topic: str, make_topic: Callable[..., None], folder: Path,
    deleted: int,
) -> None:  # fmt: skip
    crashing.register(spark)
    topics = [f"{topic}-a", f"{topic}-b"]
    for name in topics:
        make_topic(name, 2)
    both = f.explode(f.array(*map(f.lit, topics)))
    frame = rate(spark, ROWS).withColumn("topic", both)
    assert run_stream(frame, broker, folder, batches=1) is None
    failure = run_stream(frame, broker, folder, batches=1, crash="after 1 EndTxn")
    assert "crash on purpose" in str(failure)
    asyncio.run(broker.delete_topic(topics[deleted]))
    make_topic(topics[deleted], 2)
    assert run_stream(frame, broker, folder, batches=1) is None
    found = keys(broker, topics[1 - deleted])
    assert set(found.values()) == {1}
    assert set(found) == set(range(len(found)))
    assert len(found) >= 2 * ROWS


def test_replay_in_a_session_of_another_time_zone_is_the_same_batch(
    spark: Any, broker: KafkaCluster, topic: str, make_topic: Callable[..., None], folder: Path
) -> None:
    crashing.register(spark)
    make_topic(topic, 2)
    stamp = f.timestamp_millis(f.col("value").cast("long") + 1_700_000_000_000)
    header = f.struct(f.lit("h").alias("key"), f.col("key").cast("binary").alias("value"))
    frame = (
        rate(spark, ROWS)
        .withColumn("timestamp", stamp)
        .withColumn("headers", f.array(header))
        .withColumn("topic", f.lit(topic))
    )
    assert run_stream(frame, broker, folder, batches=1) is None
    failure = run_stream(frame, broker, folder, batches=1, crash="after 1 EndTxn")
    assert "crash on purpose" in str(failure)
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        assert run_stream(frame, broker, folder, batches=1) is None
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    found = keys(broker, topic)
    assert set(found.values()) == {1}
    assert set(found) == set(range(len(found)))
    assert len(found) >= 2 * ROWS
