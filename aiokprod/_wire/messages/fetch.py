"""Fetch (API key 1): read record batches from partitions.

Used only by the Spark sink's audit and by tests; replica and session fields keep their defaults.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aiokprod._wire.message import Message
from aiokprod._wire.message_schema import (
    Records,
    Struct,
    array,
    int8,
    int16,
    int32,
    int32_array,
    int64,
    nullable_array,
    nullable_string,
    records,
    string,
    struct,
    uuid,
)


@dataclass(frozen=True, slots=True)
class ReplicaState(Struct):
    """Identity of the follower that fetches."""

    replica_id: int = int32("15+", default=-1)  # -1 = not a follower
    replica_epoch: int = int64("15+", default=-1)


@dataclass(frozen=True, slots=True)
class FetchPartition(Struct):
    """Offset and limits of the read from one partition."""

    partition: int = int32()
    current_leader_epoch: int = int32("9+", default=-1, ignorable=True)  # -1 = unknown
    fetch_offset: int = int64()
    last_fetched_epoch: int = int32("12+", default=-1)  # -1 = unknown
    log_start_offset: int = int64("5+", default=-1, ignorable=True)  # -1 = unknown
    partition_max_bytes: int = int32()
    replica_directory_id: bytes = uuid("17+", tag=0, ignorable=True)
    # the follower's high watermark (KIP-1166)
    high_watermark: int = int64("18+", default=2**63 - 1, tag=1, ignorable=True)


@dataclass(frozen=True, slots=True)
class FetchTopic(Struct):
    """Partitions of one topic to read."""

    topic: str = string("0-12", ignorable=True)
    topic_id: bytes = uuid("13+", ignorable=True)  # zero = unknown
    partitions: Sequence[FetchPartition] = array(FetchPartition)


@dataclass(frozen=True, slots=True)
class ForgottenTopic(Struct):
    """Partitions to remove from a fetch session."""

    topic: str = string("7-12", ignorable=True)
    topic_id: bytes = uuid("13+", ignorable=True)  # zero = unknown
    partitions: Sequence[int] = int32_array("7+")


@dataclass(frozen=True, slots=True)
class FetchRequest(Message):
    """Partitions and offsets to read from."""

    api_key = 1
    min_version = 4
    max_version = 18
    flexible_version = 12

    # null = unknown
    cluster_id: str | None = nullable_string("12+", default=None, tag=0, ignorable=True)
    replica_id: int = int32("0-14", default=-1)  # -1 = not a follower
    replica_state: ReplicaState = struct(ReplicaState, "15+", tag=1)
    max_wait_ms: int = int32()  # ms
    min_bytes: int = int32()
    max_bytes: int = int32("3+", default=2**31 - 1, ignorable=True)
    isolation_level: int = int8("4+", ignorable=True)  # 0 = read_uncommitted, 1 = read_committed
    session_id: int = int32("7+", ignorable=True)  # 0 = no session
    session_epoch: int = int32("7+", default=-1, ignorable=True)  # -1 = no session
    topics: Sequence[FetchTopic] = array(FetchTopic)
    forgotten_topics_data: Sequence[ForgottenTopic] = array(ForgottenTopic, "7+")
    rack_id: str = string("11+", ignorable=True)


@dataclass(frozen=True, slots=True)
class EpochEndOffset(Struct):
    """Offset at which the logs of follower and leader diverge."""

    epoch: int = int32("12+", default=-1)
    end_offset: int = int64("12+", default=-1)


@dataclass(frozen=True, slots=True)
class LeaderIdAndEpoch(Struct):
    """The current leader according to the responding broker. Set if the error is
    NOT_LEADER_OR_FOLLOWER or FENCED_LEADER_EPOCH.
    """

    leader_id: int = int32("12+", default=-1)  # -1 = none
    leader_epoch: int = int32("12+", default=-1)  # -1 = unknown


@dataclass(frozen=True, slots=True)
class SnapshotId(Struct):
    """Snapshot to fetch instead of records."""

    end_offset: int = int64(default=-1)
    epoch: int = int32(default=-1)


@dataclass(frozen=True, slots=True)
class AbortedTransaction(Struct):
    """An aborted transaction, whose records a read_committed reader must skip."""

    producer_id: int = int64("4+")
    first_offset: int = int64("4+")


@dataclass(frozen=True, slots=True)
class PartitionData(Struct):
    """Records of one partition."""

    partition_index: int = int32()
    error_code: int = int16()  # 0 = none
    high_watermark: int = int64()  # offset after the last replicated record
    # first offset of the open transactions, or the high watermark if there are none
    last_stable_offset: int = int64("4+", default=-1, ignorable=True)
    log_start_offset: int = int64("5+", default=-1, ignorable=True)  # -1 = unknown
    diverging_epoch: EpochEndOffset = struct(EpochEndOffset, "12+", tag=0)
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch, "12+", tag=1)
    snapshot_id: SnapshotId = struct(SnapshotId, "12+", tag=2)
    aborted_transactions: Sequence[AbortedTransaction] | None = nullable_array(
        AbortedTransaction, "4+", ignorable=True
    )
    preferred_read_replica: int = int32("11+", default=-1)  # -1 = none
    records: Records | None = records()  # record batches of format 2


@dataclass(frozen=True, slots=True)
class FetchableTopicResponse(Struct):
    """Records of one topic."""

    topic: str = string("0-12", ignorable=True)
    topic_id: bytes = uuid("13+", ignorable=True)  # zero = unknown
    partitions: Sequence[PartitionData] = array(PartitionData)


@dataclass(frozen=True, slots=True)
class NodeEndpoint(Struct):
    """Address of a broker in `current_leader`."""

    node_id: int = int32("16+")
    host: str = string("16+")
    port: int = int32("16+")
    rack: str | None = nullable_string("16+", default=None)  # null = none


@dataclass(frozen=True, slots=True)
class FetchResponse(Message):
    """Record batches of each partition."""

    api_key = 1
    min_version = 4
    max_version = 18
    flexible_version = 12

    throttle_time_ms: int = int32("1+", ignorable=True)  # ms the client is asked to wait
    error_code: int = int16("7+", ignorable=True)  # 0 = none
    session_id: int = int32("7+")  # 0 = no session
    responses: Sequence[FetchableTopicResponse] = array(FetchableTopicResponse)
    node_endpoints: Sequence[NodeEndpoint] = array(NodeEndpoint, "16+", tag=0)
