"""AddOffsetsToTxn (25): adds a consumer group to the transaction."""

from __future__ import annotations

from aiokprod._wire.messages.add_offsets_to_txn import AddOffsetsToTxnResponse
from aiokprod.testing.fake_cluster.apis.answer import Answer
from aiokprod.testing.fake_cluster.apis.find_coordinator import refusal
from aiokprod.testing.fake_cluster.broker import FakeBroker
from aiokprod.testing.fake_cluster.framing import Request


def handle(broker: FakeBroker, request: Request) -> Answer:
    """Add the group to the transaction."""
    body = request.body
    model = broker.cluster.transactions
    code = refusal(broker, body.transactional_id) or model.check(
        body.transactional_id, body.producer_id, body.producer_epoch
    )
    if not code:
        code = model.add(body.transactional_id, set(), body.group_id)
    return Answer(error(broker, request, code))


def error(broker: FakeBroker, request: Request, code: int) -> AddOffsetsToTxnResponse:
    """Return a response with this error code."""
    return AddOffsetsToTxnResponse(error_code=code)
