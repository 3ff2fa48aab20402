"""The states of a transactional producer and the allowed transitions. The table in `_errors` has
the actions after a coordinator's error codes.

This module uses neither a clock nor I/O. Source: Java `TransactionManager.State`, 4.x; KIP-98,
KIP-360, KIP-890, KIP-1050.
"""

from __future__ import annotations

import enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from aiokprod.errors import Code, error_code

if TYPE_CHECKING:
    from collections.abc import Mapping


class TxnState(enum.Enum):
    """State of a transactional producer."""

    UNINITIALIZED = "uninitialized"  # no producer id, or the request for one was refused
    INITIALIZING = "initializing"  # InitProducerId is being sent
    READY = "ready"
    IN_TRANSACTION = "in transaction"
    COMMITTING = "committing"  # from the call until the definite response of the coordinator
    ABORTING = "aborting"
    ABORTABLE_ERROR = "abortable error"  # only an abort is possible
    FATAL_ERROR = "fatal error"  # no call is possible


_S = TxnState

TRANSITIONS: Final[Mapping[TxnState, frozenset[TxnState]]] = MappingProxyType(
    {
        _S.UNINITIALIZED: frozenset({_S.INITIALIZING, _S.FATAL_ERROR}),
        _S.INITIALIZING: frozenset({_S.READY, _S.UNINITIALIZED, _S.FATAL_ERROR}),
        _S.READY: frozenset({_S.IN_TRANSACTION, _S.FATAL_ERROR}),
        _S.IN_TRANSACTION: frozenset(
            {_S.COMMITTING, _S.ABORTING, _S.ABORTABLE_ERROR, _S.FATAL_ERROR}
        ),
        _S.COMMITTING: frozenset({_S.READY, _S.INITIALIZING, _S.ABORTABLE_ERROR, _S.FATAL_ERROR}),
        _S.ABORTING: frozenset({_S.READY, _S.INITIALIZING, _S.ABORTABLE_ERROR, _S.FATAL_ERROR}),
        _S.ABORTABLE_ERROR: frozenset({_S.ABORTING, _S.FATAL_ERROR}),
        _S.FATAL_ERROR: frozenset(),
    }
)
"""Allowed transitions; any other transition is a bug in this package."""

MAY_SEND: Final = frozenset({TxnState.IN_TRANSACTION, TxnState.COMMITTING})
"""States in which batches of the transaction may be sent."""
ENDING: Final = frozenset({TxnState.COMMITTING, TxnState.ABORTING})
"""States after the end of the transaction was requested."""


def may_be_carried_out(number: int, *, earlier: bool) -> bool:
    """Return True if a request, or an earlier copy of it, may have changed the transaction although
    the response has this error code.

    Args:
        earlier: an earlier copy of the request got no response, or a response for which this
            function returned True. Then a later error proves nothing. For example,
            CONCURRENT_TRANSACTIONS means that markers are being written. If EndTxn was sent only
            once, the markers belong to another transaction or producer; if an earlier copy is in
            doubt, they may belong to that copy.

    Source: Kafka `TransactionCoordinator.endTransaction`.
    """
    return earlier or (number != Code.NONE and not error_code(number).refused_before_write)
