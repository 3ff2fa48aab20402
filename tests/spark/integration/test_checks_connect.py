"""Check 4: Spark Connect with a local server: batch, stream, and foreach_batch with
exactly_once."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from aiokprod.testing.kafka_cluster import KafkaCluster
from tests.spark.integration.conftest import ROOT
from tests.spark.integration.spark_helpers import assert_numbers, read_back

PROGRAM = textwrap.dedent(
    """
    import sys, time
    from pathlib import Path
    from pyspark.sql import SparkSession, functions as f
    from aiokprod.spark import foreach_batch, register
    from tests.spark.integration.spark_helpers import commits, rate, start_stream, wait_for

    servers, topic, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    spark = SparkSession.builder.remote("local[2]").config(
        "spark.sql.shuffle.partitions", "2").getOrCreate()
    register(spark)
    options = {"kafka.bootstrap.servers": servers}

    frame = spark.range(0, 1000, 1, 2).select(
        f.col("id").cast("string").alias("key"), f.lit("v").alias("value"))
    frame.write.format("aiokprod").mode("append").options(topic=topic, **options).save()

    once = {"delivery": "exactly_once", "transactionalIdPrefix": "c"}
    query = start_stream(rate(spark), servers, topic + "-stream", folder / "stream", **once)
    wait_for(lambda: commits(folder / "stream") >= 3, "three batches", 90)
    query.stop()
    # In the middle of a batch, perhaps: what is due is finished, so that nothing stays open.
    query = start_stream(
        rate(spark), servers, topic + "-stream", folder / "stream", finish=True, **once)
    assert query.awaitTermination(90)

    write = foreach_batch(dict(options, topic=topic + "-each", **once), query_id="each")
    updates = rate(spark).groupBy("key").count().select(
        "key", f.col("count").cast("string").alias("value"))
    each = (updates.writeStream.outputMode("update").foreachBatch(write)
            .option("checkpointLocation", str(folder / "each" / "checkpoint")))
    query = each.start()
    wait_for(lambda: commits(folder / "each") >= 3, "three batches", 90)
    query.stop()
    assert each.trigger(availableNow=True).start().awaitTermination(90)
    print("DONE", commits(folder / "stream"), commits(folder / "each"))
    spark.stop()
    """
)


@pytest.mark.slow
def test_check_04_spark_connect(broker: KafkaCluster, topic: str, folder: Path) -> None:
    servers = broker.bootstrap_servers
    environment = dict(os.environ, PYSPARK_PYTHON=sys.executable, PYTHONPATH=str(ROOT))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, servers, topic, str(folder)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert "DONE" in done.stdout, done.stderr[-3000:]
    assert_numbers(read_back(servers, topic), 1000)
    for name in ("-stream", "-each"):
        records = read_back(servers, topic + name)
        assert len(records) >= 1500
        assert_numbers(records, len(records))
