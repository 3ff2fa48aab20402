"""DescribeTransactions (API key 65): state of transactions (KIP-664)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aiokprod._wire.message import Message
from aiokprod._wire.message_schema import (
    Struct,
    array,
    int16,
    int32,
    int32_array,
    int64,
    string,
    string_array,
)


@dataclass(frozen=True, slots=True)
class DescribeTransactionsRequest(Message):
    """Transactional ids to describe."""

    api_key = 65
    min_version = 0
    max_version = 0
    flexible_version = 0

    transactional_ids: Sequence[str] = string_array()


@dataclass(frozen=True, slots=True)
class TopicData(Struct):
    """Partitions of one topic in the transaction."""

    topic: str = string()
    partitions: Sequence[int] = int32_array()


@dataclass(frozen=True, slots=True)
class TransactionState(Struct):
    """State of one transaction."""

    error_code: int = int16()  # 0 = none
    transactional_id: str = string()
    transaction_state: str = string()
    transaction_timeout_ms: int = int32()  # ms until the coordinator aborts the transaction
    transaction_start_time_ms: int = int64()  # Unix ms, -1 = not started
    producer_id: int = int64()
    producer_epoch: int = int16()
    topics: Sequence[TopicData] = array(TopicData)


@dataclass(frozen=True, slots=True)
class DescribeTransactionsResponse(Message):
    """One state per transactional id."""

    api_key = 65
    min_version = 0
    max_version = 0
    flexible_version = 0

    throttle_time_ms: int = int32()  # ms the client is asked to wait
    transaction_states: Sequence[TransactionState] = array(TransactionState)
