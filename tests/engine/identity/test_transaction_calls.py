"""The transactional calls of users: what ends a wait, and the effect of a repeated call."""

from __future__ import annotations

import asyncio
import math

import pytest

from aiokprod import AuthenticationError, GroupMetadata, KafkaTimeout, Outcome, TransactionError
from aiokprod._engine.identity.transaction_progress import CoordinatorView
from aiokprod._engine.identity.transaction_requests import end
from aiokprod._engine.identity.transaction_states import TxnState
from aiokprod._errors import Code
from aiokprod.errors import KafkaError, broker_error
from tests.current import current
from tests.engine.identity.identity_helpers import calls, manager, opened
from tests.virtual_time import in_virtual_time


@pytest.mark.parametrize("sent", [True, False])
@in_virtual_time
async def test_refusal_by_the_coordinator_fails_waiting_calls_only(
    sent: bool,
) -> None:
    state = opened()
    user = calls(state)
    call = asyncio.ensure_future(user.end(commit=True, deadline=float("inf")))
    await asyncio.sleep(0)
    assert state.ending is not None
    state.ending.request = end("id", 0, 0, commit=True, tv2=False)
    state.ending.request.sent = sent
    user.refused(AuthenticationError("wrong password"))
    with pytest.raises(AuthenticationError, match="wrong password") as caught:
        await call
    assert caught.value.outcome is (Outcome.UNKNOWN if sent else Outcome.NOT_SENT)
    again = asyncio.ensure_future(user.end(commit=True, deadline=float("inf")))
    await asyncio.sleep(0)
    assert not again.done(), "an old refusal is not repeated"
    state.progress.note(CoordinatorView.STARTED)
    state.ended()
    await again
    assert state.state is TxnState.READY


@in_virtual_time
async def test_begin_after_a_transaction_that_ended_fatally_says_so() -> None:
    state = opened()
    user = calls(state)
    call = asyncio.ensure_future(user.end(commit=True, deadline=0.0))
    with pytest.raises(KafkaError):
        await call
    waiting = asyncio.ensure_future(user.begin(float("inf")))
    await asyncio.sleep(0)
    state.fail(broker_error(Code.PRODUCER_FENCED, "x"))
    with pytest.raises(KafkaError) as caught:
        await waiting
    assert state.fatal_error is not None
    assert type(caught.value) is type(state.fatal_error)


@in_virtual_time
async def test_end_that_timed_out_is_resumed_by_the_same_call_only() -> None:
    made = opened()
    user = calls(made)
    with pytest.raises(KafkaTimeout, match="again"):
        await user.end(commit=True, deadline=0.0)
    with pytest.raises(TransactionError, match="cannot be changed"):
        await user.end(commit=False, deadline=math.inf)
    again = asyncio.ensure_future(user.end(commit=True, deadline=math.inf))
    await asyncio.sleep(0)
    made.ended()
    await again
    assert made.ending is None


@in_virtual_time
async def test_initialise_is_shared_by_all_calls_and_outlives_their_cancellation() -> None:
    made = manager()
    user = calls(made)
    first, second = (asyncio.ensure_future(user.initialise(math.inf)) for _ in range(2))
    await asyncio.sleep(0)
    assert made.state is TxnState.INITIALIZING
    first.cancel()
    await asyncio.sleep(0)
    made.initialised(7, 0)
    await second
    assert current(made.state) is TxnState.READY


@in_virtual_time
async def test_offsets_that_time_out_are_still_committed_with_the_transaction() -> None:
    made = opened()
    user = calls(made)
    with pytest.raises(KafkaTimeout, match="offsets"):
        await user.send_offsets({}, GroupMetadata("g"), 0.0)
    (job,) = made.offsets
    with pytest.raises(TransactionError, match="flush first"):
        user.prepare()
    made.offsets_accepted(job)
    assert user.prepare() == (0, 0, False)
