"""Handles ApiVersions responses, the only exchange before versions are negotiated.

Source: KIP-35, KIP-511; Java `NetworkClient.handleApiVersionsResponse`, `ApiVersionsResponse`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from aiokprod._wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from aiokprod._wire.primitives import BytesLike
from aiokprod._wire.versions import VersionRanges, lower_api_versions, usable_range
from aiokprod.errors import Code, DecodeError


@dataclass(frozen=True, slots=True)
class Features:
    """The finalized features of the cluster. A higher epoch is newer; -1 = unknown."""

    epoch: int
    levels: Mapping[str, int]


NO_FEATURES: Final = Features(-1, MappingProxyType({}))

_UNSUPPORTED_VERSION_BYTES: Final = int(Code.UNSUPPORTED_VERSION).to_bytes(2, "big")


def decode_versions(body: BytesLike, version: int) -> ApiVersionsResponse:
    """Decode an ApiVersions response.

    A broker that does not support the version of the request responds in version 0 (KIP-511). Other
    error responses use the version of the request. With UNSUPPORTED_VERSION, the version list is
    only a hint. If it can be decoded in neither version (librdkafka's mock brokers mix both), the
    response is treated as one without a list.
    """
    if version == 0 or bytes(body[:2]) != _UNSUPPORTED_VERSION_BYTES:
        return ApiVersionsResponse.decode(body, version)
    for candidate in (0, version):
        with contextlib.suppress(DecodeError):
            return ApiVersionsResponse.decode(body, candidate)
    return ApiVersionsResponse(error_code=Code.UNSUPPORTED_VERSION)


def next_version(asked: int, answer: ApiVersionsResponse) -> int | None:
    """Return the version of the next ApiVersions request after UNSUPPORTED_VERSION: first the
    highest version that the broker lists, then 0, then None.

    At most three requests are sent, even if a broker always responds with UNSUPPORTED_VERSION.
    """
    if asked == ApiVersionsRequest.max_version:
        return lower_api_versions(asked, answer)
    return 0 if asked > 0 else None


def shared_ranges(broker: VersionRanges) -> VersionRanges:
    """Return the versions of each API that both sides support. APIs without a common version are
    omitted."""
    shared = {api_key: usable_range(api_key, broker) for api_key in broker}
    return MappingProxyType({api_key: both for api_key, both in shared.items() if both})


def finalized_features(answer: ApiVersionsResponse) -> Features:
    """Return the finalized feature levels in an ApiVersions response (v3+; KIP-584)."""
    levels = {entry.name: entry.max_version_level for entry in answer.finalized_features}
    return Features(answer.finalized_features_epoch, MappingProxyType(levels))
