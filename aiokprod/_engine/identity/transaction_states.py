"""The transactional producer as tables: which state may follow which, and what an error code from
a coordinator means for which request.

Pure data: no clock, no I/O. Source: Java `TransactionManager.State` and its request handlers, 4.x;
KIP-98, KIP-360, KIP-890, KIP-1050.
"""

from __future__ import annotations

import enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from aiokprod.errors import Code, error_code

if TYPE_CHECKING:
    from collections.abc import Mapping


class TxnState(enum.Enum):
    """Where a transactional producer stands."""

    UNINITIALIZED = "uninitialized"  # no producer id of its own yet, or a refused request for one
    INITIALIZING = "initializing"  # InitProducerId is under way
    READY = "ready"
    IN_TRANSACTION = "in transaction"
    COMMITTING = "committing"  # from the call until the coordinator's definite answer
    ABORTING = "aborting"
    ABORTABLE_ERROR = "abortable error"  # nothing but an abort is possible
    FATAL_ERROR = "fatal error"  # nothing is possible


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
"""Allowed steps; everything else is a bug in this package."""


class TxnApi(enum.Enum):
    """The requests to coordinators."""

    FIND = "FindCoordinator"
    INIT = "InitProducerId"
    ADD_PARTITIONS = "AddPartitionsToTxn"
    ADD_OFFSETS = "AddOffsetsToTxn"
    COMMIT_OFFSETS = "TxnOffsetCommit"
    END = "EndTxn"


class ErrorAction(enum.Enum):
    """What an error code of a coordinator means."""

    OK = "ok"
    RETRY = "retry"  # the same request to the same broker
    LOOKUP = "lookup"  # find the coordinator again, then the same request
    LOST = "lost"  # nobody knows what the coordinator did: the same request again
    ABORT = "abort"  # the transaction can only be aborted
    FENCED = "fenced"  # another producer took over
    FATAL = "fatal"


_V = ErrorAction

# Of any of the six requests, unless its own table says otherwise.
_COMMON: Final[Mapping[int, ErrorAction]] = {
    Code.NONE: _V.OK,
    Code.COORDINATOR_NOT_AVAILABLE: _V.LOOKUP,
    Code.NOT_COORDINATOR: _V.LOOKUP,
    Code.INVALID_PRODUCER_EPOCH: _V.FENCED,
    Code.PRODUCER_FENCED: _V.FENCED,
    Code.TRANSACTION_ABORTABLE: _V.ABORT,
    # The transactional id expired while nothing was sent (transactional.id.expiration.ms), or
    # another producer took over and was given another id: InitProducerId after the abort tells
    # which. Java 3.x did the same; 4.x gives up.
    Code.INVALID_PRODUCER_ID_MAPPING: _V.ABORT,
    Code.GROUP_AUTHORIZATION_FAILED: _V.ABORT,
    Code.TOPIC_AUTHORIZATION_FAILED: _V.ABORT,
    Code.BROKER_NOT_AVAILABLE: _V.RETRY,
}

_OWN: Final[Mapping[TxnApi, Mapping[int, ErrorAction]]] = {
    TxnApi.FIND: {
        Code.NOT_COORDINATOR: _V.RETRY,
        Code.COORDINATOR_NOT_AVAILABLE: _V.RETRY,
        Code.INVALID_PRODUCER_ID_MAPPING: _V.FATAL,
    },
    # Heals when the ACL is granted (Java 4.0+): a later call asks again.
    TxnApi.INIT: {
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _V.ABORT,
        Code.CLUSTER_AUTHORIZATION_FAILED: _V.ABORT,
        Code.INVALID_PRODUCER_ID_MAPPING: _V.FATAL,
    },
    TxnApi.ADD_PARTITIONS: {
        Code.INVALID_TXN_STATE: _V.FATAL,
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _V.FATAL,
    },
    # The producer id expired, by the name that brokers before 2.5 give it.
    TxnApi.ADD_OFFSETS: {Code.UNKNOWN_PRODUCER_ID: _V.ABORT},
    TxnApi.COMMIT_OFFSETS: {
        Code.REQUEST_TIMED_OUT: _V.LOOKUP,
        Code.ILLEGAL_GENERATION: _V.ABORT,
        Code.UNKNOWN_MEMBER_ID: _V.ABORT,
        Code.FENCED_INSTANCE_ID: _V.ABORT,
        # Fatal in Java by its default branch; a member of the KIP-848 protocol whose epoch is
        # stale is in the same position as one with an illegal generation.
        Code.FENCED_MEMBER_EPOCH: _V.ABORT,
        Code.STALE_MEMBER_EPOCH: _V.ABORT,
    },
    # The broker failed somewhere between reading the request and answering it.
    TxnApi.END: {Code.UNKNOWN_SERVER_ERROR: _V.LOST, Code.REQUEST_TIMED_OUT: _V.LOST},
}


def error_action(call: TxnApi, number: int) -> ErrorAction:
    """What error code `number` in the answer to `call` means.

    Codes that are in no table are fatal, except in answers to AddPartitionsToTxn: the abort that
    follows settles whether the partitions were added. Source: Java `AddPartitionsToTxnHandler`.
    """
    own = _OWN[call].get(number) or _COMMON.get(number)
    if own is not None:
        return own
    if error_code(number).retriable:
        return _V.RETRY
    return _V.ABORT if call is TxnApi.ADD_PARTITIONS else _V.FATAL


_REFUSED_BEFORE_WRITING: Final = frozenset(
    {
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.GROUP_AUTHORIZATION_FAILED,
        Code.CLUSTER_AUTHORIZATION_FAILED,
        Code.UNSUPPORTED_VERSION,
        Code.INVALID_REQUEST,
        Code.INVALID_PRODUCER_EPOCH,
        Code.INVALID_TXN_STATE,
        Code.INVALID_PRODUCER_ID_MAPPING,
        Code.CONCURRENT_TRANSACTIONS,
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        Code.OPERATION_NOT_ATTEMPTED,
        Code.PRODUCER_FENCED,
        Code.TRANSACTION_ABORTABLE,
    }
)
"""Codes that a transaction coordinator answers before it writes to its log, in every version.

A write that fails or is not finished in time is answered with COORDINATOR_NOT_AVAILABLE,
NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, UNKNOWN_SERVER_ERROR or the code of the write itself,
and the next coordinator goes by what is in the log. Source: Kafka
`TransactionStateManager.appendTransactionToLog`.
"""


def may_be_carried_out(number: int, *, earlier: bool) -> bool:
    """Can a request that was answered with this error code, or an earlier copy of it, have changed
    the transaction?

    Args:
        earlier: some copy sent before was not answered, or was answered with a code for which this
            is True. No later refusal takes that back: CONCURRENT_TRANSACTIONS at EndTxn refuses a
            first copy before the write (the markers of another transaction or producer are being
            written), but after a copy in doubt what is being written may be that copy.

    Source: Kafka `TransactionCoordinator.endTransaction`.
    """
    return earlier or (number != Code.NONE and number not in _REFUSED_BEFORE_WRITING)


FATAL_PRODUCE_CODES: Final = frozenset(
    {
        Code.CLUSTER_AUTHORIZATION_FAILED,
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        Code.PRODUCER_FENCED,
        Code.UNSUPPORTED_VERSION,
    }
)
"""Codes of a failed batch that end the producer; all others only its transaction."""
