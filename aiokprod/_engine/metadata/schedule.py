"""When the next metadata request is wanted and when it is allowed. No I/O, no clock.

Source: Java `Metadata.timeToNextUpdate`, `timeToAllowUpdate`, `failedUpdate`.
"""

from __future__ import annotations

import math
import random
from typing import Final

from aiokprod._backoff import ExponentialBackoff

LEAST_PAUSE_S: Final = 0.05
"""Between two requests, whatever retry_backoff_ms says: at most 20 a second in any storm."""

QUIET_S: Final = 10.0
"""Answers that changed nothing count towards the backoff only if they follow each other closely."""


class UpdateSchedule:
    """What is wanted, and the backoff. Instants are seconds of `loop.time()`.

    Attributes:
        need_full: everything in use must be fetched.
        need_partial: new topics must be fetched.
        wrong: something has proved the metadata wrong or lacking. An answer that tells nothing new
            delays the next request only then, not if it was asked for because of its age.
    """

    __slots__ = (
        "_allowed_at",
        "_backoff",
        "_doubted_at",
        "_failures",
        "_last_end",
        "_last_full",
        "_max_age",
        "_rng",
        "_unchanged",
        "need_full",
        "need_partial",
        "wrong",
    )

    def __init__(self, backoff: ExponentialBackoff, max_age: float, rng: random.Random) -> None:
        self._backoff = backoff
        self._max_age = max_age
        self._rng = rng
        self.need_full = True
        self.need_partial = False
        self.wrong = False
        self._failures = 0
        self._unchanged = 0
        self._doubted_at = -math.inf
        self._last_end = -math.inf
        self._last_full = -math.inf
        self._allowed_at = -math.inf

    @property
    def failures(self) -> int:
        """Attempts in a row without a usable answer."""
        return self._failures

    def full_due(self, now: float) -> bool:
        """The next request must ask for everything: by request or by age."""
        return self.need_full or self._last_full + self._max_age <= now

    def next_at(self, now: float) -> float:
        """When the next request should go out; `now` or earlier means at once."""
        wanted = self.need_full or self.need_partial
        due = now if wanted else self._last_full + self._max_age
        return max(due, self._allowed_at)

    def failed(self, now: float) -> None:
        """An attempt ended without a usable answer; what was wanted stays wanted."""
        self._failures += 1
        self._ended(now, self._failures - 1)

    def succeeded(self, now: float, *, full: bool, changed: bool, doubtful: bool = False) -> None:
        """An attempt ended with an answer, which may have told nothing new.

        Args:
            doubtful: it disagrees with the metadata for the first time, and the next answers decide
                whether it is believed. They must not wait for a backoff that grew before, but once
                in `QUIET_S` only: a broker that lags behind disagrees again and again.
        """
        self._failures = 0
        if doubtful and now - self._doubted_at > QUIET_S:
            self._doubted_at = now
            changed = True
        quiet = now - self._last_end > QUIET_S
        in_vain = self.wrong or self.need_partial or not full
        self._unchanged = 0 if changed or quiet else self._unchanged + in_vain
        self.wrong = False
        if full:
            self.need_full = False
            self._last_full = now
        self._ended(now, max(self._unchanged - 1, 0))

    def _ended(self, now: float, steps: int) -> None:
        self._last_end = now
        self._allowed_at = now + max(self._backoff.after(steps, self._rng), LEAST_PAUSE_S)
