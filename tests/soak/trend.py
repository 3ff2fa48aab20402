"""Determines whether a quantity grows: the slope of its samples, with a confidence interval.

The estimator is that of Theil and Sen: the median of the slopes between all pairs, with its
interval. A single step, such as a new arena of the allocator, does not raise the lower end of the
interval; several steps do. The rise from the first quarter to the last block limits the size of a
step, and detects growth that started late.

Source: P. K. Sen, Estimates of the regression coefficient based on Kendall's tau, 1968.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SURE = 1.96
"""Number of standard deviations that contain 95 % of a normal distribution."""
BLOCKS = 12
"""Neighbouring samples depend on each other, so slopes are taken between the means of this number
of blocks."""


@dataclass(frozen=True)
class Trend:
    """Slope per hour, the ends of its 95 % interval, the first level (mean of a quarter) and the
    last level (mean of the last block)."""

    slope: float
    low: float
    high: float
    first: float
    last: float

    def flat(self, limit: float, step: float) -> bool:
        """Return True if the slope is within `limit`, or not significantly above it, and the rise
        is at most `step`."""
        return self.low <= limit and self.last - self.first <= step

    def __str__(self) -> str:
        return (
            f"{self.first:.2f} -> {self.last:.2f}, "
            f"slope {self.slope:+.3f} ({self.low:+.3f} … {self.high:+.3f}) per h"
        )


def trend(seconds: Sequence[float], values: Sequence[float]) -> Trend:
    """Compute the trend from block means. At least two samples per block are required."""
    count = len(values)
    if count < 2 * BLOCKS:
        raise ValueError(f"{count} samples are too few for a trend: at least {2 * BLOCKS}")
    hours = np.array([part.mean() for part in np.array_split(np.asarray(seconds), BLOCKS)]) / 3600
    levels = np.array([part.mean() for part in np.array_split(np.asarray(values, float), BLOCKS)])
    one, other = np.triu_indices(BLOCKS, 1)
    slopes = np.sort((levels[other] - levels[one]) / (hours[other] - hours[one]))
    spread = SURE * math.sqrt(BLOCKS * (BLOCKS - 1) * (2 * BLOCKS + 5) / 18)  # of Kendall's tau
    rank = math.floor((len(slopes) - spread) / 2)
    quarter = max(1, count // 4)
    return Trend(
        float(np.median(slopes)),
        float(slopes[rank]),
        float(slopes[-1 - rank]),
        float(np.mean(values[:quarter])),
        float(levels[-1]),
    )
