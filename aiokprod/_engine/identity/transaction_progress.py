"""The state of one transaction. A new `TxnProgress` is created when a transaction begins, so that
nothing has to be reset.

The states of the producer itself are in `transaction_states`.
"""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aiokprod.errors import KafkaError, Outcome, TransactionError

if TYPE_CHECKING:
    from aiokprod._consumer_groups import GroupMetadata, Offset
    from aiokprod._engine.identity.coordinators import VersionedRequest
    from aiokprod.errors import AbortableTransactionError
    from aiokprod.records import TopicPartition

Result = asyncio.Future["KafkaError | None"]
"""A future whose result is an error or None. The error is not set as the exception of the future,
because possibly no call waits for the future."""


class CoordinatorView(enum.IntEnum):
    """The state of the open transaction at the coordinator, as far as known; the value only
    increases."""

    UNKNOWN = 0  # no request was sent that could start it
    POSSIBLY_STARTED = 1  # AddPartitionsToTxn or AddOffsetsToTxn may have been processed
    STARTED = 2  # the coordinator has it, or a batch was sent for which the leader will add it
    CONFIRMED = 3  # a batch or offsets of the transaction were acknowledged


class TxnStep(enum.Enum):
    """A step of the driver."""

    INIT = "init"
    MARKERS = "wait for markers"
    ADD = "add partitions"
    OFFSETS = "commit offsets"
    END = "end"


@dataclass(slots=True)
class OffsetsJob:
    """Offsets of a consumer group to commit with the transaction."""

    offsets: dict[TopicPartition, Offset]
    group: GroupMetadata
    done: Result


@dataclass(slots=True)
class PendingEndTxn:
    """The end of a transaction. It is requested once, and any number of calls may wait for it.

    Attributes:
        request: the EndTxn request, once it is due.
        lost: an EndTxn request was sent but got no response; a copy of it may still arrive.
    """

    commit: bool
    done: Result
    request: VersionedRequest | None = None
    lost: bool = False

    @property
    def sent(self) -> bool:
        """True if an EndTxn was written to a connection."""
        return self.request is not None and self.request.sent

    @property
    def name(self) -> str:
        """Name of the public call to repeat, for error messages."""
        return "commit_transaction()" if self.commit else "abort_transaction()"


@dataclass(slots=True)
class TxnProgress:
    """The open or last transaction.

    Attributes:
        tv2: True if the transaction follows the second protocol (KIP-890).
        view: the coordinator's view of the transaction; changed only by `note`.
        possibly_started: True once `view` was POSSIBLY_STARTED: a request that starts the
            transaction may still arrive.
        pending_partitions: partitions to be added at the coordinator (first protocol only), in
            order.
        partitions: partitions that the coordinator has added (first protocol only).
        touched: partitions with a batch that got a sequence.
        needs_bump: the next transaction needs a new epoch, because a batch was given up, the
            transaction cannot be committed, or a copy of a request that adds to it may still
            arrive.
        unmapped: the coordinator no longer knows the producer id.
        prepared: True once the transaction is prepared, so that another process can end it.
        error: the error after which the transaction can only be aborted.
        discard: the error for batches that must not be sent any more; None once the sender has
            dropped them.
        identity: stands for this transaction in calls that wait. It refers to nothing, because the
            traceback of an error, which keeps it, may be referenced by `error`.
    """

    tv2: bool = False
    view: CoordinatorView = CoordinatorView.UNKNOWN
    possibly_started: bool = False
    pending_partitions: dict[TopicPartition, None] = field(default_factory=dict)
    partitions: set[TopicPartition] = field(default_factory=set)
    touched: set[TopicPartition] = field(default_factory=set)
    needs_bump: bool = False
    unmapped: bool = False
    prepared: bool = False
    error: AbortableTransactionError | None = None
    discard: KafkaError | None = None
    identity: object = field(default_factory=object, repr=False, compare=False)

    def note(self, view: CoordinatorView) -> None:
        """Raise `view` to at least this value."""
        if view is CoordinatorView.POSSIBLY_STARTED and self.view < CoordinatorView.STARTED:
            self.possibly_started = True
        self.view = max(self.view, view)

    @property
    def started(self) -> bool:
        """True if the coordinator has the transaction, or may get it from a leader, so that it must
        be ended."""
        return self.view >= CoordinatorView.STARTED


def misuse(text: str) -> TransactionError:
    """Return the error for a call that the state of the producer does not allow."""
    return TransactionError(text, outcome=Outcome.NOT_SENT)


def resolve(result: Result, error: KafkaError | None) -> None:
    """Set the result, which ends the waits for it. Has no effect if the result is already set."""
    if not result.done():
        result.set_result(error)
