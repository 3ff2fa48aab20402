"""Actions of operators and faults of brokers during a stream, with real Spark and real brokers.

Queries are stopped, brokers stop at the commit, triggers and schemas change, prefixes are shared,
drivers die, and many batches run in one process. Afterwards read_committed readers must find every
row exactly once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from aiokprod.spark import foreach_batch
from aiokprod.testing.kafka_cluster import KafkaCluster
from tests.spark.integration import crashing, pausing
from tests.spark.integration.conftest import ROOT
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

ROWS = 200
SECONDS = 300
ONCE: dict[str, Any] = {"delivery": "exactly_once", "transactionalIdPrefix": "attack"}

pytestmark = pytest.mark.slow


def finish(frame: Any, broker: KafkaCluster, topic: str, folder: Path, **more: object) -> None:
    """Run the query until all available rows are committed."""
    query = start_stream(
        frame, broker.bootstrap_servers, topic, folder, finish=True, **(ONCE | more)
    )
    assert query.awaitTermination(SECONDS)


def assert_each_once(broker: KafkaCluster, topic: str, folder: Path, rows: int = ROWS) -> None:
    """Check that the rows of all finished batches are in the topic exactly once, and that no
    transaction is open."""
    wait_for(lambda: stable(broker.bootstrap_servers, topic), "the end of all transactions", 60)
    records = read_back(broker.bootstrap_servers, topic)
    assert len(records) == commits(folder) * rows
    assert_numbers(records, len(records))


def slowly() -> Any:
    """Return a column that takes 0.4 s for the 100 rows of a task."""

    @f.udf("string")  # type: ignore[untyped-decorator]
    def column(value: str) -> str:
        if int(value) % 25 == 0:
            time.sleep(0.1)
        return value

    return column


def test_query_stopped_in_the_middle_of_batches(
    spark: Any, broker: KafkaCluster, topic: str, make_topic: Callable[..., None], folder: Path
) -> None:
    make_topic(topic)
    slow = rate(spark, ROWS).withColumn("value", slowly()(f.col("value")))
    for turn in range(6):
        query = start_stream(slow, broker.bootstrap_servers, topic, folder, **ONCE)
        before = arrived(broker, topic)
        wait_for(lambda: arrived(broker, topic) > before, "records of a batch")  # noqa: B023
        time.sleep(0.13 * turn)  # before, during and after the commit
        query.stop()
        assert query.exception() is None
    finish(slow, broker, topic, folder)
    assert_each_once(broker, topic, folder)


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_broker_that_stops_at_the_commit(spark: Any, topic: str, folder: Path, how: str) -> None:
    pausing.register(spark)
    with own_broker() as broker:
        asyncio.run(broker.create_topic(topic, 3))
        frame = rate(spark, ROWS)
        finish(frame, broker, topic, folder)
        done = commits(folder)
        query = (
            frame.writeStream.format("aiokprod-pausing")
            .option("kafka.bootstrap.servers", broker.bootstrap_servers)
            .option("topic", topic)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .options(**ONCE)
            .option("queryName", f"{done}:{folder}")
            .start()
        )
        wait_for(
            lambda: (folder / "at-commit").exists() or not query.isActive, "the commit", SECONDS
        )
        asyncio.run(broker.kill(1) if how == "kill" else broker.pause(1))
        (folder / "go").touch()
        time.sleep(4)
        asyncio.run(broker.restart(1) if how == "kill" else broker.resume(1))
        wait_for(
            lambda: commits(folder) > done or not query.isActive, "the end of the batch", SECONDS
        )
        query.stop()
        finish(frame, broker, topic, folder)
        assert_each_once(broker, topic, folder)


@contextlib.contextmanager
def own_broker() -> Any:
    cluster = KafkaCluster(1, config={"log.retention.ms": "-1"})
    cluster.start_blocking()
    try:
        yield cluster
    finally:
        cluster.stop_blocking()


def test_triggers_that_change_between_and_after_crashes(
    spark: Any, broker: KafkaCluster, topic: str, make_topic: Callable[..., None], folder: Path
) -> None:
    make_topic(topic)
    crashing.register(spark)
    frame = rate(spark, ROWS)
    triggers: list[dict[str, Any]] = [
        {"availableNow": True}, {"processingTime": "0 seconds"}, {"once": True},
        {"processingTime": "3 seconds"},
    ]  # fmt: skip
    for turn, trigger in enumerate(triggers):
        finish(frame, broker, topic, folder)
        writer = frame.writeStream.format("aiokprod-crashing").options(
            **{"kafka.bootstrap.servers": broker.bootstrap_servers}, topic=topic, **ONCE,
            checkpointLocation=str(folder / "checkpoint"),
            queryName=f"{commits(folder)}:{['before EndTxn', 'after 1 EndTxn'][turn % 2]}",
        )  # fmt: skip
        query = writer.trigger(**trigger).start()
        wait_for(lambda: not query.isActive, "the crash", SECONDS)  # noqa: B023
        assert "crash on purpose" in str(query.exception())
        query = (
            frame.writeStream.format("aiokprod")
            .options(**{"kafka.bootstrap.servers": broker.bootstrap_servers}, topic=topic, **ONCE,
                     checkpointLocation=str(folder / "checkpoint"))
            .trigger(**triggers[(turn + 1) % len(triggers)])
            .start()
        )  # fmt: skip
        goal = commits(folder) + 1
        wait_for(lambda: commits(folder) >= goal or not query.isActive, "a batch", SECONDS)  # noqa: B023
        assert query.exception() is None
        query.stop()
    finish(frame, broker, topic, folder)
    assert_each_once(broker, topic, folder)


def test_two_queries_with_one_prefix_do_not_touch_each_other(
    spark: Any, broker: KafkaCluster, topic: str, make_topic: Callable[..., None], folder: Path
) -> None:
    """Each query has its own checkpoint, so the query ids differ."""
    folders = [folder / "one", folder / "two"]
    topics = [f"{topic}-1", f"{topic}-2"]
    for name in topics:
        make_topic(name)
    frame = rate(spark, ROWS)
    queries = [
        start_stream(frame, broker.bootstrap_servers, name, where, **ONCE)
        for name, where in zip(topics, folders, strict=True)
    ]
    wait_for(lambda: all(commits(where) >= 4 for where in folders), "four batches of both", SECONDS)
    for query in queries:
        assert query.exception() is None
        query.stop()
    for name, where in zip(topics, folders, strict=True):
        finish(frame, broker, name, where)
        assert_each_once(broker, name, where)


def test_copied_checkpoint_doubles_nothing(
    spark: Any, broker: KafkaCluster, topic: str, make_topic: Callable[..., None], folder: Path
) -> None:
    """For Kafka, the original and the copy are the same query. A batch that the other one has
    written is skipped. It is rejected if the other one has written a later batch."""
    make_topic(topic)
    frame = rate(spark, ROWS)
    finish(frame, broker, topic, folder)
    copy = folder / "copy"
    shutil.copytree(folder / "checkpoint", copy / "checkpoint")
    for where in (folder, copy, copy, folder, copy, copy):
        finish(frame, broker, topic, where)
    query = start_stream(frame, broker.bootstrap_servers, topic, folder, finish=True, **ONCE)
    wait_for(lambda: not query.isActive, "the refusal", SECONDS)
    assert "the checkpoint was rolled back" in str(query.exception())
    assert_each_once(broker, topic, copy)


def test_schema_that_changes_is_taken_between_batches_and_refused_in_a_replay(
    spark: Any, broker: KafkaCluster, topic: str, make_topic: Callable[..., None], folder: Path
) -> None:
    make_topic(topic)
    crashing.register(spark)
    frame = rate(spark, ROWS)
    header = f.array(f.struct(f.lit("h").alias("key"), f.col("key").cast("binary").alias("value")))
    wider = frame.withColumn("headers", header)
    finish(frame, broker, topic, folder)
    finish(wider, broker, topic, folder)
    query = (
        wider.writeStream.format("aiokprod-crashing")
        .options(**{"kafka.bootstrap.servers": broker.bootstrap_servers}, topic=topic, **ONCE,
                 checkpointLocation=str(folder / "checkpoint"),
                 queryName=f"{commits(folder)}:after 1 EndTxn")
        .start()
    )  # fmt: skip
    wait_for(lambda: not query.isActive, "the crash", SECONDS)
    for other in (frame, wider.withColumn("timestamp", f.lit(0).cast("timestamp"))):
        query = start_stream(other, broker.bootstrap_servers, topic, folder, finish=True, **ONCE)
        wait_for(lambda: not query.isActive, "the refusal", SECONDS)  # noqa: B023
        assert "NonDeterministicReplay" in str(query.exception())
    finish(wider, broker, topic, folder)
    assert_each_once(broker, topic, folder)
    with_headers = sum(bool(one.headers) for one in read_back(broker.bootstrap_servers, topic))
    assert 0 < with_headers < commits(folder) * ROWS


def test_foreach_batch_that_fails_after_the_write(
    spark: Any, broker: KafkaCluster, topic: str, make_topic: Callable[..., None], folder: Path
) -> None:
    """The batch is in Kafka when the function fails, so Spark replays it."""
    make_topic(topic)
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": topic} | ONCE
    write = foreach_batch(options)

    def failing(frame: Any, batch: int) -> None:
        write(frame, batch)
        if batch == 1 and not (folder / "failed").exists():
            (folder / "failed").touch()
            raise RuntimeError("after the write")

    for _ in range(4):
        query = (
            rate(spark, ROWS)
            .writeStream.foreachBatch(failing)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        wait_for(lambda: not query.isActive, "the end", SECONDS)  # noqa: B023
    assert (folder / "failed").exists()
    assert commits(folder) >= 3
    assert_each_once(broker, topic, folder)


DRIVER = textwrap.dedent(
    """
    import sys, time
    from pyspark.sql import functions as f
    from tests.spark.integration.conftest import session_of
    from tests.spark.integration.spark_helpers import numbers, sink

    spark = session_of()

    @f.udf("binary")
    def hangs(key):
        if int(key) == 99_999:
            time.sleep(600)
        return key

    frame = numbers(spark, 100_000, 2).withColumn("key", hangs(f.col("key")))
    sink(frame, sys.argv[1], sys.argv[2], delivery="transactional",
         transactionalIdPrefix="dead").save()
    """
)


def test_next_run_of_a_job_ends_what_its_killed_driver_left_open(
    spark: Any, broker: KafkaCluster, topic: str, make_topic: Callable[..., None]
) -> None:
    """Otherwise readers would wait for the transaction timeout, 15 minutes."""
    make_topic(topic)
    servers = broker.bootstrap_servers
    environment = dict(os.environ, PYSPARK_PYTHON=sys.executable, PYTHONPATH=str(ROOT))
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, servers, topic], cwd=ROOT, env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        wait_for(
            lambda: arrived(broker, topic) > 1000 or driver.poll() is not None, "records", SECONDS
        )
        assert driver.poll() is None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    time.sleep(2)
    assert not stable(servers, topic), "the dead driver's transactions are open"
    started = time.monotonic()
    once = {"delivery": "transactional", "transactionalIdPrefix": "dead"}
    sink(numbers(spark, 1000), servers, topic, **once).save()
    wait_for(lambda: stable(servers, topic), "readers", 60)
    assert time.monotonic() - started < 600, "the timeout of the transactions is 900 s"
    assert_numbers(read_back(servers, topic), 1000)


def test_transaction_timeout_longer_than_the_brokers_allow_is_refused_before_any_task(
    spark: Any, broker: KafkaCluster, topic: str, make_topic: Callable[..., None]
) -> None:
    make_topic(topic)
    job = sink(
        numbers(spark, 10), broker.bootstrap_servers, topic, delivery="transactional",
        transactionalIdPrefix="long", kafka__transaction__timeout__ms=1_000_000,
    )  # fmt: skip
    with pytest.raises(PySparkException) as caught:
        job.save()
    text = str(caught.value)
    assert "option 'kafka.transaction.timeout.ms' is 1000000, the brokers allow 900000" in text
    assert "nothing was sent" in text


BATCHES = int(os.environ.get("AIOKPROD_SPARK_BATCHES", "150"))
"""Number of batches. The acceptance run has 1000."""


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_many_batches_leave_nothing_behind(
    spark: Any, broker: KafkaCluster, topic: str, make_topic: Callable[..., None], folder: Path,
    delivery: str,
) -> None:  # fmt: skip
    """The test checks memory, descriptors and threads of the Python processes, and open
    transactions."""
    make_topic(topic)
    once = ONCE if delivery == "exactly_once" else {"delivery": delivery}
    query = start_stream(rate(spark, 100), broker.bootstrap_servers, topic, folder, **once)
    warm = BATCHES // 3
    wait_for(lambda: commits(folder) >= warm or not query.isActive, "warm-up", 600)
    before = python_workers()
    wait_for(lambda: commits(folder) >= BATCHES or not query.isActive, "all batches", 3600)
    after = python_workers()
    assert query.exception() is None
    query.stop()
    print(delivery, "before", before, "after", after)
    kept = before.keys() & after.keys()
    assert kept, "workers are reused"
    for pid in kept:
        memory, descriptors, threads = (
            now - then for now, then in zip(after[pid], before[pid], strict=True)
        )
        assert memory < 12 * 2**20, (pid, before[pid], after[pid])
        assert descriptors <= 4, (pid, before[pid], after[pid])
        assert threads <= 2, (pid, before[pid], after[pid])
    if delivery == "exactly_once":
        finish(rate(spark, 100), broker, topic, folder)
        assert_each_once(broker, topic, folder, 100)


def python_workers() -> dict[int, tuple[int, int, int]]:
    """Return resident bytes, open descriptors and threads of Spark's Python processes, by pid."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The JVM's command line does not contain this text.
            if b"pyspark.daemon" not in (entry / "cmdline").read_bytes():
                continue
            if not descends(int(entry.name)):
                continue
            pages = int((entry / "statm").read_text().split()[1])
            found[int(entry.name)] = (
                pages * os.sysconf("SC_PAGE_SIZE"),
                len(list((entry / "fd").iterdir())),
                len(list((entry / "task").iterdir())),
            )
    return found


def descends(pid: int) -> bool:
    """Return True for direct and indirect child processes of this process."""
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if pid == os.getpid():
            return True
    return False
