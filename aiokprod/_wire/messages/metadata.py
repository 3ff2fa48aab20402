"""Metadata (API key 3): brokers, topics and partition leaders.

Versions 10 and later have topic ids (KIP-516).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aiokprod._wire.message import Message
from aiokprod._wire.message_schema import (
    Struct,
    array,
    boolean,
    int16,
    int32,
    int32_array,
    nullable_array,
    nullable_string,
    string,
    uuid,
)


@dataclass(frozen=True, slots=True)
class MetadataRequestTopic(Struct):
    """One topic, by name or, with a null name, by id."""

    topic_id: bytes = uuid("10+", ignorable=True)  # zero = unknown
    name: str | None = nullable_string(nullable="10+")  # null = see topic_id


@dataclass(frozen=True, slots=True)
class MetadataRequest(Message):
    """Topics to describe: null = all, empty = only the brokers (version 0: empty = all)."""

    api_key = 3
    min_version = 0
    max_version = 13
    flexible_version = 9

    topics: Sequence[MetadataRequestTopic] | None = nullable_array(
        MetadataRequestTopic, nullable="1+"
    )
    allow_auto_topic_creation: bool = boolean("4+", default=True)
    include_cluster_authorized_operations: bool = boolean("8-10")
    include_topic_authorized_operations: bool = boolean("8+")


@dataclass(frozen=True, slots=True)
class MetadataResponseBroker(Struct):
    """A live broker."""

    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = nullable_string("1+", default=None, ignorable=True)  # null = none


@dataclass(frozen=True, slots=True)
class MetadataResponsePartition(Struct):
    """One partition."""

    error_code: int = int16()  # 0 = none
    partition_index: int = int32()
    leader_id: int = int32()  # -1 = no leader
    leader_epoch: int = int32("7+", default=-1, ignorable=True)  # -1 = unknown
    replica_nodes: Sequence[int] = int32_array()
    isr_nodes: Sequence[int] = int32_array()
    # replicas on dead brokers or disks
    offline_replicas: Sequence[int] = int32_array("5+", ignorable=True)


@dataclass(frozen=True, slots=True)
class MetadataResponseTopic(Struct):
    """One topic."""

    error_code: int = int16()  # 0 = none
    name: str | None = nullable_string(nullable="12+")  # null = see topic_id
    topic_id: bytes = uuid("10+", ignorable=True)  # zero = unknown
    is_internal: bool = boolean("1+", ignorable=True)
    partitions: Sequence[MetadataResponsePartition] = array(MetadataResponsePartition)
    # bit set, -2³¹ = not requested
    topic_authorized_operations: int = int32("8+", default=-(2**31))


@dataclass(frozen=True, slots=True)
class MetadataResponse(Message):
    """Brokers, topics and controller according to the responding broker."""

    api_key = 3
    min_version = 0
    max_version = 13
    flexible_version = 9
    # librdkafka's mock brokers end flexible versions with a second empty tag section.
    tolerated_tail = b"\x00"

    throttle_time_ms: int = int32("3+", ignorable=True)  # ms the client is asked to wait
    brokers: Sequence[MetadataResponseBroker] = array(MetadataResponseBroker)
    cluster_id: str | None = nullable_string("2+", default=None, ignorable=True)  # null = unknown
    controller_id: int = int32("1+", default=-1, ignorable=True)  # -1 = none
    topics: Sequence[MetadataResponseTopic] = array(MetadataResponseTopic)
    # bit set, -2³¹ = not requested
    cluster_authorized_operations: int = int32("8-10", default=-(2**31))
    error_code: int = int16("13+", ignorable=True)  # 0 = none, REBOOTSTRAP_REQUIRED (KIP-1102)
