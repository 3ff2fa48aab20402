"""Faults F16 to F35: errors in Produce responses, and the sequence numbers of idempotence."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from aiokprod._wire.message import Message
from aiokprod.errors import (
    AuthorizationError,
    Code,
    DeliveryTimeout,
    InvalidTopic,
    KafkaError,
    MetadataTimeout,
    Outcome,
    RecordRejected,
    RecordTooLarge,
    UnknownTopic,
)
from aiokprod.producer import Producer
from aiokprod.testing import fake_cluster as faults
from aiokprod.testing.fake_cluster import FakeCluster, TopicConfig
from tests.scenarios.scenario_helpers import RECOVERY, TICK, History, error_of, now, scenario, until

TP = ("t", 0)
PLAIN: dict[str, Any] = {"enable_idempotence": False}


def epochs(cluster: FakeCluster, partition: int = 0) -> list[tuple[int, int]]:
    """Return (producer id, epoch) of the stored records, in log order, without repetitions."""
    found = []
    for record in cluster.log("t", partition):
        if (record.producer_id, record.epoch) not in found:
            found.append((record.producer_id, record.epoch))
    return found


def sequences_are_whole(cluster: FakeCluster, partition: int = 0) -> bool:
    """Return True if the sequences of each (producer id, epoch) start at 0 and have no gap."""
    runs: dict[tuple[int, int], list[int]] = {}
    for record in cluster.log("t", partition):
        run = runs.setdefault((record.producer_id, record.epoch), [])
        run.append(record.sequence)
    return all(run == list(range(len(run))) for run in runs.values())


@scenario(partitions=1)
@pytest.mark.parametrize("code", [5, 6, 9, 74, 13, 72, 100, 103])
async def test_f16_leader_errors_are_retried_with_new_metadata(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History, code: int
) -> None:
    await history.send()
    asked = cluster.count(3)
    cluster.fail_produce(TP, code, leader_hint=False)
    attempt = await history.send()
    assert attempt.settled_at - attempt.started_at < RECOVERY
    assert cluster.count(3) > asked
    history.all_acked()


@scenario(partitions=1, delivery_timeout_ms=5_000, request_timeout_ms=1_000, **PLAIN)
async def test_f16_not_leader_for_ever_without_idempotence_ends_unknown(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.fail_produce(TP, Code.NOT_LEADER_OR_FOLLOWER, None, leader_hint=False)
    attempt = await history.send()
    assert error_of(attempt).outcome is Outcome.UNKNOWN
    assert attempt.settled_at - attempt.started_at <= 5 + TICK


@scenario(topic=None)
async def test_f17_topic_is_created_by_the_first_send(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    attempt = await history.send("t", 0)
    assert attempt.settled_at - attempt.started_at < RECOVERY
    history.all_acked()


@scenario(topic=None, cluster={"auto_create": False}, max_block_ms=7_000)
async def test_f17_missing_topic_times_out_naming_it(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    attempt = await history.send("absent", 0)
    error = error_of(attempt, MetadataTimeout)
    assert "absent" in str(error)
    assert error.outcome is Outcome.NOT_SENT
    assert abs(attempt.settled_at - attempt.started_at - 7) < TICK
    assert cluster.count(3) <= 20 * 7


@scenario(topic=None, cluster={"auto_create": False})
async def test_f17_topic_that_appears_late_is_found(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    task = history.send_later("t", 0)
    await asyncio.sleep(20)
    assert not task.done()
    cluster.create_topic("t", 1)
    start = now()
    await task
    assert now() - start < RECOVERY
    history.all_acked()


@scenario(allow_auto_create_topics=False, topic=None, max_block_ms=3_000)
async def test_f17_forbidden_auto_creation_does_not_create(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    attempt = await history.send("fresh", 0)
    error_of(attempt, KafkaError)
    assert "fresh" not in cluster.topics


@scenario(partitions=2, max_block_ms=6_000)
async def test_f18_partition_beyond_the_count_fails_after_one_fresh_response(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    fetches = cluster.count(3)
    attempt = await history.send("t", 5)
    error = error_of(attempt, UnknownTopic)
    assert error.outcome is Outcome.NOT_SENT
    assert "has the partitions 0 to 1, not 5" in str(error)
    assert cluster.count(3) == fetches + 1
    assert attempt.settled_at - attempt.started_at < 1


@scenario(partitions=2, max_block_ms=6_000)
async def test_f18_partition_beyond_the_count_without_a_response_times_out(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.control(3, faults.lose_request(), times=None)
    attempt = await history.send("t", 5)
    error = error_of(attempt, MetadataTimeout)
    assert error.outcome is Outcome.NOT_SENT
    assert abs(attempt.settled_at - attempt.started_at - 6) < TICK


@scenario(partitions=2)
async def test_f18_partition_added_since_the_last_response_is_used(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.expand_topic("t", 4)
    await history.send("t", 3)
    history.all_acked()


def without_partition(index: int) -> Callable[[Any], Message]:
    def change(message: Any) -> Message:
        topics = [
            dataclasses.replace(
                topic,
                partitions=[p for p in topic.partitions if p.partition_index != index],
            )
            for topic in message.topics
        ]
        changed: Message = dataclasses.replace(message, topics=topics)
        return changed

    return change


@scenario(partitions=2, metadata_max_age_ms=2_000)
async def test_f19_partition_omitted_once_keeps_its_records(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.submit_many(4, partitions=(0, 1))
    await history.settle()
    cluster.control(3, faults.edit(without_partition(1)), times=1)
    sending = asyncio.ensure_future(history.submit_many(100, every=0.1, partitions=(0, 1)))
    await sending
    await history.settle()
    history.all_acked()


@scenario(partitions=1)
async def test_f20_not_enough_replicas_is_retried_without_metadata(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    asked = cluster.count(3)
    cluster.fail_produce(TP, Code.NOT_ENOUGH_REPLICAS, 4)
    attempt = await history.send()
    history.all_acked()
    assert cluster.count(3) == asked
    # Backoff of 100, 200, 400 and 800 ms, each with a jitter of a fifth.
    assert 1.2 <= attempt.settled_at - attempt.started_at <= 1.9


@scenario(partitions=1, delivery_timeout_ms=5_000, request_timeout_ms=1_000)
async def test_f20_not_enough_replicas_for_ever_is_definite(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.fail_produce(TP, Code.NOT_ENOUGH_REPLICAS, 1000)
    attempt = await history.send()
    assert error_of(attempt, DeliveryTimeout).outcome.definite
    assert attempt.settled_at - attempt.started_at <= 5 + TICK
    history.check()


@scenario(partitions=1)
@pytest.mark.parametrize("code", [20, 7, 13, 6])
async def test_f21_f22_written_but_refused_is_stored_once(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History, code: int
) -> None:
    await history.send()
    cluster.fail_produce(TP, code, append=True)
    attempt = await history.send()
    assert attempt.metadata.offset == 1
    await history.send()
    history.all_acked()
    assert cluster.duplicates == 1


@scenario(partitions=1, **PLAIN)
async def test_f21_without_idempotence_the_copy_is_doubled_but_true(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.fail_produce(TP, 20, append=True)
    await history.send()
    history.all_acked(unique=False)
    assert len(cluster.log("t", 0)) == 3


@scenario(partitions=1, topic=None, linger_ms=50, adaptive_linger=False)
async def test_f23_batch_too_large_is_split_in_order(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    cluster.create_topic("t", 1, config=TopicConfig(max_message_bytes=3_000))
    history.size = 500
    await history.submit_many(100)
    await history.settle()
    history.all_acked(refusals=True)
    assert {refusal.code for refusal in cluster.refusals} == {Code.MESSAGE_TOO_LARGE}
    assert sequences_are_whole(cluster)


@scenario(partitions=1, topic=None, linger_ms=50, adaptive_linger=False, retries=1)
async def test_f23_split_uses_up_no_retries(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    cluster.create_topic("t", 1, config=TopicConfig(max_message_bytes=700))
    history.size = 500
    await history.submit_many(64)
    await history.settle()
    history.all_acked(refusals=True)


@scenario(partitions=1, topic=None)
async def test_f23_single_record_too_large_for_the_topic_fails_alone(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    cluster.create_topic("t", 1, config=TopicConfig(max_message_bytes=3_000))
    await history.submit_many(3)
    history.size = 5_000
    big = await history.submit()
    history.size = 0
    await history.submit_many(3)
    await history.settle()
    error = error_of(big)
    assert error.outcome.definite
    assert error.code.number == Code.MESSAGE_TOO_LARGE
    assert [a.acked for a in history.attempts] == [True] * 3 + [False] + [True] * 3
    history.check(refusals=True)


@scenario(partitions=1, max_request_size=10_000)
async def test_f23_larger_than_max_request_is_refused_before_queueing(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    history.size = 10_001
    attempt = await history.send()
    assert error_of(attempt, RecordTooLarge).outcome is Outcome.NOT_SENT
    assert "max_request_size" in str(attempt.result)
    assert cluster.count(0) == 0


@scenario(partitions=1, topic=None, linger_ms=50, adaptive_linger=False)
async def test_f24_invalid_records_get_their_own_text(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    cluster.create_topic("t", 1, config=TopicConfig(compacted=True))
    keys = [b"k", None, b"k", None]
    deliveries = [
        await producer.submit("t", b"%d" % index, key=key, partition=0)
        for index, key in enumerate(keys)
    ]
    found = await asyncio.gather(*deliveries, return_exceptions=True)
    assert all(isinstance(error, KafkaError) and error.outcome.definite for error in found)
    assert all("without key" in str(found[index]) for index in (1, 3))
    assert all("Compacted topic" not in str(found[index]) for index in (0, 2))
    assert isinstance(found[1], RecordRejected)
    assert cluster.log("t", 0) == []
    metadata = await producer.send("t", b"later", key=b"k", partition=0)
    assert metadata.offset == 0


@scenario(partitions=1)
async def test_f25_corrupt_message_is_retried(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.fail_produce(TP, Code.CORRUPT_MESSAGE, 2)
    await history.send()
    history.all_acked()


@pytest.mark.matrix
@scenario(partitions=1)
@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("code", [17, 18, 21, 32, 44, 76, 87, 43, 42])
async def test_f26_definite_errors_fail_the_record_not_the_producer(
    cluster: FakeCluster,
    producer: Producer[Any, Any],
    history: History,
    code: int,
    idempotent: bool,
) -> None:
    if not idempotent:
        producer = await replaced(cluster, producer, history, **PLAIN)
    await history.send()
    cluster.fail_produce(TP, code, message="broker says so")
    failed = await history.send()
    error = error_of(failed)
    assert error.outcome.definite
    assert not error.retriable
    assert error.code.number == code
    assert failed.settled_at - failed.started_at < 0.2
    await history.submit_many(5)
    await history.settle()
    assert all(a.acked for a in history.attempts if a is not failed)
    history.check()
    await history.producer.close()


async def replaced(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History, **options: Any
) -> Producer[Any, Any]:
    """Create another producer for the same history."""
    from tests.scenarios.scenario_helpers import make_producer

    await producer.close()
    history.producer = make_producer(cluster, **options)
    return history.producer


@pytest.mark.matrix
@scenario(partitions=1)
@pytest.mark.parametrize("code", [-1, 200, 999, 32767, -2])
@pytest.mark.parametrize("append", [True, False])
async def test_f26_unknown_codes_end_unknown_and_the_producer_lives(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History, code: int, append: bool
) -> None:
    await history.send()
    cluster.fail_produce(TP, code, append=append)
    failed = await history.send()
    assert error_of(failed).outcome is Outcome.UNKNOWN
    await history.submit_many(5)
    await history.settle()
    assert all(a.acked for a in history.attempts if a is not failed)
    history.check()


@scenario(partitions=1)
async def test_f26_failed_batch_does_not_drag_those_behind_it(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    """Five batches are in flight, and the first is refused permanently: the others are
    renumbered."""
    await history.send()
    cluster.fail_produce(TP, Code.POLICY_VIOLATION)
    cluster.control(0, faults.delay(0.05))
    first = await history.submit()
    await asyncio.sleep(0.001)
    for _ in range(4):
        await history.submit()
        await asyncio.sleep(0.006)
    await history.settle()
    assert not first.acked
    assert all(a.acked for a in history.attempts if a is not first)
    history.check(refusals=True)
    assert sequences_are_whole(cluster)


@scenario(partitions=1, topic=None)
async def test_f27_denied_topic_fails_alone_and_heals(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    cluster.create_topic("t", 1)
    cluster.create_topic("secret", 1)
    cluster.denied_topics.add("secret")
    denied = await history.send("secret", 0)
    error = error_of(denied, AuthorizationError)
    assert "secret" in str(error)
    assert error.outcome.definite
    assert denied.settled_at - denied.started_at < RECOVERY
    await history.send("t", 0)
    cluster.denied_topics.clear()
    await history.send("secret", 0)
    history.check()
    assert [a.acked for a in history.attempts] == [False, True, True]


@scenario(partitions=1)
async def test_f27_topic_denied_while_producing_fails_definite_and_heals(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.denied_topics.add("t")
    denied = await history.send()
    assert error_of(denied, AuthorizationError).outcome.definite
    cluster.denied_topics.clear()
    await history.submit_many(3)
    await history.settle()
    history.check(refusals=True)
    assert [a.acked for a in history.attempts] == [True, False, True, True, True]


@scenario(topic=None)
async def test_f26_invalid_topic_refused_by_the_broker_is_an_invalid_topic(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    refused = faults.edit(
        lambda message: dataclasses.replace(
            message,
            topics=[dataclasses.replace(t, error_code=17, partitions=[]) for t in message.topics],
        )
    )
    cluster.control(3, refused)
    attempt = await history.send("t", 0)
    assert error_of(attempt, InvalidTopic).outcome is Outcome.NOT_SENT
    assert attempt.settled_at - attempt.started_at < RECOVERY


@scenario(partitions=1)
@pytest.mark.parametrize("code", [Code.CLUSTER_AUTHORIZATION_FAILED, Code.UNSUPPORTED_VERSION])
async def test_f28_fatal_errors_fail_everything_from_then_on(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History, code: Code
) -> None:
    await history.send()
    cluster.fail_produce(TP, code)
    cluster.control(0, faults.delay(0.05))
    attempts = []
    for _ in range(5):
        attempts.append(await history.submit())
        await asyncio.sleep(0.006)
    await history.settle()
    assert error_of(attempts[0]).code.number == code
    later = await history.send()
    error = error_of(later)
    assert error.outcome is Outcome.NOT_SENT
    chain = []
    cause = error
    while cause is not None:
        chain.append(str(cause))
        cause = cause.__cause__
    assert any(code.name in text for text in chain), chain
    assert later.settled_at - later.started_at < 0.1
    history.check(refusals=True)


@scenario(partitions=1)
async def test_f28_init_producer_id_denied_fails_pending_and_heals(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    remove = cluster.control(22, faults.refuse(Code.CLUSTER_AUTHORIZATION_FAILED))
    denied = await history.send()
    error = error_of(denied)
    assert error.outcome is Outcome.NOT_SENT
    assert error.code.number == Code.CLUSTER_AUTHORIZATION_FAILED
    assert denied.settled_at - denied.started_at < RECOVERY
    remove()
    healed = await history.send()
    assert healed.acked
    history.check()


@scenario(partitions=1, delivery_timeout_ms=4_000, request_timeout_ms=1_000)
async def test_f29_expired_unsent_burns_no_sequence(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.kill(1, failover_s=10_000)
    await asyncio.sleep(0.5)
    attempts = await history.submit_many(5)
    await history.settle()
    assert {error_of(a, DeliveryTimeout).outcome for a in attempts} == {Outcome.NOT_SENT}
    cluster.start(1)
    await asyncio.sleep(1)
    await history.submit_many(5)
    await history.settle()
    history.check()
    assert sequences_are_whole(cluster)
    assert len(epochs(cluster)) == 1


@scenario(partitions=1, delivery_timeout_ms=4_000, request_timeout_ms=3_000)
@pytest.mark.parametrize("appended", [True, False])
async def test_f30_expired_in_flight_is_unknown_and_later_records_go_on(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History, appended: bool
) -> None:
    await history.send()
    lost = faults.lose_answer() if appended else faults.lose_request()
    remove = cluster.control(0, lost)
    attempts = await history.submit_many(3)
    await history.settle()
    for attempt in attempts:
        assert error_of(attempt, DeliveryTimeout).outcome is Outcome.UNKNOWN
        assert attempt.settled_at - attempt.started_at <= 4 + TICK
    remove()
    later = await history.submit_many(5, every=0.5)
    await history.settle()
    assert all(a.acked for a in later)
    # The producer finds out whether the lost batch was written by sending the next sequence.
    history.check(refusals=True)
    assert {r.code for r in cluster.refusals} <= {Code.OUT_OF_ORDER_SEQUENCE_NUMBER}


@scenario(
    partitions=1, delivery_timeout_ms=4_000, request_timeout_ms=3_000, linger_ms=0, batch_size=10
)
async def test_f30_late_answer_after_expiry_is_harmless(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.control(0, faults.answer_late(3.9), times=1)
    await history.submit()
    await asyncio.sleep(0.5)
    await history.submit_many(4, every=0.3)
    await history.settle()
    await history.submit_many(5)
    await history.settle()
    history.check()


@scenario(partitions=1, delivery_timeout_ms=4_000, request_timeout_ms=3_900)
async def test_f30_memory_of_an_expired_batch_stays_counted_until_its_request_ends(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    history.size = 10_000
    await history.send()
    cluster.control(0, faults.lose_request(), times=1)
    cluster.control(0, faults.delay(0.9), times=1)
    attempt = await history.send()
    error_of(attempt, DeliveryTimeout)
    await asyncio.sleep(10)
    await history.submit_many(3)
    await history.settle()
    history.check()


@scenario(partitions=1, linger_ms=0, batch_size=10)
async def test_f31_out_of_order_behind_a_failed_batch_is_retried_in_order(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.fail_produce(TP, Code.NOT_ENOUGH_REPLICAS, 1)
    cluster.control(0, faults.delay(0.05), times=5)
    for _ in range(5):
        await history.submit()
        await asyncio.sleep(0.001)
    await history.settle()
    history.all_acked(refusals=True)
    assert {r.code for r in cluster.refusals} <= {Code.OUT_OF_ORDER_SEQUENCE_NUMBER}
    assert sequences_are_whole(cluster)
    assert len(epochs(cluster)) == 1


@scenario(partitions=1)
async def test_f32_real_gap_bumps_the_epoch_and_goes_on(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.submit_many(3)
    await history.settle()
    cluster.fail_produce(TP, Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
    await history.submit_many(10, every=0.003)
    await history.settle()
    history.all_acked(refusals=True)
    assert sequences_are_whole(cluster)
    found = epochs(cluster)
    assert len(found) == 2
    assert found[1][1] == found[0][1] + 1 or found[1][0] != found[0][0]


@scenario(partitions=2)
async def test_f32_gap_in_one_partition_leaves_the_other_whole(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.submit_many(6, partitions=(0, 1))
    await history.settle()
    cluster.fail_produce(TP, Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
    await history.submit_many(40, every=0.003, partitions=(0, 1))
    await history.settle()
    history.all_acked(refusals=True)
    assert sequences_are_whole(cluster, 0)
    assert sequences_are_whole(cluster, 1)


@scenario(partitions=1)
async def test_f32_records_lost_by_the_log_do_not_stop_the_producer(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    """An unclean election lost the end of the log: the broker expects an older sequence."""
    await history.submit_many(5)
    await history.settle()
    before = len(history.attempts)
    cluster.topics["t"].partitions[0].log.truncate(0)
    cluster.topics["t"].partitions[0].log.ledger.rebuild([])
    cluster.forgotten.add(TP)  # allow a first sequence other than 0
    await history.submit_many(5)
    await history.settle()
    assert all(a.acked for a in history.attempts)
    assert len(cluster.log("t", 0)) == len(history.attempts) - before


@scenario(partitions=1)
async def test_f32_gap_reported_with_a_null_list_of_record_errors_is_healed(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    """The schema does not allow null for the list. A client that rejects the response never learns
    of the gap, and every batch of the partition gets the same response until its delivery timeout.
    """

    def null_record_errors(request: faults.Request, message: Any) -> Any:
        if request.api_key != 0:
            return message
        topics = [
            dataclasses.replace(
                topic,
                partition_responses=[
                    dataclasses.replace(p, record_errors=None) if p.error_code else p
                    for p in topic.partition_responses
                ],
            )
            for topic in message.responses
        ]
        return dataclasses.replace(message, responses=topics)

    cluster.answer_filters.append(null_record_errors)
    for _ in range(5):
        await history.send()
    cluster.topics["t"].partitions[0].log.truncate(3)
    cluster.forgotten.add(TP)  # allow a first sequence other than 0
    await history.submit_many(5)
    await history.settle()
    assert [r.code for r in cluster.refusals] == [Code.OUT_OF_ORDER_SEQUENCE_NUMBER]
    assert all(a.acked for a in history.attempts)
    assert len(cluster.log("t", 0)) == 3 + 5


@scenario(
    partitions=1, linger_ms=0, batch_size=1, request_timeout_ms=500, delivery_timeout_ms=20_000
)
async def test_f32_gap_behind_a_record_in_doubt_is_not_stored_twice(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    """Copies of both records are delayed on an abandoned connection. The first record ends with
    outcome UNKNOWN, and the second one is out of order. If the second one were renumbered, it would
    be stored twice when the old copies arrive."""
    await history.send()
    link = cluster.network.links_to("broker1", 9092)[-1]
    link.up.stall()
    first, second = await history.submit(), await history.submit()
    cluster.fail_produce(("t", 0), -1)
    await until(lambda: bool(cluster.refusals))
    link.up.resume()
    await history.settle()
    assert error_of(first).outcome is Outcome.UNKNOWN
    assert error_of(second).outcome is Outcome.UNKNOWN
    later = await history.submit_many(3)
    await history.settle()
    assert all(attempt.acked for attempt in later)
    history.check(refusals=True)


@scenario(partitions=1)
async def test_f33_duplicate_sequence_is_success_without_offset(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.fail_produce(TP, Code.DUPLICATE_SEQUENCE_NUMBER, append=True)
    attempt = await history.send()
    assert attempt.acked
    assert attempt.metadata.offset is None
    await history.send()
    history.all_acked()


@scenario(partitions=1)
async def test_f33_duplicate_within_the_window_returns_the_true_offset(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.control(0, faults.close(process=True), times=1)
    attempt = await history.send()
    assert attempt.metadata.offset == 1
    history.all_acked()
    assert cluster.duplicates == 1


@scenario(partitions=1, cluster={"version_profile": "2.1"})
async def test_f34_producer_forgotten_by_retention_goes_on(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.submit_many(3)
    await history.settle()
    cluster.forget_producers("t", 0)
    await history.submit_many(5, every=0.003)
    await history.settle()
    history.all_acked(refusals=True)
    assert {r.code for r in cluster.refusals} <= {
        Code.UNKNOWN_PRODUCER_ID,
        Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
    }


@scenario(partitions=2, linger_ms=0, limit_s=1e6)
async def test_f34_first_record_after_a_long_pause_is_sent_alone(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    """The broker has dropped the producer's state (producer.id.expiration.ms), and accepts any
    first sequence: if the first batch is refused, the next one must not be in flight."""
    await history.send()
    await history.submit_many(24, every=200, partitions=[1])  # keeps the topic in use
    cluster.forget_producers("t", 0)
    cluster.fail_produce(TP, Code.NOT_ENOUGH_REPLICAS)
    cluster.control(0, faults.delay(0.05), times=1)
    await history.submit_many(5, every=0.02)
    await history.settle()
    history.all_acked()


@scenario(partitions=1, linger_ms=0, batch_size=1, cluster={"version_profile": "2.1"})
async def test_f34_producer_forgotten_again_while_renumbered_batches_wait(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    """The second of two renumbered batches reaches a broker that has lost the producer's state
    again."""
    await history.send()
    cluster.retain("t", 0)
    cluster.control(0, faults.delay(0.1))
    first, second = await history.submit(), await history.submit()
    await until(lambda: first.acked)
    cluster.retain("t", 0)
    await history.settle()
    assert second.acked
    assert second.settled_at - first.settled_at < RECOVERY
    assert cluster.values("t", 0) == [second.value]


@scenario(partitions=1)
async def test_f34_unknown_producer_id_in_the_answer_bumps_and_retries(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.submit_many(3)
    await history.settle()
    cluster.fail_produce(TP, Code.UNKNOWN_PRODUCER_ID)
    await history.submit_many(5, every=0.003)
    await history.settle()
    history.all_acked(refusals=True)


@scenario(partitions=1)
async def test_f35_epoch_at_its_end_brings_a_new_producer_id(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    cluster.first_epoch = 32_766
    await history.send()
    for _ in range(4):
        cluster.fail_produce(TP, Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
        await history.submit_many(3)
        await history.settle()
    history.all_acked(refusals=True)
    found = epochs(cluster)
    assert len({producer_id for producer_id, _ in found}) >= 2
    assert all(0 <= epoch <= 32_767 for _, epoch in found)


@scenario(partitions=1, linger_ms=0, batch_size=1, cluster={"version_profile": "2.1"})
async def test_f36_batches_behind_one_given_up_in_doubt_are_delivered_under_the_new_id(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    """The batches in flight get sequences 0 to 2 of a new producer id. The first is given up and
    may be in the log, so the second keeps sequence 1. The broker has no state for the id and
    refuses sequence 1, and both are renumbered."""
    await history.send()
    cluster.fail_produce(TP, Code.INVALID_PRODUCER_EPOCH)
    cluster.control(0, faults.delay(0.1), times=3)

    def fail_again(request: Any) -> None:
        cluster.fail_produce(TP, Code.NOT_LEADER_OR_FOLLOWER)
        cluster.fail_produce(TP, Code.POLICY_VIOLATION)

    cluster.control(22, fail_again, times=1)
    first, *others = await history.submit_many(3)
    await history.settle()
    assert first.outcome is Outcome.UNKNOWN
    assert cluster.values("t", 0) == [history.attempts[0].value, *(one.value for one in others)]
    assert [one.metadata.offset for one in others] == [1, 2]
    (late,) = cluster.late_beginnings
    assert (late.batch.producer_id, late.batch.epoch, late.batch.base_sequence) == (1, 0, 1)
    assert [refusal.code for refusal in cluster.refusals] == [
        Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
        Code.UNKNOWN_PRODUCER_ID,
    ]  # fmt: skip


@scenario(partitions=1)
async def test_f36_invalid_producer_epoch_fails_or_retries_but_recovers(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.fail_produce(TP, Code.INVALID_PRODUCER_EPOCH)
    attempt = await history.send()
    assert attempt.acked or error_of(attempt).outcome.definite
    await history.submit_many(5)
    await history.settle()
    assert all(a.acked for a in history.attempts[2:])
    history.check(refusals=True)
