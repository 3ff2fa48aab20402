"""The decorator of asynchronous tests."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any

from aiokprod.testing.virtual import run


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in virtual time; leaked tasks, timers and transports fail it."""

    @functools.wraps(test)
    def wrapper(**parameters: Any) -> None:
        run(functools.partial(test, **parameters))

    return wrapper
