"""ListTransactions (66): the transactions that a broker coordinates (KIP-664)."""

from __future__ import annotations

from aiokprod._wire.messages.list_transactions import ListTransactionsResponse, TransactionState
from aiokprod.testing.fake_cluster.apis.answer import Answer
from aiokprod.testing.fake_cluster.apis.find_coordinator import refusal
from aiokprod.testing.fake_cluster.broker import FakeBroker
from aiokprod.testing.fake_cluster.framing import Request


def handle(broker: FakeBroker, request: Request) -> Answer:
    """List the transactions in the states of the filter, or all transactions without a filter."""
    states = request.body.state_filters
    listed = [
        TransactionState(
            transactional_id=entry.name,
            producer_id=entry.producer_id,
            transaction_state=entry.phase.value,
        )
        for entry in broker.cluster.transactions.ids.values()
        if not refusal(broker, entry.name) and (not states or entry.phase.value in states)
    ]
    return Answer(
        ListTransactionsResponse(error_code=0, unknown_state_filters=[], transaction_states=listed)
    )


def error(broker: FakeBroker, request: Request, code: int) -> ListTransactionsResponse:
    """Return a response with this error code."""
    return ListTransactionsResponse(
        error_code=code, unknown_state_filters=[], transaction_states=[]
    )
