"""DescribeProducers (API key 61): the idempotence state a partition leader keeps (KIP-664)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aiokprod._wire.message import Message
from aiokprod._wire.message_schema import (
    Struct,
    array,
    int16,
    int32,
    int32_array,
    int64,
    nullable_string,
    string,
)


@dataclass(frozen=True, slots=True)
class TopicRequest(Struct):
    """Partitions of one topic."""

    name: str = string()
    partition_indexes: Sequence[int] = int32_array()


@dataclass(frozen=True, slots=True)
class DescribeProducersRequest(Message):
    """Partitions to describe."""

    api_key = 61
    min_version = 0
    max_version = 0
    flexible_version = 0

    topics: Sequence[TopicRequest] = array(TopicRequest)


@dataclass(frozen=True, slots=True)
class ProducerState(Struct):
    """What the leader remembers of one producer."""

    producer_id: int = int64()
    producer_epoch: int = int32()
    last_sequence: int = int32(default=-1)  # -1 = none
    last_timestamp: int = int64(default=-1)  # Unix ms, -1 = none
    coordinator_epoch: int = int32()
    current_txn_start_offset: int = int64(default=-1)  # -1 = no transaction


@dataclass(frozen=True, slots=True)
class PartitionResponse(Struct):
    """Producers of one partition."""

    partition_index: int = int32()
    error_code: int = int16()  # 0 = none
    error_message: str | None = nullable_string(default=None)
    active_producers: Sequence[ProducerState] = array(ProducerState)


@dataclass(frozen=True, slots=True)
class TopicResponse(Struct):
    """Producers of one topic."""

    name: str = string()
    partitions: Sequence[PartitionResponse] = array(PartitionResponse)


@dataclass(frozen=True, slots=True)
class DescribeProducersResponse(Message):
    """Producers of each partition."""

    api_key = 61
    min_version = 0
    max_version = 0
    flexible_version = 0

    throttle_time_ms: int = int32()  # ms the client is asked to wait
    topics: Sequence[TopicResponse] = array(TopicResponse)
