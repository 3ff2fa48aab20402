"""Writes 336,776 flights with Spark to three Kafka nodes, kills a stream, and audits the topics.

    make spark-demo

1. Read and clean the flights, and write one record per flight (batch, delivery=transactional).
2. Aggregate by carrier and hour, and write the aggregates (batch, at least once).
3. Stream the twelve months file by file, exactly once. The driver is killed with SIGKILL in the
   middle and started again from its checkpoint.
4. Audit all topics for lost, duplicated and changed records.
5. Plot the records per partition and the batches of the stream: spark-demo.png.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from aiokprod.testing.kafka_cluster import KafkaCluster
from examples.spark import pipeline

ROOT = Path(__file__).parents[2]
TOPICS = {"flights": 6, "carrier-hours": 3, "flights-stream": 6}
KILL_AFTER = 4
"""Number of finished batches (months) before the driver is killed."""


def session(name: str) -> Any:
    """Return a local Spark session with both formats."""
    from pyspark.sql import SparkSession

    from aiokprod.spark import register

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1500m")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    register(spark)
    return spark


def stream(servers: str, work: Path) -> None:
    """Run the streaming program until all months have been written."""
    spark = session("flights-stream")
    months = (
        spark.readStream.schema(pipeline.SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(work / "source"))
    )
    query = (
        pipeline.records(pipeline.clean(months))
        .writeStream.format("aiokprod")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", "flights-stream")
        .option("delivery", "exactly_once")
        .option("transactionalIdPrefix", "spark-demo")
        .option("reportPath", str(work / "reports"))
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


def commits(work: Path) -> int:
    return len(list((work / "checkpoint" / "commits").glob("[0-9]*")))


def run_stream(servers: str, work: Path, kill_after: int | None) -> float:
    """Run the streaming program, and kill it after a number of batches if given. Return the Unix
    time of its end."""
    command = [sys.executable, "-m", "examples.spark.demo", "--stream", servers, str(work)]
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    try:
        while process.poll() is None:
            if kill_after is not None and commits(work) >= kill_after:
                break
            time.sleep(0.02)
        else:
            assert process.returncode == 0, "the stream failed"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return time.time()


def batch(spark: Any, servers: str, work: Path) -> dict[str, Any]:
    """Run steps 1 and 2. Return the DataFrame that each topic should contain."""
    flights = pipeline.clean(spark.read.schema(pipeline.SCHEMA).parquet(str(work / "source")))
    wanted = {
        "flights": pipeline.records(flights),
        "carrier-hours": pipeline.by_carrier_and_hour(flights),
    }
    for topic, frame in wanted.items():
        writer = frame.write.format("aiokprod").mode("append").option("topic", topic)
        writer = writer.option("kafka.bootstrap.servers", servers)
        if topic == "flights":
            writer = writer.option("delivery", "transactional")
            writer = writer.option("transactionalIdPrefix", "spark-demo-batch")
        writer.option("reportPath", str(work / "reports")).save()
    wanted["flights-stream"] = wanted["flights"]
    return wanted


def audit(spark: Any, servers: str, wanted: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Run step 4. Return the findings and the number of records per partition, by topic."""
    from pyspark.sql import functions as f

    from aiokprod.spark import audit_jobs as jobs

    found = {}
    for topic, frame in wanted.items():
        options = {"kafka.bootstrap.servers": servers, "topic": topic}
        own = "get_json_object(cast(value as string), '$.id')"
        ident = f.expr(own if topic != "carrier-hours" else "cast(key as string)")
        log = jobs.read_log(spark, options).withColumn("id", ident).cache()
        expected = frame.withColumn("id", ident)
        expected = expected.withColumn("value", f.col("value").cast("binary"))
        found[topic] = {
            "expected": expected.count(),
            "records": log.count(),
            "lost": jobs.loss(expected, log).count(),
            "twice": jobs.duplicates(log).count(),
            "changed": jobs.integrity(expected, log).count(),
        } | {
            f"partition {row.partition}": row["count"]
            for row in log.groupBy("partition").count().orderBy("partition").collect()
        }
        log.unpersist()
    return found


