"""CreateTopics (API key 19): create topics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aiokprod._wire.message import Message
from aiokprod._wire.message_schema import (
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    int32_array,
    nullable_array,
    nullable_string,
    string,
    uuid,
)


@dataclass(frozen=True, slots=True)
class CreatableReplicaAssignment(Struct):
    """Replicas of one partition, the preferred leader first."""

    partition_index: int = int32()
    broker_ids: Sequence[int] = int32_array()


@dataclass(frozen=True, slots=True)
class CreatableTopicConfig(Struct):
    """A configuration entry to set."""

    name: str = string()
    value: str | None = nullable_string()


@dataclass(frozen=True, slots=True)
class CreatableTopic(Struct):
    """One topic."""

    name: str = string()
    num_partitions: int = int32()  # -1 = default of the broker
    replication_factor: int = int16()  # -1 = default of the broker
    assignments: Sequence[CreatableReplicaAssignment] = array(CreatableReplicaAssignment)
    configs: Sequence[CreatableTopicConfig] = array(CreatableTopicConfig)


@dataclass(frozen=True, slots=True)
class CreateTopicsRequest(Message):
    """Topics to create."""

    api_key = 19
    min_version = 2
    max_version = 7
    flexible_version = 5

    topics: Sequence[CreatableTopic] = array(CreatableTopic)
    timeout_ms: int = int32(default=60000)  # ms
    validate_only: bool = boolean("1+")


@dataclass(frozen=True, slots=True)
class CreatableTopicConfigs(Struct):
    """An effective configuration entry."""

    name: str = string("5+")
    value: str | None = nullable_string("5+")
    read_only: bool = boolean("5+")
    # -1 = unknown, 1 = topic, 2-4 = broker, 5 = default
    config_source: int = int8("5+", default=-1, ignorable=True)
    is_sensitive: bool = boolean("5+")


@dataclass(frozen=True, slots=True)
class CreatableTopicResult(Struct):
    """Result of one topic."""

    name: str = string()
    topic_id: bytes = uuid("7+", ignorable=True)  # zero = unknown
    error_code: int = int16()  # 0 = none
    error_message: str | None = nullable_string("1+", nullable="0+", ignorable=True)
    topic_config_error_code: int = int16("5+", tag=0, ignorable=True)
    num_partitions: int = int32("5+", default=-1, ignorable=True)  # -1 = unknown
    replication_factor: int = int16("5+", default=-1, ignorable=True)  # -1 = unknown
    configs: Sequence[CreatableTopicConfigs] | None = nullable_array(
        CreatableTopicConfigs, "5+", ignorable=True
    )


@dataclass(frozen=True, slots=True)
class CreateTopicsResponse(Message):
    """One result per topic."""

    api_key = 19
    min_version = 2
    max_version = 7
    flexible_version = 5

    throttle_time_ms: int = int32("2+", ignorable=True)  # ms the client is asked to wait
    topics: Sequence[CreatableTopicResult] = array(CreatableTopicResult)
