from __future__ import annotations

import random

import pytest

from aiokprod._backoff import ExponentialBackoff


class Extreme(random.Random):
    """Always returns the lower or the upper end of the range."""

    def __init__(self, upper: bool) -> None:
        super().__init__(0)
        self.upper = upper

    def uniform(self, a: float, b: float) -> float:
        return b if self.upper else a


@pytest.mark.parametrize(
    ("failures", "low", "high"),
    [(0, 0.08, 0.12), (1, 0.16, 0.24), (2, 0.32, 0.48), (3, 0.64, 0.96), (4, 0.8, 1.0)],
)
def test_backoff_doubles_with_twenty_percent_of_jitter_up_to_the_maximum(
    failures: int, low: float, high: float
) -> None:
    backoff = ExponentialBackoff(0.1, 1.0)
    assert backoff.after(failures, Extreme(False)) == pytest.approx(low)
    assert backoff.after(failures, Extreme(True)) == pytest.approx(high)


@pytest.mark.parametrize("failures", [4, 10, 10**9])
def test_backoff_at_its_maximum_is_jittered_as_in_java(failures: int) -> None:
    """Java 4.3.1, `new ExponentialBackoff(50, 2, 1000, 0.2)`: from 800 to 1,000 ms, half of the
    values equal to 1,000 ms."""
    rng = random.Random(1)
    pauses = [ExponentialBackoff(0.1, 1.0).after(failures, rng) for _ in range(2000)]
    assert 0.8 <= min(pauses) < 0.81
    assert max(pauses) == 1.0
    assert 0.4 < sum(pause < 1.0 for pause in pauses) / len(pauses) < 0.6


def test_backoff_above_its_maximum_is_the_maximum_at_once() -> None:
    assert ExponentialBackoff(5.0, 1.0).after(0, Extreme(True)) == 1.0
    assert ExponentialBackoff(5.0, 1.0).after(0, Extreme(False)) == pytest.approx(0.8)


def test_backoff_of_zero_stays_zero() -> None:
    assert ExponentialBackoff(0.0, 1.0).after(5, random.Random(1)) == 0.0