def draw(work: Path, found: dict[str, dict[str, int]], killed: float, target: Path) -> None:
    """Run step 5: plot the records per partition, and the batches of the stream over time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    lines = (work / "reports" / "aiokprod-report.jsonl").read_text().splitlines()
    told = [one for one in map(json.loads, lines) if one["batch_id"] is not None]
    batches = list({one["batch_id"]: one for one in told}.values())  # a replay has two reports
    figure, (where, when) = plt.subplots(1, 2, figsize=(13, 5), width_ratios=[3, 2])
    left = 0
    for topic, numbers in found.items():
        parts = [(k.split()[1], v) for k, v in numbers.items() if k.startswith("partition")]
        places = range(left, left + len(parts))
        where.bar(places, [count for _, count in parts], label=(
            f"{topic}: {numbers['records']:,} records, {numbers['lost']} lost, "
            f"{numbers['twice']} twice, {numbers['changed']} changed"))  # fmt: skip
        for place, (name, count) in zip(places, parts, strict=True):
            where.text(place, count, f"p{name}", ha="center", va="bottom", fontsize=8)
        left += len(parts) + 1
    where.set_xticks([])
    where.set_ylabel("records in the partition")
    where.set_title("records by topic and partition (read_committed)")
    where.set_ylim(top=where.get_ylim()[1] * 1.3)
    where.legend(loc="upper right", fontsize=8)
    start = batches[0]["time_ms"] / 1000
    times = [one["time_ms"] / 1000 - start for one in batches]
    rows, total = [], 0
    for one in batches:
        total += one["rows"]
        rows.append(total)
    when.step(times, rows, where="post", marker="o")
    for x, y, one in zip(times, rows, batches, strict=True):
        when.annotate(str(one["batch_id"]), (x, y), textcoords="offset points", xytext=(4, -10),
                      fontsize=8)  # fmt: skip
    when.axvline(killed - start, color="tab:red", linestyle="--")
    when.text(
        killed - start, 0.02, " driver killed", color="tab:red",
        transform=when.get_xaxis_transform(),
    )  # fmt: skip
    when.set_ylim(bottom=0)
    when.set_xlabel("seconds")
    when.set_ylabel("rows committed")
    when.set_title("stream, one month a batch (batch number)")
    figure.tight_layout()
    figure.savefig(target, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description="Flights through Spark into Kafka, audited.")
    parser.add_argument("--picture", type=Path, default=Path("spark-demo.png"))
    parser.add_argument("--stream", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stream:
        stream(arguments.stream[0], Path(arguments.stream[1]))
        return 0
    cluster = KafkaCluster(3)
    cluster.start_blocking()
    try:
        return run(cluster, arguments.picture)
    finally:
        cluster.stop_blocking()


def run(cluster: KafkaCluster, picture: Path) -> int:
    """Run all steps on a running cluster. Return 0 if the audit has no findings."""
    servers = cluster.bootstrap_servers
    for topic, partitions in TOPICS.items():
        asyncio.run(cluster.create_topic(topic, partitions=partitions))
    with tempfile.TemporaryDirectory(prefix="spark-demo-") as folder:
        work = Path(folder)
        count = pipeline.write_source(work / "source")
        print(f"{count:,} flights in 12 files", flush=True)
        killed = run_stream(servers, work, KILL_AFTER)
        done = commits(work)
        print(f"stream: driver killed after {done} batches; starting it again", flush=True)
        run_stream(servers, work, None)
        print(f"stream: {commits(work)} batches", flush=True)
        spark = session("flights")
        started = time.perf_counter()
        wanted = batch(spark, servers, work)
        print(f"batch: both topics in {time.perf_counter() - started:.1f} s", flush=True)
        found = audit(spark, servers, wanted)
        spark.stop()
        draw(work, found, killed, picture)
    bad = 0
    for topic, numbers in found.items():
        print(
            f"audit: {topic:15} {numbers['records']:>7,} of {numbers['expected']:,} records, "
            f"{numbers['lost']} lost, {numbers['twice']} twice, {numbers['changed']} changed"
        )
        bad += numbers["lost"] + numbers["twice"] + numbers["changed"]
    print(f"picture: {picture}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
