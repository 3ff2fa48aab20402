"""InitProducerId (22) without a transactional id: a fresh id at epoch 0, every time."""

from __future__ import annotations

from aiokprod.error_codes import Code
from aiokprod.testing.fake_cluster.apis.answer import Answer
from aiokprod.testing.fake_cluster.broker import FakeBroker
from aiokprod.testing.fake_cluster.framing import Request
from aiokprod.wire.messages.init_producer_id import InitProducerIdResponse


def handle(broker: FakeBroker, request: Request) -> Answer:
    """Hand out an id."""
    if request.body.transactional_id == "":
        return Answer(error(broker, request, Code.INVALID_REQUEST))
    if request.body.transactional_id is not None:
        return Answer(error(broker, request, Code.UNSUPPORTED_VERSION))
    producer_id, epoch = broker.cluster.new_producer_id()
    return Answer(InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch))


def error(broker: FakeBroker, request: Request, code: int) -> InitProducerIdResponse:
    """No id, for this reason."""
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
