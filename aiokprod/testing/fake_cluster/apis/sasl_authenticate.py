"""SaslAuthenticate (36): PLAIN with the users of `FakeCluster.sasl`."""

from __future__ import annotations

from aiokprod._errors import Code
from aiokprod._wire.messages.sasl_authenticate import SaslAuthenticateResponse
from aiokprod.testing.fake_cluster.apis.answer import Answer
from aiokprod.testing.fake_cluster.broker import FakeBroker
from aiokprod.testing.fake_cluster.framing import Request


def handle(broker: FakeBroker, request: Request) -> Answer:
    """Begin a session if user and password are right."""
    listener = broker.cluster.sasl
    if listener is None:
        return Answer(error(broker, request, Code.ILLEGAL_SASL_STATE))
    if not listener.authenticate(request):
        return Answer(error(broker, request, Code.SASL_AUTHENTICATION_FAILED))
    return Answer(SaslAuthenticateResponse(session_lifetime_ms=round(listener.lifetime_s * 1000)))


def error(broker: FakeBroker, request: Request, code: int) -> SaslAuthenticateResponse:
    """Return a response with this error code."""
    return SaslAuthenticateResponse(error_code=code)
