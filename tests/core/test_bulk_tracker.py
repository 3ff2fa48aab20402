"""The positions of the records of a bulk call after splits, withdrawals and failures."""

from __future__ import annotations

import pytest

from aiokprod._core.bulk_append import append_column
from aiokprod._core.bulk_tracker import BulkTracker
from aiokprod.errors import BrokerError, Outcome
from tests.core.core_harness import (
    idle_harness,
)

MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1


def error() -> BrokerError:
    return BrokerError("refused", outcome=Outcome.REJECTED)


def test_tracker_follows_records_through_splits_withdrawals_and_failures() -> None:
    harness = idle_harness(limit=1 << 20)
    tracker = BulkTracker()
    single = harness.append(b"single")
    append_column(harness.appender, tracker, harness.topic, [b"v"] * 4, None, None, None, 0, 0)
    core = harness.core
    single.cancel()
    harness.topic.slots[0].core = None
    append_column(harness.appender, tracker, harness.topic, [b"w"] * 2, None, None, None, 0, 0)
    failed = harness.core
    parts = core.split(core.finish(), core.size // 2)
    for number, part in enumerate(parts):
        part.finish()
        part.acknowledge(100 * number)
    failed.finish()
    failed.fail(error(), {1: BrokerError("its own")})
    positions = [tracker.position(index) for index in range(6)]
    offsets = [offset for _, offset, _ in positions]
    expected = [100 * number + i for number, part in enumerate(parts) for i in range(part.count)]
    assert offsets == [*expected, None, None]
    assert str(positions[4][2]) == "refused"
    assert str(positions[5][2]) == "its own"
    assert tracker.failed() == [4, 5]


def test_tracker_knows_unknown_offsets() -> None:
    harness = idle_harness()
    tracker = BulkTracker()
    append_column(harness.appender, tracker, harness.topic, [b"v"], None, None, None, 0, 0)
    harness.core.acknowledge(-1)
    assert tracker.position(0) == (0, None, None)


def test_trackers_may_take_turns_on_one_batch() -> None:
    harness = idle_harness()
    one, two = BulkTracker(), BulkTracker()
    for _ in range(3):
        for tracker in (one, two):
            append_column(harness.appender, tracker, harness.topic, [b"v"], None, None, None, 0, 0)
    two.add_delivery(harness.append())
    harness.core.acknowledge(0)
    assert [one.position(i)[1] for i in range(3)] == [0, 2, 4]
    assert [two.position(i)[1] for i in range(4)] == [1, 3, 5, 6]


def test_records_of_an_abandoned_tracker_are_unwatched_and_those_of_others_are_not() -> None:
    """The failures of unwatched records are logged and counted, because the caller of these records
    was cancelled."""
    harness = idle_harness()
    given_up, waiting = BulkTracker(), BulkTracker()
    for tracker, count in ((given_up, 2), (waiting, 3)):
        values = [b"v"] * count
        append_column(harness.appender, tracker, harness.topic, values, None, None, None, 0, 0)
    assert harness.core.unwatched == 0
    given_up.abandon()
    assert harness.core.unwatched == 2
    waiting.abandon()
    assert harness.core.unwatched == 5


def test_records_of_a_divided_batch_are_unwatched_once_their_tracker_is_abandoned() -> None:
    harness = idle_harness()
    tracker = BulkTracker()
    append_column(harness.appender, tracker, harness.topic, [b"v"] * 4, None, None, None, 0, 0)
    parts = harness.core.split(harness.core.finish(), harness.core.size // 2)
    assert [part.unwatched for part in parts] == [0] * len(parts)
    tracker.abandon()
    assert [part.unwatched for part in parts] == [part.count for part in parts]


def test_tracker_bounds() -> None:
    tracker = BulkTracker()
    for position in (-1, 0, 5, 2**40):
        with pytest.raises(IndexError):
            tracker.position(position)
    with pytest.raises(TypeError):
        tracker.add_delivery(None)  # type: ignore[arg-type]


def test_tracker_grows_past_its_first_reservation() -> None:
    harness = idle_harness()
    tracker = BulkTracker()
    for _ in range(3000):
        tracker.add_delivery(harness.append(b""))
    harness.core.acknowledge(0)
    assert [tracker.position(i)[1] for i in (0, 1023, 1024, 2047, 2999)] == [
        *(0, 1023, 1024, 2047, 2999)
    ]
