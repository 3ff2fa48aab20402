"""Message classes of other clients, by identifying key."""

from __future__ import annotations

import importlib
import warnings
from types import ModuleType
from typing import Any

with warnings.catch_warnings():
    # kafka-python reads its schemas with a function that is deprecated in newer Python versions.
    warnings.simplefilter("ignore")
    from kafka.protocol.api_message import ApiMessage

    _KAFKA_PYTHON_MODULES = [
        importlib.import_module(f"kafka.protocol.{name}")
        for name in ("producer", "consumer", "metadata", "admin", "sasl")
    ]

from aiokafka.protocol.api import RequestStruct, Response

_AIOKAFKA_MODULES = [
    importlib.import_module(f"aiokafka.protocol.{name}")
    for name in ("admin", "commit", "coordination", "fetch", "metadata", "offset", "produce")
] + [importlib.import_module("aiokafka.protocol.transaction")]

KAFKA_PYTHON: dict[str, Any] = {
    name: value
    for module in _KAFKA_PYTHON_MODULES
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, ApiMessage)
}
"""Classes by message name. Each class supports all versions."""


def _classes_of(module: ModuleType) -> list[Any]:
    return [value for value in vars(module).values() if isinstance(value, type)]


AIOKAFKA: dict[tuple[bool, int, int], Any] = {
    (issubclass(value, Response), value.API_KEY, value.API_VERSION): value
    for module in _AIOKAFKA_MODULES
    for value in _classes_of(module)
    if issubclass(value, Response | RequestStruct) and value.__module__ != "aiokafka.protocol.api"
}
"""Classes by (True for a response, API key, version)."""
