"""The type of the fixtures `run` and `run_uvloop`."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Run(Protocol):
    """Runs a coroutine on a new event loop and returns its result."""

    def __call__(self, main: Coroutine[Any, Any, T]) -> T: ...
