"""Authentication in the client with scripted mechanisms: work in tasks, expired sessions (KIP-368),
and failed TLS handshakes."""

from __future__ import annotations

import asyncio
import ssl
from ssl import SSLEOFError, SSLError
from typing import Any

import pytest

from aiokprod._net.authentication import Authenticated, AuthenticationStep, AuthTask, SendToBroker
from aiokprod._wire.message import Message
from aiokprod._wire.messages.metadata import MetadataResponse
from aiokprod._wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from aiokprod._wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from aiokprod.cluster import Node
from aiokprod.errors import AuthenticationError, DialError, KafkaError, Outcome
from tests.net.scripted_broker import ConnectionHarness
from tests.virtual_time import in_virtual_time

HANDSHAKE, AUTHENTICATE = 17, 36


class Mechanism:
    """A mechanism with a handshake, one message, and success.

    Args:
        work: a coroutine function that returns the first step; by default the mechanism itself
            returns it.
        lifetime: lifetime of every session, s.
    """

    def __init__(self, *, lifetime: float = 0.0, work: Any = None, renewable: bool = True) -> None:
        self.lifetime = lifetime
        self.work = work
        self.is_renewable = renewable
        self.started = 0

    def start(self, versions: Any) -> AuthenticationStep | None:
        self.started += 1
        first = SendToBroker(SaslHandshakeRequest("PLAIN"), 1)
        return first if self.work is None else AuthTask(self.work)

    def receive(self, response: Message) -> AuthenticationStep | None:
        if isinstance(response, SaslHandshakeResponse):
            return SendToBroker(SaslAuthenticateRequest(b"x"), 2)
        return Authenticated(self.lifetime)

    def renewable(self) -> bool:
        return self.is_renewable


def harness(mechanism: Mechanism, **settings: Any) -> tuple[ConnectionHarness, Any]:
    made = ConnectionHarness(authenticator=lambda node: mechanism, **settings)
    broker = made.broker()
    broker.answers[HANDSHAKE] = lambda header, message: SaslHandshakeResponse(mechanisms=["PLAIN"])
    broker.answers[AUTHENTICATE] = lambda header, message: SaslAuthenticateResponse()
    return made, broker


async def failure(made: ConnectionHarness) -> tuple[KafkaError, float]:
    """Return the error of the first attempt to connect, and the seconds until it failed."""
    start = made.now
    made.client.ready(-1, start)
    await made.until(lambda: bool(made.disconnects))
    error = made.disconnects[0][1]
    took = made.now - start
    await made.close()
    return error, took


@in_virtual_time
async def test_work_of_a_mechanism_runs_in_a_task_of_the_connection() -> None:
    async def thinking() -> AuthenticationStep:
        await asyncio.sleep(3.0)
        return SendToBroker(SaslHandshakeRequest("PLAIN"), 1)

    made, broker = harness(Mechanism(work=thinking))
    start = made.now
    await made.connect()
    assert made.now - start == pytest.approx(3.0, abs=0.1)
    assert (await made.send()).error is None
    assert broker.count(AUTHENTICATE) == 1
    await made.close()


@in_virtual_time
async def test_error_of_the_work_is_told_by_its_class_only() -> None:
    async def failing() -> AuthenticationStep:
        raise ValueError("canary-token")

    made, _ = harness(Mechanism(work=failing))
    error, _ = await failure(made)
    assert isinstance(error, AuthenticationError)
    assert error.message.endswith("authentication failed with ValueError")
    assert "canary" not in repr(error.__cause__)


@in_virtual_time
async def test_refusal_by_the_work_keeps_its_text_and_code() -> None:
    async def refusing() -> AuthenticationStep:
        raise AuthenticationError("no ticket")

    made, _ = harness(Mechanism(work=refusing))
    error, _ = await failure(made)
    assert isinstance(error, AuthenticationError)
    assert error.message.endswith("no ticket")
    assert error.outcome is Outcome.NOT_SENT


@in_virtual_time
async def test_work_cancelled_by_a_stranger_refuses_the_connection() -> None:
    async def cancelled() -> AuthenticationStep:
        raise asyncio.CancelledError

    made, _ = harness(Mechanism(work=cancelled))
    error, _ = await failure(made)
    assert isinstance(error, AuthenticationError)
    assert "was cancelled" in error.message


@in_virtual_time
async def test_work_that_hangs_is_ended_by_the_setup_timeout_and_cancelled() -> None:
    ended = []

    async def hanging() -> AuthenticationStep:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)
        raise AssertionError("unreachable")

    made, _ = harness(Mechanism(work=hanging))
    error, took = await failure(made)
    assert isinstance(error, AuthenticationError)
    assert "is not done in time" in error.message
    assert 8.0 <= took <= 12.1
    assert ended == [True]


