"""Calls functions at the end of child processes."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_registered: set[tuple[int, str, Callable[[], object]]] = set()


def at_exit_of_child_processes(function: Callable[[], object]) -> None:
    """Register a function to be called at the end of this process. Repeated calls have no effect.

    Child processes of `multiprocessing` and of billiard (Celery) end without calling `atexit`
    functions. Does nothing if neither package is imported.
    """
    for name in ("multiprocessing.util", "billiard.util"):
        util: Any = sys.modules.get(name)
        entry = (os.getpid(), name, function)
        if util is not None and entry not in _registered:
            _registered.add(entry)
            util.Finalize(None, function, exitpriority=100)
