"""Everything here runs against real brokers, on real sockets and in real time."""

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
    """Runs a coroutine on a new loop of each kind."""
    return runner(request.param)


@pytest.fixture
def run_uvloop() -> Run:
    """Runs a coroutine on a new uvloop: for tests too long to run twice."""
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
    """A name that is not used yet."""
    return f"t-{uuid.uuid4().hex[:10]}"
