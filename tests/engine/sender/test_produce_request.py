"""Encoding of batches into Produce requests, and assignment of responses to batches, in all
versions."""

from __future__ import annotations

import pytest

from aiokprod._engine.sender.produce_request import ProduceCall, partition_responses
from aiokprod._wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from aiokprod._wire.versions import CLIENT_RANGES
from aiokprod.records import TopicPartition
from tests.engine.engine_harness import EngineHarness, topic_id, virtual

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def call_of(harness: EngineHarness, **options: object) -> ProduceCall:
    for tp in (A0, A1, B0):
        harness.append(str(tp).encode(), tp.partition, topic=tp.topic)
    batches = harness.drain()
    arguments = {"acks": -1, "timeout_ms": 30_000, **options}
    return ProduceCall(batches, harness.metadata.snapshot, **arguments)  # type: ignore[arg-type]


def harness() -> EngineHarness:
    return EngineHarness(topics=("a", "b"), partitions=2)


def on_the_wire(call: ProduceCall, version: int) -> ProduceRequest:
    return ProduceRequest.decode(call(version).encode(version), version)


def response(version: int, answers: dict[TopicPartition, int]) -> ProduceResponse:
    by_topic: dict[str, list[PartitionProduceResponse]] = {}
    for tp, offset in answers.items():
        entry = PartitionProduceResponse(tp.partition, 0, offset)
        by_topic.setdefault(tp.topic, []).append(entry)
    message = ProduceResponse(
        [
            TopicProduceResponse(
                name if version < 13 else "", topic_id(name) if version >= 13 else bytes(16), parts
            )
            for name, parts in by_topic.items()
        ]
    )
    return ProduceResponse.decode(message.encode(version), version)


@pytest.mark.parametrize("version", range(3, CLIENT_RANGES[0][1] + 1))
@virtual
async def test_request_groups_batches_by_topic(version: int) -> None:
    request = on_the_wire(call_of(harness()), version)
    assert (request.acks, request.timeout_ms, request.transactional_id) == (-1, 30_000, None)
    names = [topic.name for topic in request.topic_data]
    ids = [bytes(topic.topic_id) for topic in request.topic_data]
    if version >= 13:
        assert (names, ids) == (["", ""], [topic_id("a"), topic_id("b")])
    else:
        assert (names, ids) == (["a", "b"], [bytes(16)] * 2)
    assert [[p.index for p in topic.partition_data] for topic in request.topic_data] == [
        [0, 1],
        [0],
    ]


@pytest.mark.parametrize("version", range(3, CLIENT_RANGES[0][1] + 1))
@virtual
async def test_answers_find_their_batches(version: int) -> None:
    call = call_of(harness())
    body = response(version, {B0: 3, A1: 2, A0: 1})
    found = {
        batch.topic_partition: answer.base_offset
        for batch, answer in partition_responses(call, body, version)
    }
    assert found == {A0: 1, A1: 2, B0: 3}


@pytest.mark.parametrize("version", [3, 12, 13])
@virtual
async def test_every_batch_gets_an_answer_or_none(version: int) -> None:
    call = call_of(harness())
    strange = TopicPartition("strange", 0)
    body = response(version, {A0: 1, TopicPartition("a", 9): 5, strange: 6})
    found = {
        batch.topic_partition: answer and answer.base_offset
        for batch, answer in partition_responses(call, body, version)
    }
    assert found == {A0: 1, A1: None, B0: None}


@virtual
async def test_topic_without_an_id_keeps_the_request_below_version_13() -> None:
    with_ids, without = (
        EngineHarness(topics=("a", "b"), partitions=2),
        EngineHarness(topics=("a", "b"), partitions=2, ids=False),
    )
    assert call_of(with_ids).max_version is None
    assert call_of(without).max_version == 12
    without.step()
    with_ids.step()


@virtual
async def test_given_cap_of_the_version_is_kept() -> None:
    assert call_of(harness(), max_version=11).max_version == 11
    named = EngineHarness(topics=("a", "b"), partitions=2, ids=False)
    assert call_of(named, max_version=11).max_version == 11
    named = EngineHarness(topics=("a", "b"), partitions=2, ids=False)
    assert call_of(named, max_version=13).max_version == 12


@virtual
async def test_request_of_a_topic_without_id_goes_out_by_name() -> None:
    named = EngineHarness(ids=False, version=13)
    delivery = named.append(b"v")
    named.step()
    assert named.brokers.last.version == 12
    named.brokers.last.ack()
    assert delivery.result().offset == 0


@virtual
async def test_records_are_handed_over_without_a_copy() -> None:
    call = call_of(harness())
    batches = list(call.batches.values())
    message = call(12)
    chunks = message.topic_data[0].partition_data[0].records
    assert isinstance(chunks, tuple)
    assert chunks[1] is batches[0].payload
