"""Produce (0): the checks of a real leader, and the append.

Source: Java `KafkaApis.handleProduceRequest`, `ReplicaManager.appendRecords`, `LogValidator`,
`UnifiedLog.analyzeAndValidateProducerState`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aiokprod._errors import Code
from aiokprod._wire.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from aiokprod.testing.fake_cluster.apis.answer import Answer
from aiokprod.testing.fake_cluster.batches import Batch, BatchRefused, read_batch
from aiokprod.testing.fake_cluster.broker import FakeBroker
from aiokprod.testing.fake_cluster.control import ProduceFault
from aiokprod.testing.fake_cluster.framing import Request
from aiokprod.testing.fake_cluster.topology import Partition

BY_ID_FROM = 13
STORAGE_ERROR_FROM = 4
UNKNOWN_PRODUCER_FROM = 5
HINTS_FROM = 10
IMPLICIT_FROM = 12
ALL = -1
_SEQUENCE_ERRORS = (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.UNKNOWN_PRODUCER_ID)
_LEADER_ERRORS = (Code.NOT_LEADER_OR_FOLLOWER, Code.FENCED_LEADER_EPOCH)


@dataclass(slots=True)
class _Result:
    """Result for one partition. `waits_until` is the offset up to which replicas must catch up."""

    index: int
    code: int = 0
    base_offset: int = -1
    append_time_ms: int = -1
    log_start: int = -1
    message: str | None = None
    record_errors: tuple[tuple[int, str], ...] = ()
    hint: Partition | None = None
    partition: Partition | None = None
    waits_until: int | None = None


_TopicResults = list[tuple[str, bytes, list[_Result]]]


def handle(broker: FakeBroker, request: Request) -> Answer:
    """Append or reject each partition's batch; with acks=all, wait for the replicas."""
    results: _TopicResults = []
    for topic in request.body.topic_data:
        parts = [_one_partition(broker, request, topic, item) for item in topic.partition_data]
        results.append((topic.name, topic.topic_id, parts))
    _note_shape(broker, request)
    failed = any(result.code for _, _, parts in results for result in parts)
    if request.body.acks == 0:
        return Answer(None, close=failed)
    waits = any(result.waits_until is not None for _, _, parts in results for result in parts)
    if not waits or broker.cluster.replication_s <= 0:
        return Answer(_response(broker, request, results))
    limit = request.body.timeout_ms / 1000
    delay = min(broker.cluster.replication_s, limit)
    return Answer(None, delay, finish=lambda: _replicated(broker, request, results))


def error(broker: FakeBroker, request: Request, code: int) -> ProduceResponse:
    """Return a response with this error code for every partition."""
    results = [
        (topic.name, topic.topic_id, [_Result(item.index, code) for item in topic.partition_data])
        for topic in request.body.topic_data
    ]
    return _response(broker, request, results)


def _one_partition(broker: FakeBroker, request: Request, topic: Any, item: Any) -> _Result:
    result = _Result(item.index)
    cluster = broker.cluster
    try:
        partition = _led_here(broker, request, topic, item.index, result)
        fault = cluster.produce_script.take((partition.topic, partition.index))
        if (
            fault is not None
            and fault.code in _SEQUENCE_ERRORS
            and _is_stored(broker, partition, item)
        ):
            # Skip the fault, because a broker checks for duplicates before it checks sequences.
            fault = None
        if fault is not None and not fault.append:
            _apply_fault(result, fault, partition)
            return result
        _append(broker, request, partition, bytes(item.records or b""), result)
        if fault is not None:
            _apply_fault(result, fault, partition)
    except BatchRefused as refused:
        result.code = _known_to(request.version, refused.code)
        result.message = str(refused)
        result.record_errors = refused.record_errors
        cluster.note_refusal(request, topic.name, item.index, refused)
    return result


def _known_to(version: int, code: Code) -> Code:
    """Return the error code for a response of this version, whose clients may not know `code`.

    Version 4 added KAFKA_STORAGE_ERROR (earlier: NOT_LEADER_OR_FOLLOWER). Version 5 (Kafka 1.0)
    added UNKNOWN_PRODUCER_ID (earlier: OUT_OF_ORDER_SEQUENCE_NUMBER). Source: Java `ProduceRequest`
    and `KafkaApis`.
    """
    if code is Code.KAFKA_STORAGE_ERROR and version < STORAGE_ERROR_FROM:
        return Code.NOT_LEADER_OR_FOLLOWER
    if code is Code.UNKNOWN_PRODUCER_ID and version < UNKNOWN_PRODUCER_FROM:
        return Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    return code


