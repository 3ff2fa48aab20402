from __future__ import annotations

import logging

import pytest

from aiokprod._engine.sender.failure_log import LINE_EVERY, FailureLog
from aiokprod.errors import KafkaError
from aiokprod.records import TopicPartition

ADVICE = "(await each Delivery, or pass on_delivery, to handle such errors)"
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_failures_are_logged_at_once_and_then_summed_up(caplog: pytest.LogCaptureFixture) -> None:
    log = FailureLog()
    log.flush(0.0, at_once=True)
    assert not caplog.records, "nothing has failed"
    log.note(T0, 3, KafkaError("first"), 0.0)
    for at in (1.0, 2.0, LINE_EVERY - 0.1):
        log.note(T1, 1, KafkaError("later"), at)
    assert log.pending == 3
    assert [record.getMessage() for record in caplog.records] == [
        f"3 records to t-0 failed and no task was waiting for them {ADVICE}: first"
    ]
    log.flush(LINE_EVERY)
    assert log.pending == 0
    assert caplog.messages[1] == (
        f"3 records to t-1 failed and no task was waiting for them {ADVICE}: later"
    )
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2


def test_failures_of_many_partitions_name_some_of_them(caplog: pytest.LogCaptureFixture) -> None:
    log = FailureLog()
    log.note(T0, 1, KafkaError("first"), 0.0)
    for number in range(5):
        log.note(TopicPartition("u", number), 1, KafkaError("later"), 1.0)
    log.flush(2.0, at_once=True)
    assert "5 records to u-0, u-1, u-2 and 2 more partitions failed" in caplog.messages[1]
