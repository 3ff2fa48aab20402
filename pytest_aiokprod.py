"""The pytest plugin for users of aiokprod, loaded by its entry point.

This module is outside the package, so that pytest imports the package only for tests that use a
fixture. The fixtures for real brokers are in `aiokprod.testing.pytest_plugin`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from aiokprod import Producer
    from aiokprod.testing import FakeCluster, RecordingProducer


@pytest.fixture
def fake_cluster() -> Iterator[FakeCluster]:
    """Provide a `FakeCluster` of three brokers. A client's protocol violation fails the test."""
    from aiokprod.testing import FakeCluster

    cluster = FakeCluster()
    yield cluster
    assert cluster.violations == []


@pytest.fixture
def fake_producer(fake_cluster: FakeCluster) -> Callable[..., Producer[Any, Any]]:
    """Create producers for `fake_cluster`: ``async with fake_producer(linger_ms=0) as producer``.

    The arguments are those of `Producer`; bootstrap_servers and environment may be omitted.
    """
    from aiokprod import Producer

    def make(**settings: Any) -> Producer[Any, Any]:
        settings.setdefault("bootstrap_servers", fake_cluster.bootstrap_servers)
        settings.setdefault("environment", fake_cluster.environment())
        return Producer(**settings)

    return make


@pytest.fixture
def recording_producer() -> Callable[..., RecordingProducer[Any, Any]]:
    """Create a `RecordingProducer`: ``async with recording_producer(auto_complete=False) as p``."""
    from aiokprod.testing import RecordingProducer

    return RecordingProducer
