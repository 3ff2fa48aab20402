"""`AuthFailures`: how long records wait for a broker that refuses the credentials."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from aiokprod._engine.sender.auth_failures import AuthFailures
from aiokprod.errors import AuthenticationError, DialError, Outcome
from tests.engine.engine_harness import EngineHarness, error_of, quiet, virtual

NO = AuthenticationError("no")


def batch(node: int | None, created_at: float, *, on_wire: bool = False) -> Any:
    return SimpleNamespace(
        queue=SimpleNamespace(node=node), created_at=created_at, in_flight=on_wire
    )


def test_nobody_refuses_and_nothing_is_looked_at() -> None:
    refusals = AuthFailures(10.0)
    assert refusals.next_check_at == math.inf
    refusals.lost(1, DialError("away"), 5.0)
    assert refusals.next_check_at == math.inf
    assert refusals.batches_to_fail([batch(1, 0.0)], 100.0) == []
    assert refusals.reason(1) is None
    assert refusals.final_failures(100.0) == {}
    assert refusals.final_of_all(100.0) is None


def test_records_wait_for_the_patience_from_their_batch_on() -> None:
    refusals = AuthFailures(10.0)
    old, young, elsewhere = batch(1, 100.0), batch(1, 104.0), batch(2, 0.0)
    sent = batch(1, 0.0, on_wire=True)
    refusals.lost(1, NO, 105.0)
    assert refusals.next_check_at == 105.0
    assert refusals.batches_to_fail([old, young, elsewhere, sent], 105.0) == []
    assert refusals.next_check_at == 110.0
    assert refusals.batches_to_fail([old, young, elsewhere, sent], 110.0) == [(old, NO)]
    assert refusals.next_check_at == 114.0
    assert refusals.batches_to_fail([], 114.0) == []
    assert refusals.next_check_at == 115.0
    assert refusals.batches_to_fail([], 115.0) == []
    assert refusals.next_check_at == 125.0


def test_after_the_patience_every_refusal_fails_what_waits() -> None:
    refusals = AuthFailures(10.0)
    for at in (0.0, 4.0, 9.0):
        refusals.lost(1, NO, at)
        assert refusals.final_failures(at) == {}
        assert refusals.final_of_all(at) is None
    assert refusals.batches_to_fail([], 9.0) == []
    assert refusals.next_check_at == 10.0
    assert refusals.final_failures(10.0) == {1: NO}
    assert refusals.final_of_all(10.0) is NO
    assert refusals.final_failures(19.5) == {}  # the latest rejection is too old
    refusals.lost(1, NO, 10.0)
    assert refusals.final_failures(19.5) == {1: NO}
    before, after = batch(1, 9.5), batch(1, 10.5)
    assert refusals.batches_to_fail([before, after], 10.5) == [(before, NO)]
    refusals.lost(1, NO, 11.0)
    assert refusals.batches_to_fail([after], 11.0) == [(after, NO)]


def test_partitions_without_a_leader_wait_for_any_broker() -> None:
    refusals = AuthFailures(10.0)
    refusals.lost(1, NO, 0.0)
    assert refusals.batches_to_fail([batch(None, 0.0)], 10.0)
    refusals.connected(2)
    assert refusals.batches_to_fail([batch(None, 0.0)], 10.0) == []
    assert refusals.batches_to_fail([batch(1, 0.0)], 10.0)


def test_while_one_broker_has_let_us_in_another_refuses_for_itself_only() -> None:
    refusals = AuthFailures(10.0)
    refusals.connected(2)
    for at in (0.0, 10.0, 20.0):
        refusals.lost(1, NO, at)
    assert refusals.final_failures(20.0) == {1: NO}
    assert refusals.final_of_all(20.0) is None
    assert refusals.batches_to_fail([batch(None, 0.0)], 20.0) == []
    refusals.closed(2)  # idle
    refusals.lost(1, NO, 21.0)
    assert refusals.final_of_all(21.0) is None
    refusals.lost(1, NO, 31.0)
    assert refusals.final_of_all(31.0) is NO
    assert refusals.batches_to_fail([batch(None, 0.0)], 31.0)


def test_a_broker_that_lets_us_in_or_goes_away_is_forgotten() -> None:
    refusals = AuthFailures(10.0)
    forgets: tuple[Callable[[], object], ...] = (
        lambda: refusals.connected(1),
        lambda: refusals.lost(1, DialError("away"), 20.0),
    )
    for forget in forgets:
        refusals.lost(1, NO, 0.0)
        forget()
        assert refusals.reason(1) is None
        assert refusals.batches_to_fail([batch(1, 0.0)], 100.0) == []


@virtual
async def test_sender_fails_what_waits_for_a_broker_that_refuses_us_with_its_true_outcome() -> None:
    harness = EngineHarness(partitions=2, brokers=2)
    sent = harness.append(b"sent", partition=0)
    harness.step()
    harness.brokers.last.lose(stored=True)
    harness.brokers.down[1] = math.inf
    unsent = harness.append(b"unsent", partition=0)
    elsewhere = harness.append(b"elsewhere", partition=1)
    harness.sender.auth_failures.lost(1, NO, harness.now)
    harness.step()
    harness.brokers.last.ack()
    assert elsewhere.done()
    harness.later(9.9)
    assert not sent.done()
    assert not unsent.done()
    harness.later(0.2)
    assert error_of(sent).outcome is Outcome.UNKNOWN
    assert error_of(unsent).outcome is Outcome.NOT_SENT
    assert isinstance(error_of(unsent), AuthenticationError)


@virtual
async def test_sender_sleeps_for_ever_when_nothing_waits_for_who_refuses_us() -> None:
    harness = EngineHarness()
    harness.append(b"v")
    harness.step()
    harness.brokers.last.ack()
    harness.sender.auth_failures.lost(7, NO, harness.now)
    assert harness.sender.run_once(harness.now) == math.inf


@virtual
async def test_sender_wakes_for_a_refusal_by_time_alone() -> None:
    harness = EngineHarness()
    task = asyncio.ensure_future(harness.sender.run())
    harness.brokers.down[1] = math.inf
    start = harness.now
    delivery = harness.append(b"v")
    await asyncio.sleep(1.0)
    harness.sender.auth_failures.lost(1, NO, harness.now)
    harness.sender.wakeup()
    with pytest.raises(AuthenticationError):
        await delivery
    assert harness.now == start + 10.0
    task.cancel()
    await quiet()
    harness.check_idle()
