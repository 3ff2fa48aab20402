"""InitProducerId (API key 22): get a producer id and epoch, or bump an epoch (KIP-98, KIP-360).

Version 6 (two-phase commit, KIP-939) is unstable: brokers offer it only if configured to.
"""

from __future__ import annotations

from dataclasses import dataclass

from aiokprod._wire.message import Message
from aiokprod._wire.message_schema import boolean, int16, int32, int64, nullable_string


@dataclass(frozen=True, slots=True)
class InitProducerIdRequest(Message):
    """Without a transactional id (null) the producer is idempotent but not transactional."""

    api_key = 22
    min_version = 0
    max_version = 6
    flexible_version = 2
    unstable_version = 6

    transactional_id: str | None = nullable_string()
    transaction_timeout_ms: int = int32()  # ms until the coordinator aborts the transaction
    producer_id: int = int64("3+", default=-1)  # -1 = none
    producer_epoch: int = int16("3+", default=-1)  # -1 = none
    enable2_pc: bool = boolean("6+")
    keep_prepared_txn: bool = boolean("6+")


@dataclass(frozen=True, slots=True)
class InitProducerIdResponse(Message):
    """Producer id and epoch for the next batches."""

    api_key = 22
    min_version = 0
    max_version = 6
    flexible_version = 2
    unstable_version = 6

    throttle_time_ms: int = int32(ignorable=True)  # ms the client is asked to wait
    error_code: int = int16()  # 0 = none
    producer_id: int = int64(default=-1)  # -1 = none
    producer_epoch: int = int16()
    ongoing_txn_producer_id: int = int64("6+", default=-1)  # -1 = no prepared transaction
    ongoing_txn_producer_epoch: int = int16("6+", default=-1)
