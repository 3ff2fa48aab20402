"""TxnOffsetCommit (API key 28): commit offsets of a consumer group as part of a transaction.

Version 5 needs no preceding AddOffsetsToTxn request (KIP-890).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aiokprod._wire.message import Message
from aiokprod._wire.message_schema import (
    Struct,
    array,
    int16,
    int32,
    int64,
    nullable_string,
    string,
)


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitRequestPartition(Struct):
    """Offset of one partition."""

    partition_index: int = int32()
    committed_offset: int = int64()  # offset of the next record to read
    committed_leader_epoch: int = int32("2+", default=-1, ignorable=True)  # -1 = unknown
    committed_metadata: str | None = nullable_string()


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitRequestTopic(Struct):
    """Offsets of one topic."""

    name: str = string()
    partitions: Sequence[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition)


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitRequest(Message):
    """Offsets that become visible when the transaction commits."""

    api_key = 28
    min_version = 0
    max_version = 5
    flexible_version = 3

    transactional_id: str = string()
    group_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    generation_id: int = int32("3+", default=-1)  # -1 = none
    member_id: str = string("3+")
    group_instance_id: str | None = nullable_string("3+", default=None)  # null = dynamic member
    topics: Sequence[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic)


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitResponsePartition(Struct):
    """Result of one partition."""

    partition_index: int = int32()
    error_code: int = int16()  # 0 = none


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitResponseTopic(Struct):
    """Results of one topic."""

    name: str = string()
    partitions: Sequence[TxnOffsetCommitResponsePartition] = array(TxnOffsetCommitResponsePartition)


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitResponse(Message):
    """One result per partition."""

    api_key = 28
    min_version = 0
    max_version = 5
    flexible_version = 3

    throttle_time_ms: int = int32()  # ms the client is asked to wait
    topics: Sequence[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic)
