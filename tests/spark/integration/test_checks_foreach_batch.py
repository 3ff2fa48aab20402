"""foreach_batch in a classic session: output mode update, at least once and exactly once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as f

from aiokprod.spark import foreach_batch
from aiokprod.testing.kafka_cluster import KafkaCluster
from tests.spark.integration.spark_helpers import assert_numbers, commits, rate, read_back, wait_for

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_foreach_batch_in_update_mode(
    spark: Any, broker: KafkaCluster, topic: str, folder: Path, delivery: str
) -> None:
    options = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "topic": topic,
        "delivery": delivery,
    }
    if delivery == "exactly_once":
        options["transactionalIdPrefix"] = "fb"
    counts = rate(spark).groupBy("key").count()
    query = (
        counts.select("key", f.col("count").cast("string").alias("value"))
        .writeStream.outputMode("update")
        .foreachBatch(foreach_batch(options))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    wait_for(lambda: commits(folder) >= 3 or not query.isActive, "three batches", 90)
    assert query.exception() is None
    query.stop()
    records = read_back(broker.bootstrap_servers, topic)
    assert len(records) >= 1500
    assert_numbers(records, len(records), exactly=delivery == "exactly_once")