def _is_stored(broker: FakeBroker, partition: Partition, item: Any) -> bool:
    batch = read_batch(bytes(item.records or b""), produce_version=BY_ID_FROM)
    return batch.producer_id >= 0 and broker.duplicate_of(partition, batch) is not None


def _apply_fault(result: _Result, fault: ProduceFault, partition: Partition) -> None:
    result.code = fault.code
    result.message = fault.message
    result.record_errors = fault.record_errors
    if fault.code:
        result.base_offset = -1
    if fault.code in _LEADER_ERRORS and fault.leader_hint:
        result.hint = partition


def _led_here(
    broker: FakeBroker, request: Request, asked: Any, index: int, result: _Result
) -> Partition:
    cluster = broker.cluster
    by_id = request.version >= BY_ID_FROM
    topic = cluster.topic_by_id(asked.topic_id) if by_id else cluster.topics.get(asked.name)
    if topic is None:
        code = Code.UNKNOWN_TOPIC_ID if by_id else Code.UNKNOWN_TOPIC_OR_PARTITION
        raise BatchRefused(code, "no such topic")
    if topic.name in cluster.denied_topics or topic.name in cluster.read_only_topics:
        raise BatchRefused(Code.TOPIC_AUTHORIZATION_FAILED, "denied")
    if not 0 <= index < len(topic.partitions):
        raise BatchRefused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"no partition {index}")
    partition = topic.partitions[index]
    if partition.leader != broker.broker_id:
        result.hint = partition if partition.leader is not None else None
        raise BatchRefused(Code.NOT_LEADER_OR_FOLLOWER, f"leader is {partition.leader}")
    result.partition = partition
    return partition


def _append(
    broker: FakeBroker, request: Request, partition: Partition, data: bytes, result: _Result
) -> None:
    cluster = broker.cluster
    config = cluster.topics[partition.topic].config
    acks = request.body.acks
    if acks not in (ALL, 0, 1):
        raise BatchRefused(Code.INVALID_REQUIRED_ACKS, f"acks {acks}")
    if len(data) > config.max_message_bytes:
        text = f"{len(data)} bytes, limit {config.max_message_bytes}"
        raise BatchRefused(Code.MESSAGE_TOO_LARGE, text)
    batch = read_batch(data, produce_version=request.version)
    _check_records(broker, partition, batch)
    if acks == ALL and len(partition.isr) < config.min_insync_replicas:
        raise BatchRefused(Code.NOT_ENOUGH_REPLICAS, f"in sync: {partition.isr}")
    log = partition.log
    if batch.is_transactional:
        _check_transaction(broker, request, partition, batch)
    elif request.body.transactional_id is not None:
        where = f"{partition.topic}-{partition.index}"
        cluster.note_violation(f"{where}: plain batch in a transactional request")
        if log.has_open_transaction(batch.producer_id):
            text = f"expected a transactional write from producer {batch.producer_id}"
            raise BatchRefused(Code.INVALID_TXN_STATE, text)
    result.log_start = log.start_offset
    if config.log_append_time:
        result.append_time_ms = cluster.unix_ms()
    if batch.producer_id >= 0:
        duplicate = broker.duplicate_of(partition, batch)
        if duplicate is not None:
            result.base_offset = duplicate.base_offset
            # This also applies to topics with CreateTime (Java `UnifiedLog.append`).
            result.append_time_ms = duplicate.timestamp_ms
            cluster.duplicates += 1
            end = duplicate.base_offset + len(batch.records)
            if acks == ALL and log.high_watermark < end:
                # A duplicate is acknowledged once the replicas have the original batch.
                result.waits_until = end
            return
        cluster.note_first_batch(partition, batch)
        log.ledger.check(batch)
    for oddity in batch.oddities:
        cluster.note_violation(f"{partition.topic}-{partition.index}: {oddity}")
    result.base_offset = log.append(
        batch, result.append_time_ms if config.log_append_time else None, cluster.loop.time()
    )
    if acks == ALL and len(partition.isr) > 1 and cluster.replication_s > 0:
        result.waits_until = log.end_offset
    cluster.replicate(partition)


