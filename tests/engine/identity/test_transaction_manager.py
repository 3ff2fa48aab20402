"""`TransactionManager` in isolation: how errors affect the transaction, and when it needs a new
epoch."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from aiokprod import FatalTransactionError, Outcome, Producer
from aiokprod._engine.identity import transaction_manager
from aiokprod._engine.identity.transaction_manager import TransactionManager
from aiokprod._engine.identity.transaction_progress import CoordinatorView, TxnStep
from aiokprod._engine.identity.transaction_states import TxnState
from aiokprod._errors import Code
from aiokprod.errors import BrokerError, KafkaError, TransactionError
from aiokprod.records import TopicPartition
from aiokprod.testing.fake_cluster import FakeCluster
from tests.engine.identity.identity_helpers import RecordingControl, opened
from tests.scenarios.scenario_helpers import harness, play, runtime_of, until
from tests.transactions.transaction_helpers import INIT, PRODUCE, committed, one, transactional
from tests.virtual_time import in_virtual_time

KEY = TopicPartition("t", 0)


@in_virtual_time
async def test_first_fatal_reason_stands() -> None:
    state = opened()
    state.fail(BrokerError("first"))
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
    """Java does the same. The gap would need another epoch, which brokers before 2.5 cannot
    provide: the abort would end the producer."""

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
    """InitProducerId accepts an epoch from version 3 on."""
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
            sequences: Any = runtime_of(producer).state.sequences
            began = cluster.count(INIT)
            sequences.on_topic_forgotten("s", 1)
            await one(producer, b"1")
            assert cluster.count(INIT) == began
            sequences.on_topic_forgotten("s", 2)
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
        # The gap in the sequences needs a new epoch, which these brokers cannot provide.
        with pytest.raises(FatalTransactionError, match=r"2\.5"):
            await producer.begin_transaction()


def ending(**facts: Any) -> TransactionManager:
    """Return a manager whose transaction is about to end."""
    made = opened()
    made.start_end(commit=True)
    for name, value in facts.items():
        setattr(made.progress, name, value)
    return made


@pytest.mark.parametrize(
    ("view", "facts", "lost", "epoch_given", "bumps"),
    [
        (CoordinatorView.UNKNOWN, {}, False, False, False),
        (CoordinatorView.UNKNOWN, {"needs_bump": True}, False, False, False),
        (CoordinatorView.UNKNOWN, {"unmapped": True}, False, False, True),
        (CoordinatorView.POSSIBLY_STARTED, {}, False, False, True),
        (CoordinatorView.POSSIBLY_STARTED, {}, False, True, False),
        (CoordinatorView.STARTED, {}, False, False, False),
        (CoordinatorView.STARTED, {"needs_bump": True}, False, False, True),
        (CoordinatorView.STARTED, {}, True, False, True),
        (CoordinatorView.CONFIRMED, {}, True, True, False),
        (CoordinatorView.CONFIRMED, {"needs_bump": True}, True, True, False),
        (CoordinatorView.CONFIRMED, {"unmapped": True}, False, True, True),
    ],
)
@in_virtual_time
async def test_end_requests_a_new_epoch_if_a_copy_of_anything_may_still_arrive(
    view: CoordinatorView, facts: dict[str, bool], lost: bool, epoch_given: bool, bumps: bool
) -> None:
    made = ending(**facts)
    assert made.ending is not None
    made.progress.note(view)
    made.ending.lost = lost
    if epoch_given:
        made.ended(0, 1)
    else:
        made.ended()
    assert made.state is (TxnState.INITIALIZING if bumps else TxnState.READY)
    assert made.tracker.epoch == (1 if epoch_given else 0)
    assert made.ending.done.result() is None


@in_virtual_time
async def test_steps_come_in_order_and_the_end_waits_for_the_batches() -> None:
    control = RecordingControl()
    made = opened(control=control)
    assert made.next_step() is None
    made.pacing.awaits_markers = True
    made.maybe_add_partition(KEY)
    assert made.next_step() is TxnStep.MARKERS
    made.pacing.awaits_markers = False
    assert made.next_step() is TxnStep.ADD
    made.added([KEY])
    assert made.next_step() is None
    control.incomplete = True
    made.start_end(commit=True)
    assert made.next_step() is None
    control.incomplete = False
    assert made.next_step() is TxnStep.END
    assert made.wants(TxnStep.END)
    assert made.wants(TxnStep.ADD), "a commit needs what was requested before"
    made.ended()
    assert not made.wants(TxnStep.END)


@in_virtual_time
async def test_partitions_whose_records_were_withdrawn_are_not_added() -> None:
    control = RecordingControl()
    made = opened(control=control)
    made.maybe_add_partition(KEY)
    assert not made.drop_unused_partitions()
    assert made.next_step() is TxnStep.ADD
    control.withdrawn.add(KEY)
    assert made.next_step() is None
    made.start_end(commit=True)
    assert made.next_step() is TxnStep.END


@pytest.mark.parametrize("version", [1, 2])
@in_virtual_time
async def test_begin_starts_with_new_progress(version: int) -> None:
    control = RecordingControl()
    made = opened(control=control)
    made.maybe_add_partition(KEY)
    made.start_end(commit=False)
    made.progress.needs_bump = made.progress.prepared = True
    made.ended()
    control.version = version
    before = made.progress
    made.begin()
    assert made.ending is None
    assert made.progress is not before
    assert made.progress.tv2 is (version == 2)
    assert made.progress.view is CoordinatorView.UNKNOWN
    assert not made.progress.pending_partitions
    assert not made.progress.needs_bump
    assert control.transaction_open
    made.check_open()


@in_virtual_time
async def test_prepared_transaction_takes_nothing_and_can_be_ended() -> None:
    control = RecordingControl()
    made = opened(control=control)
    made.prepare()
    assert not control.transaction_open
    with pytest.raises(TransactionError, match="accepts nothing more"):
        made.check_open()
    made.start_end(commit=True)
    assert control.completing


@pytest.mark.parametrize(
    ("error", "raised", "aborts"),
    [
        (BrokerError("x"), True, True),
        (KafkaError("x"), True, False),
        (KafkaError("x"), False, True),
        (TransactionError("x"), True, False),
    ],
)
@in_virtual_time
async def test_refused_record_aborts_if_the_transaction_lacks_it(
    error: KafkaError, raised: bool, aborts: bool
) -> None:
    made = opened()
    made.on_refused(error, raised=raised)
    assert made.state is (TxnState.ABORTABLE_ERROR if aborts else TxnState.IN_TRANSACTION)
