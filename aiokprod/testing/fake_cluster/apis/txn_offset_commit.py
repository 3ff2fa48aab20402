"""TxnOffsetCommit (28), served by the group coordinator. Since version 5, it adds the group to the
transaction implicitly."""

from __future__ import annotations

from aiokprod._errors import Code
from aiokprod._wire.messages.txn_offset_commit import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from aiokprod.testing.fake_cluster.apis.answer import Answer
from aiokprod.testing.fake_cluster.apis.find_coordinator import refusal
from aiokprod.testing.fake_cluster.broker import FakeBroker
from aiokprod.testing.fake_cluster.framing import Request
from aiokprod.testing.fake_cluster.transactions import CommittedOffset

SECOND_PROTOCOL_FROM = 5


def handle(broker: FakeBroker, request: Request) -> Answer:
    """Store the offsets until the transaction ends."""
    return Answer(error(broker, request, _commit(broker, request)))


def _commit(broker: FakeBroker, request: Request) -> Code:
    body = request.body
    cluster = broker.cluster
    model = cluster.transactions
    code = refusal(broker, body.group_id) or model.check(
        body.transactional_id, body.producer_id, body.producer_epoch
    )
    generation = cluster.group_generations.get(body.group_id, body.generation_id)
    if not code and body.generation_id >= 0 and body.generation_id != generation:
        code = Code.ILLEGAL_GENERATION
    if code:
        return code
    entry = model.ids[body.transactional_id]
    if request.version >= SECOND_PROTOCOL_FROM:
        code = model.add(body.transactional_id, set(), body.group_id)
        if code:
            return code
    if body.group_id not in entry.offsets:
        return Code.INVALID_TXN_STATE
    now = cluster.loop.time()
    entry.offsets[body.group_id].update(
        {
            (t.name, p.partition_index): CommittedOffset(
                p.committed_offset, p.committed_metadata, now
            )
            for t in body.topics
            for p in t.partitions
        }
    )
    return Code.NONE


def error(broker: FakeBroker, request: Request, code: int) -> TxnOffsetCommitResponse:
    """Return a response with this error code for every partition."""
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=code
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.body.topics
        ]
    )
