"""EndTxn (API key 26): commit or abort a transaction.

From version 5 on, the response has the producer id and epoch of the next transaction (KIP-890).
"""

from __future__ import annotations

from dataclasses import dataclass

from aiokprod._wire.message import Message
from aiokprod._wire.message_schema import boolean, int16, int32, int64, string


@dataclass(frozen=True, slots=True)
class EndTxnRequest(Message):
    """Commit or abort of the open transaction."""

    api_key = 26
    min_version = 0
    max_version = 5
    flexible_version = 3

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    committed: bool = boolean()  # True = commit, False = abort


@dataclass(frozen=True, slots=True)
class EndTxnResponse(Message):
    """Result, and the producer id and epoch of the next transaction."""

    api_key = 26
    min_version = 0
    max_version = 5
    flexible_version = 3

    throttle_time_ms: int = int32()  # ms the client is asked to wait
    error_code: int = int16()  # 0 = none
    producer_id: int = int64("5+", default=-1, ignorable=True)  # -1 = none
    producer_epoch: int = int16("5+", default=-1, ignorable=True)  # -1 = none
