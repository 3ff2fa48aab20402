"""Handles ApiVersions responses: the only exchange before API versions are negotiated.

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
    """The finalized features of the cluster; a higher epoch is newer, -1 = unknown."""

    epoch: int
    levels: Mapping[str, int]


NO_FEATURES: Final = Features(-1, MappingProxyType({}))

_UNSUPPORTED_VERSION_BYTES: Final = int(Code.UNSUPPORTED_VERSION).to_bytes(2, "big")


def decode_versions(body: BytesLike, version: int) -> ApiVersionsResponse:
    """Decode an ApiVersions response.

    A broker that does not support the version of the request responds in version 0 (KIP-511); other
    error responses use the version of the request. After UNSUPPORTED_VERSION the list is only a
    hint: if it can be decoded in neither version (librdkafka's mock brokers mix both), the response
    counts as one without a list.
    """
    if version == 0 or bytes(body[:2]) != _UNSUPPORTED_VERSION_BYTES:
        return ApiVersionsResponse.decode(body, version)
    for candidate in (0, version):
        with contextlib.suppress(DecodeError):
            return ApiVersionsResponse.decode(body, candidate)
    return ApiVersionsResponse(error_code=Code.UNSUPPORTED_VERSION)


def next_version(asked: int, answer: ApiVersionsResponse) -> int | None:
    """The version for the next ApiVersions request after UNSUPPORTED_VERSION: the highest one that
    the broker listed, then 0, then None.

    There are at most three requests, even if a broker always responds with UNSUPPORTED_VERSION.
    """
    if asked == ApiVersionsRequest.max_version:
        return lower_api_versions(asked, answer)
    return 0 if asked > 0 else None


def shared_ranges(broker: VersionRanges) -> VersionRanges:
    """The versions of each API that both sides support; APIs without a common one are left out."""
    shared = {api_key: usable_range(api_key, broker) for api_key in broker}
    return MappingProxyType({api_key: both for api_key, both in shared.items() if both})


def finalized_features(answer: ApiVersionsResponse) -> Features:
    """The finalized feature levels in an ApiVersions response (v3+; KIP-584)."""
    levels = {entry.name: entry.max_version_level for entry in answer.finalized_features}
    return Features(answer.finalized_features_epoch, MappingProxyType(levels))
