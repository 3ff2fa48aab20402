"""Warnings of the producer that would otherwise be repeated by every task."""

from __future__ import annotations

import logging

import pytest

from aiokprod._engine.metadata.topics import TrackedTopics, logger
from aiokprod.errors import Code
from aiokprod.spark.task_logging import quiet_metadata


def answered(count: int, code: Code = Code.UNKNOWN_TOPIC_OR_PARTITION) -> None:
    topics = TrackedTopics(60.0, lambda: None)
    topics.note_answers({f"t{number}": int(code) for number in range(count)}, 1, 10.0)


def test_task_warns_of_no_topic_that_is_being_created(caplog: pytest.LogCaptureFixture) -> None:
    quiet_metadata()
    quiet_metadata()
    assert len(logger.filters) == 1
    with caplog.at_level(logging.WARNING, logger=logger.name):
        answered(3)
        assert caplog.records == []
        logger.error("another")
    assert [one.levelname for one in caplog.records] == ["ERROR"]


def test_level_info_shows_it(caplog: pytest.LogCaptureFixture) -> None:
    quiet_metadata()
    with caplog.at_level(logging.INFO, logger=logger.name):
        answered(1)
    assert [one.levelname for one in caplog.records] == ["INFO"]
    assert "metadata of topic t0: UNKNOWN_TOPIC_OR_PARTITION" in caplog.text
