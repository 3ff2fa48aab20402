"""Decides when the next metadata request is needed and when it is allowed. Uses neither I/O nor a
clock.

Source: Java `Metadata.timeToNextUpdate`, `timeToAllowUpdate`, `failedUpdate`.
"""

from __future__ import annotations

import math
import random
from typing import Final

from aiokprod._backoff import ExponentialBackoff

LEAST_PAUSE_S: Final = 0.05
"""Minimum time between two requests, in seconds, even if retry_backoff_ms is less."""

QUIET_S: Final = 10.0
"""Responses without changes increase the backoff only if they arrive at shorter intervals than
this, in seconds."""


class UpdateSchedule:
    """The required updates and the backoff. Times are seconds of `loop.time()`.

    Attributes:
        need_full: True if metadata of all topics in use must be requested.
        need_partial: True if metadata of new topics must be requested.
        wrong: True if the metadata is known to be wrong or incomplete. Then a response without
            changes increases the backoff; after a refresh because of the metadata's age, it does
            not.
        updated_at: time of the last response; None before the first.
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
        "updated_at",
        "wrong",
    )

    def __init__(self, backoff: ExponentialBackoff, max_age: float, rng: random.Random) -> None:
        self._backoff = backoff
        self._max_age = max_age
        self._rng = rng
        self.need_full = True
        self.need_partial = False
        self.wrong = False
        self.updated_at: float | None = None
        self._failures = 0
        self._unchanged = 0
        self._doubted_at = -math.inf
        self._last_end = -math.inf
        self._last_full = -math.inf
        self._allowed_at = -math.inf

    @property
    def failures(self) -> int:
        """Number of consecutive attempts without a usable response."""
        return self._failures

    def full_due(self, now: float) -> bool:
        """Return True if the next request must be a full one: it was requested, or is due because
        of the metadata's age."""
        return self.need_full or self._last_full + self._max_age <= now

    def next_at(self, now: float) -> float:
        """Return the time at which to send the next request. `now` or earlier means immediately."""
        wanted = self.need_full or self.need_partial
        due = now if wanted else self._last_full + self._max_age
        return max(due, self._allowed_at)

    def failed(self, now: float) -> None:
        """Start the backoff after an attempt without a usable response; the update is still
        needed."""
        self._failures += 1
        self._ended(now, self._failures - 1)

    def succeeded(self, now: float, *, full: bool, changed: bool, doubtful: bool = False) -> None:
        """Schedule the next update after an attempt with a usable response.

        Args:
            doubtful: True if the response contradicts the metadata for the first time, and the next
                responses decide whether it is accepted. The next request ignores the earlier
                backoff, but only once per `QUIET_S`, because every response of a stale broker
                contradicts the metadata.
        """
        self._failures = 0
        self.updated_at = now
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
