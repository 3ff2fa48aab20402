"""`TransactionCore` and `TransactionManager` by themselves: what they advise about sequences, and
whom an error reaches."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from aiokprod import AuthenticationError, FatalTransactionError, Outcome, Producer
from aiokprod._engine.buffer.producer_batch import ProducerBatch
from aiokprod._engine.identity import transaction_manager
from aiokprod._engine.identity.sequence_errors import SequenceDecision
from aiokprod._engine.identity.transaction_manager import TransactionManager
from aiokprod._engine.identity.transaction_requests import end
from aiokprod._engine.identity.transaction_states import TxnState
from aiokprod._errors import Code
from aiokprod.errors import BrokerError, KafkaError, broker_error
from aiokprod.records import TopicPartition
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.virtual import run
from tests.engine.engine_harness import EngineHarness
from tests.engine.identity.test_transaction_states import manager
from tests.scenarios.scenario_helpers import harness, play, until
from tests.transactions.transaction_helpers import INIT, PRODUCE, committed, one, transactional

KEY = TopicPartition("t", 0)


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def main(**parameters: Any) -> None:
        run(lambda: test(**parameters))

    return main


def opened(*more: TxnState) -> TransactionManager:
    """In a transaction under producer id 0."""
    state = manager(asyncio.get_running_loop(), [])
    for step in (TxnState.INITIALIZING, TxnState.READY, TxnState.IN_TRANSACTION, *more):
        state._become(step)
    state.producer_id, state.epoch = 0, 0
    return state


def batches(count: int) -> list[ProducerBatch]:
    harness = EngineHarness()
    found = []
    for _ in range(count):
        harness.append(b"v")
        found += harness.accumulator.drain(1, 1 << 20, lambda queue, batch: True)
    return found


def decision(
    state: TransactionManager, batch: ProducerBatch, code: int, log_start: int = -1
) -> SequenceDecision:
    """Classify an error of the batch and carry out what follows from it."""
    action = state.classify(batch, code, log_start)
    state.apply(batch, action)
    return action.decision


@virtual
async def test_duplicate_sequence_means_stored() -> None:
    state = opened()
    (batch,) = batches(1)
    state.assign_sequence(batch)
    assert decision(state, batch, Code.DUPLICATE_SEQUENCE_NUMBER) is SequenceDecision.DUPLICATE


@virtual
async def test_out_of_order_waits_for_an_older_batch_and_aborts_if_there_is_none() -> None:
    state = opened()
    first, second = batches(2)
    state.assign_sequence(first)
    state.assign_sequence(second)
    code = Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert decision(state, second, code) is SequenceDecision.RETRY
    assert decision(state, first, code) is SequenceDecision.NONE, "nothing older is open"
    state.on_success(first, 0)
    assert decision(state, second, code) is SequenceDecision.NONE, "the log has what precedes it"


@virtual
async def test_unknown_producer_without_log_start_is_retried_once_renumbered_too() -> None:
    state = opened()
    (batch,) = batches(1)
    state.assign_sequence(batch)
    assert decision(state, batch, Code.UNKNOWN_PRODUCER_ID) is SequenceDecision.RETRY
    batch.sequence_reset = True
    assert decision(state, batch, Code.UNKNOWN_PRODUCER_ID, 9) is SequenceDecision.RETRY


@virtual
async def test_sequence_errors_are_not_retried_once_the_transaction_fails() -> None:
    state = opened()
    (batch,) = batches(1)
    state.assign_sequence(batch)
    state.abort_with(BrokerError("x"))
    for code in (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.UNKNOWN_PRODUCER_ID):
        assert decision(state, batch, code, 9) is SequenceDecision.NONE
    state.abort_with(BrokerError("y"))
    assert state.error is not None
    assert "x" in state.error.message, "the first reason stands"


@virtual
async def test_first_fatal_reason_stands() -> None:
    state = opened()
    state.on_fatal(BrokerError("first"))
    state.fail(BrokerError("second"))
    assert state.fatal_error is not None
    assert "first" in state.fatal_error.message
    assert state.fatal_error.outcome is Outcome.NOT_SENT


@pytest.mark.parametrize("code", [Code.CLUSTER_AUTHORIZATION_FAILED, Code.PRODUCER_FENCED,
                                  Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED])  # fmt: skip
@transactional()
async def test_record_refused_with_a_fatal_code_ends_the_producer(
    cluster: FakeCluster, producer: Producer[Any, Any], code: Code
) -> None:
    await producer.begin_transaction()
    cluster.fail_produce(("t", 0), code)
    with pytest.raises(KafkaError):
        await producer.send("t", b"v", partition=0)
    with pytest.raises(FatalTransactionError):
        await producer.commit_transaction()
    assert committed(cluster) == []


@pytest.mark.parametrize("sent", [True, False])
@virtual
async def test_refusal_by_the_coordinator_reaches_who_waits_and_changes_nothing(sent: bool) -> None:
    state = opened()
    call = asyncio.ensure_future(state.end(commit=True, deadline=float("inf")))
    await asyncio.sleep(0)
    assert state.ending is not None
    state.ending.request = end("id", 0, 0, commit=True, tv2=False)
    state.ending.request.sent = sent
    state.refused(AuthenticationError("wrong password"))
    with pytest.raises(AuthenticationError, match="wrong password") as caught:
        await call
    assert caught.value.outcome is (Outcome.UNKNOWN if sent else Outcome.NOT_SENT)
    again = asyncio.ensure_future(state.end(commit=True, deadline=float("inf")))
    await asyncio.sleep(0)
    assert not again.done(), "an old refusal is not repeated"
    state.started = True
    state.ended()
    await again
    assert state.state is TxnState.READY


@virtual
async def test_begin_after_a_transaction_that_ended_fatally_says_so() -> None:
    state = opened()
    call = asyncio.ensure_future(state.end(commit=True, deadline=0.0))
    with pytest.raises(KafkaError):
        await call
    waiting = asyncio.ensure_future(state.begin(float("inf")))
    await asyncio.sleep(0)
    state.fail(broker_error(Code.PRODUCER_FENCED, "x"))
    with pytest.raises(KafkaError) as caught:
        await waiting
    assert state.fatal_error is not None
    assert type(caught.value) is type(state.fatal_error)


@pytest.mark.parametrize("profile", ["0.11", "1.0", "2.1", "2.4", "2.8", "3.9"])
def test_old_brokers_commit_and_abort(profile: str) -> None:
    async def main() -> None:
        async with harness(cluster={"version_profile": profile}, transactional_id="x") as (
            cluster, producer, _,
        ):  # fmt: skip
            await old_broker(cluster, producer, bumps=profile in ("2.8", "3.9"))
        assert cluster.violations == []

    play(main)


@pytest.mark.parametrize("profile", ["0.11", "2.4", "2.8"])
def test_abort_sends_a_refused_batch_again_so_that_its_sequence_leaves_no_gap(profile: str) -> None:
    """As Java does. The gap would need another epoch, and brokers before 2.5 cannot give one: the
    abort would end the producer."""

    async def main() -> None:
        made = {"version_profile": profile}
        async with harness(cluster=made, transactional_id="x", linger_ms=0) as (
            cluster,
            producer,
            _,
        ):
            await one(producer, b"1")
            began = cluster.count(INIT)
            await producer.begin_transaction()
            cluster.fail_produce(("t", 0), Code.NOT_ENOUGH_REPLICAS)
            handle = await producer.submit("t", b"2", partition=0)
            await until(lambda: cluster.count(PRODUCE) == 2)
            await producer.abort_transaction()
            assert (await handle).offset == 2
            await one(producer, b"3")
            assert committed(cluster) == [b"1", b"3"]
            assert cluster.count(INIT) == began
        assert cluster.violations == []

    play(main)


@pytest.mark.parametrize(("highest", "bumps"), [(1, 0), (2, 0), (3, 1), (4, 1)])
def test_many_sequences_of_unused_topics_end_with_an_epoch_where_there_is_one(
    highest: int, bumps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once they are too many, and not before: InitProducerId takes an epoch from version 3 on."""
    monkeypatch.setattr(transaction_manager, "FORGOTTEN_PARTITIONS", 2)

    async def main() -> None:
        made = {"version_profile": "2.8"}
        async with harness(cluster=made, transactional_id="x") as (cluster, producer, _):
            for broker in cluster.brokers.values():
                ranges = {**broker.profile.ranges, INIT: (0, highest)}
                broker.profile = dataclasses.replace(broker.profile, ranges=ranges)
            cluster.create_topic("s", 2)
            for topic, index in (("t", 0), ("s", 0), ("s", 1)):
                async with producer.transaction():
                    await producer.send(topic, b"v", partition=index)
            state = producer._runtime.state
            began = cluster.count(INIT)
            state.on_topic_forgotten("s", 1)
            await one(producer, b"1")
            assert cluster.count(INIT) == began
            state.on_topic_forgotten("s", 2)
            await one(producer, b"2")
            await one(producer, b"3")
            assert cluster.count(INIT) == began + bumps
            assert committed(cluster) == [b"v", b"1", b"2", b"3"]
            assert committed(cluster, "s") == [b"v", b"v"]
        assert cluster.violations == []

    play(main)


async def old_broker(cluster: FakeCluster, producer: Producer[Any, Any], *, bumps: bool) -> None:
    await one(producer, b"1")
    await producer.begin_transaction()
    await producer.send("t", b"2", partition=0)
    await producer.send_offsets_to_transaction({("in", 0): 1}, "g")
    await producer.abort_transaction()
    await one(producer, b"3")
    assert committed(cluster) == [b"1", b"3"]
    cluster.fail_produce(("t", 0), Code.INVALID_TXN_STATE)
    await producer.begin_transaction()
    with pytest.raises(KafkaError):
        await producer.send("t", b"4", partition=0)
    await producer.abort_transaction()
    if bumps:
        await one(producer, b"5")
        assert committed(cluster) == [b"1", b"3", b"5"]
    else:
        # The gap in the sequences needs a new epoch, which these brokers cannot give.
        with pytest.raises(FatalTransactionError, match=r"2\.5"):
            await producer.begin_transaction()
