"""Exponential backoff as a pure value: how long to pause, never the pausing itself."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

_MAX_DOUBLINGS: Final = 32


@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """initial · 2^failures, 20 % more or less, never above `maximum`. Seconds.

    The cap comes after the jitter, as in Java, so that the ceiling is a ceiling.

    Source: Java `ExponentialBackoff`, KIP-580.
    """

    initial: float
    maximum: float
    multiplier: float = 2.0
    jitter: float = 0.2

    def after(self, failures: int, rng: random.Random) -> float:
        """The pause after `failures` earlier failures in a row."""
        base = self.initial * self.multiplier ** min(failures, _MAX_DOUBLINGS)
        return min(base * rng.uniform(1 - self.jitter, 1 + self.jitter), self.maximum)
