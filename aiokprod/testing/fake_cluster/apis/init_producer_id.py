"""InitProducerId (22). Without a transactional id, it always returns a new producer id. With a
transactional id, the transaction coordinator determines the producer id and epoch."""

from __future__ import annotations

from aiokprod._errors import Code
from aiokprod._wire.messages.init_producer_id import InitProducerIdResponse
from aiokprod.testing.fake_cluster.apis.answer import Answer
from aiokprod.testing.fake_cluster.apis.find_coordinator import refusal
from aiokprod.testing.fake_cluster.broker import FakeBroker
from aiokprod.testing.fake_cluster.framing import Request

FENCED_FROM = 4


def handle(broker: FakeBroker, request: Request) -> Answer:
    """Return a producer id and epoch."""
    body = request.body
    name = body.transactional_id
    if name == "":
        return Answer(error(broker, request, Code.INVALID_REQUEST))
    if name is None:
        producer_id, epoch = broker.cluster.new_producer_id()
        return Answer(InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch))
    code = refusal(broker, name)
    if code:
        return Answer(error(broker, request, code))
    code, producer_id, epoch = broker.cluster.transactions.init(
        name, body.transaction_timeout_ms, body.producer_id, body.producer_epoch
    )
    if code:
        if code is Code.PRODUCER_FENCED and request.version < FENCED_FROM:
            code = Code.INVALID_PRODUCER_EPOCH
        return Answer(error(broker, request, code))
    return Answer(InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch))


def error(broker: FakeBroker, request: Request, code: int) -> InitProducerIdResponse:
    """Return a response with this error code."""
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