def _check_transaction(
    broker: FakeBroker, request: Request, partition: Partition, batch: Batch
) -> None:
    """Check that the partition is in the open transaction. Version 12 adds it (KIP-890)."""
    model = broker.cluster.transactions
    name = request.body.transactional_id
    where = partition.topic, partition.index
    code = model.check(name, batch.producer_id, batch.epoch)
    if code is Code.PRODUCER_FENCED:
        code = Code.INVALID_PRODUCER_EPOCH
    elif not code and request.version >= IMPLICIT_FROM:
        code = model.add(name, {where})
    elif not code and not model.has(name, where):
        # A delayed request may arrive after the end of its transaction. That is no violation.
        if not model.was_added(name, where):
            broker.cluster.note_violation(f"{where}: was not added to the transaction of {name}")
        code = Code.INVALID_TXN_STATE
    if code:
        raise BatchRefused(code, f"transactional id {name}, epoch {batch.epoch}")


def _check_records(broker: FakeBroker, partition: Partition, batch: Batch) -> None:
    config = broker.cluster.topics[partition.topic].config
    if config.compacted:
        bad = [index for index, record in enumerate(batch.records) if record.key is None]
        if bad:
            texts = tuple(
                (index, "Compacted topic cannot accept message without key") for index in bad
            )
            raise BatchRefused(Code.INVALID_RECORD, "records without key", texts)
    skew = config.max_timestamp_skew_ms
    if skew is not None:
        now = broker.cluster.unix_ms()
        if any(abs(record.timestamp_ms - now) > skew for record in batch.records):
            raise BatchRefused(Code.INVALID_TIMESTAMP, f"more than {skew} ms from {now}")


def _replicated(broker: FakeBroker, request: Request, results: _TopicResults) -> ProduceResponse:
    """Return the response after the replicas have the batches, or the timeout has passed, or
    leadership has moved."""
    for _, _, parts in results:
        for result in parts:
            if result.waits_until is None or result.partition is None or result.code:
                continue
            if result.partition.leader != broker.broker_id:
                result.code = Code.NOT_LEADER_OR_FOLLOWER
                result.hint = result.partition
                result.base_offset = -1
            elif result.partition.log.high_watermark < result.waits_until:
                result.code = Code.REQUEST_TIMED_OUT
                result.base_offset = -1
    return _response(broker, request, results)


def _response(broker: FakeBroker, request: Request, results: _TopicResults) -> ProduceResponse:
    with_hints = request.version >= HINTS_FROM
    responses = [
        TopicProduceResponse(
            name=name,
            topic_id=topic_id,
            partition_responses=[_partition_response(result, with_hints) for result in parts],
        )
        for name, topic_id, parts in results
    ]
    endpoints: Sequence[NodeEndpoint] = ()
    if with_hints:
        leaders = {r.hint.leader for _, _, parts in results for r in parts if r.hint is not None}
        endpoints = [
            NodeEndpoint(node_id=b.broker_id, host=b.host, port=b.port, rack=b.rack)
            for b in broker.cluster.registered()
            if b.broker_id in leaders
        ]
    return ProduceResponse(responses=responses, node_endpoints=endpoints)


def _partition_response(result: _Result, with_hints: bool) -> PartitionProduceResponse:
    hint = LeaderIdAndEpoch()
    if with_hints and result.hint is not None and result.hint.leader is not None:
        hint = LeaderIdAndEpoch(leader_id=result.hint.leader, leader_epoch=result.hint.leader_epoch)
    return PartitionProduceResponse(
        index=result.index,
        error_code=result.code,
        base_offset=result.base_offset,
        log_append_time_ms=result.append_time_ms,
        log_start_offset=result.log_start,
        record_errors=[
            BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=text)
            for index, text in result.record_errors
        ],
        error_message=result.message,
        current_leader=hint,
    )


def _note_shape(broker: FakeBroker, request: Request) -> None:
    """Record violations that a real broker may accept."""
    seen: set[tuple[str, bytes, int]] = set()
    for topic in request.body.topic_data:
        for item in topic.partition_data:
            where = topic.name, topic.topic_id, item.index
            if where in seen:
                broker.cluster.note_violation(f"{where} twice in one Produce request")
            seen.add(where)
