"""Requests that a coordinator may have carried out although it returned an error: the outcome that
the caller gets, and the next transaction, which must not be affected.

Source: Kafka `TransactionStateManager.appendTransactionToLog`. It maps errors of the write to the
transaction log to COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR and others.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiokprod import (
    AbortableTransactionError,
    FatalTransactionError,
    KafkaError,
    Outcome,
    Producer,
    ProducerFenced,
)
from aiokprod._engine.identity.transaction_progress import PendingEndTxn
from aiokprod._engine.identity.transaction_requests import end
from aiokprod._engine.identity.transaction_states import TxnState
from aiokprod.errors import BrokerError, Code
from aiokprod.testing.fake_cluster import FakeCluster, delay, lose_answer, lose_request, refuse
from aiokprod.testing.fake_cluster.control import Reaction
from aiokprod.testing.fake_cluster.transactions import Phase
from aiokprod.testing.virtual import run
from tests.engine.identity.identity_helpers import opened
from tests.scenarios.scenario_helpers import make_producer, now, until
from tests.transactions.transaction_helpers import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    COMMIT_OFFSETS,
    END,
    ID,
    INIT,
    committed,
    one,
    stable,
    transactional,
)

WRITE_ERRORS = [14, 15, 16, -1, 7, 19, 20, 56]
"""Error codes returned after a failed or unfinished write to the transaction log."""


def carried_out(code: int) -> Reaction:
    return Reaction(process=True, error=code)


@pytest.mark.parametrize("code", [9999, -77, 10, 18, 87])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@transactional()
async def test_end_answered_with_an_unexpected_code_is_in_doubt(
    cluster: FakeCluster, producer: Producer[Any, Any], code: int, commit: bool
) -> None:
    await producer.begin_transaction()
    await producer.send("t", b"v", partition=0)
    cluster.control(END, carried_out(code), times=1)
    with pytest.raises(FatalTransactionError) as caught:
        await (producer.commit_transaction() if commit else producer.abort_transaction())
    assert caught.value.outcome is Outcome.UNKNOWN
    assert f"may be {'committed' if commit else 'open'}" in str(caught.value)
    assert committed(cluster) == ([b"v"] if commit else [])


@pytest.mark.parametrize("code", WRITE_ERRORS)
@transactional()
async def test_end_carried_out_answered_with_a_write_error_then_fenced_is_in_doubt(
    cluster: FakeCluster, producer: Producer[Any, Any], code: int
) -> None:
    await producer.begin_transaction()
    await producer.send("t", b"v", partition=0)
    cluster.control(END, carried_out(code), times=1)
    commit = asyncio.ensure_future(producer.commit_transaction())
    await until(lambda: cluster.count(END) > 0)
    other = make_producer(cluster, transactional_id=ID, seed=2)
    await other.start()
    with pytest.raises(ProducerFenced) as caught:
        await commit
    await other.close()
    assert caught.value.outcome is Outcome.UNKNOWN
    assert committed(cluster) == [b"v"]


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@transactional()
async def test_end_answered_with_concurrent_transactions_then_fenced_is_rejected(
    cluster: FakeCluster, producer: Producer[Any, Any], commit: bool
) -> None:
    """Kafka 4.3 returns this error while it writes the markers of the other producer."""
    await producer.begin_transaction()
    await producer.send("t", b"v", partition=0)
    cluster.control(END, Reaction(process=False, error=51), times=3)
    cluster.control(END, Reaction(process=False, error=90), times=1)
    with pytest.raises(ProducerFenced) as caught:
        await (producer.commit_transaction() if commit else producer.abort_transaction())
    assert caught.value.outcome is Outcome.REJECTED
    assert cluster.count(END) == 4
    assert committed(cluster) == []


@pytest.mark.parametrize("processed", [True, False], ids=["answer-lost", "request-lost"])
@transactional(request_timeout_ms=2_000)
async def test_end_in_doubt_stays_so_after_concurrent_transactions(
    cluster: FakeCluster, producer: Producer[Any, Any], processed: bool
) -> None:
    """CONCURRENT_TRANSACTIONS may refer to the transaction that the first copy of this EndTxn
    ended, so the outcome must stay unknown."""
    await producer.begin_transaction()
    await producer.send("t", b"v", partition=0)
    cluster.control(END, lose_answer() if processed else lose_request(), times=1)
    cluster.control(END, Reaction(process=False, error=51), times=2)
    cluster.control(END, Reaction(process=False, error=90), times=1)
    with pytest.raises(ProducerFenced) as caught:
        await producer.commit_transaction()
    assert caught.value.outcome is Outcome.UNKNOWN
    assert committed(cluster) == ([b"v"] if processed else [])


@pytest.mark.parametrize("code", [47, 53, 90, 48, 31, 42, 35])
@transactional()
async def test_end_refused_before_any_write_is_rejected(
    cluster: FakeCluster, producer: Producer[Any, Any], code: int
) -> None:
    await producer.begin_transaction()
    await producer.send("t", b"v", partition=0)
    cluster.control(END, Reaction(process=False, error=code), times=1)
    with pytest.raises(FatalTransactionError) as caught:
        await producer.commit_transaction()
    assert caught.value.outcome is Outcome.REJECTED
    assert committed(cluster) == []


@pytest.mark.parametrize("code", [c for c in WRITE_ERRORS if c != -1])
@transactional(protocols=(1,), transaction_timeout_ms=20_000)
async def test_partitions_added_but_answered_with_a_write_error_are_aborted(
    cluster: FakeCluster, producer: Producer[Any, Any], code: int
) -> None:
    """The abort is requested during the backoff before the retry. EndTxn is still sent, and the
    next transaction has its full timeout."""
    await producer.begin_transaction()
    stop = cluster.control(ADD_PARTITIONS, carried_out(code))
    handle = await producer.submit("t", b"aborted", partition=0)
    await until(lambda: cluster.count(ADD_PARTITIONS) > 0)
    await producer.abort_transaction()
    with pytest.raises(KafkaError):
        await handle
    stop()
    assert cluster.count(END) == 1
    assert cluster.transactions.ids[ID].phase in (Phase.COMPLETE_ABORT, Phase.EMPTY)
    await asyncio.sleep(15)
    await producer.begin_transaction()
    await producer.send("t", b"next", partition=0)
    await asyncio.sleep(8)
    await producer.commit_transaction()
    assert committed(cluster) == [b"next"]
    assert stable(cluster)


@pytest.mark.parametrize("code", [15, 16])
@transactional(protocols=(1,))
async def test_offsets_added_but_answered_with_a_write_error_are_aborted(
    cluster: FakeCluster, producer: Producer[Any, Any], code: int
) -> None:
    await producer.begin_transaction()
    stop = cluster.control(ADD_OFFSETS, carried_out(code))
    sending = asyncio.ensure_future(producer.send_offsets_to_transaction({("in", 0): 5}, "g"))
    await until(lambda: cluster.count(ADD_OFFSETS) > 0)
    sending.cancel()
    await asyncio.sleep(0)
    await producer.abort_transaction()
    stop()
    assert cluster.count(END) == 1
    assert cluster.transactions.ids[ID].phase is not Phase.ONGOING
    assert cluster.transactions.committed_offsets == {}
    await one(producer, b"next")
    assert committed(cluster) == [b"next"]


@pytest.mark.parametrize("code", [15, 16])
@transactional(protocols=(1,))
async def test_partitions_not_added_though_in_doubt_abort_ends_and_bumps_the_epoch(
    cluster: FakeCluster, producer: Producer[Any, Any], code: int
) -> None:
    """The coordinator has no open transaction and returns INVALID_TXN_STATE. The abort still
    succeeds."""
    await producer.begin_transaction()
    stop = cluster.control(ADD_PARTITIONS, Reaction(process=False, error=code))
    handle = await producer.submit("t", b"aborted", partition=0)
    await until(lambda: cluster.count(ADD_PARTITIONS) > 0)
    await producer.abort_transaction()
    stop()
    with pytest.raises(KafkaError):
        await handle
    await one(producer, b"next")
    assert cluster.count(INIT) == 2
    assert cluster.transactions.ids[ID].epoch == 1
    assert committed(cluster) == [b"next"]


@pytest.mark.parametrize("add", ["partitions", "offsets"])
@transactional(protocols=(1,))
async def test_added_at_the_repetition_commits(
    cluster: FakeCluster, producer: Producer[Any, Any], add: str
) -> None:
    api = ADD_PARTITIONS if add == "partitions" else ADD_OFFSETS
    cluster.control(api, carried_out(15), times=2)
    async with producer.transaction() as txn:
        await producer.send("t", b"v", partition=0)
        await txn.send_offsets({("in", 0): 5}, "g")
    assert committed(cluster) == [b"v"]
    assert cluster.transactions.committed_offsets == {"g": {("in", 0): 5}}
    assert cluster.count(INIT) == 1, "no doubt is left: no new epoch"


@pytest.mark.parametrize("processed", [True, False], ids=["processed", "lost"])
@transactional(request_timeout_ms=20_000)
async def test_close_while_end_is_in_flight_is_in_doubt(
    cluster: FakeCluster, producer: Producer[Any, Any], processed: bool
) -> None:
    """The error of `close` has the outcome "not sent", which would be wrong for the transaction."""
    await producer.begin_transaction()
    await producer.send("t", b"v", partition=0)
    cluster.control(END, lose_answer() if processed else lose_request())
    commit = asyncio.ensure_future(producer.commit_transaction())
    await until(lambda: cluster.count(END) > 0)
    start = now()
    await producer.close(timeout=0.5)
    assert now() - start < 1.0
    with pytest.raises(KafkaError) as caught:
        await commit
    assert caught.value.outcome is Outcome.UNKNOWN
    assert committed(cluster) == ([b"v"] if processed else [])


@transactional(request_timeout_ms=20_000)
async def test_close_while_the_coordinator_of_the_end_is_looked_up_nothing_was_sent(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.begin_transaction()
    await producer.send("t", b"v", partition=0)
    runtime = producer._lifecycle.runtime
    assert runtime is not None
    assert runtime._coordinators is not None
    runtime._coordinators._known.clear()
    cluster.control(10, lose_request())
    commit = asyncio.ensure_future(producer.commit_transaction())
    await asyncio.sleep(0.5)
    await producer.close(timeout=0.5)
    with pytest.raises(KafkaError) as caught:
        await commit
    assert caught.value.outcome is Outcome.NOT_SENT
    assert cluster.count(END) == 0


@pytest.mark.parametrize(
    ("sent", "answered", "wanted"),
    [
        (False, False, Outcome.REJECTED),
        (True, False, Outcome.UNKNOWN),
        (True, True, Outcome.REJECTED),
    ],
)
def test_failure_of_the_producer_while_an_end_is_in_flight(
    sent: bool, answered: bool, wanted: Outcome
) -> None:
    async def main() -> None:
        state = opened(TxnState.COMMITTING)
        request = end("id", 0, 0, commit=True, tv2=False)
        request.sent = sent
        done = asyncio.get_running_loop().create_future()
        state.ending = PendingEndTxn(True, done, request)
        state.fail(BrokerError("x", outcome=Outcome.REJECTED), answered=answered)
        error = done.result()
        assert isinstance(error, FatalTransactionError)
        assert error.outcome is wanted

    run(main)


@transactional()
async def test_abort_refused_with_transaction_abortable_after_doubt_can_be_repeated(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.begin_transaction()
    await producer.send("t", b"v", partition=0)
    cluster.control(END, Reaction(process=False, error=15), times=1)
    cluster.control(END, Reaction(process=False, error=120), times=1)
    with pytest.raises(AbortableTransactionError):
        await producer.abort_transaction()
    await producer.abort_transaction()
    await one(producer, b"next")
    assert committed(cluster) == [b"next"]


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("api", [ADD_PARTITIONS, ADD_OFFSETS])
@transactional(protocols=(1,), request_timeout_ms=2_000, transaction_timeout_ms=20_000,
               delivery_timeout_ms=60_000)  # fmt: skip
async def test_copy_of_an_addition_that_arrives_after_the_end_does_not_fence_the_idle_producer(
    cluster: FakeCluster, producer: Producer[Any, Any], api: int, commit: bool
) -> None:
    await producer.begin_transaction()
    await producer.send("t", b"v", partition=0)
    cluster.control(api, delay(10.0), times=1)
    if api == ADD_PARTITIONS:
        await (await producer.submit("t", b"v", partition=1))
    else:
        await producer.send_offsets_to_transaction({("in", 0): 1}, "g")
    await (producer.commit_transaction() if commit else producer.abort_transaction())
    await asyncio.sleep(60)  # the copy arrives, and the transaction that it would start expires
    await one(producer, b"next")
    values = [b"v"] * (1 + (api == ADD_PARTITIONS)) if commit else []
    assert sorted(committed(cluster)) == sorted([*values, b"next"])


@transactional(protocols=(1,), request_timeout_ms=2_000, delivery_timeout_ms=60_000)
async def test_copy_of_an_offset_commit_that_arrives_in_the_next_transaction_is_fenced(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    async with producer.transaction() as txn:
        cluster.control(COMMIT_OFFSETS, delay(10.0), times=1)
        await txn.send_offsets({("in", 0): 10}, "g")
    async with producer.transaction() as txn:
        await txn.send_offsets({("in", 0): 20}, "g")
        await asyncio.sleep(20)  # the copy of the first request arrives
    assert cluster.transactions.committed_offsets == {"g": {("in", 0): 20}}


@transactional(protocols=(1,))
async def test_refused_additions_without_a_lost_request_need_no_new_epoch(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await one(producer, b"first")
    async with producer.transaction() as txn:
        await producer.send("t", b"v", partition=0)
        for api, code in (
            (ADD_PARTITIONS, Code.CONCURRENT_TRANSACTIONS),
            (ADD_OFFSETS, Code.COORDINATOR_LOAD_IN_PROGRESS),
            (COMMIT_OFFSETS, Code.NOT_COORDINATOR),
        ):
            cluster.control(api, refuse(code), times=2)
        await producer.send("t", b"v", partition=1)
        await txn.send_offsets({("in", 0): 1}, "g")
    await one(producer, b"last")
    assert cluster.count(INIT) == 1
