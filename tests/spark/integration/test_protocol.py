"""Check 17 and related checks without a JVM. The tests call tasks and driver as Spark does, with
real brokers of both transaction protocols, and with crashes at every point.

The other modules test Spark itself. This module is fast enough to cover all points.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Iterator
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import types as t

from aiokprod import GroupMetadata, Producer
from aiokprod.spark import transactional_task
from aiokprod.spark.commit_messages import Prepared
from aiokprod.spark.context import BATCH_ID, QUERY_ID, SPECULATION
from aiokprod.spark.driver_commit import CommitFailed, TransactionEnder
from aiokprod.spark.failures import NonDeterministicReplay, SinkError
from aiokprod.spark.markers import Marker
from aiokprod.spark.options import SinkOptions
from aiokprod.spark.source import AiokprodDataSource
from aiokprod.spark.worker_loop import loop_thread
from aiokprod.spark.writer import AiokprodWriter
from aiokprod.testing.kafka_cluster import KafkaCluster
from tests.spark.integration.spark_helpers import (
    Read,
    assert_numbers,
    ends,
    read_back,
    stable,
    wait_for,
)

SCHEMA = t.StructType(
    [t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())]
)
ROWS = 300
SECONDS = 60.0


class Crash(Exception):
    """Raised on purpose in place of a crash."""


class Query:
    """A streaming query as its writer sees it, with one checkpoint and any number of driver
    processes."""

    def __init__(self, servers: str, **options: str) -> None:
        self.servers = servers
        self.topic = f"p-{uuid.uuid4().hex[:10]}"
        self.id = uuid.uuid4().hex
        self.options = {
            "kafka.bootstrap.servers": servers,
            "topic": self.topic,
            "delivery": "exactly_once",
            "transactionalIdPrefix": "p",
            "preflight": "false",
        } | options

    def writer(self) -> AiokprodWriter:
        """Return a new writer. Spark creates one for planning, and another one for commit and
        abort."""
        return AiokprodDataSource(dict(self.options)).streamWriter(schema=SCHEMA, overwrite=False)

    def task(
        self,
        batch: int,
        partition: int,
        tasks: int,
        *,
        cut: int | None = None,
        attempt: int = 0,
        shift: int = 0,
        then: Callable[[], None] | None = None,
    ) -> Prepared:
        """Run one task attempt with its share of the rows of the batch.

        Args:
            cut: ends the iterator after this many rows.
            shift: replaces the rows by others.
            then: called before the second half of the Arrow batches.
        """
        context = TaskContext.__new__(TaskContext)
        context._partitionId, context._attemptNumber = partition, attempt
        context._localProperties = {BATCH_ID: str(batch), QUERY_ID: self.id}
        TaskContext._taskContext = context
        first = batch * ROWS + shift
        share = list(range(first, first + ROWS))[partition::tasks][:cut]
        rows = list(batches(share))

        def iterator() -> Iterator[pa.RecordBatch]:
            yield from rows[: len(rows) // 2]
            if then is not None:
                then()
            yield from rows[len(rows) // 2 :]

        return cast(Prepared, self.writer().write(iterator()))

    def run(self, batch: int, tasks: int = 3) -> list[Prepared]:
        """Run and commit a complete batch."""
        messages = [self.task(batch, number, tasks) for number in range(tasks)]
        self.writer().commit(messages, batch)
        return messages

    def crash_in_commit(self, messages: list[Prepared], batch: int, ended: int | None) -> None:
        """Simulate the death of a driver after `ended` EndTxn requests, or, with None, before it
        writes its decision."""
        options = SinkOptions.parse(self.options)
        ender = TransactionEnder(options, batch)

        async def some() -> None:
            async with ender._cluster_client() as client:
                deadline = client.loop.time() + SECONDS
                if ended is not None:
                    await ender._decide(client, messages, deadline)
                    await ender._end_all(client, messages[:ended], deadline, commit=True)

        loop_thread(options.loop).run(some())

    def read(self, *, committed: bool = True) -> list[Read]:
        return read_back(self.servers, self.topic, committed=committed)

    def arrived(self) -> int:
        """Return the number of records in the topic, readable or not."""
        return sum(ends(self.servers, self.topic, committed=False).values())

    def settle(self) -> None:
        """Wait until no open transaction blocks readers."""
        for _ in range(100):
            if stable(self.servers, self.topic):
                return
            asyncio.run(asyncio.sleep(0.1))
        raise AssertionError("a transaction stays open")


def batches(numbers: list[int]) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(numbers), 40):
        part = numbers[start : start + 40]
        keys = pa.array([str(number) for number in part])
        values = pa.array([b"v%d" % number for number in part])
        yield pa.RecordBatch.from_arrays([keys, values], names=["key", "value"])


async def leave_open(producer: Producer[Any, Any], timeout: float | None = None) -> None:
    """End the connections of a producer without an EndTxn, as SIGKILL does."""
    if producer._lifecycle.runtime is not None:
        await producer._lifecycle.runtime.close(0)
    producer._lifecycle.closed = True


@pytest.fixture(params=["V2", pytest.param("V1", marks=pytest.mark.slow)])
def query(request: pytest.FixtureRequest) -> Query:
    """Return a query on the newest brokers, or on the old release line, which has only the first
    protocol."""
    name = "broker" if request.param == "V2" else "kafka_3_broker"
    cluster: KafkaCluster = request.getfixturevalue(name)
    found = Query(cluster.bootstrap_servers)
    asyncio.run(cluster.create_topic(found.topic, partitions=3, replication_factor=1))
    return found


def test_check_17_batches_one_after_the_other(query: Query) -> None:
    for batch in range(3):
        assert not any(message.skipped for message in query.run(batch))
    query.settle()
    assert_numbers(query.read(), 3 * ROWS)


def test_check_17_replay_of_a_committed_batch_writes_nothing(query: Query) -> None:
    """The driver crashes after all EndTxn requests and before Spark writes its commit log."""
    query.run(0)
    query.run(1)
    assert all(message.skipped for message in query.run(1))
    query.run(2)
    query.settle()
    assert_numbers(query.read(), 3 * ROWS)


@pytest.mark.parametrize("ended", [None, 0, 1, 2, 3])
def test_check_17_driver_dies_around_end_txn(query: Query, ended: int | None) -> None:
    query.run(0)
    messages = [query.task(1, number, 3) for number in range(3)]
    query.crash_in_commit(messages, 1, ended)
    replayed = query.run(1)
    assert [message.skipped for message in replayed] == [n < (ended or 0) for n in range(3)]
    query.run(2)
    query.settle()
    assert_numbers(query.read(), 3 * ROWS)


@pytest.mark.parametrize("place", ["this process", "another process"])
def test_check_17_driver_dies_while_it_writes_its_decision(
    query: Query, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction of the driver stays open for 15 minutes, unless a client ends it."""

    async def die(
        ender: TransactionEnder, ours: Producer[Any, Any], topics: set[str], decision: Marker,
        group: str,
    ) -> None:  # fmt: skip
        producer = ours
        if place == "another process":
            config = ender._options.producer_config(transactional_id=group)
            producer = Producer(config)
            await producer.start()
        await producer.begin_transaction()
        await producer.send_offsets_to_transaction(decision.offsets(topics), GroupMetadata(group))
        await leave_open(producer)
        if place == "this process":
            raise Crash("while deciding")

    query.run(0)
    with monkeypatch.context() as patch:
        patch.setattr(TransactionEnder, "_note", die)
        messages = [query.task(1, number, 3) for number in range(3)]
        with contextlib.suppress(Crash):
            query.crash_in_commit(messages, 1, 0)
    assert not any(message.skipped for message in query.run(1))
    query.run(2)
    query.settle()
    assert_numbers(query.read(), 3 * ROWS)


