"""Helpers of the acceptance checks: DataFrames, streams, and an independent client that reads
topics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from aiokprod.testing.kafka_cluster import KafkaCluster

ALL_COLUMNS = (
    "key binary, value binary, topic string, partition int, timestamp timestamp, "
    "headers array<struct<key:string,value:binary>>"
)


class Read(NamedTuple):
    """One record as received by an independent consumer."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...]


def read_back(servers: str, topic: str, *, committed: bool = True) -> list[Read]:
    """Read all current records of a topic with confluent-kafka."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "auto.offset.reset": "earliest",
        }
    )
    try:
        metadata = consumer.list_topics(topic, timeout=10).topics[topic]
        places = [TopicPartition(topic, number, OFFSET_BEGINNING) for number in metadata.partitions]
        consumer.assign(places)
        open_ones = {place.partition for place in places}
        found = []
        give_up = time.monotonic() + 60
        while open_ones:
            assert time.monotonic() < give_up, f"{topic}: partitions {open_ones} do not end"
            for message in consumer.consume(10_000, timeout=0.5):
                if message.error() is not None:
                    assert message.error().name() == "_PARTITION_EOF", message.error()
                    open_ones.discard(message.partition())
                    continue
                found.append(_read(message))
        return found
    finally:
        consumer.close()


def _read(message: Any) -> Read:
    return Read(
        message.partition(), message.offset(), message.key(), message.value(),
        message.timestamp()[1], tuple(message.headers() or ()),
    )  # fmt: skip


def numbers(spark: SparkSession, count: int, parts: int = 2, *, start: int = 0) -> DataFrame:
    """Return rows whose key is their number and whose value is derived from the number."""
    return spark.range(start, start + count, 1, parts).select(
        f.col("id").cast("string").cast("binary").alias("key"),
        f.expr("cast(concat('v', cast(id as string), ':', repeat('x', 80)) as binary)").alias(
            "value"
        ),
    )


def sink(frame: DataFrame, servers: str, topic: str | None, **options: object) -> Any:
    """Return a configured batch writer."""
    writer = frame.write.format("aiokprod").mode("append")
    writer = writer.option("kafka.bootstrap.servers", servers)
    if topic is not None:
        writer = writer.option("topic", topic)
    return writer.options(**{key.replace("__", "."): str(v) for key, v in options.items()})


def rate(spark: SparkSession, rows: int = 500, parts: int = 2) -> DataFrame:
    """Return an endless stream of numbers. A batch has the same numbers in every run."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
    return (
        source.option("numPartitions", parts)
        .load()
        .select(
            f.col("value").cast("string").alias("key"), f.col("value").cast("string").alias("value")
        )
    )


def start_stream(
    frame: DataFrame,
    servers: str,
    topic: str,
    folder: Path,
    *,
    finish: bool = False,
    **options: object,
) -> Any:
    """Start a streaming query that writes to a topic, with its checkpoint in `folder`.

    With `finish` the query processes the available rows and ends. Unlike a stop during a batch,
    this leaves no transaction open.
    """
    writer = frame.writeStream.format("aiokprod").option("kafka.bootstrap.servers", servers)
    writer = writer.option("topic", topic).option("checkpointLocation", str(folder / "checkpoint"))
    writer = writer.options(**{key.replace("__", "."): str(v) for key, v in options.items()})
    if finish:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime="0 seconds").start()


def wait_for(done: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    """Poll until the condition is true."""
    give_up = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < give_up, f"waited {seconds} s for {what}"
        time.sleep(0.05)


def arrived(broker: KafkaCluster, topic: str) -> int:
    """Return the number of records in a topic, including records that readers cannot see yet.

    The number is also correct while records arrive faster than they could be read.
    """
    return sum(asyncio.run(broker.end_offsets(topic)).values())


def ends(servers: str, topic: str, *, committed: bool) -> dict[int, int]:
    """Return the end offset of each partition with records, for readers of one isolation level."""
    from aiokprod.spark.audit_reader import AuditReader
    from aiokprod.spark.options import SealedOptions

    isolation = "read_committed" if committed else "read_uncommitted"
    options = {"kafka.bootstrap.servers": servers, "topic": topic, "isolation": isolation}
    return {one.partition: one.end for one in AuditReader(SealedOptions(options)).partitions()}


def stable(servers: str, topic: str) -> bool:
    """Return True if no open transaction blocks readers."""
    return ends(servers, topic, committed=True) == ends(servers, topic, committed=False)


def batches_done(query: Any) -> int:
    """Return the number of the last finished batch plus 1."""
    progress = query.lastProgress
    return 0 if progress is None else int(progress["batchId"]) + 1


def commits(folder: Path) -> int:
    """Return the number of batches in Spark's own commit log of a checkpoint."""
    return len([one for one in (folder / "checkpoint" / "commits").glob("[0-9]*")])


def assert_numbers(records: list[Read], count: int, *, exactly: bool = True) -> None:
    """Check that the keys are the numbers below `count`, each at least once, and with `exactly`
    only once."""
    keys = [int(record.key or b"") for record in records]
    assert set(keys) == set(range(count)), (
        f"lost {sorted(set(range(count)) - set(keys))[:10]}, "
        f"extra {sorted(set(keys) - set(range(count)))[:10]}"
    )
    if exactly:
        assert len(keys) == count, f"{len(keys) - count} duplicates"
