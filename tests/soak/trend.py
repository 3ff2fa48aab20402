"""Tells whether a quantity grows: the slope of its samples, with a confidence interval.

Theil and Sen's estimator: the median of the slopes between all pairs, with its interval. One step,
as an allocator makes that takes its next arena, does not lift the lower end; several do. How large
a step may be, and what grew of late only, is judged by the rise from the first quarter to the last
block.

Source: P. K. Sen, Estimates of the regression coefficient based on Kendall's tau, 1968.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SURE = 1.96
"""Standard deviations: 95 % of a normal distribution lie within."""
BLOCKS = 12
"""Neighbouring samples depend on each other, so slopes are taken between the means of this number
of blocks."""


@dataclass(frozen=True)
class Trend:
    """Slope per hour, the ends of its 95 % interval; the first level (mean of a quarter) and the
    last one (mean of the last block)."""

    slope: float
    low: float
    high: float
    first: float
    last: float

    def flat(self, limit: float, step: float) -> bool:
        """The slope is within `limit`, or not surely above it, and the rise is at most `step`."""
        return self.low <= limit and self.last - self.first <= step

    def __str__(self) -> str:
        return (
            f"{self.first:.2f} -> {self.last:.2f}, "
            f"slope {self.slope:+.3f} ({self.low:+.3f} … {self.high:+.3f}) per h"
        )


def trend(seconds: Sequence[float], values: Sequence[float]) -> Trend:
    """Over block means. At least two samples per block are needed."""
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
