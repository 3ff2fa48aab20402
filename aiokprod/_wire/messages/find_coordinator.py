"""FindCoordinator (API key 10): the coordinator of a group or a transactional id.

Versions below 4 look up one key, later versions several keys (KIP-699).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aiokprod._wire.message import Message
from aiokprod._wire.message_schema import (
    Struct,
    array,
    int8,
    int16,
    int32,
    nullable_string,
    string,
    string_array,
)


@dataclass(frozen=True, slots=True)
class FindCoordinatorRequest(Message):
    """Groups or transactional ids to look up, all of one key type."""

    api_key = 10
    min_version = 0
    max_version = 6
    flexible_version = 3

    key: str = string("0-3")
    key_type: int = int8("1+")  # 0 = group, 1 = transaction, 2 = share group
    coordinator_keys: Sequence[str] = string_array("4+")


@dataclass(frozen=True, slots=True)
class Coordinator(Struct):
    """Coordinator of one key (version 4 and later)."""

    key: str = string("4+")
    node_id: int = int32("4+")
    host: str = string("4+")
    port: int = int32("4+")
    error_code: int = int16("4+")  # 0 = none
    error_message: str | None = nullable_string("4+", ignorable=True)


@dataclass(frozen=True, slots=True)
class FindCoordinatorResponse(Message):
    """One coordinator in the fields of the message (below version 4), or a list of coordinators."""

    api_key = 10
    min_version = 0
    max_version = 6
    flexible_version = 3

    throttle_time_ms: int = int32("1+", ignorable=True)  # ms the client is asked to wait
    error_code: int = int16("0-3")  # 0 = none
    error_message: str | None = nullable_string("1-3", ignorable=True)
    node_id: int = int32("0-3")
    host: str = string("0-3")
    port: int = int32("0-3")
    coordinators: Sequence[Coordinator] = array(Coordinator, "4+")
