"""PushTelemetry (72): checks and stores the metrics of a client, like Java's
`ClientMetricsManager`."""

from __future__ import annotations

from aiokprod._errors import Code
from aiokprod._wire.messages.push_telemetry import PushTelemetryResponse
from aiokprod.testing.fake_cluster.apis.answer import Answer
from aiokprod.testing.fake_cluster.broker import FakeBroker
from aiokprod.testing.fake_cluster.framing import Request
from aiokprod.testing.fake_cluster.telemetry import Push


def handle(broker: FakeBroker, request: Request) -> Answer:
    """Check the request and store the metrics."""
    telemetry, body = broker.cluster.telemetry, request.body
    assert telemetry is not None, "the API is offered only with a subscription"
    if not any(body.client_instance_id):
        return Answer(error(broker, request, Code.INVALID_REQUEST))
    if body.subscription_id != telemetry.subscription_id:
        return Answer(error(broker, request, Code.UNKNOWN_SUBSCRIPTION_ID))
    if body.compression_type and body.compression_type not in telemetry.codecs:
        return Answer(error(broker, request, Code.UNSUPPORTED_COMPRESSION_TYPE))
    if len(body.metrics) > telemetry.max_bytes:
        return Answer(error(broker, request, Code.TELEMETRY_TOO_LARGE))
    telemetry.pushes.append(
        Push(
            body.client_instance_id, request.time, body.compression_type, bytes(body.metrics),
            body.terminating,
        )
    )  # fmt: skip
    return Answer(PushTelemetryResponse())


def error(broker: FakeBroker, request: Request, code: int) -> PushTelemetryResponse:
    """Return a response with this error code."""
    return PushTelemetryResponse(error_code=code)
