"""Checks 1 and 21 on a standalone cluster with two workers: batch, stream and exactly once, and a
second task attempt that runs in parallel to the first."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from aiokprod.testing.kafka_cluster import KafkaCluster
from tests.spark.integration.conftest import ROOT
from tests.spark.integration.spark_helpers import assert_numbers, read_back
from tests.spark.integration.standalone import standalone
from tests.spark.integration.test_checks_api import expected_of, rows_of_all_kinds, seen

PROGRAM = textwrap.dedent(
    """
    import json, sys
    from pathlib import Path
    from tests.spark.integration.conftest import session_of
    from tests.spark.integration.spark_helpers import (
        ALL_COLUMNS, commits, numbers, rate, sink, start_stream, wait_for)
    from tests.spark.integration.test_checks_api import rows_of_all_kinds

    servers, topic, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    spark = session_of(spark__executor__memory="512m")
    executors = lambda: spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()
    wait_for(lambda: executors() == 3, "two executors and the driver")
    rows = rows_of_all_kinds(topic)
    sink(spark.createDataFrame(rows, ALL_COLUMNS), servers, None).save()
    sink(numbers(spark, 5000, 4), servers, topic + "-batch", reportPath=folder / "reports").save()
    once = {"delivery": "exactly_once", "transactionalIdPrefix": "sa"}
    query = start_stream(rate(spark), servers, topic + "-stream", folder, **once)
    wait_for(lambda: commits(folder) >= 3, "three batches", 120)
    query.stop()
    query = start_stream(rate(spark), servers, topic + "-stream", folder, finish=True, **once)
    assert query.awaitTermination(120)
    spark.stop()
    """
)


SPECULATION = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from pyspark.sql import functions as f
    from tests.spark.integration.conftest import session_of
    from tests.spark.integration.spark_helpers import sink, wait_for

    servers, topic, folder = sys.argv[1:]
    spark = session_of(
        spark__executor__memory="512m",
        spark__speculation="true",
        spark__speculation__interval="100ms",
        spark__speculation__quantile="0.5",
        spark__speculation__multiplier="1.1",
        spark__sql__execution__arrow__maxRecordsPerBatch="100",
    )
    executors = lambda: spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()
    wait_for(lambda: executors() == 3, "two executors and the driver")

    @f.udf("string")
    def slow_at_first(value):
        import time
        from pathlib import Path
        from pyspark import TaskContext

        if int(value) == 3900:
            attempts = Path(folder) / f"attempt-{TaskContext.get().taskAttemptId()}"
            attempts.touch()
            if len(list(Path(folder).glob("attempt-*"))) == 1:
                time.sleep(120)
        return value + 1000 * "."  # more than any buffer between the UDF and the sink

    number = f.col("id").cast("string")
    frame = spark.range(0, 4000, 1, 4).select(
        number.alias("key"), slow_at_first(number).alias("value"))
    sink(frame, servers, topic).save()
    spark.stop()
    """
)


def run_on_two_hosts(program: str, *arguments: str, hosts: tuple[str, str]) -> None:
    with standalone(hosts) as url:
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            cwd=ROOT, env=dict(os.environ, AIOKPROD_SPARK_MASTER=url, PYTHONPATH=str(ROOT)),
            capture_output=True, text=True, timeout=240,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_check_21_second_attempt_beside_the_first_loses_nothing(
    broker: KafkaCluster, topic: str, make_topic: Callable[..., None], folder: Path
) -> None:
    """Spark starts the second attempt only on another host."""
    make_topic(topic)
    servers = broker.bootstrap_servers
    run_on_two_hosts(SPECULATION, servers, topic, str(folder), hosts=("127.0.0.1", "127.0.0.2"))
    assert len(list(folder.glob("attempt-*"))) == 2
    records = read_back(servers, topic)
    assert_numbers(records, 4000, exactly=False)
    assert len(records) > 4000, "the first attempt wrote nothing"


@pytest.mark.slow
def test_check_01_standalone_cluster(
    broker: KafkaCluster, topic: str, make_topic: Callable[..., None], folder: Path
) -> None:
    make_topic(topic)
    servers = broker.bootstrap_servers
    run_on_two_hosts(PROGRAM, servers, topic, str(folder), hosts=("127.0.0.1", "127.0.0.1"))
    assert seen(read_back(servers, topic)) == expected_of(rows_of_all_kinds(topic))
    assert_numbers(read_back(servers, topic + "-batch"), 5000)
    records = read_back(servers, topic + "-stream")
    assert len(records) >= 1500
    assert_numbers(records, len(records))
