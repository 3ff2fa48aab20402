"""`JvmSocketWatch`: detects that Spark has killed this task.

Spark does not notify a killed task. Its iterator ends as if the data were complete, and the worker
keeps running. The only sign is that the JVM closes its socket to this process.
"""

from __future__ import annotations

import select
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from types import FrameType

_HANG_UP: Final = getattr(select, "POLLRDHUP", 0) | getattr(select, "POLLHUP", 0) | getattr(
    select, "POLLERR", 0)  # fmt: skip
_FRAMES: Final = 64
LOOK_EVERY: Final = 0.5
"""Seconds between two checks while a task waits for the event loop."""


class TaskCancelled(RuntimeError):
    """Spark has cancelled this task: no more rows are sent, and its result is ignored."""


class JvmSocketWatch:
    """Watches the socket to the JVM. If `descriptor` is None, it never reports a closed socket."""

    def __init__(self, descriptor: int | None) -> None:
        self._poll: Any = None
        if descriptor is not None and hasattr(select, "poll"):
            self._poll = select.poll()
            self._poll.register(descriptor, _HANG_UP)

    @classmethod
    def of_this_task(cls) -> JvmSocketWatch:
        """Find the socket in the frame of `pyspark.worker.main(infile, outfile)`."""
        frame: FrameType | None = sys._getframe(1)
        for _ in range(_FRAMES):
            if frame is None:
                break
            if frame.f_code.co_name == "main" and "outfile" in frame.f_code.co_varnames:
                try:
                    return cls(frame.f_locals["outfile"].fileno())
                except (AttributeError, KeyError, OSError, ValueError):
                    break
            frame = frame.f_back
        return cls(None)

    @property
    def watched(self) -> bool:
        """False if the socket was not found."""
        return self._poll is not None

    def cut(self) -> bool:
        """Return True if the JVM has closed the socket."""
        return self._poll is not None and bool(self._poll.poll(0))

    def check(self) -> None:
        """Raise TaskCancelled if the JVM has closed the socket."""
        if self.cut():
            raise TaskCancelled(
                "aiokprod: Spark has killed or cancelled this task; unsent rows are discarded"
            )
