"""Determines after which responses a throttled client must wait.

Before KIP-219, brokers delayed the responses to throttled clients. Since then, a broker responds at
once, stops reading from the connection, and expects the client to send nothing. Source: Java
`AbstractResponse.shouldClientThrottle`.
"""

from __future__ import annotations

from typing import Any, Final

_CLIENT_WAITS_SINCE: Final = {
    0: 6,  # Produce
    1: 8,  # Fetch
    2: 3,  # ListOffsets
    3: 6,  # Metadata
    9: 4,  # OffsetFetch
    10: 2,  # FindCoordinator
    18: 2,  # ApiVersions
    22: 1,  # InitProducerId
    24: 1,  # AddPartitionsToTxn
    25: 1,  # AddOffsetsToTxn
    26: 1,  # EndTxn
    28: 1,  # TxnOffsetCommit
    32: 2,  # DescribeConfigs
}
"""First version of each API in which the client waits. For other APIs the client waits in all
versions, because these APIs are newer than KIP-219."""


def client_waits(api_key: int, version: int) -> bool:
    """Return True if the client must wait for the throttle time in a response of this version."""
    return version >= _CLIENT_WAITS_SINCE.get(api_key, 0)


def throttle_ms(body: Any) -> int:
    """Return the throttle time of a decoded response in ms, or 0 if it is missing or negative."""
    value: int = getattr(body, "throttle_time_ms", 0)
    return max(value, 0)
