"""Checks 12 and 13 with three real brokers behind a faulty network: leaders move, and connections
are reset."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import functions as f

from tests.chaos.cluster import ChaosCluster
from tests.spark.integration.spark_helpers import arrived, numbers, read_back, sink, wait_for

pytestmark = pytest.mark.slow

PARTITIONS = 3


@pytest.fixture(scope="module")
def three() -> Iterator[ChaosCluster]:
    cluster = ChaosCluster(3)
    cluster.start_blocking()
    try:
        yield cluster
    finally:
        cluster.stop_blocking()


def meanwhile(cluster: ChaosCluster, topic: str, act: Callable[[], None], job: Any) -> int:
    """Repeat `act` from the job's first record in Kafka until the job ends. Return the number of
    repetitions."""
    over = threading.Event()
    told: list[int | BaseException] = []

    def work() -> None:
        times = 0
        try:
            wait_for(lambda: arrived(cluster, topic), "first records")
            while not over.is_set():
                act()
                times += 1
            told.append(times)
        except BaseException as error:
            told.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        job.save()
    finally:
        over.set()
        thread.join(90)
    assert len(told) == 1
    if isinstance(told[0], BaseException):
        raise told[0]
    return told[0]


def test_check_12_leaders_that_move_lose_nothing(
    spark: Any, three: ChaosCluster, topic: str
) -> None:
    asyncio.run(three.create_topic(topic, PARTITIONS))
    moved: set[tuple[int, int]] = set()
    turn = 0

    def move() -> None:
        nonlocal turn
        turn += 1
        nodes = [*three.node_ids[turn % 3 :], *three.node_ids[: turn % 3]]
        asyncio.run(three.reassign(topic, dict.fromkeys(range(PARTITIONS), nodes)))
        asyncio.run(three.elect_preferred(topic, range(PARTITIONS)))
        for partition in range(PARTITIONS):
            moved.add((partition, asyncio.run(three.leader_of(topic, partition))))
        time.sleep(0.3)

    rows = 3_000_000
    meanwhile(three, topic, move, sink(numbers(spark, rows), three.bootstrap_servers, topic))
    assert all(sum(one == number for one, _ in moved) >= 2 for number in range(PARTITIONS)), moved
    records = read_back(three.bootstrap_servers, topic)
    assert len({record.key for record in records}) == rows
    assert len(records) == rows  # idempotence: a retried request causes no duplicate


def test_check_13_resets_on_the_wire_double_nothing_and_keep_order(
    spark: Any, three: ChaosCluster, topic: str
) -> None:
    asyncio.run(three.create_topic(topic, PARTITIONS))
    rows = 2_000_000
    frame = spark.range(0, rows, 1, 2).select(
        (f.col("id") % 100).cast("string").alias("key"),
        f.concat_ws("/", f.spark_partition_id(), f.col("id")).alias("value"),
    )
    links = [f"client-{node}" for node in three.node_ids]

    def reset() -> None:
        three.network.reset(*links)
        time.sleep(0.3)

    assert meanwhile(three, topic, reset, sink(frame, three.proxied_servers, topic)) >= 5
    records = read_back(three.bootstrap_servers, topic)
    assert len(records) == rows
    last: dict[tuple[bytes | None, bytes], int] = {}
    for record in sorted(records, key=lambda one: (one.partition, one.offset)):
        task, number = (record.value or b"").split(b"/")
        assert last.get((record.key, task), -1) < int(number)
        last[record.key, task] = int(number)
