"""AddPartitionsToTxn (24), client versions (0 to 3): adds all partitions or none."""

from __future__ import annotations

from typing import Any

from aiokprod._errors import Code
from aiokprod._wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from aiokprod.testing.fake_cluster.apis.answer import Answer
from aiokprod.testing.fake_cluster.apis.find_coordinator import refusal
from aiokprod.testing.fake_cluster.broker import FakeBroker
from aiokprod.testing.fake_cluster.framing import Request


def handle(broker: FakeBroker, request: Request) -> Answer:
    """Add the partitions, or respond with an error code for each."""
    body = request.body
    model = broker.cluster.transactions
    name = body.v3_and_below_transactional_id
    code = refusal(broker, name) or model.check(
        name, body.v3_and_below_producer_id, body.v3_and_below_producer_epoch
    )
    if code:
        return Answer(error(broker, request, code))
    wanted = [(t.name, index) for t in body.v3_and_below_topics for index in t.partitions]
    bad = {where: found for where in wanted if (found := _judge(broker, where))}
    if bad:
        return Answer(_answer(body, lambda at: bad.get(at, Code.OPERATION_NOT_ATTEMPTED)))
    return Answer(error(broker, request, model.add(name, set(wanted))))


def error(broker: FakeBroker, request: Request, code: int) -> AddPartitionsToTxnResponse:
    """Return a response with this error code for every partition."""
    return _answer(request.body, lambda at: code)


def _judge(broker: FakeBroker, where: tuple[str, int]) -> Code:
    topic, index = where
    cluster = broker.cluster
    if topic in cluster.denied_topics or topic in cluster.read_only_topics:
        return Code.TOPIC_AUTHORIZATION_FAILED
    if topic not in cluster.topics or index >= len(cluster.topics[topic].partitions):
        return Code.UNKNOWN_TOPIC_OR_PARTITION
    return Code.NONE


def _answer(body: Any, code_of: Any) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=index, partition_error_code=code_of((topic.name, index))
                    )
                    for index in topic.partitions
                ],
            )
            for topic in body.v3_and_below_topics
        ]
    )
