from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokprod.errors import ConfigError, Outcome
from aiokprod.records import (
    DrainReport,
    ProducerRecord,
    RecordMetadata,
    TopicPartition,
    UndeliveredBatch,
    validate_partition,
    validate_timestamp_ms,
    validate_topic,
)


class Text(str):
    """A subclass of str."""

    __slots__ = ()


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", Text("topic")])
def test_topic_legal_is_returned(name: str) -> None:
    assert validate_topic(name) is name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "x" * 250, "a b", "a/b", "ä", "a\n", "\ud800", Text("."), None, b"a", 7, []],
)
def test_topic_illegal_is_refused(name: object) -> None:
    with pytest.raises(ConfigError) as caught:
        validate_topic(name)
    assert caught.value.outcome is Outcome.NOT_SENT
    assert len(str(caught.value)) < 250


@given(st.text(max_size=300))
def test_topic_check_raises_nothing_else(name: str) -> None:
    try:
        assert validate_topic(name) == name
    except ConfigError:
        return
    assert name.isascii()
    assert len(name) <= 249


@pytest.mark.parametrize("partition", [0, 1, 2**31 - 1])
def test_partition_in_range_is_returned(partition: int) -> None:
    assert validate_partition(partition) == partition


@pytest.mark.parametrize("partition", [-1, 2**31, True, "0", 1.0, None])
def test_partition_out_of_range_is_refused(partition: object) -> None:
    with pytest.raises(ConfigError, match="partition"):
        validate_partition(partition)


@pytest.mark.parametrize("timestamp", [0, 2**63 - 1])
def test_timestamp_in_range_is_returned(timestamp: int) -> None:
    assert validate_timestamp_ms(timestamp) == timestamp


@pytest.mark.parametrize("timestamp", [-1, 2**63, False, "0", 1.0, None])
def test_timestamp_out_of_range_is_refused(timestamp: object) -> None:
    with pytest.raises(ConfigError, match="timestamp_ms"):
        validate_timestamp_ms(timestamp)


def test_record_has_defaults_and_is_frozen() -> None:
    record: ProducerRecord[bytes, bytes] = ProducerRecord("t")
    assert (record.value, record.key, record.partition, record.timestamp_ms) == (None,) * 4
    assert record.headers == ()
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.topic = "u"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(record)) == record


@pytest.mark.parametrize(
    "wrong", [{"topic": "a b"}, {"partition": -1}, {"partition": True}, {"timestamp_ms": -1}]
)
def test_record_out_of_range_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ProducerRecord(**{"topic": "t", **wrong})


def test_topic_partition_reads_like_a_kafka_directory() -> None:
    assert str(TopicPartition("a-b", 3)) == "a-b-3"
    assert TopicPartition("t", 0) == ("t", 0)


def test_drain_report_is_a_value() -> None:
    batch = UndeliveredBatch(TopicPartition("t", 0), 3, Outcome.UNKNOWN)
    report = DrainReport(1, 3, (batch,), 0.5, False)
    assert pickle.loads(pickle.dumps(report)) == report


def test_record_metadata_comes_from_the_compiled_core() -> None:
    assert RecordMetadata.__module__ == "aiokprod._core.batch"
