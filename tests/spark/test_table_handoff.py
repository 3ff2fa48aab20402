"""The interface between RecordBatches and the producer: the errors that are reported for failed
rows."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from aiokprod import AbortableTransactionError, ConfigError
from aiokprod._client.bulk_result import wait_settled
from aiokprod.errors import Code
from aiokprod.producer import Producer
from aiokprod.records import TopicPartition
from aiokprod.spark.failures import Counts, SinkError
from aiokprod.spark.table_handoff import TableHandoff, submit_table
from aiokprod.spark.task_sender import TaskSender
from aiokprod.testing.fake_cluster import FakeCluster
from tests.scenarios.scenario_helpers import History, scenario

METADATA = 3


def cores_of(handed: TableHandoff) -> list[Any]:
    return list(handed.cores)


@scenario(partitions=1, topic="a")
async def test_failure_is_told_with_the_topic_of_its_row(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    cluster.create_topic("b", 1)
    cluster.fail_produce(TopicPartition("b", 0), Code.TOPIC_AUTHORIZATION_FAILED)
    table = pa.RecordBatch.from_pydict({"value": [b"1", b"2"], "topic": ["a", "b"]})
    handed = TableHandoff()
    await submit_table(producer, None, table, handed)
    await wait_settled(cores_of(handed))
    failure = handed.first_failure()
    assert failure is not None
    where, row, error = failure
    assert row == 1
    assert where == "b-0"
    assert error.code is not None
    assert error.code.number == Code.TOPIC_AUTHORIZATION_FAILED


@scenario(partitions=1, linger_ms=5_000)
async def test_hand_over_waits_for_no_outcome(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    table = pa.RecordBatch.from_pydict({"value": [b"1", b"2"]})
    handed = [TableHandoff(), TableHandoff()]
    for one in handed:
        await submit_table(producer, "t", table, one)
    assert [one.appended for one in handed] == [2, 2]
    assert not any(core.settled for one in handed for core in cores_of(one))
    await producer.flush()
    counts = Counts()
    for one in handed:
        one.count_into(counts)
    assert counts == Counts(acknowledged=4)
    assert cluster.values("t", 0) == [b"1", b"2", b"1", b"2"]


@scenario(partitions=1, max_request_size=1_000)
async def test_refused_rows_are_counted_beside_those_in_batches(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    table = pa.RecordBatch.from_pydict({"value": [b"1", b"x" * 2_000, b"3"]})
    handed = TableHandoff()
    await submit_table(producer, "t", table, handed)
    assert list(handed.refused) == [1]
    await producer.flush()
    counts = Counts()
    handed.count_into(counts)
    assert counts == Counts(acknowledged=2, unsent=1)
    assert handed.first_failure() is None


@scenario(partitions=1, max_request_size=1_000, transactional_id="x")
async def test_transaction_with_a_refused_row_is_not_committed(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    table = pa.RecordBatch.from_pydict({"value": [b"1", b"x" * 2_000]})
    await producer.start()
    await producer.begin_transaction()
    await submit_table(producer, "t", table, TableHandoff())
    with pytest.raises(AbortableTransactionError):
        await producer.commit_transaction()
    await producer.abort_transaction()
    assert cluster.committed_values("t", 0) == []


@scenario(partitions=1)
async def test_producer_that_takes_no_tables_says_so(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    handed = TableHandoff()
    table = pa.RecordBatch.from_pydict({"key": [b"1"]})
    with pytest.raises(ConfigError, match="value"):
        await submit_table(producer, "t", table, handed)
    assert handed.appended == 0
    await producer.close()
    with pytest.raises(Exception, match="closed"):
        await submit_table(producer, "t", table, handed)


@scenario(partitions=1, linger_ms=5_000)
async def test_what_ended_an_attempt_is_told_not_what_closing_did_to_the_rest(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    sender = TaskSender(producer, topic="t", transactional=False)
    await sender.submit(pa.RecordBatch.from_pydict({"value": [b"1", b"2"]}))
    sender.blame(ValueError("the reason"))
    await producer.close(0)
    text = str(sender.failure())
    assert "ValueError (not retriable): the reason" in text
    assert "0 acknowledged, 0 unknown, 2 unsent" in text


@scenario(partitions=1, max_request_size=1_000)
async def test_row_that_is_refused_has_its_number_in_the_task(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    sender = TaskSender(producer, topic="t", transactional=False)
    await sender.submit(pa.RecordBatch.from_pydict({"value": [b"1", b"2", b"3"]}))
    with pytest.raises(SinkError, match=r"RecordTooLarge \(not retriable\): row 4 of this task: "):
        await sender.submit(pa.RecordBatch.from_pydict({"value": [b"4", b"x" * 2_000, b"6"]}))


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ({"timestamp": pa.array([1, 2, -5000], pa.int64())}, "timestamp_ms -5000"),
        ({"topic": ["t", "t", "a b"]}, "topic 'a b'"),
        ({"topic": ["t", "t", ""]}, "topic ''"),
    ],
)
def test_row_with_an_illegal_part_has_its_number(column: dict[str, Any], text: str) -> None:
    @scenario(partitions=1)
    async def body(cluster: FakeCluster, producer: Producer[Any, Any], history: History) -> None:
        topic = None if "topic" in column else "t"
        sender = TaskSender(producer, topic=topic, transactional=False)
        await sender.submit(pa.RecordBatch.from_pydict({"value": [b"0"], **first(column)}))
        with pytest.raises(SinkError) as caught:
            await sender.submit(pa.RecordBatch.from_pydict({"value": [b"1", b"2", b"3"], **column}))
        assert f"row 3 of this task: {text}" in str(caught.value)

    body()


def first(column: dict[str, Any]) -> dict[str, Any]:
    return {name: values[:1] for name, values in column.items()}


@scenario(partitions=1, max_request_size=1_000, linger_ms=50)
async def test_row_that_the_broker_refuses_has_its_number_beside_refused_rows(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    """The other rows of the batch are rejected only because of this row."""
    cluster.fail_produce(
        TopicPartition("t", 0), Code.INVALID_TIMESTAMP, record_errors=((2, "a bad timestamp"),)
    )
    table = pa.RecordBatch.from_pydict({"value": [b"0", b"x" * 2_000, b"2", b"3", b"4"]})
    handed = TableHandoff(100)
    await submit_table(producer, "t", table, handed)
    assert handed.first_refused()[0] == 101
    await wait_settled(cores_of(handed))
    failure = handed.first_failure()
    assert failure is not None
    where, row, error = failure
    assert (where, row) == ("t-0", 103), "the third of the four rows in the batch"
    assert "a bad timestamp" in error.message


@scenario(partitions=1)
async def test_topics_of_a_table_are_looked_up_at_the_same_time(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    names = [f"many-{number}" for number in range(1_000)]
    for name in names:
        cluster.create_topic(name, 1)
    loop = asyncio.get_running_loop()
    sender = TaskSender(producer, topic=None, transactional=False)
    before, started = cluster.count(METADATA), loop.time()
    await sender.submit(pa.RecordBatch.from_pydict({"value": [b"v"] * 1_000, "topic": names}))
    assert cluster.count(METADATA) - before < 5
    assert loop.time() - started < 2.0
    await sender.finish()
    assert len(sender.ranges) == 1_000


@scenario(partitions=1, max_block_ms=3_000, allow_auto_create_topics=False)
async def test_topic_that_is_missing_is_told_with_the_first_row_that_names_it(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    cluster.auto_create = False
    sender = TaskSender(producer, topic=None, transactional=False)
    topics = ["t", "gone", "t", "gone", "gone too"]
    topics = [name.replace(" ", "-") for name in topics]
    loop = asyncio.get_running_loop()
    started = loop.time()
    with pytest.raises(SinkError, match=r"aiokprod: gone: .* row 1 of this task: ") as caught:
        await sender.submit(pa.RecordBatch.from_pydict({"value": [b"v"] * 5, "topic": topics}))
    assert loop.time() - started < 3.5, "both topics were waited for at the same time"
    assert "0 acknowledged, 0 unknown, 5 unsent" in str(caught.value)
