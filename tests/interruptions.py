"""Calls that are interrupted by a signal handler that waits for another thread."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from tests.hang import HANG_S

R = TypeVar("R")

BLOCKS_AT = 2
"""Number of the `acquire` that blocks in a call: `ThreadWaits.wait` acquires a new lock twice."""


def interrupted_everywhere(
    make: Callable[[], Callable[[], R]], work: Callable[[], object]
) -> list[R]:
    """Repeat a call, and interrupt it one step later each time. The steps are where the interpreter
    runs signal handlers: at the start of a function, and after a call of a built-in function.

    Args:
        make: returns the call.
        work: runs in another thread during the interruption, which waits for it, like a handler
            that waits for the event loop.

    Returns:
        The results of the interrupted calls. The last call is not interrupted; `work` then runs
            when the call blocks, if it does.
    """
    results: list[R] = []
    workers: list[threading.Thread] = []
    while True:
        call, steps, acquired = make(), len(results), 0

        def interrupt(frame: object, event: str, argument: object) -> None:
            nonlocal steps, acquired
            if event == "c_call" and getattr(argument, "__name__", "") == "acquire":
                acquired += 1
                if acquired == BLOCKS_AT:
                    sys.setprofile(None)
                    workers.append(threading.Thread(target=work, daemon=True))
                    workers[-1].start()
            if event not in ("call", "c_return"):
                return
            steps -= 1
            if steps >= 0:
                return
            sys.setprofile(None)
            other = threading.Thread(target=work, daemon=True)
            other.start()
            other.join(HANG_S)
            assert not other.is_alive(), "the interrupted call has a lock of the other thread"

        sys.setprofile(interrupt)
        try:
            result = call()
        finally:
            sys.setprofile(None)
            for worker in workers:  # the caller may close the objects that they use
                worker.join(HANG_S)
        if steps >= 0:  # the call has fewer steps
            return results
        results.append(result)
