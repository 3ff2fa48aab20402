"""Does a quantity grow? A line through its samples, and how sure one can be of its slope."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SURE = 2.0
"""Standard errors by which a slope must differ from the limit to count."""
BLOCKS = 12
"""Neighbouring samples depend on each other, so the error is taken from the means of so many
blocks instead of from all samples."""


@dataclass(frozen=True)
class Trend:
    """Slope per hour with its standard error; first and last level (means of a quarter)."""

    slope: float
    error: float
    first: float
    last: float

    def flat(self, limit: float) -> bool:
        """The slope is within `limit`, or not surely above it."""
        return self.slope - SURE * self.error <= limit

    def __str__(self) -> str:
        return (
            f"{self.first:.2f} -> {self.last:.2f}, slope {self.slope:+.3f} ± {self.error:.3f} per h"
        )


def trend(seconds: Sequence[float], values: Sequence[float]) -> Trend:
    """Least squares over block means. At least two samples per block are needed."""
    count = len(values)
    if count < 2 * BLOCKS:
        raise ValueError(f"{count} samples are too few for a trend: at least {2 * BLOCKS}")
    hours = np.array([part.mean() for part in np.array_split(np.asarray(seconds), BLOCKS)]) / 3600
    levels = np.array([part.mean() for part in np.array_split(np.asarray(values, float), BLOCKS)])
    slope, level = np.polyfit(hours, levels, 1)
    rest = levels - (slope * hours + level)
    spread = float(((hours - hours.mean()) ** 2).sum())
    error = math.sqrt(float((rest**2).sum()) / (BLOCKS - 2) / spread)
    quarter = max(1, count // 4)
    return Trend(
        float(slope),
        error,
        float(np.mean(values[:quarter])),
        float(np.mean(values[-quarter:])),
    )
