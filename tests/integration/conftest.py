"""Fixtures for tests with real brokers, real sockets and real time."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from tests.integration.runner import Run

T = TypeVar("T")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "integration":
            item.add_marker(pytest.mark.integration)


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Return a function that runs a coroutine on a new event loop. The test runs with each kind of
    loop."""
    return runner(request.param)


@pytest.fixture
def run_uvloop() -> Run:
    """Return a function that runs a coroutine on a new uvloop, for tests that take too long to run
    twice."""
    return runner("uvloop")


def runner(kind: str) -> Run:
    def call(main: Coroutine[Any, Any, T]) -> T:
        factory = None
        if kind == "uvloop":
            import uvloop

            factory = uvloop.new_event_loop
        with asyncio.Runner(loop_factory=factory) as loop:
            return loop.run(main)

    return call


@pytest.fixture
def topic() -> str:
    """Return a topic name that is not in use yet."""
    return f"t-{uuid.uuid4().hex[:10]}"
