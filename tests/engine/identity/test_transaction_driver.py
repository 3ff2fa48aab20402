"""How the driver interprets the result of one attempt, and the steps that it performs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiokprod._engine.identity.coordinators import CoordinatorKind, Reply
from aiokprod._engine.identity.transaction_driver import TransactionDriver, _RequestResult
from aiokprod._engine.identity.transaction_states import TxnState
from aiokprod._errors import Code, ErrorAction, TxnApi
from aiokprod._wire.messages.init_producer_id import InitProducerIdResponse
from aiokprod.errors import (
    AuthenticationError,
    Disconnected,
    KafkaError,
    ProtocolError,
    UnsupportedVersion,
)
from tests.engine.identity.identity_helpers import manager
from tests.virtual_time import in_virtual_time

REPLIES = {
    "written, connection lost": (Disconnected("x"), True, ErrorAction.LOOKUP, True),
    "not written, connection lost": (Disconnected("x"), False, ErrorAction.LOOKUP, False),
    "written, damaged answer": (ProtocolError("x"), True, ErrorAction.LOOKUP, True),
    "not written, another answer damaged": (
        ProtocolError("x", retriable=True), False, ErrorAction.LOOKUP, False
    ),
    "not written, refused": (AuthenticationError("x"), False, ErrorAction.LOOKUP, False),
    "cannot be encoded": (ProtocolError("x"), False, ErrorAction.FATAL, False),
    "no such version": (UnsupportedVersion("x"), False, ErrorAction.FATAL, False),
}  # fmt: skip


@pytest.mark.parametrize(("error", "written", "wanted", "lost"), REPLIES.values(), ids=REPLIES)
def test_reply_without_answer_is_fatal_only_if_the_request_cannot_be_built(
    error: KafkaError, written: bool, wanted: ErrorAction, lost: bool
) -> None:
    result = _RequestResult()
    TransactionDriver._read(TxnApi.END, Reply(None, error, 4, written), result, None, [])
    assert (result.action, result.lost, result.in_doubt) == (wanted, lost, lost)


class ScriptedCoordinators:
    """Returns the next of `bodies` for each attempt; the coordinator is known."""

    def __init__(self, *bodies: Any) -> None:
        self.bodies = list(bodies)
        self.sent: list[Any] = []
        self.forgotten = 0

    def known(self, kind: CoordinatorKind, key: str) -> int | None:
        return 1

    def forget(self, kind: CoordinatorKind, key: str) -> None:
        self.forgotten += 1

    def on_network(self) -> None:
        pass

    async def attempt(self, kind: CoordinatorKind, key: str, request: Any, wanted: Any) -> Any:
        self.sent.append(request(4))
        return Reply(self.bodies.pop(0), None, 4, maybe_written=True)


@in_virtual_time
async def test_driver_repeats_init_until_the_response_is_definite() -> None:
    made = manager()
    later = InitProducerIdResponse(0, int(Code.CONCURRENT_TRANSACTIONS), -1, -1)
    moved = InitProducerIdResponse(0, int(Code.NOT_COORDINATOR), -1, -1)
    coordinators = ScriptedCoordinators(later, moved, InitProducerIdResponse(0, 0, 7, 3))
    loop = asyncio.get_running_loop()
    driver = TransactionDriver(
        made,
        coordinators,  # type: ignore[arg-type]
        loop=loop,
        timeout_ms=60_000,
        backoff=lambda attempts: 0.1,
    )
    task = asyncio.ensure_future(driver.run())
    await asyncio.sleep(1)
    assert not coordinators.sent, "nothing to do"
    made.initialise()
    driver.wake()
    assert await made.init_result is None
    task.cancel()
    assert made.state is TxnState.READY
    assert (made.tracker.producer_id, made.tracker.epoch) == (7, 3)
    assert made.can_bump
    assert len(coordinators.sent) == 3
    assert coordinators.forgotten == 1, "looked up again after NOT_COORDINATOR"
