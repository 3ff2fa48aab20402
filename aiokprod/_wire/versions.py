"""Chooses the version of each API for a connection.

Source: KIP-35, KIP-511; Java `NodeApiVersions`, `NetworkClient.handleApiVersionsResponse`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from aiokprod._wire.messages import APIS, REQUESTS
from aiokprod._wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from aiokprod.errors import UnsupportedVersion

VersionRanges: TypeAlias = Mapping[int, tuple[int, int]]
"""(oldest, newest) version by API key."""


CLIENT_RANGES: Final[VersionRanges] = MappingProxyType(
    {api_key: (api.oldest, api.newest) for api_key, api in APIS.items()}
)
"""The versions that this package supports, except those that Kafka calls unstable."""


def broker_ranges(response: ApiVersionsResponse) -> VersionRanges:
    """Return the version ranges that a broker supports. Empty ranges and ranges that start below 0
    are omitted."""
    return MappingProxyType(
        {
            api.api_key: (api.min_version, api.max_version)
            for api in response.api_keys
            if 0 <= api.min_version <= api.max_version
        }
    )


def usable_range(api_key: int, broker: VersionRanges) -> tuple[int, int] | None:
    """Return the range of versions that both sides support, or None if they have no version in
    common or one side does not support the API."""
    ours = CLIENT_RANGES.get(api_key)
    theirs = broker.get(api_key)
    if ours is None or theirs is None:
        return None
    oldest, newest = max(ours[0], theirs[0]), min(ours[1], theirs[1])
    return (oldest, newest) if oldest <= newest else None


def negotiate(api_key: int, broker: VersionRanges, *, max_version: int | None = None) -> int:
    """Return the highest version that both sides support.

    Args:
        broker: the broker's ranges.
        max_version: upper limit for the version, or None.

    Raises:
        UnsupportedVersion: there is no such version.
    """
    usable = usable_range(api_key, broker)
    if usable is not None:
        oldest, newest = usable
        if max_version is not None:
            newest = min(newest, max_version)
        if oldest <= newest:
            return newest
    request = REQUESTS.get(api_key)
    name = request.__name__ if request else f"API key {api_key}"
    ours, theirs = CLIENT_RANGES.get(api_key), broker.get(api_key)
    hint = ""
    if request in (REQUESTS.get(0), REQUESTS.get(3)) and theirs is None:
        hint = "; is this the port of a controller? Connect to a port of a broker"
    cap = "" if max_version is None else f", allowed up to {max_version}"
    raise UnsupportedVersion(
        f"no common version of {name}: client {_show(ours)}, broker {_show(theirs)}{cap}{hint}"
    )


def _show(versions: tuple[int, int] | None) -> str:
    return "does not support it" if versions is None else f"{versions[0]} to {versions[1]}"


def lower_api_versions(failed_version: int, response: ApiVersionsResponse) -> int | None:
    """Choose the version with which to repeat ApiVersions after UNSUPPORTED_VERSION.

    Returns:
        The highest version below `failed_version` that the broker listed and this package supports;
        0 if there is none; None to give up. The version always decreases, so that a misbehaving
        broker cannot cause endless retries.
    """
    if failed_version <= 0:
        return None
    usable = usable_range(ApiVersionsRequest.api_key, broker_ranges(response))
    return min(usable[1], failed_version - 1) if usable and usable[0] < failed_version else 0
