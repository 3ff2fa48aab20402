"""DescribeCluster (API key 60): brokers and controllers of a cluster (KIP-700)."""

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
    nullable_string,
    string,
)


@dataclass(frozen=True, slots=True)
class DescribeClusterRequest(Message):
    """What to describe."""

    api_key = 60
    min_version = 0
    max_version = 2
    flexible_version = 0

    include_cluster_authorized_operations: bool = boolean()
    endpoint_type: int = int8("1+", default=1)  # 1 = brokers, 2 = controllers
    include_fenced_brokers: bool = boolean("2+")


@dataclass(frozen=True, slots=True)
class DescribeClusterBroker(Struct):
    """One broker."""

    broker_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = nullable_string(default=None)  # null = none
    is_fenced: bool = boolean("2+")


@dataclass(frozen=True, slots=True)
class DescribeClusterResponse(Message):
    """Brokers or controllers."""

    api_key = 60
    min_version = 0
    max_version = 2
    flexible_version = 0

    throttle_time_ms: int = int32()  # ms the client is asked to wait
    error_code: int = int16()  # 0 = none
    error_message: str | None = nullable_string(default=None)
    endpoint_type: int = int8("1+", default=1)  # 1 = brokers, 2 = controllers
    cluster_id: str = string()  # null = unknown
    controller_id: int = int32(default=-1)  # -1 = none
    brokers: Sequence[DescribeClusterBroker] = array(DescribeClusterBroker)
    cluster_authorized_operations: int = int32(default=-(2**31))  # bit set, -2³¹ = not asked for