@in_virtual_time
async def test_session_is_renewed_before_it_ends_once_open_requests_have_ended() -> None:
    mechanism = Mechanism(lifetime=100.0)
    made, broker = harness(mechanism)
    broker.silence(3)
    await made.connect()
    start = made.now
    await asyncio.sleep(80.0)
    open_request = made.send(timeout=60.0)
    await asyncio.sleep(16.0)
    assert mechanism.started == 1, "a request is open"
    assert not made.client.can_send(-1, made.now), "and no other one is taken"
    session = broker.sessions[0]
    session.reply(session.open[0], MetadataResponse())
    assert (await open_request).error is None
    await made.connect()
    assert mechanism.started == 2
    assert made.now - start < 97.0
    assert len(broker.sessions) == 1
    assert made.opened == [-1]
    await made.close()


@pytest.mark.parametrize("answered_at", [80.0, 96.0])
@in_virtual_time
async def test_session_is_renewed_after_a_throttle_because_the_broker_reads_nothing_until_then(
    answered_at: float,
) -> None:
    """The response with the throttle time arrives before the renewal is due, or while the renewal
    waits for this response."""
    mechanism = Mechanism(lifetime=100.0)
    made, broker = harness(mechanism)
    broker.silence(3)
    await made.connect()
    await asyncio.sleep(79.0)
    open_request = made.send(timeout=60.0)
    await asyncio.sleep(answered_at - 79.0)
    session = broker.sessions[0]
    session.reply(session.open[0], MetadataResponse(throttle_time_ms=60_000))
    assert (await open_request).throttle_ms == 60_000
    await asyncio.sleep(59.9)
    assert mechanism.started == 1
    await asyncio.sleep(1.0)
    assert mechanism.started == 2
    assert made.client.can_send(-1, made.now)
    assert made.disconnects == []
    assert len(broker.sessions) == 1
    await made.close()


@in_virtual_time
async def test_session_that_cannot_be_renewed_ends_the_connection_in_order() -> None:
    mechanism = Mechanism(lifetime=100.0, renewable=False)
    made, broker = harness(mechanism)
    await made.connect()
    await asyncio.sleep(100.0)
    assert not made.client.can_send(-1, made.now)
    assert made.disconnects == []
    await made.connect()
    assert len(broker.sessions) == 2
    await made.close()


@in_virtual_time
async def test_refused_renewal_ends_the_connection() -> None:
    made, broker = harness(Mechanism(lifetime=100.0))
    await made.connect()
    broker.silence(HANDSHAKE)
    await asyncio.sleep(120.0)
    assert len(made.disconnects) == 1
    assert not made.client.can_send(-1, made.now)
    await made.close()


def plaintext_port() -> ssl.SSLError:
    error = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number")
    error.reason = "WRONG_VERSION_NUMBER"
    return error


@pytest.mark.parametrize(
    ("raised", "kind", "text"),
    [
        (ssl.SSLEOFError(8, "EOF occurred"), DialError, "ended during the TLS handshake"),
        (plaintext_port(), AuthenticationError, "does not use TLS"),
    ],
)
def test_failed_tls_handshake_is_named(
    raised: SSLEOFError | SSLError, kind: type[KafkaError], text: str
) -> None:
    @in_virtual_time
    async def main() -> None:
        made = ConnectionHarness(security_protocol="SSL", ssl_context=ssl.create_default_context())
        asked: list[dict[str, Any]] = []

        async def connect(*arguments: Any, **options: Any) -> Any:
            asked.append(options)
            raise raised

        made.network.connect = connect  # type: ignore[method-assign]
        error, _ = await failure(made)
        assert isinstance(error, kind)
        assert text in error.message
        assert asked[0]["server_hostname"] == "b"

    main()


# -- coordinators, features -----------------------------------------------------------------------


@in_virtual_time
async def test_coordinator_outside_of_the_metadata_is_a_node_of_its_own() -> None:
    made = ConnectionHarness("b:1")
    made.broker("b")
    made.broker("c", 7)
    named = Node(5, "c", 7)
    made.client.set_coordinators([named])
    own = made.client.coordinator_id(named)
    assert own < -1
    await made.connect(own)
    assert (await made.send(own)).error is None
    made.client.set_coordinators([named])
    assert made.client.coordinator_id(named) == own, "named again: the same connection"
    made.set_nodes((5, "c", 7))
    assert made.client.coordinator_id(named) == 5, "shared with the metadata's node"
    made.client.set_coordinators([])
    assert not made.client.can_send(own, made.now)
    assert made.client.finalized_feature("transaction.version") == 0
    await made.close()
    made.client.set_coordinators([named])
    assert not made.client.ready(own, made.now)
