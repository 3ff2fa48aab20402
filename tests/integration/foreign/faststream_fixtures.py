"""A pytest plug-in for FastStream's tests of its Kafka broker. It replaces FastStream's root
conftest.

The brokers of the tests connect to a node of `KafkaCluster` and publish through aiokprod. Here, the
package `tests` is FastStream's.
"""

from __future__ import annotations

import asyncio
import importlib
import uuid
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import pytest
from faststream.kafka import KafkaBroker

import aiokprod.compat.aiokafka
from aiokprod.compat.faststream import AiokprodFastProducer, use_aiokprod
from aiokprod.testing.kafka_cluster import KafkaCluster

aiokprod.compat.aiokafka.install()  # before a test replaces aiokafka.AIOKafkaProducer.send


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers of FastStream's configuration."""
    for name in ("all", "kafka", "connected", "slow"):
        config.addinivalue_line("markers", name)


@pytest.fixture(scope="session")
def servers() -> Iterator[str]:
    """Start a node and yield its bootstrap servers."""
    cluster = KafkaCluster(1)
    cluster.start_blocking()
    yield cluster.bootstrap_servers
    cluster.stop_blocking()


@pytest.fixture(autouse=True)
def over_aiokprod(servers: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the brokers of the tests publish through aiokprod, and check that they did."""
    basic = importlib.import_module("tests.brokers.kafka.basic")
    made: list[KafkaBroker] = []

    def get_broker(_: Any, apply_types: bool = False, **options: Any) -> KafkaBroker:
        broker = use_aiokprod(KafkaBroker(servers, apply_types=apply_types, **options))
        made.append(broker)
        return broker

    monkeypatch.setattr(basic.KafkaTestcaseConfig, "get_broker", get_broker)
    yield
    assert made
    for broker in made:
        assert isinstance(broker.config.producer, AiokprodFastProducer)


@pytest.fixture
def queue() -> str:
    """Return a unique topic name."""
    return str(uuid.uuid4())


@pytest.fixture
def event() -> asyncio.Event:
    """An event that a subscriber of the test sets."""
    return asyncio.Event()


@pytest.fixture
def mock() -> MagicMock:
    """A mock that a subscriber of the test calls."""
    return MagicMock()
