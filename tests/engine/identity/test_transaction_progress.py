"""The view of a transaction only increases, and results are set once."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from aiokprod._engine.identity.transaction_progress import (
    CoordinatorView,
    PendingEndTxn,
    TxnProgress,
    resolve,
)
from aiokprod._engine.identity.transaction_requests import end
from aiokprod.errors import KafkaError
from tests.current import current
from tests.virtual_time import in_virtual_time

V = CoordinatorView


@pytest.mark.parametrize(("first", "second"), list(itertools.product(V, V)))
def test_view_never_falls(first: V, second: V) -> None:
    progress = TxnProgress()
    progress.note(first)
    progress.note(second)
    assert progress.view is max(first, second)
    assert progress.started is (progress.view >= V.STARTED)
    before_it_started = second is V.POSSIBLY_STARTED and first < V.STARTED
    assert progress.possibly_started is (first is V.POSSIBLY_STARTED or before_it_started)


@in_virtual_time
async def test_result_is_set_once() -> None:
    result = asyncio.get_running_loop().create_future()
    error = KafkaError("first")
    resolve(result, error)
    resolve(result, None)
    assert result.result() is error


@in_virtual_time
async def test_end_counts_as_sent_once_handed_to_a_connection() -> None:
    ending = PendingEndTxn(True, asyncio.get_running_loop().create_future())
    assert not ending.sent
    ending.request = end("id", 0, 0, commit=True, tv2=False)
    assert not ending.sent
    ending.request.sent = True
    assert current(ending.sent)
    assert ending.name == "commit_transaction()"
