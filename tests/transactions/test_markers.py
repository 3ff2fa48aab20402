"""Waiting for the markers of the transaction before: only where it pays, and never for long."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiokprod import Producer
from aiokprod.engine.marker_pace import (
    BACK_TO_BACK_S,
    REST,
    SLOW_S,
    SLOW_WEIGHT,
    TERM,
    MarkerPace,
)
from aiokprod.error_codes import Code
from aiokprod.testing.fake_cluster import (
    FakeCluster,
    Reaction,
    Request,
    delay,
    lose_request,
    refuse,
)
from tests.faults.kit import now
from tests.transactions.kit import (
    ADD_PARTITIONS,
    END,
    ID,
    committed,
    one,
    stable,
    transactional,
)

FAST, SLOW = SLOW_S / 2, SLOW_S * 1.5


class Course:
    """Transactions one after the other, told to a pace."""

    def __init__(self) -> None:
        self.pace = MarkerPace()
        self.now = 0.0

    def one(self, took: float, gap: float = 0.0) -> bool:
        """A transaction whose first batch took so long; did it wait?"""
        self.pace.ended(self.now)
        self.now += gap
        waits = self.pace.begins(self.now)
        self.pace.sent(self.now)
        self.now += took
        self.pace.answered(self.now)
        self.pace.sent(self.now)  # later batches do not count
        self.now += 1.0
        self.pace.answered(self.now)
        return waits


def test_pace_quick_batches_never_wait() -> None:
    course = Course()
    assert not any(course.one(FAST) for _ in range(3 * TERM))


def test_pace_slow_batch_lets_a_term_wait_then_one_looks_again() -> None:
    course = Course()
    assert not course.one(SLOW)
    assert all(course.one(FAST) for _ in range(TERM))
    assert not course.one(FAST)
    assert not course.one(SLOW)
    assert course.one(FAST)


def test_pace_slow_in_spite_of_waiting_is_given_up_for_a_rest() -> None:
    course = Course()
    course.one(SLOW)
    assert all(course.one(SLOW) for _ in range(TERM // SLOW_WEIGHT))
    assert not any(course.one(SLOW) for _ in range(REST))
    course.one(SLOW)
    assert course.one(SLOW)


def test_pace_pause_between_transactions_says_nothing_and_needs_no_waiting() -> None:
    course = Course()
    assert not course.one(SLOW, gap=BACK_TO_BACK_S)
    assert not course.one(SLOW)
    assert not course.one(SLOW, gap=BACK_TO_BACK_S)
    assert course.one(FAST)


def test_pace_without_an_answer_learns_nothing() -> None:
    pace = MarkerPace()
    pace.ended(0.0)
    pace.begins(0.0)
    pace.answered(1.0)
    assert not pace.begins(1.0)


@transactional()
async def test_markers_quick_one_end_each(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    for number in range(30):
        await one(producer, b"%d" % number)
    assert cluster.count(END) == 30


@transactional(cluster={"marker_s": 0.006})
async def test_markers_slow_next_transactions_start_as_soon_as_they_are_written(
    cluster: FakeCluster, producer: Producer[Any, Any], tv: int
) -> None:
    await producer.start()
    await one(producer, b"0")
    started = now()
    for number in range(1, 30):
        await one(producer, b"%d" % number)
    each = (now() - started) / 29
    assert each < 0.014, "14 ms instead of more than 20"
    await asyncio.sleep(1)
    assert committed(cluster) == [b"%d" % number for number in range(30)]
    assert cluster.transactions.ids[ID].history == [True] * 30
    if tv == 1:
        assert cluster.count(END) == 30
        assert cluster.count(ADD_PARTITIONS) <= 3 * 30


def every_other(reaction: Reaction) -> Any:
    """Every second EndTxn is a copy made to see whether the markers are written."""
    seen: set[int] = set()

    def control(request: Request) -> Reaction | None:
        epoch = request.body.producer_epoch
        if epoch in seen:
            return reaction
        seen.add(epoch)
        return None

    return control


@pytest.mark.parametrize(
    "reaction",
    [lose_request(), delay(0.04), delay(5.0), refuse(Code.PRODUCER_FENCED),
     refuse(Code.NOT_COORDINATOR), refuse(Code.UNKNOWN_SERVER_ERROR)],
    ids=["lost", "late", "very-late", "fenced", "not-coordinator", "server-error"],
)  # fmt: skip
@transactional(cluster={"marker_s": 0.006}, request_timeout_ms=2_000)
async def test_markers_copy_of_end_goes_astray_nothing_depends_on_it(
    cluster: FakeCluster, producer: Producer[Any, Any], reaction: Reaction, tv: int
) -> None:
    if tv == 1:
        return  # no copies
    cluster.control(END, every_other(reaction))
    await producer.start()
    verdicts = [number % 3 != 1 for number in range(30)]
    for number, commit in enumerate(verdicts):
        await producer.begin_transaction()
        await producer.send("t", b"%d" % number, partition=0)
        started = now()
        await (producer.commit_transaction() if commit else producer.abort_transaction())
        # A lost copy breaks its connection, later.
        assert now() - started < 2.5
    await asyncio.sleep(1)
    assert committed(cluster) == [b"%d" % n for n, commit in enumerate(verdicts) if commit]
    await one(producer, b"last")
    await asyncio.sleep(1)
    assert cluster.transactions.ids[ID].history == [*verdicts, True]
    assert cluster.count(END) > 31, "there were copies"
    assert stable(cluster)