def test_check_17_abort_after_a_partial_commit_takes_nothing_back(query: Query) -> None:
    """When commit raises, Spark calls abort with all messages."""
    query.run(0)
    messages = [query.task(1, number, 3) for number in range(3)]
    query.crash_in_commit(messages, 1, 1)
    query.writer().abort([*messages, None], 1)
    query.settle()
    assert len(query.read()) == ROWS + len(range(ROWS)[0::3])
    query.run(1)
    query.settle()
    assert_numbers(query.read(), 2 * ROWS)


@pytest.mark.parametrize(
    "point", ["after InitProducerId", "mid-produce", "before the marker", "after the marker"]
)
def test_check_17_task_dies(query: Query, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt is killed. It handles no exception and aborts nothing."""
    query.run(0)

    async def die(*arguments: Any, **more: Any) -> Any:
        raise Crash(point)

    query.settle()
    before = query.arrived()

    def die_with_records_in_kafka() -> None:
        wait_for(lambda: query.arrived() > before, "records of the first half")
        raise Crash(point)

    then = None
    with monkeypatch.context() as patch:
        patch.setattr(Producer, "close", leave_open)
        if point == "after InitProducerId":
            patch.setattr(transactional_task._Run, "_marker", die)
        elif point == "mid-produce":
            then = die_with_records_in_kafka
        elif point == "before the marker":
            patch.setattr(transactional_task._Run, "_mark", die)
        else:
            patch.setattr("aiokprod._client.transactions.Transactions.prepare", die)
        # An exception raised by the iterator comes from Spark and is raised unchanged.
        with pytest.raises(Crash if then else SinkError, match=point):
            query.task(1, 0, 3, then=then)
    replayed = query.run(1)  # the next attempt of Spark
    assert not any(message.skipped for message in replayed)
    query.run(2)
    query.settle()
    assert_numbers(query.read(), 3 * ROWS)


def test_check_17_second_attempt_fences_the_first(query: Query) -> None:
    first = query.task(0, 0, 2)
    second = query.task(0, 0, 2, attempt=1)
    other = query.task(0, 1, 2)
    with pytest.raises(CommitFailed, match="a later attempt"):
        query.writer().commit([first, other], 0)
    query.writer().abort([first, other], 0)
    assert second.epoch > first.epoch or second.producer_id != first.producer_id
    query.run(0, 2)
    query.settle()
    assert_numbers(query.read(), ROWS)


@pytest.mark.parametrize("tasks", [2, 4])
def test_check_19_other_number_of_tasks_in_the_replay(query: Query, tasks: int) -> None:
    query.run(0)
    messages = [query.task(1, number, 3) for number in range(3)]
    query.crash_in_commit(messages, 1, 1)
    query.writer().abort(messages, 1)
    query.settle()
    before = query.read()
    replayed = [query.task(1, number, tasks) for number in range(tasks)]
    with pytest.raises(NonDeterministicReplay, match=f"it had 3 tasks and has {tasks} now"):
        query.writer().commit(replayed, 1)
    query.writer().abort(replayed, 1)
    query.settle()
    assert sorted(query.read()) == sorted(before)
    query.run(1)
    query.settle()
    assert_numbers(query.read(), 2 * ROWS)


@pytest.mark.parametrize(
    ("number", "change"), [(1, {"cut": -1}), (0, {"shift": 1}), (1, {"shift": 1})]
)
def test_check_19_other_rows_in_the_replay(
    query: Query, number: int, change: dict[str, Any]
) -> None:
    """The number of tasks is the same, but one task has other rows. It may have been committed or
    not."""
    messages = [query.task(0, number, 2) for number in range(2)]
    query.crash_in_commit(messages, 0, 1)
    query.writer().abort(messages, 0)
    shifted = [query.task(0, n, 2, **(change if n == number else {})) for n in range(2)]
    with pytest.raises(NonDeterministicReplay, match="rows"):
        query.writer().commit(shifted, 0)
    query.writer().abort(shifted, 0)
    query.run(0, 2)
    query.settle()
    assert_numbers(query.read(), ROWS)


def test_check_19_rows_for_another_topic(query: Query) -> None:
    """Two writes of one foreachBatch could share a prefix. The second must not count as a replay of
    the first."""
    query.run(0)
    query.options["topic"] = "elsewhere"
    replayed = [query.task(0, number, 3) for number in range(3)]
    with pytest.raises(NonDeterministicReplay, match="another topic"):
        query.writer().commit(replayed, 0)


def test_check_17_fewer_tasks_leave_no_orphan(query: Query) -> None:
    """An attempt with three tasks dies with its driver. The query continues with two tasks."""
    query.run(0)
    for number in range(3):
        query.task(1, number, 3)
    from aiokprod.spark import driver_commit

    driver_commit._swept.clear()  # empty the cache, as in a new driver process
    query.run(1, 2)
    query.settle()
    assert_numbers(query.read(), 2 * ROWS)


def test_check_17_rolled_back_checkpoint_is_told(query: Query) -> None:
    query.run(0)
    query.run(1)
    with pytest.raises(SinkError, match="the checkpoint was rolled back"):
        query.task(0, 0, 3)


def test_check_20_timeout_before_commit_fails_and_replays(query: Query) -> None:
    query.run(0)
    query.options["kafka.transaction.timeout.ms"] = "1000"
    messages = [query.task(1, number, 3) for number in range(3)]
    query_settled = 0
    while not stable(query.servers, query.topic):  # the coordinator checks every ten seconds
        asyncio.run(asyncio.sleep(0.5))
        query_settled += 1
        assert query_settled < 60
    with pytest.raises(CommitFailed, match=r"kafka\.transaction\.timeout\.ms"):
        query.writer().commit(messages, 1)
    query.writer().abort(messages, 1)
    del query.options["kafka.transaction.timeout.ms"]
    query.run(1)
    query.settle()
    assert_numbers(query.read(), 2 * ROWS)


def test_check_21_speculation_is_refused(query: Query) -> None:
    context = TaskContext.__new__(TaskContext)
    context._partitionId = context._attemptNumber = 0
    context._localProperties = {BATCH_ID: "0", QUERY_ID: "q", SPECULATION: "true"}
    TaskContext._taskContext = context
    with pytest.raises(ValueError, match=r"excludes spark\.speculation=true"):
        query.writer().write(iter(()))


def test_check_24_absent_properties_are_told(query: Query) -> None:
    context = TaskContext.__new__(TaskContext)
    context._partitionId = context._attemptNumber = 0
    context._localProperties = {}
    TaskContext._taskContext = context
    with pytest.raises(SinkError, match=r"local properties streaming\.sql\.batchId"):
        query.writer().write(iter(()))


def test_empty_batch_and_empty_tasks(query: Query) -> None:
    context = [query.task(0, number, 2, cut=0) for number in range(2)]
    query.writer().commit(context, 0)
    query.run(1, 2)
    replayed = query.run(1, 2)
    assert all(message.skipped for message in replayed)
    query.settle()
    keys = sorted(int(record.key or b"") for record in query.read())
    assert keys == list(range(ROWS, 2 * ROWS))
