"""Fixtures that remove what tasks leave behind when they run in the process of the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aiokprod._engine.metadata.topics import logger


@pytest.fixture(autouse=True)
def log_filters() -> Iterator[None]:
    """Remove the filter that tasks add, which would hide warnings from other tests."""
    before = list(logger.filters)
    yield
    logger.filters[:] = before
