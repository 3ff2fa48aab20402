"""ListTransactions (API key 66): the transactions of a coordinator (KIP-664)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aiokprod._wire.message import Message
from aiokprod._wire.message_schema import (
    Struct,
    array,
    int16,
    int32,
    int64,
    int64_array,
    nullable_string,
    string,
    string_array,
)


@dataclass(frozen=True, slots=True)
class ListTransactionsRequest(Message):
    """Filters; an empty filter matches all transactions."""

    api_key = 66
    min_version = 0
    max_version = 2
    flexible_version = 0

    state_filters: Sequence[str] = string_array()
    producer_id_filters: Sequence[int] = int64_array()
    duration_filter: int = int64("1+", default=-1)  # minimum age in ms, -1 = any
    transactional_id_pattern: str | None = nullable_string("2+", default=None)


@dataclass(frozen=True, slots=True)
class TransactionState(Struct):
    """One transaction."""

    transactional_id: str = string()
    producer_id: int = int64()
    transaction_state: str = string()


@dataclass(frozen=True, slots=True)
class ListTransactionsResponse(Message):
    """Transactions that match the filters."""

    api_key = 66
    min_version = 0
    max_version = 2
    flexible_version = 0

    throttle_time_ms: int = int32()  # ms the client is asked to wait
    error_code: int = int16()  # 0 = none
    unknown_state_filters: Sequence[str] = string_array()
    transaction_states: Sequence[TransactionState] = array(TransactionState)
