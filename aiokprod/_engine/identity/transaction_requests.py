"""Builds the requests of transactions, and reads the error codes in their responses. Pure
functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aiokprod._engine.identity.coordinators import VersionedRequest
from aiokprod._wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from aiokprod._wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from aiokprod._wire.messages.end_txn import EndTxnRequest
from aiokprod._wire.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from aiokprod._wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from aiokprod.errors import Code, UnsupportedVersion
from aiokprod.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aiokprod._consumer_groups import GroupMetadata, Offset

EPOCH_BUMP_FROM: Final = 3
_LAST_CLIENT_ADD: Final = 3
_LAST_FIRST_PROTOCOL_END: Final = 4
_LAST_FIRST_PROTOCOL_OFFSETS: Final = 4
_SECOND_PROTOCOL_OFFSETS: Final = 5


def init(transactional_id: str, timeout_ms: int, producer_id: int, epoch: int) -> VersionedRequest:
    """Create an InitProducerId request. With `producer_id` >= 0, it bumps the epoch, and the
    coordinator rejects a fenced producer (KIP-360).

    Building the message for an epoch bump raises UnsupportedVersion below version 3 (Kafka 2.5)."""

    def build(version: int) -> InitProducerIdRequest:
        if producer_id < 0:
            return InitProducerIdRequest(
                transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
            )
        if version < EPOCH_BUMP_FROM:
            raise UnsupportedVersion(
                "after a failed transaction the epoch must be bumped, which brokers before Kafka "
                "2.5 cannot do: close the producer and create a new one"
            )
        return InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
        )

    return VersionedRequest(InitProducerIdRequest.api_key, build)


def add_partitions(
    transactional_id: str, producer_id: int, epoch: int, partitions: Iterable[TopicPartition]
) -> VersionedRequest:
    """Create an AddPartitionsToTxn request (first protocol)."""
    topics = [
        AddPartitionsToTxnTopic(name=topic, partitions=numbers)
        for topic, numbers in _by_topic(partitions).items()
    ]
    message = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=topics,
    )
    return VersionedRequest(message.api_key, lambda version: message, _LAST_CLIENT_ADD)


def added_codes(body: Any) -> dict[TopicPartition, int]:
    """Return the error code of each partition in an AddPartitionsToTxn response."""
    return {
        TopicPartition(topic.name, result.partition_index): result.partition_error_code
        for topic in body.results_by_topic_v3_and_below
        for result in topic.results_by_partition
    }


def add_offsets(
    transactional_id: str, producer_id: int, epoch: int, group_id: str
) -> VersionedRequest:
    """Create an AddOffsetsToTxn request (first protocol)."""
    message = AddOffsetsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=epoch,
        group_id=group_id,
    )
    return VersionedRequest(message.api_key, lambda version: message)


def commit_offsets(
    transactional_id: str,
    producer_id: int,
    epoch: int,
    offsets: Mapping[TopicPartition, Offset],
    group: GroupMetadata,
    *,
    tv2: bool,
) -> VersionedRequest:
    """Create a TxnOffsetCommit request.

    With `tv2`, building the message raises UnsupportedVersion below version 5."""
    topics = [
        TxnOffsetCommitRequestTopic(
            name=topic,
            partitions=[
                _offset(number, offsets[TopicPartition(topic, number)]) for number in numbers
            ],
        )
        for topic, numbers in _by_topic(offsets).items()
    ]
    message = TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group.group_id,
        producer_id=producer_id,
        producer_epoch=epoch,
        generation_id=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=topics,
    )

    def build(version: int) -> TxnOffsetCommitRequest:
        if tv2 and version < _SECOND_PROTOCOL_OFFSETS:
            raise UnsupportedVersion(
                "the group coordinator does not support the finalized transaction.version of the "
                "cluster: TxnOffsetCommit v5 is missing"
            )
        return message

    return VersionedRequest(message.api_key, build, None if tv2 else _LAST_FIRST_PROTOCOL_OFFSETS)


def _offset(number: int, offset: Offset) -> TxnOffsetCommitRequestPartition:
    return TxnOffsetCommitRequestPartition(
        partition_index=number,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        committed_metadata=offset.metadata,
    )


def committed_codes(body: Any) -> dict[TopicPartition, int]:
    """Return the error code of each partition in a TxnOffsetCommit response."""
    return {
        TopicPartition(topic.name, result.partition_index): result.error_code
        for topic in body.topics
        for result in topic.partitions
    }


def end(
    transactional_id: str, producer_id: int, epoch: int, *, commit: bool, tv2: bool
) -> VersionedRequest:
    """Create an EndTxn request. Version 5 bumps the epoch and returns the new one (KIP-890)."""
    message = EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=epoch,
        committed=commit,
    )
    return VersionedRequest(
        message.api_key, lambda version: message, None if tv2 else _LAST_FIRST_PROTOCOL_END
    )


def code_of(body: Any) -> int:
    """Return the error code of a response that has only one. An InitProducerId response with
    neither an error nor an id counts as NETWORK_EXCEPTION, like a missing response."""
    code = int(body.error_code)
    if isinstance(body, InitProducerIdResponse) and not code and body.producer_id < 0:
        return int(Code.NETWORK_EXCEPTION)
    return code


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, partition in partitions:
        found.setdefault(topic, []).append(partition)
    return found
