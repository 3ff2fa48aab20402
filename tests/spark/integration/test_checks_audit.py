"""Check 28: the audit finds errors in a topic. `python -m benchmarks.spark` measures its speed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as f

from aiokprod.spark import audit_jobs as jobs
from aiokprod.testing.kafka_cluster import KafkaCluster
from tests.spark.integration.spark_helpers import sink

pytestmark = pytest.mark.slow

ROWS = 1_000_000
SPOILT = 100_000


def expected(spark: Any, rows: int) -> Any:
    """Return rows with an id (text) and a value of 100 bytes. Each Spark partition has one Kafka
    partition, in order."""
    return spark.range(0, rows, 1, 2).select(
        f.col("id").cast("string").alias("id"),
        f.expr("cast(rpad(cast(id as string), 100, 'x') as binary)").alias("value"),
        f.spark_partition_id().alias("partition"),
        f.col("id").alias("seq"),
    )


def options(broker: KafkaCluster, topic: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": topic}


def read(spark: Any, broker: KafkaCluster, topic: str, **more: object) -> Any:
    log = jobs.read_log(spark, options(broker, topic), **more)
    id_ = f.col("key").cast("string")
    return log.withColumn("id", id_).withColumn("seq", id_.cast("long"))


def found(spark: Any, broker: KafkaCluster, topic: str, rows: int) -> dict[str, list[Any]]:
    want = expected(spark, rows)
    log = read(spark, broker, topic)
    return {
        "loss": [row.id for row in jobs.loss(want, log).collect()],
        "duplicates": [(r.id, r.copies, r.producers) for r in jobs.duplicates(log).collect()],
        "order": [row.id for row in jobs.order(log, task="producerId", seq="seq").collect()],
        "integrity": [row.id for row in jobs.integrity(want, log).collect()],
    }


def test_check_28_clean_topic_has_no_findings(
    spark: Any, broker: KafkaCluster, topic: str, make_topic: Callable[..., None], folder: Path
) -> None:
    make_topic(topic, 2)
    rows = expected(spark, 50_000).select(f.col("id").alias("key"), "value", "partition")
    sink(rows, broker.bootstrap_servers, topic, reportPath=folder).save()
    assert found(spark, broker, topic, 50_000) == {
        "loss": [], "duplicates": [], "order": [], "integrity": [],
    }  # fmt: skip
    log = read(spark, broker, topic, values="false", headers="false")
    assert jobs.ranges(spark, str(folder), log).collect() == []
    short = log.where("offset != 7")
    assert len(jobs.ranges(spark, str(folder), short).collect()) == 2
    dirty = read(spark, broker, topic, isolation="read_uncommitted")
    assert jobs.aborted(log, dirty).collect() == []
    assert jobs.aborted_visible(log, dirty).collect() == []


def test_check_28_audit_header_identifies_rows(
    spark: Any, broker: KafkaCluster, topic: str, make_topic: Callable[..., None]
) -> None:
    make_topic(topic, 2)
    rows = spark.range(0, 1000, 1, 2).select(
        f.lit("v").alias("value"),
        f.expr("array(named_struct('key', 'own', 'value', cast('h' as binary)))").alias("headers"),
    )
    sink(rows, broker.bootstrap_servers, topic, auditHeaders="true").save()
    log = jobs.with_audit_id(read(spark, broker, topic).drop("id", "seq"))
    assert log.select("id").distinct().count() == 1000
    places = {(row.task, row.seq) for row in log.select("task", "seq").collect()}
    assert places == {(task, seq) for task in range(2) for seq in range(500)}
    first = log.select("headers").first()["headers"]
    assert [one.key for one in first] == ["own", "akp.id"]
    assert jobs.order(log, task="task", seq="seq").collect() == []


def test_check_28_kept_producers_and_copied_topics_cause_no_findings(
    spark: Any, broker: KafkaCluster, topic: str, make_topic: Callable[..., None]
) -> None:
    """Three jobs run in the same workers. Then a copy of the topic is written with its headers,
    each row twice."""
    copied = f"{topic}-copied"
    for name in (topic, copied):
        make_topic(name, 2)
    source = expected(spark, 3000)
    for job in range(3):
        rows = source.where(f.col("seq") % 3 == job).select(f.col("id").alias("key"), "value")
        sink(rows, broker.bootstrap_servers, topic, auditHeaders="true").save()
    log = read(spark, broker, topic).drop("seq")
    twice = log.withColumn("copy", f.explode(f.array(f.lit(1), f.lit(2))))
    columns = ["key", "value", "partition", "headers"]
    sink(twice.select(columns), broker.bootstrap_servers, copied, auditHeaders="true").save()
    assert jobs.compare(source.select("id", "value"), log).collect() == []
    audited = jobs.with_audit_id(log.drop("id"))
    producers = audited.groupBy("producerId").agg(f.countDistinct("run").alias("jobs"))
    assert producers.agg(f.max("jobs")).first()[0] > 1, "a producer was kept for another job"
    for records, rows in ((audited, 3000), (jobs.with_audit_id(read(spark, broker, copied)), 6000)):
        assert jobs.duplicates(records).collect() == []
        assert jobs.order(records).collect() == []
        assert records.select("id").distinct().count() == records.count() == rows
    copy = read(spark, broker, copied)
    assert jobs.compare(twice.select("id", *columns), copy).collect() == []
    assert jobs.loss(twice.select("id"), copy).collect() == []
    assert jobs.duplicates(copy, expected=twice).collect() == []
    assert jobs.integrity(twice.select("id", *columns), copy).collect() == []


@pytest.mark.slow
def test_check_28_planted_faults_in_a_million_are_found(
    spark: Any, broker: KafkaCluster, topic: str, make_topic: Callable[..., None]
) -> None:
    """One record is lost, one duplicated, one swapped and one corrupted."""
    make_topic(topic, 2)
    rows = expected(spark, ROWS).select(f.col("id").alias("key"), "value", "partition")
    number = f.col("key").cast("long")
    at = SPOILT
    moved = f.when(number == at, at + 1).when(number == at + 1, at).otherwise(number)
    rows = (
        rows.where(number != 1)
        .withColumn("copies", f.when(number == 5, f.array(f.lit(1), f.lit(2)))
                    .otherwise(f.array(f.lit(1))))
        .withColumn("copy", f.explode("copies"))
        .withColumn("key", moved.cast("string"))
        .withColumn("value", f.expr("cast(rpad(key, 100, if(key = '9', 'y', 'x')) as binary)"))
        .select("key", "value", "partition")
    )  # fmt: skip
    sink(rows, broker.bootstrap_servers, topic).save()
    assert found(spark, broker, topic, ROWS) == {
        "loss": ["1"],
        "duplicates": [("5", 2, 1)],
        "order": [str(at)],
        "integrity": ["9"],
    }
    log = jobs.read_log(spark, options(broker, topic))
    assert log.select(f.sum(f.length("value"))).first()[0] == 100 * ROWS
