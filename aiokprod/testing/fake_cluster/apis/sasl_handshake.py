"""SaslHandshake (17): the only mechanism is PLAIN."""

from __future__ import annotations

from aiokprod._errors import Code
from aiokprod._wire.messages.sasl_handshake import SaslHandshakeResponse
from aiokprod.testing.fake_cluster.apis.answer import Answer
from aiokprod.testing.fake_cluster.broker import FakeBroker
from aiokprod.testing.fake_cluster.framing import Request

_MECHANISMS = ["PLAIN"]


def handle(broker: FakeBroker, request: Request) -> Answer:
    """Accept PLAIN, and reject other mechanisms."""
    if request.body.mechanism not in _MECHANISMS:
        return Answer(error(broker, request, Code.UNSUPPORTED_SASL_MECHANISM))
    return Answer(SaslHandshakeResponse(mechanisms=_MECHANISMS))


def error(broker: FakeBroker, request: Request, code: int) -> SaslHandshakeResponse:
    """Return a response with this error code."""
    return SaslHandshakeResponse(error_code=code, mechanisms=_MECHANISMS)
