"""Produce (API key 0): append record batches to partitions.

Kafka 4 removed versions below 3 (KIP-896). Version 10 added the current leader (KIP-951), 12 the
second transaction protocol (KIP-890), 13 topic ids instead of names (KIP-516).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aiokprod._wire.message import Message
from aiokprod._wire.message_schema import (
    Records,
    Struct,
    array,
    int16,
    int32,
    int64,
    nullable_string,
    records,
    string,
    struct,
    uuid,
)


@dataclass(frozen=True, slots=True)
class PartitionProduceData(Struct):
    """The batch of one partition."""

    index: int = int32()
    records: Records | None = records()  # record batches of format 2


@dataclass(frozen=True, slots=True)
class TopicProduceData(Struct):
    """Batches of one topic."""

    name: str = string("0-12", ignorable=True)
    topic_id: bytes = uuid("13+", ignorable=True)  # zero = unknown
    partition_data: Sequence[PartitionProduceData] = array(PartitionProduceData)


@dataclass(frozen=True, slots=True)
class ProduceRequest(Message):
    """Batches of any number of partitions led by one broker."""

    api_key = 0
    min_version = 3
    max_version = 13
    flexible_version = 9

    transactional_id: str | None = nullable_string("3+", default=None)
    acks: int = int16()  # -1 = all in-sync replicas, 0 = no response, 1 = leader
    timeout_ms: int = int32()  # ms the leader waits for its replicas
    topic_data: Sequence[TopicProduceData] = array(TopicProduceData)


@dataclass(frozen=True, slots=True)
class BatchIndexAndErrorMessage(Struct):
    """A record that caused the rejection of the batch (KIP-467)."""

    batch_index: int = int32("8+")  # position in the batch, from 0
    batch_index_error_message: str | None = nullable_string("8+", default=None)


@dataclass(frozen=True, slots=True)
class LeaderIdAndEpoch(Struct):
    """The current leader according to the responding broker. Set if the error is
    NOT_LEADER_OR_FOLLOWER or FENCED_LEADER_EPOCH.
    """

    leader_id: int = int32("10+", default=-1)  # -1 = none
    leader_epoch: int = int32("10+", default=-1)  # -1 = unknown


@dataclass(frozen=True, slots=True)
class PartitionProduceResponse(Struct):
    """Result of one partition."""

    index: int = int32()
    error_code: int = int16()  # 0 = none
    base_offset: int = int64()  # offset of the first record, -1 = unknown
    # Unix ms, -1 = the records keep their own timestamps
    log_append_time_ms: int = int64("2+", default=-1, ignorable=True)
    log_start_offset: int = int64("5+", default=-1, ignorable=True)  # -1 = unknown
    record_errors: Sequence[BatchIndexAndErrorMessage] = array(
        BatchIndexAndErrorMessage, "8+", ignorable=True
    )
    error_message: str | None = nullable_string("8+", default=None, ignorable=True)
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch, "10+", tag=0)


@dataclass(frozen=True, slots=True)
class TopicProduceResponse(Struct):
    """Results of one topic."""

    name: str = string("0-12", ignorable=True)
    topic_id: bytes = uuid("13+", ignorable=True)  # zero = unknown
    partition_responses: Sequence[PartitionProduceResponse] = array(PartitionProduceResponse)


@dataclass(frozen=True, slots=True)
class NodeEndpoint(Struct):
    """Address of a broker in `current_leader`."""

    node_id: int = int32("10+")
    host: str = string("10+")
    port: int = int32("10+")
    rack: str | None = nullable_string("10+", default=None)  # null = none


@dataclass(frozen=True, slots=True)
class ProduceResponse(Message):
    """One result per partition of the request; never sent with acks=0."""

    api_key = 0
    min_version = 3
    max_version = 13
    flexible_version = 9

    responses: Sequence[TopicProduceResponse] = array(TopicProduceResponse)
    throttle_time_ms: int = int32("1+", ignorable=True)  # ms the client is asked to wait
    node_endpoints: Sequence[NodeEndpoint] = array(NodeEndpoint, "10+", tag=0)
