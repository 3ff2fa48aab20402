"""ApiVersions (API key 18): the versions of each API that a broker supports.

The response always has header version 0. A broker that does not support the requested version
responds in version 0 with UNSUPPORTED_VERSION (KIP-511).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aiokprod._wire.message import Message
from aiokprod._wire.message_schema import Struct, array, boolean, int16, int32, int64, string


@dataclass(frozen=True, slots=True)
class ApiVersionsRequest(Message):
    r"""`client_software_name` and `client_software_version` must match
    `[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?`."""

    api_key = 18
    min_version = 0
    max_version = 4
    flexible_version = 3

    client_software_name: str = string("3+", ignorable=True)
    client_software_version: str = string("3+", ignorable=True)


@dataclass(frozen=True, slots=True)
class ApiVersion(Struct):
    """Versions of one API."""

    api_key: int = int16()
    min_version: int = int16()
    max_version: int = int16()


@dataclass(frozen=True, slots=True)
class SupportedFeatureKey(Struct):
    """Range of levels of one feature that a broker supports."""

    name: str = string("3+")
    min_version: int = int16("3+")
    max_version: int = int16("3+")


@dataclass(frozen=True, slots=True)
class FinalizedFeatureKey(Struct):
    """Finalized level of one feature of the cluster."""

    name: str = string("3+")
    max_version_level: int = int16("3+")
    min_version_level: int = int16("3+")


@dataclass(frozen=True, slots=True)
class ApiVersionsResponse(Message):
    """Version ranges of all APIs and of cluster features (KIP-584)."""

    api_key = 18
    min_version = 0
    max_version = 4
    flexible_version = 3

    error_code: int = int16()  # 0 = none
    api_keys: Sequence[ApiVersion] = array(ApiVersion)
    throttle_time_ms: int = int32("1+", ignorable=True)  # ms the client is asked to wait
    supported_features: Sequence[SupportedFeatureKey] = array(
        SupportedFeatureKey, "3+", tag=0, ignorable=True
    )
    finalized_features_epoch: int = int64("3+", default=-1, tag=1, ignorable=True)  # -1 = unknown
    finalized_features: Sequence[FinalizedFeatureKey] = array(
        FinalizedFeatureKey, "3+", tag=2, ignorable=True
    )
    zk_migration_ready: bool = boolean("3+", tag=3, ignorable=True)
