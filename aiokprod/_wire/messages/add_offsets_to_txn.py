"""AddOffsetsToTxn (API key 25): announce that a transaction will commit offsets of a group.

Clients that use the second transaction protocol no longer send this request (KIP-890).
"""

from __future__ import annotations

from dataclasses import dataclass

from aiokprod._wire.message import Message
from aiokprod._wire.message_schema import int16, int32, int64, string


@dataclass(frozen=True, slots=True)
class AddOffsetsToTxnRequest(Message):
    """The group whose offsets the transaction will commit."""

    api_key = 25
    min_version = 0
    max_version = 4
    flexible_version = 3

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    group_id: str = string()


@dataclass(frozen=True, slots=True)
class AddOffsetsToTxnResponse(Message):
    """Result of the request."""

    api_key = 25
    min_version = 0
    max_version = 4
    flexible_version = 3

    throttle_time_ms: int = int32()  # ms the client is asked to wait
    error_code: int = int16()  # 0 = none
