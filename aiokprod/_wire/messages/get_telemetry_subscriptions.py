"""GetTelemetrySubscriptions (API key 71): the metrics that a client should push (KIP-714)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aiokprod._wire.message import Message
from aiokprod._wire.message_schema import (
    boolean,
    int8_array,
    int16,
    int32,
    string_array,
    uuid,
)


@dataclass(frozen=True, slots=True)
class GetTelemetrySubscriptionsRequest(Message):
    """A client's request for its subscription. The first request has no client instance id yet."""

    api_key = 71
    min_version = 0
    max_version = 0
    flexible_version = 0

    client_instance_id: bytes = uuid()  # zero: the broker creates one


@dataclass(frozen=True, slots=True)
class GetTelemetrySubscriptionsResponse(Message):
    """The subscription: the metrics to push, their encoding and the interval."""

    api_key = 71
    min_version = 0
    max_version = 0
    flexible_version = 0

    throttle_time_ms: int = int32()  # ms the client is asked to wait
    error_code: int = int16()  # 0 = none
    client_instance_id: bytes = uuid()
    subscription_id: int = int32()
    accepted_compression_types: Sequence[int] = int8_array()  # in the broker's order of preference
    push_interval_ms: int = int32()
    telemetry_max_bytes: int = int32()  # limit before compression
    delta_temporality: bool = boolean()
    requested_metrics: Sequence[str] = string_array()  # prefixes of names; "" = all
