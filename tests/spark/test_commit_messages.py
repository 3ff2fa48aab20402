"""Commit messages are small and picklable, and are complete or marked as trimmed. Texts of
errors."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from aiokprod import ConfigError, DeliveryTimeout, Outcome
from aiokprod.errors import (
    Code,
    FatalTransactionError,
    KafkaError,
    ProducerFailed,
    ProducerFenced,
    RecordTooLarge,
    broker_error,
    error_code,
)
from aiokprod.spark.commit_messages import Prepared, TaskReport, report_fields
from aiokprod.spark.context import Task
from aiokprod.spark.failures import Counts, describe
from aiokprod.spark.job_report import report
from aiokprod.spark.markers import Marker
from aiokprod.spark.task_sender import Range

TASK = Task(3, 1, "host", 7, "query", "run", speculation=False)


def built(ranges: dict[tuple[str, int], Range]) -> TaskReport:
    return TaskReport(**report_fields(TASK, rows=5, size=9, ranges=ranges, seconds=0.5))


def test_message_of_few_partitions_is_complete() -> None:
    one = Range()
    one.add(10, 3)
    one.add(4, 1)
    one.add(-1, 2)
    message = built({("t", 1): one})
    assert message.ranges == (("t", 1, 4, 12, 6),)
    assert not message.trimmed
    assert pickle.loads(pickle.dumps(message)) == message


def test_task_that_left_no_transaction_has_no_producer() -> None:
    """Producer id 0 is valid. It is the first one that a cluster assigns."""
    found = Prepared(**report_fields(TASK, rows=0, size=0, ranges={}, seconds=0.5))
    assert (found.producer_id, found.epoch, found.transactional_id) == (-1, -1, "")
    assert (found.second_protocol, found.skipped, found.marked) == (False, False, ())
    assert (found.row_hash, found.marked_rows, found.marked_hash) == (0, 0, 0)


@pytest.mark.parametrize("length", [1, 249])
def test_message_of_many_partitions_stays_below_64_kib(length: int) -> None:
    ranges = {}
    for number in range(5000):
        name = f"{number}".ljust(length, "x")
        ranges[name, 2**31 - 1] = Range(2**62, 2**62, 2**40)
    message = built(ranges)
    assert message.trimmed
    assert message.ranges
    assert len(pickle.dumps(message)) <= 64 * 1024


def test_report_sums_up_tasks() -> None:
    one = Range(0, 4, 5)
    found = report([built({("t", 0): one}), built({})], 7)
    assert found["rows"] == 10
    assert found["batch_id"] == 7
    assert found["query_id"] == "query"
    assert [task["ranges"] for task in found["tasks"]] == [[["t", 0, 0, 4, 5]], []]


def test_failure_text_names_place_code_counts_and_what_follows() -> None:
    counts = Counts(acknowledged=3)
    counts.add(Outcome.UNKNOWN, 2)
    counts.add(Outcome.NOT_SENT)
    counts.add(Outcome.REJECTED)
    late = DeliveryTimeout("t-1: too late")
    assert str(describe(late, counts, where="t-1", transactional=False)) == (
        "aiokprod: t-1: DeliveryTimeout (retriable): t-1: too late; rows of this attempt: "
        "3 acknowledged, 2 unknown, 2 unsent. Spark will retry this task; rows already "
        "acknowledged may appear again (delivery=at_least_once)"
    )
    clean = str(describe(ConfigError("wrong"), Counts(), where="t", transactional=True))
    assert "not retriable" in clean
    assert "nothing of this attempt becomes visible to read_committed readers" in clean


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (Code.CLUSTER_AUTHORIZATION_FAILED, "IDEMPOTENT_WRITE on the cluster"),
        (Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "grant WRITE on transactional ids"),
        (Code.GROUP_AUTHORIZATION_FAILED, "grant READ on groups"),
    ],
)
def test_failure_text_names_the_missing_acl(code: Code, text: str) -> None:
    error = broker_error(code, "refused")
    assert text in str(describe(error, Counts(), where="t", transactional=False))


def test_marker_round_trip_and_foreign_offsets() -> None:
    marker = Marker(0, 12, 2**64 - 1, 4, 3)
    offsets = marker.offsets(["t", "u"])
    assert list(offsets) == [("t", 0), ("u", 0)]
    for offset in offsets.values():
        assert offset.offset == 1
        assert Marker.of(offset.offset, offset.metadata) == marker
    assert Marker.of(3, "5 00000000000000ff 7") == Marker(2, 5, 255, 7), "of the first version"
    for metadata in (None, "", "something else", "1 2", "1 2 3 4 5", "1 2 3 x"):
        with pytest.raises(Exception, match="did not write"):
            Marker.of(5, metadata)


def test_prepared_message_is_picklable() -> None:
    message = Prepared(0, 0, "h", 1, 1, (), False, 0.1, "q", 1, transactional_id="p.q.0",
                       producer_id=1, epoch=1, second_protocol=True)  # fmt: skip
    assert pickle.loads(pickle.dumps(message)) == message


def test_report_says_which_tasks_of_a_replayed_batch_were_skipped() -> None:
    """The skipped tasks have rows but no ranges."""
    fields: dict[str, Any] = {"rows": 5, "size": 9, "seconds": 0.5}
    sent = Prepared(**report_fields(TASK, ranges={("t", 0): Range(0, 4, 5)}, **fields))
    skipped = Prepared(**report_fields(TASK, ranges={}, **fields), skipped=True)
    plain = TaskReport(**report_fields(TASK, ranges={("t", 0): Range(0, 4, 5)}, **fields))
    tasks = report([sent, skipped, plain], 3)["tasks"]
    assert [(task["skipped"], task["ranges"]) for task in tasks] == [
        (False, [["t", 0, 0, 4, 5]]), (True, []), (False, [["t", 0, 0, 4, 5]]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("wrong"),
        broker_error(Code.TOPIC_AUTHORIZATION_FAILED, "refused"),
        broker_error(Code.INVALID_TIMESTAMP, "refused"),
        broker_error(Code.MESSAGE_TOO_LARGE, "refused"),
        broker_error(Code.INVALID_TOPIC_EXCEPTION, "refused"),
        FatalTransactionError("ended", code=error_code(Code.INVALID_TRANSACTION_TIMEOUT)),
        FatalTransactionError("ended", code=error_code(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)),
    ],
)
def test_failure_that_no_retry_removes_says_so(error: KafkaError) -> None:
    text = str(describe(error, Counts(), where="t", transactional=False))
    assert "every attempt will fail for this reason until it is removed" in text
    assert "Spark will retry" not in text
    assert "rows already acknowledged may appear again" in text


@pytest.mark.parametrize(
    "error",
    [
        DeliveryTimeout("late"),
        ProducerFenced("fenced"),
        ProducerFailed("failed"),
        broker_error(Code.NOT_ENOUGH_REPLICAS, "refused"),
        OSError("no file"),
    ],
)
def test_failure_that_a_retry_may_remove_says_that_spark_retries(error: Exception) -> None:
    text = str(describe(error, Counts(), where="t", transactional=True))
    assert "Spark will retry this task; nothing of this attempt becomes visible" in text


def test_failure_text_has_the_number_of_the_row_and_the_names_of_options() -> None:
    error = RecordTooLarge("too large, raise max_request_size")
    text = str(describe(error, Counts(), where="t", transactional=False, row=41))
    assert "(not retriable): row 41 of this task: too large, raise kafka.max.request.size;" in text
    limit = broker_error(Code.INVALID_TRANSACTION_TIMEOUT, "refused")
    text = str(describe(limit, Counts(), where="t", transactional=True))
    assert "lower kafka.transaction.timeout.ms, or raise transaction.max.timeout.ms" in text
