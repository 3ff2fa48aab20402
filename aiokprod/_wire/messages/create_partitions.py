"""CreatePartitions (API key 37): raise the number of partitions of topics."""

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
)


@dataclass(frozen=True, slots=True)
class CreatePartitionsAssignment(Struct):
    """Replicas of one new partition."""

    broker_ids: Sequence[int] = int32_array()


@dataclass(frozen=True, slots=True)
class CreatePartitionsTopic(Struct):
    """One topic."""

    name: str = string()
    count: int = int32()  # new total number of partitions
    # null = chosen by the broker
    assignments: Sequence[CreatePartitionsAssignment] | None = nullable_array(
        CreatePartitionsAssignment
    )


@dataclass(frozen=True, slots=True)
class CreatePartitionsRequest(Message):
    """Topics to enlarge."""

    api_key = 37
    min_version = 0
    max_version = 3
    flexible_version = 2

    topics: Sequence[CreatePartitionsTopic] = array(CreatePartitionsTopic)
    timeout_ms: int = int32()  # ms
    validate_only: bool = boolean()


@dataclass(frozen=True, slots=True)
class CreatePartitionsTopicResult(Struct):
    """Result of one topic."""

    name: str = string()
    error_code: int = int16()  # 0 = none
    error_message: str | None = nullable_string(default=None)


@dataclass(frozen=True, slots=True)
class CreatePartitionsResponse(Message):
    """One result per topic."""

    api_key = 37
    min_version = 0
    max_version = 3
    flexible_version = 2

    throttle_time_ms: int = int32()  # ms the client is asked to wait
    results: Sequence[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult)
