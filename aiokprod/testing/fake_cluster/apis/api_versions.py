"""ApiVersions (18). The response to an unsupported version has version 0 and lists the supported
versions (KIP-511)."""

from __future__ import annotations

from aiokprod._errors import Code
from aiokprod._wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
)
from aiokprod.testing.fake_cluster.apis.answer import Answer
from aiokprod.testing.fake_cluster.broker import FakeBroker
from aiokprod.testing.fake_cluster.framing import API_VERSIONS, Request


def handle(broker: FakeBroker, request: Request) -> Answer:
    """List the API versions of the broker's profile."""
    version = broker.cluster.transactions.version
    if not version:
        return Answer(ApiVersionsResponse(api_keys=_ranges(broker)))
    level = FinalizedFeatureKey(
        name="transaction.version", max_version_level=version, min_version_level=version
    )
    return Answer(
        ApiVersionsResponse(
            api_keys=_ranges(broker), finalized_features_epoch=1, finalized_features=[level]
        )
    )


def error(broker: FakeBroker, request: Request, code: int) -> ApiVersionsResponse:
    """Return a response with this error code. Like real brokers, it still lists the versions."""
    return ApiVersionsResponse(error_code=code, api_keys=_ranges(broker))


def unsupported(broker: FakeBroker) -> ApiVersionsResponse:
    """Return the version 0 response to a request version that the broker does not support."""
    keys = [key for key in _ranges(broker) if key.api_key == API_VERSIONS]
    return ApiVersionsResponse(
        error_code=Code.UNSUPPORTED_VERSION,
        api_keys=keys if broker.profile.names_api_versions else [],
    )


def _ranges(broker: FakeBroker) -> list[ApiVersion]:
    return [
        ApiVersion(api_key=key, min_version=low, max_version=high)
        for key, (low, high) in sorted(broker.profile.ranges.items())
    ]
