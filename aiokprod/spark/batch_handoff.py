"""`BatchHandoff`: passes Arrow batches from Spark's thread to the event loop, one at a time.

Spark's iterator blocks, so it must never be advanced on the loop. It is advanced only after the
previous batch was taken. This provides backpressure: at most one batch waits here while another
one is being submitted.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from aiokprod.spark.jvm_socket_watch import LOOK_EVERY


class BatchHandoff:
    """`put` and `end` are called by the iterating thread, `get` and `close` on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._changed = threading.Condition()
        self._filled = asyncio.Event()
        self._table: Any = None
        self._ended = False
        self._closed = False

    def put(self, table: Any, look: Callable[[], None] = lambda: None) -> bool:
        """Store a batch once the previous one has been taken. Return False after `close`.

        The wait calls `look` every `LOOK_EVERY` seconds. An exception from `look` ends the wait.
        """
        with self._changed:
            while self._table is not None and not self._closed:
                if not self._changed.wait(LOOK_EVERY):
                    look()
            if self._closed:
                return False
            self._table = table
        self._loop.call_soon_threadsafe(self._filled.set)
        return True

    def end(self) -> None:
        """Mark the end of the batches."""
        with self._changed:
            self._ended = True
        self._loop.call_soon_threadsafe(self._filled.set)

    async def get(self) -> Any:
        """Wait for the next batch and return it, or None at the end."""
        while True:
            self._filled.clear()
            with self._changed:
                table, self._table = self._table, None
                ended = self._ended
                self._changed.notify_all()
            if table is not None or ended:
                return table
            await self._filled.wait()

    def close(self) -> None:
        """Discard a waiting batch, and make `put` return False from now on."""
        with self._changed:
            self._closed = True
            self._table = None
            self._changed.notify_all()
