"""The clients that run in the worker's Python process, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from benchmarks.case import Case
from benchmarks.clients.aiokafka_clients import Aiokafka, AiokafkaTuned
from benchmarks.clients.base import Client
from benchmarks.clients.confluent_clients import (
    Confluent,
    ConfluentAio,
    ConfluentAioTuned,
    ConfluentSilent,
)
from benchmarks.clients.ours import Aiokprod, AiokprodAsIs
from benchmarks.payloads import Payloads

PYTHON_CLIENTS: Final[dict[str, Callable[[Case, Payloads], Client]]] = {
    "aiokprod": Aiokprod,
    "aiokprod-asis": AiokprodAsIs,
    "aiokafka": Aiokafka,
    "aiokafka-tuned": AiokafkaTuned,
    "confluent": Confluent,
    "confluent-silent": ConfluentSilent,
    "confluent-aio": ConfluentAio,
    "confluent-aio-tuned": ConfluentAioTuned,
}
