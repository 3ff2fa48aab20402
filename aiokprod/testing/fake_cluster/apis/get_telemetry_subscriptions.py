"""GetTelemetrySubscriptions (71): the subscription of `FakeCluster.subscribe`."""

from __future__ import annotations

from aiokprod._wire.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsResponse
from aiokprod.testing.fake_cluster.apis.answer import Answer
from aiokprod.testing.fake_cluster.broker import FakeBroker
from aiokprod.testing.fake_cluster.framing import Request


def handle(broker: FakeBroker, request: Request) -> Answer:
    """Return the metrics to push."""
    telemetry = broker.cluster.telemetry
    assert telemetry is not None, "the API is offered only with a subscription"
    return Answer(
        GetTelemetrySubscriptionsResponse(
            client_instance_id=telemetry.instance_id(request.body.client_instance_id),
            subscription_id=telemetry.subscription_id,
            accepted_compression_types=list(telemetry.codecs),
            push_interval_ms=telemetry.interval_ms,
            telemetry_max_bytes=telemetry.max_bytes,
            delta_temporality=telemetry.delta,
            requested_metrics=list(telemetry.requested),
        )
    )


def error(broker: FakeBroker, request: Request, code: int) -> GetTelemetrySubscriptionsResponse:
    """Return a response with this error code."""
    return GetTelemetrySubscriptionsResponse(error_code=code)
