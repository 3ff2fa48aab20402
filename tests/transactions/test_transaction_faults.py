"""The rows of the fault catalogue about transactions. Each row has its own test."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from aiokprod import (
    AbortableTransactionError,
    BufferFull,
    ConfigError,
    DeliveryTimeout,
    FatalTransactionError,
    GroupMetadata,
    KafkaError,
    KafkaTimeout,
    MetadataMissing,
    MetadataTimeout,
    Outcome,
    Producer,
    ProducerFenced,
    RecordTooLarge,
    TransactionError,
)
from aiokprod._errors import Code
from aiokprod.testing.fake_cluster import FakeCluster, delay, lose_answer, lose_request, refuse
from aiokprod.testing.fake_cluster.apis.find_coordinator import coordinator_of
from aiokprod.testing.fake_cluster.profiles import API_VERSIONS, profile_named
from tests.scenarios.scenario_helpers import make_producer, now, until
from tests.transactions.transaction_helpers import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    COMMIT_OFFSETS,
    END,
    FIND,
    ID,
    INIT,
    PRODUCE,
    committed,
    full,
    one,
    stable,
    transactional,
)


@transactional(protocols=(2,), metadata_max_age_ms=1_000)
async def test_f58_protocol_of_another_cluster_is_that_of_its_features(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    """The client fails over to an older cluster at the same addresses, which has a lower feature
    epoch."""
    epoch = 50

    def with_epoch(request: Any, message: Any) -> Any:
        if request.api_key != API_VERSIONS:
            return message
        return dataclasses.replace(message, finalized_features_epoch=epoch)

    cluster.answer_filters.append(with_epoch)
    await one(producer, b"first")
    for broker_id in cluster.brokers:
        cluster.kill(broker_id)
    epoch = 3
    cluster.cluster_id = "another-cluster-00000"
    cluster.transactions.ids.clear()
    cluster.transactions.version = 1
    cluster.recreate_topic("t")
    for broker_id, broker in cluster.brokers.items():
        broker.profile = profile_named("3.9")
        cluster.start(broker_id)
    await asyncio.sleep(5)
    with pytest.raises(AbortableTransactionError, match="does not belong"):
        await one(producer, b"refused")
    for value in (b"second", b"third"):
        await one(producer, value)
    assert committed(cluster) == [b"second", b"third"]
    assert stable(cluster)


@transactional()
async def test_f36_invalid_producer_epoch_on_produce_abort_then_go_on(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.begin_transaction()
    cluster.fail_produce(("t", 0), Code.INVALID_PRODUCER_EPOCH)
    with pytest.raises(KafkaError, match="INVALID_PRODUCER_EPOCH"):
        await producer.send("t", b"v", partition=0)
    with pytest.raises(AbortableTransactionError):
        await producer.commit_transaction()
    epoch = cluster.transactions.ids[ID].epoch
    await producer.abort_transaction()
    await one(producer, b"next")
    assert cluster.transactions.ids[ID].epoch > epoch
    assert committed(cluster) == [b"next"]


@pytest.mark.parametrize("code", [Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_EPOCH])
@transactional()
async def test_f37_fenced_by_a_newer_instance_all_later_calls_say_so(
    cluster: FakeCluster, producer: Producer[Any, Any], code: int
) -> None:
    await producer.begin_transaction()
    await producer.send("t", b"zombie", partition=0)
    newer = make_producer(cluster, transactional_id=ID)
    await one(newer, b"newer")
    if code == Code.INVALID_PRODUCER_EPOCH:
        cluster.control(END, refuse(code))
    with pytest.raises(ProducerFenced) as caught:
        await producer.commit_transaction()
    assert caught.value.outcome is Outcome.REJECTED
    for call in (
        producer.begin_transaction, producer.commit_transaction, producer.abort_transaction,
        lambda: producer.send("t", b"v"),
    ):  # fmt: skip
        with pytest.raises(ProducerFenced):
            await call()
    cluster.script.clear()
    await one(newer, b"goes on")
    assert committed(cluster) == [b"newer", b"goes on"]
    await newer.close()


@pytest.mark.parametrize("code", [Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE,
                                  Code.COORDINATOR_LOAD_IN_PROGRESS])  # fmt: skip
@pytest.mark.parametrize("api", [FIND, INIT, ADD_PARTITIONS, ADD_OFFSETS, COMMIT_OFFSETS, END])
@transactional()
async def test_f38_coordinator_moves_or_loads_request_is_repeated(
    cluster: FakeCluster, producer: Producer[Any, Any], api: int, code: int
) -> None:
    cluster.control(api, refuse(code), times=3)
    async with producer.transaction() as txn:
        await producer.send("t", b"v", partition=0)
        await txn.send_offsets({("in", 0): 3}, "g")
    assert committed(cluster) == [b"v"]
    assert cluster.transactions.committed_offsets == {"g": {("in", 0): 3}}


@pytest.mark.parametrize("when", ["idle", "open", "ending"])
@transactional()
async def test_f38_coordinator_dies_another_takes_over(
    cluster: FakeCluster, producer: Producer[Any, Any], when: str
) -> None:
    await one(producer, b"before")
    victim = coordinator_of(cluster.brokers[1], ID)
    assert victim is not None
    if when == "idle":
        cluster.kill(victim.broker_id)
    await producer.begin_transaction(timeout=50)
    await producer.send("t", b"v", partition=0)
    if when == "open":
        cluster.kill(victim.broker_id)
    if when == "ending":
        cluster.control(END, lose_answer(), times=1)
        asyncio.get_running_loop().call_later(1.0, cluster.kill, victim.broker_id)
    await producer.commit_transaction(timeout=50)
    await one(producer, b"after", timeout=50)
    assert committed(cluster) == [b"before", b"v", b"after"]


@transactional(cluster={"marker_s": 0.5})
async def test_f39_concurrent_transactions_is_waited_out(
    cluster: FakeCluster, producer: Producer[Any, Any], tv: int
) -> None:
    await producer.begin_transaction()
    await producer.send("t", b"crashed", partition=0)
    newer = make_producer(cluster, transactional_id=ID)
    await one(newer, b"a")
    await one(newer, b"b")
    await newer.close()
    await asyncio.sleep(1)
    assert committed(cluster) == [b"a", b"b"]


@transactional()
async def test_f39_first_add_partitions_backs_off_briefly(
    cluster: FakeCluster, producer: Producer[Any, Any], tv: int
) -> None:
    await producer.warm(["t"])
    await producer.start()
    cluster.control(ADD_PARTITIONS, refuse(Code.CONCURRENT_TRANSACTIONS), times=3)
    start = now()
    await one(producer, b"v")
    assert now() - start < 0.1


@transactional()
async def test_f40_invalid_txn_state_on_produce_abortable(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.begin_transaction()
    cluster.fail_produce(("t", 0), Code.INVALID_TXN_STATE)
    with pytest.raises(KafkaError, match="INVALID_TXN_STATE"):
        await producer.send("t", b"v", partition=0)
    await producer.abort_transaction()
    await one(producer, b"next")
    assert committed(cluster) == [b"next"]


@pytest.mark.parametrize("api", [ADD_PARTITIONS, ADD_OFFSETS, COMMIT_OFFSETS, END])
@transactional()
async def test_f40_invalid_txn_state_from_the_coordinator_fatal(
    cluster: FakeCluster, producer: Producer[Any, Any], api: int, tv: int
) -> None:
    if tv == 2 and api in (ADD_PARTITIONS, ADD_OFFSETS):
        return  # not sent
    await producer.start()
    cluster.control(api, refuse(Code.INVALID_TXN_STATE))
    with pytest.raises(FatalTransactionError, match="INVALID_TXN_STATE"):
        await full(producer, b"3")
    assert committed(cluster) == []


@pytest.mark.parametrize("api", [FIND, INIT, ADD_PARTITIONS, ADD_OFFSETS, COMMIT_OFFSETS, END,
                                 PRODUCE])  # fmt: skip
@transactional()
async def test_f41_transaction_abortable_abort_and_go_on(
    cluster: FakeCluster, producer: Producer[Any, Any], api: int, tv: int
) -> None:
    if (tv == 2 and api in (ADD_PARTITIONS, ADD_OFFSETS)) or api == FIND:
        return
    if api != INIT:
        await producer.start()
    cluster.control(api, refuse(Code.TRANSACTION_ABORTABLE), times=1)
    with pytest.raises(AbortableTransactionError):
        await full(producer, b"3")
    assert committed(cluster) == []
    await one(producer, b"next")
    assert committed(cluster) == [b"next"]
    assert stable(cluster)


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize(
    "fault",
    [lose_request(), lose_answer(), refuse(Code.UNKNOWN_SERVER_ERROR),
     refuse(Code.REQUEST_TIMED_OUT)],
    ids=["request-lost", "answer-lost", "server-error", "timed-out"],
)  # fmt: skip
@transactional(max_block_ms=1_000, request_timeout_ms=2_000)
async def test_f42_end_unknown_same_verdict_is_repeated_never_false(
    cluster: FakeCluster, producer: Producer[Any, Any], fault: Any, commit: bool
) -> None:
    await producer.begin_transaction()
    await producer.send("t", b"v", partition=0)
    stop = cluster.control(END, fault)
    end = producer.commit_transaction if commit else producer.abort_transaction
    other = producer.abort_transaction if commit else producer.commit_transaction
    for _ in range(2):
        with pytest.raises(KafkaTimeout) as caught:
            await end()
        assert caught.value.outcome is Outcome.UNKNOWN
        with pytest.raises(TransactionError):
            await other()
    stop()
    await end(timeout=10)
    assert committed(cluster) == ([b"v"] if commit else [])
    await one(producer, b"next", timeout=10)
    assert committed(cluster) == ([b"v", b"next"] if commit else [b"next"])
    assert cluster.transactions.ids[ID].history == [commit, True]


@transactional(request_timeout_ms=2_000)
async def test_f42_late_copy_of_end_never_joins_the_next_transaction(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    """The first EndTxn is delayed in a dying connection and is carried out during the next
    transaction."""
    await producer.begin_transaction()
    await producer.send("t", b"v", partition=0)
    cluster.control(END, delay(10.0), times=1)
    await producer.commit_transaction()
    await producer.begin_transaction()
    await producer.send("t", b"open", partition=0)
    await asyncio.sleep(20)
    assert committed(cluster) == [b"v"]
    await producer.send("t", b"rest", partition=0)
    await producer.commit_transaction()
    assert committed(cluster) == [b"v", b"open", b"rest"]


@transactional()
async def test_f43_every_produce_failed_abort_is_still_sent(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.begin_transaction()
    cluster.fail_produce(("t", 0), Code.INVALID_RECORD)
    with pytest.raises(KafkaError):
        await producer.send("t", b"v", partition=0)
    await producer.abort_transaction()
    assert cluster.count(END) == 1
    await one(producer, b"next")
    assert committed(cluster) == [b"next"]


@transactional(delivery_timeout_ms=4_000, request_timeout_ms=2_000, linger_ms=0)
async def test_f44_record_expired_before_it_was_sent_commit_fails(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await one(producer, b"first")
    await producer.begin_transaction()
    await producer.send("t", b"good", partition=1)
    cluster.control(PRODUCE, lose_request())
    handle = await producer.submit("t", b"expires", partition=0)
    with pytest.raises(AbortableTransactionError):
        await producer.commit_transaction()
    with pytest.raises(DeliveryTimeout):
        await handle
    cluster.script.clear()
    await producer.abort_transaction()
    assert committed(cluster) == [b"first"]
    await one(producer, b"next")
    assert committed(cluster) == [b"first", b"next"]
    assert stable(cluster)


@pytest.mark.parametrize("others", [False, True])
@transactional(protocols=(1,), cluster={"auto_create": False})
async def test_f44_partition_of_a_cancelled_record_is_not_waited_for(
    cluster: FakeCluster, producer: Producer[Any, Any], others: bool
) -> None:
    """The topic is deleted during the transaction, so the coordinator never adds the partition."""
    cluster.create_topic("gone", 1)
    await producer.warm(["t", "gone"])
    await producer.begin_transaction()
    cluster.control(ADD_PARTITIONS, refuse(Code.UNKNOWN_TOPIC_OR_PARTITION), times=1)
    sending = asyncio.ensure_future(producer.send("gone", b"v", partition=0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    if others:
        handle = await producer.submit("t", b"other", partition=0)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    cluster.delete_topic("gone")
    await producer.send("t", b"v", partition=1)
    before = now()
    await producer.commit_transaction()
    assert now() - before < 1
    assert committed(cluster) == ([b"other", b"v"] if others else [b"v"])
    if others:
        assert (await handle).offset == 0
    assert stable(cluster)


@pytest.mark.parametrize("how", ["metadata", "size", "size at once", "withdrawn"])
@transactional(max_block_ms=2_000, cluster={"auto_create": False})
async def test_f44_record_refused_before_it_was_queued_commit_fails(
    cluster: FakeCluster, producer: Producer[Any, Any], how: str
) -> None:
    await producer.begin_transaction()
    await producer.send("t", b"good", partition=0)
    if how == "metadata":
        with pytest.raises(MetadataTimeout):
            await producer.send("absent", b"v")
    elif how == "size":
        with pytest.raises(RecordTooLarge):
            await producer.send("t", b"v" * 2_000_000)
    elif how == "size at once":
        with pytest.raises(RecordTooLarge):
            producer.try_submit("t", b"v" * 2_000_000)
    else:
        cluster.control(PRODUCE, lose_request(), times=1)
        with pytest.raises(DeliveryTimeout):
            await producer.send("t", b"v", partition=0, timeout=0.5)
    with pytest.raises(AbortableTransactionError):
        await producer.commit_transaction()
    await producer.abort_transaction(timeout=50)
    assert committed(cluster) == []


@transactional(max_block_ms=2_000, buffer_memory=3_000, batch_size=500)
async def test_f44_record_that_would_block_costs_the_transaction_nothing(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    """The caller of `try_submit` may repeat the call, so the transaction does not count the record
    as lost."""
    cluster.create_topic("unknown", 1)
    await producer.begin_transaction()
    await producer.send("t", b"good", partition=0)
    with pytest.raises(MetadataMissing):
        producer.try_submit("unknown", b"v")
    cluster.control(PRODUCE, delay(0.1))

    def fill() -> None:
        while True:
            producer.try_submit("t", b"v" * 300, partition=0)

    with pytest.raises(BufferFull):
        fill()
    await producer.commit_transaction()
    assert b"good" in committed(cluster)


@transactional()
async def test_f45_partial_add_partitions_earlier_members_are_aborted_with_it(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    cluster.create_topic("secret", 1)
    await producer.warm(["t", "secret"])
    await producer.begin_transaction()
    await producer.send("t", b"v", partition=0)
    cluster.denied_topics.add("secret")
    with pytest.raises(KafkaError):
        await producer.send("secret", b"v")
    assert not stable(cluster)
    with pytest.raises(AbortableTransactionError):
        await producer.commit_transaction()
    await producer.abort_transaction()
    assert stable(cluster)
    cluster.denied_topics.clear()
    await one(producer, b"next")
    assert committed(cluster) == [b"next"]


@transactional()
async def test_f46_empty_transaction_nothing_is_sent(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    async with producer.transaction():
        pass
    await producer.begin_transaction()
    await producer.abort_transaction()
    assert cluster.count(END) == cluster.count(ADD_PARTITIONS) == 0


@transactional()
async def test_f46_offsets_only_transaction_commits(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    async with producer.transaction() as txn:
        await txn.send_offsets({("in", 1): 5}, "g")
    assert cluster.transactions.committed_offsets == {"g": {("in", 1): 5}}


@pytest.mark.parametrize(
    "code", [Code.ILLEGAL_GENERATION, Code.UNKNOWN_MEMBER_ID, Code.FENCED_INSTANCE_ID,
             Code.FENCED_MEMBER_EPOCH, Code.STALE_MEMBER_EPOCH, Code.GROUP_AUTHORIZATION_FAILED]
)  # fmt: skip
@transactional()
async def test_f47_group_errors_abort(
    cluster: FakeCluster, producer: Producer[Any, Any], code: int
) -> None:
    cluster.control(COMMIT_OFFSETS, refuse(code), times=1)
    with pytest.raises(AbortableTransactionError) as caught:
        await full(producer, b"3")
    assert caught.value.code is not None
    assert caught.value.code.number == code
    await one(producer, b"next")
    assert (committed(cluster), cluster.transactions.committed_offsets) == ([b"next"], {})


@transactional()
async def test_f47_member_of_an_old_generation_aborts(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    cluster.group_generations["g"] = 5
    with pytest.raises(AbortableTransactionError, match="ILLEGAL_GENERATION"):
        await full(producer, b"3", send=GroupMetadata("g", 4, "m"))


@transactional(transaction_timeout_ms=5_000)
async def test_f48_crash_readers_go_on_after_the_transaction_timeout(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.begin_transaction()
    await producer.send("t", b"lost", partition=0)
    cluster.control(END, lose_request())  # drop EndTxn, as if the process had crashed
    assert await until(lambda: stable(cluster)) <= 5.2
    cluster.script.clear()


@transactional()
async def test_f48_restart_aborts_what_was_open_and_fences(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.begin_transaction()
    await producer.send("t", b"lost", partition=0)
    restarted = make_producer(cluster, transactional_id=ID)
    await restarted.start()
    assert stable(cluster)
    await one(restarted, b"again")
    await restarted.close()
    assert committed(cluster) == [b"again"]


@transactional()
async def test_f49_two_calls_at_once_second_is_refused_state_unharmed(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.begin_transaction()
    await producer.send("t", b"v", partition=0)
    first = asyncio.ensure_future(producer.commit_transaction())
    await asyncio.sleep(0)
    calls: list[Callable[[], Coroutine[Any, Any, object]]] = [
        producer.commit_transaction, producer.abort_transaction, producer.begin_transaction,
        lambda: producer.send_offsets_to_transaction({("in", 0): 1}, "g"),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(TransactionError, match="in progress"):
            await call()
    await first
    assert committed(cluster) == [b"v"]


@transactional(linger_ms=0)
async def test_f50_wrong_order_clear_error_nothing_sent(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    for call in (
        producer.commit_transaction, producer.abort_transaction,
        lambda: producer.send("t", b"v"), lambda: producer.submit("t", b"v"),
        lambda: producer.send_offsets_to_transaction({("in", 0): 1}, "g"),
    ):  # fmt: skip
        with pytest.raises(TransactionError, match=r"begin_transaction\(\)"):
            await call()
    await producer.warm(["t"])
    with pytest.raises(TransactionError):
        producer.try_submit("t", b"v")
    await producer.begin_transaction()
    with pytest.raises(TransactionError, match="open already"):
        await producer.begin_transaction()
    await producer.abort_transaction()
    assert cluster.count(PRODUCE) == 0


@transactional()
async def test_f50_producer_without_transactional_id_is_told(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    plain = make_producer(cluster)
    with pytest.raises(ConfigError, match="transactional_id"):
        await plain.begin_transaction()
    await plain.send("t", b"v", partition=0)
    await plain.close()
    assert committed(cluster) == [b"v"]


@transactional(max_block_ms=5_000)
async def test_f50_broker_without_transactions_fatal_at_once(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    from dataclasses import replace

    for broker in cluster.brokers.values():
        ranges = {key: value for key, value in broker.profile.ranges.items() if key != INIT}
        broker.profile = replace(broker.profile, ranges=ranges)
    with pytest.raises(FatalTransactionError, match="InitProducerId"):
        await producer.start()
