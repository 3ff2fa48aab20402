"""ListOffsets (API key 2): look up an offset of a partition by timestamp.

Special timestamps: -1 = log end offset, -2 = earliest, -3 = record with the largest timestamp
(KIP-734), -4 = earliest local, -5 = latest tiered (KIP-405), -6 = earliest pending upload.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aiokprod._wire.message import Message
from aiokprod._wire.message_schema import Struct, array, int8, int16, int32, int64, string


@dataclass(frozen=True, slots=True)
class ListOffsetsPartition(Struct):
    """Timestamp to look up in one partition."""

    partition_index: int = int32()
    current_leader_epoch: int = int32("4+", default=-1, ignorable=True)  # -1 = unknown
    timestamp: int = int64()  # Unix ms or a special timestamp


@dataclass(frozen=True, slots=True)
class ListOffsetsTopic(Struct):
    """Partitions of one topic."""

    name: str = string()
    partitions: Sequence[ListOffsetsPartition] = array(ListOffsetsPartition)


@dataclass(frozen=True, slots=True)
class ListOffsetsRequest(Message):
    """Partitions and timestamps to look up."""

    api_key = 2
    min_version = 1
    max_version = 11
    flexible_version = 6

    replica_id: int = int32()  # -1 = not a follower
    isolation_level: int = int8("2+")  # 0 = read_uncommitted, 1 = read_committed
    topics: Sequence[ListOffsetsTopic] = array(ListOffsetsTopic)
    timeout_ms: int = int32("10+", ignorable=True)  # ms


@dataclass(frozen=True, slots=True)
class ListOffsetsPartitionResponse(Struct):
    """Offset of one partition."""

    partition_index: int = int32()
    error_code: int = int16()  # 0 = none
    timestamp: int = int64("1+", default=-1)  # Unix ms, -1 = none
    offset: int = int64("1+", default=-1)  # -1 = none
    leader_epoch: int = int32("4+", default=-1)  # -1 = unknown


@dataclass(frozen=True, slots=True)
class ListOffsetsTopicResponse(Struct):
    """Offsets of one topic."""

    name: str = string()
    partitions: Sequence[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse)


@dataclass(frozen=True, slots=True)
class ListOffsetsResponse(Message):
    """One offset per partition."""

    api_key = 2
    min_version = 1
    max_version = 11
    flexible_version = 6

    throttle_time_ms: int = int32("2+", ignorable=True)  # ms the client is asked to wait
    topics: Sequence[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse)
