"""Signals to this process while it runs a command."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

WAIT_S = 60.0
"""Limit of the wait for the condition, in seconds. The signal is then sent anyway, so that the
command ends and the test fails."""


@contextmanager
def signal_when(
    number: signal.Signals, condition: Callable[[], bool], then: Callable[[], object] | None = None
) -> Iterator[None]:
    """Send the signal once `condition` holds, then call `then`, both in a thread.

    The block runs a command that handles the signal and does not end without it.
    """
    held: list[bool] = []

    def wait_and_send() -> None:
        deadline = time.monotonic() + WAIT_S
        while not (holds := condition()) and time.monotonic() < deadline:
            time.sleep(0.01)
        held.append(holds)
        os.kill(os.getpid(), number)
        if then is not None:
            then()

    # A shell starts processes with these handlers, but pytest-xdist ignores SIGINT.
    handler = signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL
    before = signal.signal(number, handler)
    thread = threading.Thread(target=wait_and_send)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        signal.signal(number, before)
    assert held == [True], "what the signal waits for has not happened"
