"""The states of a batch and the allowed transitions. Only `ProducerBatch.change_state` sets a
state.

The flags about earlier attempts (`possibly_appended`, `in_doubt`, ...) are not part of the state,
because they change independently of it. docs/design/sender.md has a diagram, a table with the code
that makes each transition, and the states of the `BatchCore` that belong to each state.

Source: Java `ProducerBatch`, `RecordAccumulator.drain`, `Sender.inFlightBatches`.
"""

from __future__ import annotations

import enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class BatchState(enum.StrEnum):
    """State of a `ProducerBatch`. A `StrEnum`, because hashing its members calls no Python code."""

    OPEN = "open"  # accepts records
    # Accepts no more records. Its records can still be withdrawn, except those of the parts of a
    # split batch and of a batch whose compression has failed in a worker thread.
    SEALED = "sealed"
    COMPRESSING = "compressing"  # a worker thread compresses it, or its codec has just failed
    READY = "ready"  # encoded; waits to be sent, for the first time or again
    DRAINED = "drained"  # taken out of the queue to be sent
    IN_FLIGHT = "in flight"  # in a request that has not ended with a response or an error
    IN_FLIGHT_FAILED = "in flight, failed"  # like IN_FLIGHT, but its records have already failed
    COMPLETING = "completing"  # neither queued nor in flight: its outcome is being decided
    DONE = "done"  # acknowledged, failed, split or without records; its memory has been returned


# These members are read for every request. Before Python 3.12, reading them from the class calls
# Python code.
OPEN: Final = BatchState.OPEN
SEALED: Final = BatchState.SEALED
COMPRESSING: Final = BatchState.COMPRESSING
READY: Final = BatchState.READY
DRAINED: Final = BatchState.DRAINED
IN_FLIGHT: Final = BatchState.IN_FLIGHT
IN_FLIGHT_FAILED: Final = BatchState.IN_FLIGHT_FAILED
COMPLETING: Final = BatchState.COMPLETING
DONE: Final = BatchState.DONE

TRANSITIONS: Final[Mapping[BatchState, frozenset[BatchState]]] = MappingProxyType(
    {
        OPEN: frozenset({SEALED, COMPRESSING, READY, COMPLETING}),
        SEALED: frozenset({COMPRESSING, READY, COMPLETING}),
        COMPRESSING: frozenset({READY, SEALED, COMPLETING}),
        READY: frozenset({DRAINED, COMPLETING}),
        DRAINED: frozenset({IN_FLIGHT, DONE}),
        IN_FLIGHT: frozenset({COMPLETING, IN_FLIGHT_FAILED}),
        IN_FLIGHT_FAILED: frozenset({COMPLETING}),
        COMPLETING: frozenset({READY, DONE}),
        DONE: frozenset(),
    }
)
"""Allowed transitions; any other transition is a bug in this package."""

QUEUED: Final = frozenset({OPEN, SEALED, COMPRESSING, READY})
"""States of a batch in the queue of its partition."""
IN_REQUEST: Final = frozenset({IN_FLIGHT, IN_FLIGHT_FAILED})
"""States of a batch in a request. A connection refers to its bytes, so its memory stays counted,
even if its records have failed (CVE-2026-35554)."""
