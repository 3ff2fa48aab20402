from __future__ import annotations

import random

from aiokprod.environment import Environment, unix_ms


class NoDialer:
    """A dialer that must not be called."""


def test_environment_defaults_to_the_real_clock_and_fresh_randomness() -> None:
    first, second = Environment(NoDialer()), Environment(NoDialer())  # type: ignore[arg-type]
    assert first.unix_ms is unix_ms
    assert isinstance(first.rng, random.Random)
    assert first.rng is not second.rng


def test_unix_ms_is_whole_milliseconds_of_this_age() -> None:
    assert 1_500_000_000_000 < unix_ms() < 10_000_000_000_000
    assert isinstance(unix_ms(), int)
