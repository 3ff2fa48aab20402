"""Bugs of real clients, put back one at a time. A scenario must detect each of them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from aiokprod import DeliveryTimeout, KafkaTimeout, Producer
from aiokprod._engine.identity import transaction_driver
from aiokprod._engine.identity.transaction_calls import TransactionCalls
from aiokprod._engine.identity.transaction_manager import TransactionManager
from aiokprod._errors import Code, ErrorAction, ErrorCode, TxnApi, error_code
from aiokprod.testing.fake_cluster import FakeCluster, delay, lose_request, refuse
from tests.transactions.test_simulation import play
from tests.transactions.transaction_helpers import END, PRODUCE, committed, one, transactional

pytestmark = pytest.mark.matrix

CHANCES = 200
"""Number of simulation seeds within which each bug must be detected. The slowest bug needed 73."""

Patch = Callable[[pytest.MonkeyPatch], None]


def commit_after_failed_record(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionManager, "on_records_failed", lambda self, batch, error: None)


def server_error_taken_for_success(patch: pytest.MonkeyPatch) -> None:
    def trusting(number: int) -> ErrorCode:
        row = error_code(number)
        if number != Code.UNKNOWN_SERVER_ERROR:
            return row
        return dataclasses.replace(row, coordinator_actions={TxnApi.END: ErrorAction.OK})

    patch.setattr(transaction_driver, "error_code", trusting)


def silent_join(patch: pytest.MonkeyPatch) -> None:
    ended = TransactionManager.ended

    def forgetful(self: TransactionManager, producer_id: int = -1, epoch: int = -1) -> None:
        assert self.ending is not None
        self.ending.lost = self.progress.needs_bump = False
        ended(self, producer_id, epoch)

    patch.setattr(TransactionManager, "ended", forgetful)


def partition_not_announced(patch: pytest.MonkeyPatch) -> None:
    admit = TransactionManager.maybe_add_partition

    def careless(self: TransactionManager, key: Any) -> None:
        admit(self, key)
        self.progress.partitions.add(key)

    patch.setattr(TransactionManager, "maybe_add_partition", careless)


def new_transaction_while_commit_is_unconfirmed(patch: pytest.MonkeyPatch) -> None:
    async def hasty(self: TransactionCalls, ending: Any, deadline: float) -> None:
        self.manager.ended(self.manager.tracker.producer_id, self.manager.tracker.epoch)

    patch.setattr(TransactionCalls, "_wait_for_previous", hasty)


async def failed_record(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
    await one(producer, b"warm")
    await producer.begin_transaction()
    await producer.send("t", b"good", partition=1)
    cluster.control(PRODUCE, lose_request())
    handle = await producer.submit("t", b"expires", partition=0)
    with pytest.raises(DeliveryTimeout):
        await handle
    cluster.script.clear()
    with pytest.raises(Exception, match="abort"):
        await producer.commit_transaction()


async def server_error(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
    cluster.control(END, refuse(Code.UNKNOWN_SERVER_ERROR), times=1)
    await one(producer, b"v")
    assert committed(cluster) == [b"v"]


async def late_copy(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
    await producer.begin_transaction()
    await producer.send("t", b"v", partition=0)
    cluster.control(END, delay(10.0), times=1)
    await producer.commit_transaction()
    await producer.begin_transaction()
    await producer.send("t", b"open", partition=0)
    await asyncio.sleep(20)
    assert committed(cluster) == [b"v"]
    await producer.abort_transaction()


async def announced(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
    cluster.control(24, delay(1.0))
    await one(producer, b"v")
    assert committed(cluster) == [b"v"]
    assert cluster.violations == []


async def unconfirmed(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
    await producer.begin_transaction()
    await producer.send("t", b"v", partition=0)
    cluster.control(END, lose_request())
    with pytest.raises(KafkaTimeout):
        await producer.commit_transaction()
    with pytest.raises(KafkaTimeout):
        await producer.begin_transaction()


CASES: dict[str, tuple[Patch, Any, tuple[int, ...]]] = {
    "commit-after-failed-record": (commit_after_failed_record, failed_record, (1, 2)),
    "server-error-taken-for-success": (server_error_taken_for_success, server_error, (1, 2)),
    "silent-join": (silent_join, late_copy, (1,)),
    "partition-not-announced": (partition_not_announced, announced, (1,)),
    "begin-while-unconfirmed": (new_transaction_while_commit_is_unconfirmed, unconfirmed, (1, 2)),
}


@pytest.mark.parametrize("case", CASES)
@transactional(max_block_ms=20_000, request_timeout_ms=2_000, delivery_timeout_ms=6_000,
               linger_ms=0)  # fmt: skip
async def test_without_the_bug_scenario_passes(
    cluster: FakeCluster, producer: Producer[Any, Any], case: str
) -> None:
    await CASES[case][1](cluster, producer)
    cluster.script.clear()


@pytest.mark.parametrize("case", CASES)
def test_reinjected_bug_is_found(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patch, scenario, protocols = CASES[case]
    patch(monkeypatch)
    run_it = transactional(
        max_block_ms=20_000, request_timeout_ms=2_000, delivery_timeout_ms=6_000, linger_ms=0
    )(scenario)
    for tv in protocols:
        found = True
        try:
            run_it(tv=tv)
            found = False
        except BaseException:
            pass
        assert found, f"{case} goes unnoticed under TV{tv}"


@pytest.mark.parametrize("case", CASES)
def test_reinjected_bug_is_found_by_the_simulation(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    CASES[case][0](monkeypatch)
    for seed in range(CHANCES):
        try:
            play(seed)
        except AssertionError:
            return
    raise AssertionError(f"{case} goes unnoticed in {CHANCES} seeds")
