"""Checks that records get their outcomes one after the other after recovery."""

from __future__ import annotations

from collections.abc import Sequence

from tests.simulation.oracle import Violation
from tests.simulation.workload import Attempt

Where = tuple[str, int | None]
ANYWHERE: Where = ("any", None)


class Progress:
    """Measures how long each partition has had no outcome.

    Args:
        limit_s: seconds without an outcome after which a partition is stuck.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._moved: dict[Where, tuple[set[int], float]] = {}

    def check(self, pending: Sequence[Attempt], at: float) -> None:
        """Record which records have no outcome at this instant.

        A record whose call has not returned a handle may wait for memory that any partition holds,
        and the record of a `send` may be queued in any partition. Such records are stuck only while
        no record at all gets an outcome.

        Raises:
            Violation: a partition is stuck.
        """
        groups: dict[Where, set[int]] = {}
        for attempt in pending:
            groups.setdefault(_queue_of(attempt), set()).add(attempt.number)
        if ANYWHERE in groups:
            groups[ANYWHERE] = {attempt.number for attempt in pending}
        for where, numbers in groups.items():
            before = self._moved.get(where)
            if before is None or not before[0] <= numbers:
                self._moved[where] = numbers, at
            elif at - before[1] > self._limit_s:
                waiting = sorted(before[0])[:5]
                raise Violation(f"{where} stands still, with others {waiting} wait")


def _queue_of(attempt: Attempt) -> Where:
    if attempt.handle is None:
        return ANYWHERE
    return attempt.topic, attempt.handle.partition
