"""AddPartitionsToTxn (API key 24): announce partitions of a transaction to its coordinator.

Versions 4 and later are for brokers that verify transactions of several producers (KIP-890).
Clients use versions up to 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aiokprod._wire.message import Message
from aiokprod._wire.message_schema import (
    Struct,
    array,
    boolean,
    int16,
    int32,
    int32_array,
    int64,
    string,
)


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnTopic(Struct):
    """Partitions of one topic."""

    name: str = string()
    partitions: Sequence[int] = int32_array()


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnTransaction(Struct):
    """Partitions of one transaction."""

    transactional_id: str = string("4+")
    producer_id: int = int64("4+")
    producer_epoch: int = int16("4+")
    verify_only: bool = boolean("4+")  # only check that the partitions are in the transaction
    topics: Sequence[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, "4+")


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnRequest(Message):
    """Partitions to add. Clients set the fields v3_and_below_*, brokers set `transactions`."""

    api_key = 24
    min_version = 0
    max_version = 5
    flexible_version = 3

    transactions: Sequence[AddPartitionsToTxnTransaction] = array(
        AddPartitionsToTxnTransaction, "4+"
    )
    v3_and_below_transactional_id: str = string("0-3")
    v3_and_below_producer_id: int = int64("0-3")
    v3_and_below_producer_epoch: int = int16("0-3")
    v3_and_below_topics: Sequence[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, "0-3")


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnPartitionResult(Struct):
    """Result of one partition."""

    partition_index: int = int32()
    partition_error_code: int = int16()


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnTopicResult(Struct):
    """Results of one topic."""

    name: str = string()
    results_by_partition: Sequence[AddPartitionsToTxnPartitionResult] = array(
        AddPartitionsToTxnPartitionResult
    )


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnResult(Struct):
    """Results of one transaction."""

    transactional_id: str = string("4+")
    topic_results: Sequence[AddPartitionsToTxnTopicResult] = array(
        AddPartitionsToTxnTopicResult, "4+"
    )


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnResponse(Message):
    """One result per partition."""

    api_key = 24
    min_version = 0
    max_version = 5
    flexible_version = 3

    throttle_time_ms: int = int32()  # ms the client is asked to wait
    error_code: int = int16("4+", ignorable=True)  # 0 = none
    results_by_transaction: Sequence[AddPartitionsToTxnResult] = array(
        AddPartitionsToTxnResult, "4+"
    )
    results_by_topic_v3_and_below: Sequence[AddPartitionsToTxnTopicResult] = array(
        AddPartitionsToTxnTopicResult, "0-3"
    )
