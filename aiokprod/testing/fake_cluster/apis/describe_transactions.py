"""DescribeTransactions (65): the state of transactional ids, by their coordinator (KIP-664)."""

from __future__ import annotations

from aiokprod._errors import Code
from aiokprod._wire.messages.describe_transactions import (
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from aiokprod.testing.fake_cluster.apis.answer import Answer
from aiokprod.testing.fake_cluster.apis.find_coordinator import refusal
from aiokprod.testing.fake_cluster.broker import FakeBroker
from aiokprod.testing.fake_cluster.framing import Request


def handle(broker: FakeBroker, request: Request) -> Answer:
    """Describe each transactional id."""
    states = [_state(broker, name) for name in request.body.transactional_ids]
    return Answer(DescribeTransactionsResponse(transaction_states=states))


def _state(broker: FakeBroker, name: str) -> TransactionState:
    code = refusal(broker, name)
    if code:
        return _none(name, code)
    entry = broker.cluster.transactions.ids.get(name)
    if entry is None:
        return _none(name, Code.TRANSACTIONAL_ID_NOT_FOUND)
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(entry.partitions):
        topics.setdefault(topic, []).append(partition)
    return TransactionState(
        error_code=0,
        transactional_id=name,
        transaction_state=entry.phase.value,
        transaction_timeout_ms=entry.timeout_ms,
        transaction_start_time_ms=-1,
        producer_id=entry.producer_id,
        producer_epoch=entry.epoch,
        topics=[TopicData(topic=topic, partitions=found) for topic, found in topics.items()],
    )


def error(broker: FakeBroker, request: Request, code: int) -> DescribeTransactionsResponse:
    """Return a response with this error code for every transactional id."""
    states = [_none(name, code) for name in request.body.transactional_ids]
    return DescribeTransactionsResponse(transaction_states=states)


def _none(name: str, code: int) -> TransactionState:
    return TransactionState(
        error_code=int(code), transactional_id=name, transaction_state="",
        transaction_timeout_ms=0, transaction_start_time_ms=-1, producer_id=-1,
        producer_epoch=-1, topics=[],
    )  # fmt: skip
