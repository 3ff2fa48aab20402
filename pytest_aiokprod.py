"""The pytest plugin for users of aiokprod, loaded by its entry point.

Outside the package, so that pytest imports the package only for tests that use a fixture. The
fixtures of real brokers are in `aiokprod.testing.pytest_plugin`.
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
    """A `FakeCluster` of three brokers; the test fails if a client violates the protocol."""
    from aiokprod.testing import FakeCluster

    cluster = FakeCluster()
    yield cluster
    assert cluster.violations == []


@pytest.fixture
def fake_producer(fake_cluster: FakeCluster) -> Callable[..., Producer[Any, Any]]:
    """Makes producers for `fake_cluster`: ``async with fake_producer(linger_ms=0) as producer``.

    Takes the arguments of `Producer`, of which bootstrap_servers and environment may be left out.
    """
    from aiokprod import Producer

    def make(**settings: Any) -> Producer[Any, Any]:
        settings.setdefault("bootstrap_servers", fake_cluster.bootstrap_servers)
        settings.setdefault("environment", fake_cluster.environment())
        return Producer(**settings)

    return make


@pytest.fixture
def recording_producer() -> Callable[..., RecordingProducer[Any, Any]]:
    """Makes a `RecordingProducer`: ``async with recording_producer(auto_complete=False) as p``."""
    from aiokprod.testing import RecordingProducer

    return RecordingProducer
