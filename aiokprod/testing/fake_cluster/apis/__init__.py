"""Request handlers of the fake broker, one module per API.

Each module has `handle(broker, request) -> Answer` and `error(broker, request, code) -> Message`.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from aiokprod.testing.fake_cluster.apis.answer import Answer

__all__ = ["Answer", "api"]

_MODULES = {
    0: "produce",
    3: "metadata",
    9: "offset_fetch",
    10: "find_coordinator",
    17: "sasl_handshake",
    18: "api_versions",
    22: "init_producer_id",
    24: "add_partitions_to_txn",
    25: "add_offsets_to_txn",
    26: "end_txn",
    28: "txn_offset_commit",
    32: "describe_configs",
    36: "sasl_authenticate",
    65: "describe_transactions",
    66: "list_transactions",
    71: "get_telemetry_subscriptions",
    72: "push_telemetry",
}


@functools.cache
def api(api_key: int) -> Any:
    """Return the handler module of an API. Raises KeyError for APIs that are not implemented."""
    return importlib.import_module(f"{__name__}.{_MODULES[api_key]}")
