"""OffsetFetch (API key 9): committed offsets of consumer groups.

Versions below 8 fetch the offsets of one group, later versions those of several groups (KIP-709).
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
    int64,
    nullable_array,
    nullable_string,
    string,
    uuid,
)


@dataclass(frozen=True, slots=True)
class OffsetFetchRequestTopic(Struct):
    """Partitions of one topic (versions below 8)."""

    name: str = string("0-7")
    partition_indexes: Sequence[int] = int32_array("0-7")


@dataclass(frozen=True, slots=True)
class OffsetFetchRequestTopics(Struct):
    """Partitions of one topic (version 8 and later)."""

    name: str = string("8-9", ignorable=True)
    topic_id: bytes = uuid("10+", ignorable=True)  # zero = unknown
    partition_indexes: Sequence[int] = int32_array("8+")


@dataclass(frozen=True, slots=True)
class OffsetFetchRequestGroup(Struct):
    """One group (version 8 and later)."""

    group_id: str = string("8+")
    member_id: str | None = nullable_string("9+", default=None, ignorable=True)
    member_epoch: int = int32("9+", default=-1, ignorable=True)  # -1 = none
    topics: Sequence[OffsetFetchRequestTopics] | None = nullable_array(
        OffsetFetchRequestTopics, "8+"
    )


@dataclass(frozen=True, slots=True)
class OffsetFetchRequest(Message):
    """Partitions whose committed offsets to fetch; null = all partitions of the group."""

    api_key = 9
    min_version = 1
    max_version = 10
    flexible_version = 6

    group_id: str = string("0-7")
    topics: Sequence[OffsetFetchRequestTopic] | None = nullable_array(
        OffsetFetchRequestTopic, "0-7", nullable="2-7"
    )
    groups: Sequence[OffsetFetchRequestGroup] = array(OffsetFetchRequestGroup, "8+")
    require_stable: bool = boolean("7+")


@dataclass(frozen=True, slots=True)
class OffsetFetchResponsePartition(Struct):
    """Offset of one partition (versions below 8)."""

    partition_index: int = int32("0-7")
    committed_offset: int = int64("0-7")  # -1 = none
    committed_leader_epoch: int = int32("5-7", default=-1, ignorable=True)  # -1 = unknown
    metadata: str | None = nullable_string("0-7")
    error_code: int = int16("0-7")  # 0 = none


@dataclass(frozen=True, slots=True)
class OffsetFetchResponseTopic(Struct):
    """Offsets of one topic (versions below 8)."""

    name: str = string("0-7")
    partitions: Sequence[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition, "0-7")


@dataclass(frozen=True, slots=True)
class OffsetFetchResponsePartitions(Struct):
    """Offset of one partition (version 8 and later)."""

    partition_index: int = int32("8+")
    committed_offset: int = int64("8+")  # -1 = none
    committed_leader_epoch: int = int32("8+", default=-1, ignorable=True)  # -1 = unknown
    metadata: str | None = nullable_string("8+")
    error_code: int = int16("8+")  # 0 = none


@dataclass(frozen=True, slots=True)
class OffsetFetchResponseTopics(Struct):
    """Offsets of one topic (version 8 and later)."""

    name: str = string("8-9", ignorable=True)
    topic_id: bytes = uuid("10+", ignorable=True)  # zero = unknown
    partitions: Sequence[OffsetFetchResponsePartitions] = array(OffsetFetchResponsePartitions, "8+")


@dataclass(frozen=True, slots=True)
class OffsetFetchResponseGroup(Struct):
    """Offsets of one group (version 8 and later)."""

    group_id: str = string("8+")
    topics: Sequence[OffsetFetchResponseTopics] = array(OffsetFetchResponseTopics, "8+")
    error_code: int = int16("8+")  # 0 = none


@dataclass(frozen=True, slots=True)
class OffsetFetchResponse(Message):
    """Committed offsets."""

    api_key = 9
    min_version = 1
    max_version = 10
    flexible_version = 6

    throttle_time_ms: int = int32("3+", ignorable=True)  # ms the client is asked to wait
    topics: Sequence[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic, "0-7")
    error_code: int = int16("2-7", ignorable=True)  # 0 = none
    groups: Sequence[OffsetFetchResponseGroup] = array(OffsetFetchResponseGroup, "8+")
