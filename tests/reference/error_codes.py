"""Facts about Kafka's error codes, written down from Kafka's sources, not from the code under test.

Tests compare the rows of `aiokprod/_errors.py`, and what the producer does, with these.
"""

from __future__ import annotations

from typing import Final

RETRIABLE_IN_JAVA: Final = frozenset(
    {
        *(2, 3, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 51, 56, 72, 74, 75, 100, 103),
        *(41, 70, 71, 78, 80, 83, 84, 88, 89, 106, 122, 123, 133),  # not for producers
    }
)
"""Codes whose exception is a `RetriableException` in Java 4.x."""

RETRIED_UNLIKE_IN_JAVA: Final = frozenset({8})
"""Codes after which this producer repeats a request and Java fails, or the other way round.
BROKER_NOT_AVAILABLE (8): Java fails, franz-go and this producer retry."""

RETRIED: Final = RETRIABLE_IN_JAVA ^ RETRIED_UNLIKE_IN_JAVA
"""Codes after which this producer repeats a request."""

CHECKED_BEFORE_THE_APPEND: Final = frozenset(
    {
        *(2, 10, 17, 18, 19, 21, 29, 31, 32, 35, 42, 43, 44, 45, 47, 48, 49, 51, 53, 55, 59, 76),
        *(87, 90, 100, 103, 120),
    }
)
"""Codes that every version of `ReplicaManager`, `Partition` and `UnifiedLog` that answers them to
Produce checks before the append (44: gateways). After any other code the record may be in the
log."""
