"""Calls that are interrupted by a signal handler which waits for another thread."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from tests.hang import HANG_S

R = TypeVar("R")

BLOCKS_AT = 2
"""Which `acquire` of a call blocks: `ThreadWaits.wait` acquires a new lock twice."""


def interrupted_everywhere(
    make: Callable[[], Callable[[], R]], work: Callable[[], object]
) -> list[R]:
    """Make a call again and again, and interrupt it each time one step later, where the interpreter
    runs signal handlers: when a function begins, and after a call of a built-in function.

    Args:
        make: returns the call.
        work: what another thread does meanwhile; the interruption waits for it, as a handler that
            waits for the event loop does.

    Returns:
        The results of the calls that were interrupted. The last call is not; `work` is then done
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
            for worker in workers:  # the caller may close what they use
                worker.join(HANG_S)
        if steps >= 0:  # it has fewer steps
            return results
        results.append(result)
