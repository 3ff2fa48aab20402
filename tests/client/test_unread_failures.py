"""Tests of `UnreadFailures`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from aiokprod import KafkaError, Observer, TopicPartition
from aiokprod._client.unread_failures import UnreadFailures


class Counting(Observer):
    def __init__(self) -> None:
        self.seen: list[tuple[TopicPartition, int]] = []

    def on_unretrieved_failure(
        self, topic_partition: TopicPartition, records: int, error: KafkaError
    ) -> None:
        self.seen.append((topic_partition, records))


def check_texts(caplog: pytest.LogCaptureFixture) -> None:
    texts = [record.getMessage() for record in caplog.records]
    assert any("sending a record of another thread failed" in text for text in texts)
    assert any("2 records of other threads failed" in text for text in texts)


def test_failures_that_arrive_together_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    observer = Counting()

    async def main() -> None:
        failures = UnreadFailures(asyncio.get_running_loop(), observer, "id")
        failures.add(ZeroDivisionError("on purpose"))
        failures.add(KafkaError("first"))
        failures.add(KafkaError("second"))
        assert not observer.seen
        await asyncio.sleep(0.01)

    with caplog.at_level(logging.ERROR, "aiokprod"):
        asyncio.run(main())
    check_texts(caplog)
    assert observer.seen == [(TopicPartition("", -1), 2)]


class InterruptedLoop:
    """A loop whose first `call_soon_threadsafe` raises KeyboardInterrupt, as a signal handler
    may."""

    def __init__(self) -> None:
        self.scheduled: list[Callable[[], None]] = []
        self._interrupted = False

    def is_closed(self) -> bool:
        return False

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> None:
        if not self._interrupted:
            self._interrupted = True
            raise KeyboardInterrupt
        self.scheduled.append(callback)


def test_an_interrupted_report_is_scheduled_by_the_next_failure() -> None:
    loop: Any = InterruptedLoop()
    observer = Counting()
    failures = UnreadFailures(loop, observer, "id")
    with pytest.raises(KeyboardInterrupt):
        failures.add(KafkaError("first"))
    failures.add(KafkaError("second"))
    (report,) = loop.scheduled
    report()
    assert observer.seen == [(TopicPartition("", -1), 2)]


def test_failures_are_reported_when_the_loop_is_closed_but_not_in_a_child_process(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    observer = Counting()
    failures = UnreadFailures(loop, observer, "id")
    failures.add(KafkaError("no topic"))
    assert observer.seen == [(TopicPartition("", -1), 1)]
    failures.forked = True
    failures.add(KafkaError("of the parent"))
    assert len(observer.seen) == 1
