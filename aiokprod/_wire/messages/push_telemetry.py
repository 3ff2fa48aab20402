"""PushTelemetry (API key 72): send a client's metrics to a broker (KIP-714)."""

from __future__ import annotations

from dataclasses import dataclass

from aiokprod._wire.message import Message
from aiokprod._wire.message_schema import boolean, byte_string, int8, int16, int32, uuid


@dataclass(frozen=True, slots=True)
class PushTelemetryRequest(Message):
    """Metrics as an OpenTelemetry `MetricsData`, possibly compressed."""

    api_key = 72
    min_version = 0
    max_version = 0
    flexible_version = 0

    client_instance_id: bytes = uuid()
    subscription_id: int = int32()
    terminating: bool = boolean()  # the last push of this client
    compression_type: int = int8()  # codec id, the same as in record batches
    metrics: bytes = byte_string()


@dataclass(frozen=True, slots=True)
class PushTelemetryResponse(Message):
    """The result of the push."""

    api_key = 72
    min_version = 0
    max_version = 0
    flexible_version = 0

    throttle_time_ms: int = int32()  # ms the client is asked to wait
    error_code: int = int16()  # 0 = none
