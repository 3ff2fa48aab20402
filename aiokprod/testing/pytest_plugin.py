"""The pytest plugin: reports the build under test in the header and provides cluster fixtures.

Load it with `pytest_plugins = ("aiokprod.testing.pytest_plugin",)` in the top-level conftest.
The plugin imports `aiokprod` lazily, so that coverage measures the import.

Fixtures, all of session scope and started on first use:

- `kafka_cluster`: three nodes of the newest supported Kafka (`KafkaCluster`);
- `kafka_3_broker`: one node of the 3.9 line;
- `kafka_2_broker`: one node of Kafka 2.1 with ZooKeeper;
- `mock_cluster`: three mock brokers in a separate process (`MockCluster`).

If the machine cannot provide a fixture, the tests that use it fail; they are not skipped.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from aiokprod.testing.kafka_cluster import KafkaCluster
    from aiokprod.testing.mock_cluster import MockCluster


def pytest_report_header(config: pytest.Config) -> str:
    """Return a line with the version, whether the build is compiled, and the interpreter."""
    import aiokprod

    version = getattr(aiokprod, "__version__", "unknown")
    compiled = getattr(aiokprod, "COMPILED", None)
    return (
        f"aiokprod: {version}, COMPILED={compiled}, "
        f"{platform.python_implementation()} {platform.python_version()}"
    )


@pytest.fixture(scope="session")
def kafka_cluster(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """Three real brokers. A test that stops or pauses nodes must start or resume them."""
    from aiokprod.testing.kafka_cluster import KAFKA_4, KafkaCluster

    yield from _running(KafkaCluster(3, version=KAFKA_4), request)


@pytest.fixture(scope="session")
def kafka_3_broker(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """One real broker of the 3.9 line, for older protocol versions."""
    from aiokprod.testing.kafka_cluster import KAFKA_3, KafkaCluster

    yield from _running(KafkaCluster(1, version=KAFKA_3), request)


@pytest.fixture(scope="session")
def kafka_2_broker(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """One real broker of Kafka 2.1, which registers with ZooKeeper."""
    from aiokprod.testing.kafka_cluster import KAFKA_2, KafkaCluster

    yield from _running(KafkaCluster(1, version=KAFKA_2), request)


def _running(cluster: KafkaCluster, request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    cluster.start_blocking()
    failed_before = request.session.testsfailed
    try:
        yield cluster
    finally:
        cluster.keep_logs = request.session.testsfailed > failed_before
        cluster.stop_blocking()


@pytest.fixture(scope="session")
def mock_cluster() -> Iterator[MockCluster]:
    """Mock brokers in a separate process. Topics are created with four partitions on first use."""
    from aiokprod.testing.mock_cluster import MockCluster

    with MockCluster() as cluster:
        yield cluster
