"""Sets of times: lists of (from, to) with from < to, in seconds, in any order."""

from __future__ import annotations

from collections.abc import Iterable

Span = tuple[float, float]


def common(ones: Iterable[Span], others: Iterable[Span]) -> list[Span]:
    """Return the times that both sets contain."""
    others = list(others)
    pairs = [(max(a, c), min(b, d)) for a, b in ones for c, d in others]
    return [(begin, end) for begin, end in pairs if begin < end]


def length(spans: Iterable[Span]) -> float:
    """Return the total seconds; overlaps count once."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total
