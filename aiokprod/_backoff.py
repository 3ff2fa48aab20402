"""Exponential backoff with jitter: computes durations, does not wait."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

_MAX_DOUBLINGS: Final = 32


@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """A pause of `initial` · 2^failures seconds, ±20 % of jitter, never longer than `maximum`.

    The exponential value is capped before the jitter is applied. Otherwise all clients that wait
    for the same broker would pause for exactly `maximum` and reconnect at the same time. The result
    is capped again, so long pauses are between 80 and 100 % of `maximum`.

    Source: Java `ExponentialBackoff` (which caps the exponent), KIP-580.
    """

    initial: float
    maximum: float
    multiplier: float = 2.0
    jitter: float = 0.2

    def after(self, failures: int, rng: random.Random) -> float:
        """Return the pause in seconds after `failures` consecutive failures."""
        grown = self.initial * self.multiplier ** min(failures, _MAX_DOUBLINGS)
        base = min(grown, self.maximum)
        return min(base * rng.uniform(1 - self.jitter, 1 + self.jitter), self.maximum)
