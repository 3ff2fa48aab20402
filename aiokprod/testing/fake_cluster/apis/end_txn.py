"""EndTxn (26). Version 5 bumps the epoch and returns it (KIP-890)."""

from __future__ import annotations

from aiokprod._errors import Code
from aiokprod._wire.messages.end_txn import EndTxnResponse
from aiokprod.testing.fake_cluster.apis.answer import Answer
from aiokprod.testing.fake_cluster.apis.find_coordinator import refusal
from aiokprod.testing.fake_cluster.broker import FakeBroker
from aiokprod.testing.fake_cluster.framing import Request

SECOND_PROTOCOL_FROM = 5


def handle(broker: FakeBroker, request: Request) -> Answer:
    """Commit or abort the transaction."""
    body = request.body
    model = broker.cluster.transactions
    name = body.transactional_id
    code = refusal(broker, name)
    if not code and model.check(name, body.producer_id, 0) is Code.INVALID_PRODUCER_ID_MAPPING:
        code = Code.INVALID_PRODUCER_ID_MAPPING
    if code:
        return Answer(error(broker, request, code))
    tv2 = request.version >= SECOND_PROTOCOL_FROM
    code, producer_id, epoch = model.end(name, body.producer_epoch, commit=body.committed, tv2=tv2)
    if code:
        return Answer(error(broker, request, code))
    return Answer(EndTxnResponse(producer_id=producer_id, producer_epoch=epoch))


def error(broker: FakeBroker, request: Request, code: int) -> EndTxnResponse:
    """Return a response with this error code."""
    return EndTxnResponse(error_code=code)
