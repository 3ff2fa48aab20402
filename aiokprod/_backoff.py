"""Exponential backoff as a pure value: how long to pause, never the pausing itself."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

_MAX_DOUBLINGS: Final = 32


@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """initial · 2^failures, at most `maximum`, 20 % more or less, never above `maximum`. Seconds.

    Growth ends at the maximum before the jitter is applied, so that clients which wait for the
    same broker do not fall into step there; the result is capped once more, so that the maximum is
    one. Pauses at the maximum are between 80 and 100 % of it.

    Source: Java `ExponentialBackoff` (which caps the exponent), KIP-580.
    """

    initial: float
    maximum: float
    multiplier: float = 2.0
    jitter: float = 0.2

    def after(self, failures: int, rng: random.Random) -> float:
        """The pause after `failures` earlier failures in a row."""
        grown = self.initial * self.multiplier ** min(failures, _MAX_DOUBLINGS)
        base = min(grown, self.maximum)
        return min(base * rng.uniform(1 - self.jitter, 1 + self.jitter), self.maximum)
