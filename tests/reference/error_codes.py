"""Facts about Kafka's error codes, taken from Kafka's sources and not from the code under test.

Tests compare the rows of `aiokprod/_errors.py`, and the behaviour of the producer, with these
facts.
"""

from __future__ import annotations

from typing import Final

RETRIABLE_IN_JAVA: Final = frozenset(
    {
        *(2, 3, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 51, 56, 72, 74, 75, 100, 103),
        # Producers do not get these codes.
        *(41, 70, 71, 78, 80, 83, 84, 88, 89, 106, 122, 123, 133),
    }
)
"""Codes whose exception is a `RetriableException` in Java 4.x."""

RETRIED_UNLIKE_IN_JAVA: Final = frozenset({8})
"""Codes for which Java and this producer differ: one repeats the request, the other fails it. After
BROKER_NOT_AVAILABLE (8) Java fails, but franz-go and this producer retry."""

RETRIED: Final = RETRIABLE_IN_JAVA ^ RETRIED_UNLIKE_IN_JAVA
"""Codes after which this producer repeats a request."""

CHECKED_BEFORE_THE_APPEND: Final = frozenset(
    {
        *(2, 10, 17, 18, 19, 21, 29, 31, 32, 35, 42, 43, 44, 45, 47, 48, 49, 51, 53, 55, 59, 76),
        *(87, 90, 100, 103, 120),
    }
)
"""Codes of a check before the append, in every version of `ReplicaManager`, `Partition` and
`UnifiedLog` that answers Produce with them (44: gateways). After any other code the record may be
in the log."""
