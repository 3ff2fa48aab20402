"""The state table: every pair of states, allowed or not, and the effect of each call in each
state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aiokprod._engine.identity.transaction_manager import TransactionManager
from aiokprod._engine.identity.transaction_states import TRANSITIONS, TxnState
from aiokprod.errors import (
    AbortableTransactionError,
    FatalTransactionError,
    KafkaError,
    KafkaTimeout,
    ProducerClosed,
    TransactionError,
)
from aiokprod.records import TopicPartition
from aiokprod.testing.virtual import run
from tests.engine.identity.identity_helpers import RecordingControl, calls, manager

S = TxnState

# Deliberately written a second time, independent of the code.
LEGAL = {
    (S.UNINITIALIZED, S.INITIALIZING), (S.INITIALIZING, S.READY),
    (S.INITIALIZING, S.UNINITIALIZED), (S.READY, S.IN_TRANSACTION),
    (S.IN_TRANSACTION, S.COMMITTING), (S.IN_TRANSACTION, S.ABORTING),
    (S.IN_TRANSACTION, S.ABORTABLE_ERROR), (S.COMMITTING, S.READY),
    (S.COMMITTING, S.INITIALIZING), (S.COMMITTING, S.ABORTABLE_ERROR), (S.ABORTING, S.READY),
    (S.ABORTING, S.INITIALIZING), (S.ABORTING, S.ABORTABLE_ERROR), (S.ABORTABLE_ERROR, S.ABORTING),
    *((state, S.FATAL_ERROR) for state in S if state is not S.FATAL_ERROR),
}  # fmt: skip


PATHS: dict[TxnState, tuple[TxnState, ...]] = {
    S.UNINITIALIZED: (),
    S.INITIALIZING: (S.INITIALIZING,),
    S.READY: (S.INITIALIZING, S.READY),
    S.IN_TRANSACTION: (S.INITIALIZING, S.READY, S.IN_TRANSACTION),
    S.COMMITTING: (S.INITIALIZING, S.READY, S.IN_TRANSACTION, S.COMMITTING),
    S.ABORTING: (S.INITIALIZING, S.READY, S.IN_TRANSACTION, S.ABORTING),
    S.ABORTABLE_ERROR: (S.INITIALIZING, S.READY, S.IN_TRANSACTION, S.ABORTABLE_ERROR),
    S.FATAL_ERROR: (S.FATAL_ERROR,),
}


def pairs() -> list[tuple[TxnState, TxnState]]:
    return [(before, after) for before in S for after in S]


@pytest.mark.matrix
@pytest.mark.parametrize(("before", "after"), pairs(), ids=lambda state: state.name)
def test_step_legal_ones_are_taken_all_others_refused(before: TxnState, after: TxnState) -> None:
    async def main() -> None:
        control = RecordingControl()
        made = manager(control)
        for state in PATHS[before]:
            made._become(state)
        if (before, after) in LEGAL:
            made._become(after)
            assert made.state is after
            assert control.transaction_open is (after is S.IN_TRANSACTION)
            assert control.completing is (after in (S.COMMITTING, S.ABORTING))
        else:
            with pytest.raises(AssertionError):
                made._become(after)
            assert made.state is before
        assert (after in TRANSITIONS[before]) is ((before, after) in LEGAL)

    run(main)


async def reach(state: TxnState) -> TransactionManager:
    """Return a manager that was brought into a state by calls of users and of the driver."""
    made = manager()
    if state is S.UNINITIALIZED:
        return made
    if state is S.FATAL_ERROR:
        made.fail(KafkaError("broken"))
        return made
    made.initialise()
    if state is S.INITIALIZING:
        return made
    made.initialised(7, 0)
    if state is S.READY:
        return made
    await calls(made).begin(1.0)
    if state is S.ABORTABLE_ERROR:
        made.abort_with(KafkaError("lost a record"))
    elif state in (S.COMMITTING, S.ABORTING):
        with pytest.raises(KafkaTimeout):
            await calls(made).end(commit=state is S.COMMITTING, deadline=0.0)
    return made


CALLS: dict[str, Callable[[TransactionManager], Awaitable[None] | None]] = {
    "begin": lambda made: calls(made).begin(0.1),
    "commit": lambda made: calls(made).end(commit=True, deadline=0.1),
    "abort": lambda made: calls(made).end(commit=False, deadline=0.1),
    "maybe_add_partition": lambda made: made.maybe_add_partition(TopicPartition("t", 0)),
}
# None: allowed. KafkaTimeout: waits for the driver, which is absent here.
EXPECTED: dict[TxnState, dict[str, type[KafkaError] | None]] = {
    S.UNINITIALIZED: {"begin": KafkaTimeout, "commit": TransactionError,
                      "abort": TransactionError, "maybe_add_partition": TransactionError},
    S.INITIALIZING: {"begin": KafkaTimeout, "commit": TransactionError,
                     "abort": TransactionError, "maybe_add_partition": TransactionError},
    S.READY: {"begin": None, "commit": TransactionError, "abort": TransactionError,
              "maybe_add_partition": TransactionError},
    S.IN_TRANSACTION: {"begin": TransactionError, "commit": KafkaTimeout, "abort": KafkaTimeout,
                       "maybe_add_partition": None},
    S.COMMITTING: {"begin": KafkaTimeout, "commit": KafkaTimeout, "abort": TransactionError,
                   "maybe_add_partition": TransactionError},
    S.ABORTING: {"begin": KafkaTimeout, "commit": TransactionError, "abort": KafkaTimeout,
                 "maybe_add_partition": TransactionError},
    S.ABORTABLE_ERROR: {"begin": AbortableTransactionError, "commit": AbortableTransactionError,
                        "abort": KafkaTimeout, "maybe_add_partition": AbortableTransactionError},
    S.FATAL_ERROR: dict.fromkeys(CALLS, FatalTransactionError),
}  # fmt: skip


@pytest.mark.parametrize("state", list(S), ids=lambda state: state.name)
@pytest.mark.parametrize("call", CALLS)
def test_call_in_state_as_the_table_says(state: TxnState, call: str) -> None:
    async def attempt(made: TransactionManager) -> None:
        found: Any = CALLS[call](made)
        if found is not None:
            await found

    async def main() -> None:
        made = await reach(state)
        assert made.state is state
        expected = EXPECTED[state][call]
        if expected is None:
            await attempt(made)
            return
        with pytest.raises(expected) as caught:
            await attempt(made)
        assert type(caught.value) is expected

    run(main)


@pytest.mark.parametrize("state", list(S), ids=lambda state: state.name)
def test_close_in_state_lets_every_waiter_go(state: TxnState) -> None:
    async def main() -> None:
        made = await reach(state)
        made.close(ProducerClosed("closed"))
        if made.ending is not None:
            assert isinstance(made.ending.done.result(), ProducerClosed)

    run(main)
