"""`TrackedTopics`: which topics are in use, and the last response about each."""

from __future__ import annotations

import logging

import pytest

from aiokprod._engine.metadata.topics import TrackedTopics

IDLE = 300.0
LEADER_NOT_AVAILABLE = 5
UNKNOWN_TOPIC = 3


@pytest.fixture
def calls() -> list[str]:
    return []


@pytest.fixture
def topics(calls: list[str]) -> TrackedTopics:
    return TrackedTopics(IDLE, lambda: calls.append("new"))


def test_new_topic_is_reported_once_and_kept_in_order(
    topics: TrackedTopics, calls: list[str]
) -> None:
    for topic in ("b", "a", "b"):
        topics.mark_used(topic, 0.0)
    assert topics.names() == ("b", "a")
    assert len(topics) == 2
    assert calls == ["new", "new"]
    assert list(topics.new) == ["b", "a"]
    assert topics.fast_retry == {"a", "b"}


def test_idle_topic_is_forgotten_with_what_is_known_of_it(topics: TrackedTopics) -> None:
    topics.mark_used("t", 0.0)
    topics.note_answers({"t": 0}, 7, 10.0)
    topics.refused_ids.add("t")
    assert topics.retain("t", IDLE - 0.1)
    topics.mark_used("t", 100.0)
    assert topics.retain("t", IDLE + 99.9)
    assert not topics.retain("t", IDLE + 100.0)
    assert topics.names() == ()
    assert topics.answer("t") == (0, 0)
    assert topics.refused_ids == set()
    assert not topics.retain("t", 0.0)


def test_topic_without_a_response_is_kept_however_long_that_takes(topics: TrackedTopics) -> None:
    topics.mark_used("t", 0.0)
    assert topics.retain("t", 100 * IDLE)
    topics.note_answers({"t": UNKNOWN_TOPIC}, 1, 10.0)
    assert not topics.retain("t", 100 * IDLE)


def test_answer_ends_the_fast_retry_and_a_good_one_the_doubt_about_the_id(
    topics: TrackedTopics,
) -> None:
    topics.mark_used("t", 0.0)
    topics.refused_ids.add("t")
    topics.note_answers({"t": LEADER_NOT_AVAILABLE}, 2, 10.0)
    assert topics.answer("t") == (2, LEADER_NOT_AVAILABLE)
    assert topics.fast_retry == set()
    assert topics.refused_ids == {"t"}
    topics.note_answers({"t": 0}, 3, 10.0)
    assert topics.answer("t") == (3, 0)
    assert topics.refused_ids == set()


def test_error_is_logged_when_it_changes_only(
    topics: TrackedTopics, caplog: pytest.LogCaptureFixture
) -> None:
    topics.mark_used("t", 0.0)
    with caplog.at_level(logging.WARNING):
        for code in (UNKNOWN_TOPIC, UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE, 0, UNKNOWN_TOPIC):
            topics.note_answers({"t": code}, 1, 10.0)
    names = [vars(record)["kafka_code"] for record in caplog.records]
    assert names == ["UNKNOWN_TOPIC_OR_PARTITION", "LEADER_NOT_AVAILABLE", names[0]]
