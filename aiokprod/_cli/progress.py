"""A progress line on a terminal."""

from __future__ import annotations

import sys
import time
from typing import Final

INTERVAL: Final = 0.2
"""Seconds between two updates."""


class ProgressLine:
    """Shows the rate and the remaining time on standard error if that is a terminal.

    Args:
        total: number of bytes to send; None if unknown, so that no remaining time is shown.
        quiet: True to write nothing.
    """

    def __init__(self, total: int | None, *, quiet: bool) -> None:
        self._total = total
        self._shown = sys.stderr.isatty() and not quiet
        self._began = time.monotonic()
        self._last = self._began
        self._width = 0

    def show(self, records: int, size: int) -> None:
        """Update the line, at most once per `INTERVAL`."""
        now = time.monotonic()
        if not self._shown or now - self._last < INTERVAL:
            return
        self._last = now
        seconds = now - self._began
        text = f"{records:,} records, {records / seconds:,.0f} records/s"
        text += f", {size / seconds / 1e6:,.1f} MB/s"
        if self._total and size:
            share = min(1.0, size / self._total)
            text += f", {share:.0%}, {(1 - share) * seconds / share:,.0f} s left"
        sys.stderr.write("\r" + text.ljust(self._width))
        sys.stderr.flush()
        self._width = len(text)

    def end(self) -> None:
        """Clear the line."""
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0
