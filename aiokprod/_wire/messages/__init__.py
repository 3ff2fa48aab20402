"""Requests and responses, one module per API, and the registries by API key.

A module is imported when one of its messages is first looked up: a producer needs only a few of
them, and creating their dataclasses is slow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Final, NamedTuple

from aiokprod._wire.message import Message


class Api(NamedTuple):
    """The module that implements an API, and its supported versions.

    Attributes:
        module: name of the module with the API's messages.
        oldest, newest: supported versions, except those that Kafka calls unstable.
    """

    module: str
    oldest: int
    newest: int


APIS: Final = {
    0: Api("produce", 3, 13),
    1: Api("fetch", 4, 18),
    2: Api("list_offsets", 1, 11),
    3: Api("metadata", 0, 13),
    9: Api("offset_fetch", 1, 10),
    10: Api("find_coordinator", 0, 6),
    17: Api("sasl_handshake", 0, 1),
    18: Api("api_versions", 0, 4),
    22: Api("init_producer_id", 0, 5),
    24: Api("add_partitions_to_txn", 0, 5),
    25: Api("add_offsets_to_txn", 0, 4),
    26: Api("end_txn", 0, 5),
    28: Api("txn_offset_commit", 0, 5),
    32: Api("describe_configs", 1, 4),
    36: Api("sasl_authenticate", 0, 2),
    65: Api("describe_transactions", 0, 0),
    66: Api("list_transactions", 0, 2),
    71: Api("get_telemetry_subscriptions", 0, 0),
    72: Api("push_telemetry", 0, 0),
}
"""APIs by key. A test compares the versions with those of the message classes."""


class _Registry(Mapping[int, type[Message]]):
    """Maps API keys to message classes. A class is imported on first use."""

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix
        self._found: dict[int, type[Message]] = {}

    def __getitem__(self, api_key: int) -> type[Message]:
        found = self._found.get(api_key)
        if found is None:
            name = APIS[api_key].module
            module = import_module(f"{__name__}.{name}")
            found = getattr(module, name.title().replace("_", "") + self._suffix)
            self._found[api_key] = found
        return found

    def __contains__(self, api_key: object) -> bool:
        return api_key in APIS

    def __iter__(self) -> Iterator[int]:
        return iter(APIS)

    def __len__(self) -> int:
        return len(APIS)


REQUESTS: Final = _Registry("Request")
"""Request class by API key."""

RESPONSES: Final = _Registry("Response")
"""Response class by API key."""
