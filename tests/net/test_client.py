from __future__ import annotations

import asyncio
import gc
import itertools
import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from aiokprod._engine.ports import BrokerClient
from aiokprod._net.authentication import Authenticated
from aiokprod._net.client import NetworkClient
from aiokprod._net.in_flight import Response
from aiokprod._wire.messages.api_versions import ApiVersionsRequest
from aiokprod._wire.messages.metadata import MetadataRequest, MetadataResponse
from aiokprod._wire.messages.produce import ProduceRequest
from aiokprod.cluster import Node
from aiokprod.config import ProducerConfig
from aiokprod.environment import Environment
from aiokprod.errors import (
    AuthenticationError,
    DecodeError,
    DialError,
    Disconnected,
    ForkedProcess,
    KafkaError,
    NotReady,
    Outcome,
    ProducerClosed,
    ProtocolError,
    RequestTimedOut,
    UnsupportedVersion,
)
from aiokprod.testing.memory import MemoryNetwork
from aiokprod.testing.virtual import run
from tests.current import current
from tests.net.scripted_broker import METADATA, ConnectionHarness, ScriptedBroker
from tests.net.wire_helpers import versions_answer
from tests.virtual_time import in_virtual_time


def conforms(client: NetworkClient) -> BrokerClient:
    """Return the client as the engine's port, so that mypy checks that it implements the port."""
    return client


def disconnected(harness: ConnectionHarness, times: int) -> bool:
    return len(harness.disconnects) == times


def dial_tasks() -> list[str]:
    return [t.get_name() for t in asyncio.all_tasks() if t.get_name().startswith("aiokprod-")]


# -- connecting -----------------------------------------------------------------------------------


@in_virtual_time
async def test_ready_dials_in_a_named_task_and_turns_true_after_the_handshake() -> None:
    harness = ConnectionHarness("b:1,c:2")
    harness.broker()
    assert not harness.client.can_send(-1, harness.now)
    assert not harness.client.ready(-1, harness.now)
    assert dial_tasks() == ["aiokprod-dial--1"]
    assert harness.client.retry_at(-1, harness.now) == math.inf
    assert not harness.client.ready(-1, harness.now)
    assert harness.client.version_range(-1, 3) is None
    await harness.until(lambda: harness.client.ready(-1, harness.now))
    assert dial_tasks() == []
    assert len(harness.network.dials) == 1
    assert harness.client.version_range(-1, 3) == (0, MetadataRequest.max_version)
    assert harness.client.version_range(-1, 999) is None
    assert harness.client.version_range(-2, 3) is None
    await harness.close()


@in_virtual_time
async def test_constructor_contacts_no_broker() -> None:
    harness = ConnectionHarness()
    harness.broker()
    await asyncio.sleep(10.0)
    assert harness.network.dials == []
    await harness.close()


@in_virtual_time
async def test_can_send_has_no_side_effect() -> None:
    harness = ConnectionHarness()
    harness.broker()
    assert not harness.client.can_send(-1, harness.now)
    await asyncio.sleep(1.0)
    assert harness.network.dials == []
    await harness.close()


@in_virtual_time
async def test_client_id_and_software_version_are_sent_in_a_form_brokers_accept() -> None:
    harness = ConnectionHarness(client_id="svc", software_version="1.0+local g1")
    broker = harness.broker()
    await harness.connect()
    header, message = broker.seen[0]
    assert header.client_id == "svc"
    assert isinstance(message, ApiVersionsRequest)
    assert message.client_software_version == "1.0-local-g1"
    await harness.close()


@in_virtual_time
async def test_start_to_ready_takes_one_connect_and_one_round_trip() -> None:
    harness = ConnectionHarness()
    harness.broker()
    harness.network.latency_s = 0.1
    start = harness.now
    await harness.connect()
    assert harness.now - start == pytest.approx(0.4)
    await harness.close()


@in_virtual_time
async def test_f7_refused_connects_back_off_exponentially_and_report_each_failure() -> None:
    harness = ConnectionHarness()
    for _ in range(8):
        harness.client.ready(-1, harness.now)
        await harness.until(lambda: harness.client.retry_at(-1, harness.now) < math.inf)
        await asyncio.sleep(harness.client.retry_at(-1, harness.now) - harness.now)
    times = [dial.time for dial in harness.network.dials]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    for gap, base in zip(gaps, (0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0), strict=True):
        assert 0.8 * base <= gap <= min(1.2 * base, 1.0) + 0.01
    assert len(harness.disconnects) == 8
    assert all(isinstance(error, DialError) for _, error in harness.disconnects)
    assert "b:1" in harness.disconnects[0][1].message
    await harness.close()


@in_virtual_time
async def test_ready_within_the_backoff_does_not_dial() -> None:
    harness = ConnectionHarness()
    harness.client.ready(-1, harness.now)
    await harness.until(lambda: bool(harness.disconnects))
    for _ in range(10):
        assert not harness.client.ready(-1, harness.now)
    await asyncio.sleep(0.01)
    assert len(harness.network.dials) == 1
    retry_at = harness.client.retry_at(-1, harness.now)
    assert 0.03 < retry_at - harness.now < 0.06
    assert harness.client.retry_at(-1, retry_at + 5.0) == retry_at + 5.0
    await harness.close()


@in_virtual_time
async def test_f7_hanging_connect_ends_with_the_setup_timeout_and_the_next_address_follows() -> (
    None
):
    harness = ConnectionHarness("cluster:1")
    harness.network.set_name("cluster", ["10.0.0.1", "10.0.0.2"])
    harness.broker("10.0.0.2", 1)
    harness.network.hang("10.0.0.1", 1)
    start = harness.now
    await harness.connect()
    assert [dial.address[0] for dial in harness.network.dials] == ["10.0.0.1", "10.0.0.2"]
    assert 8.0 <= harness.now - start <= 12.1
    assert len(harness.network.lookups) == 1
    [(node_id, error)] = harness.disconnects
    assert node_id == -1
    assert "setup timeout" in error.message
    await harness.close()


@in_virtual_time
async def test_f13_unresolvable_name_is_a_dial_error_and_is_looked_up_each_time() -> None:
    harness = ConnectionHarness("nowhere:1")
    harness.network.set_name("nowhere", None)
    for attempt in range(1, 4):
        harness.client.ready(-1, harness.now)
        await harness.until(partial(disconnected, harness, attempt))
        await asyncio.sleep(1.0)
    assert len(harness.network.lookups) == 3
    assert "nowhere" in harness.disconnects[0][1].message
    assert isinstance(harness.disconnects[0][1], DialError)
    await harness.close()


@in_virtual_time
async def test_f13_resolver_that_finds_no_address_is_a_dial_error() -> None:
    harness = ConnectionHarness()

    async def nothing(host: str, port: int) -> list[tuple[str, int]]:
        return []

    harness.network.resolve = nothing  # type: ignore[method-assign]
    harness.client.ready(-1, harness.now)
    await harness.until(lambda: bool(harness.disconnects))
    assert isinstance(harness.disconnects[0][1], DialError)
    await harness.close()


@in_virtual_time
async def test_f13_hanging_look_up_ends_with_the_setup_timeout() -> None:
    harness = ConnectionHarness("slow:1")
    harness.network.hang_name("slow")
    start = harness.now
    harness.client.ready(-1, harness.now)
    await harness.until(lambda: bool(harness.disconnects))
    assert 8.0 <= harness.now - start <= 12.0
    await harness.close()


@in_virtual_time
async def test_lost_connection_is_looked_up_again_and_avoids_the_lost_address() -> None:
    harness = ConnectionHarness("cluster:1")
    harness.network.set_name("cluster", ["10.0.0.1", "10.0.0.2"])
    first, second = harness.broker("10.0.0.1", 1), harness.broker("10.0.0.2", 1)
    await harness.connect()
    first.sessions[0].link.reset()
    await harness.until(lambda: bool(harness.disconnects))
    await harness.connect()
    assert len(second.sessions) == 1
    assert len(harness.network.lookups) == 2
    await harness.close()


@in_virtual_time
async def test_f69_foreign_cancellation_of_a_dial_task_counts_as_a_failed_attempt() -> None:
    harness = ConnectionHarness()
    harness.broker()
    harness.network.hang("b", 1)
    harness.client.ready(-1, harness.now)
    await asyncio.sleep(0.1)
    for task in asyncio.all_tasks():
        if task.get_name() == "aiokprod-dial--1":
            task.cancel()
    await harness.until(lambda: bool(harness.disconnects))
    assert isinstance(harness.disconnects[0][1], DialError)
    harness.network.heal("b", 1)
    await harness.connect()
    await harness.close()


class ForgetfulTransport(asyncio.Transport):
    """A transport that does not call `connection_lost` if its dial was cancelled after
    `connection_made`, as in uvloop."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.protocol = protocol
        self.dial_cancelled = False
        self.ended = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.ended

    def writelines(self, list_of_data: Any) -> None:
        pass

    def abort(self) -> None:
        if not self.ended:
            self.ended = True
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._lost)  # the dial runs first

    def _lost(self) -> None:
        if not self.dial_cancelled:
            self.protocol.connection_lost(None)


@pytest.mark.parametrize("how", ["peer says goodbye", "a stranger cancels the dial"])
def test_f04_connection_that_ends_before_its_dial_does_is_not_waited_for(how: str) -> None:
    """The peer accepts a connection and closes it at once. On uvloop, `close` waited forever."""

    async def main() -> None:
        harness = ConnectionHarness()
        transports: list[ForgetfulTransport] = []

        async def connect(
            factory: Callable[[], asyncio.Protocol], host: str, port: int
        ) -> tuple[asyncio.Transport, asyncio.Protocol]:
            protocol = factory()
            transport = ForgetfulTransport(protocol)
            transports.append(transport)
            protocol.connection_made(transport)
            if how == "peer says goodbye":
                protocol.eof_received()
            else:
                asyncio.current_task().cancel()  # type: ignore[union-attr]
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                transport.dial_cancelled = True
                transport.abort()
                raise
            return transport, protocol

        harness.network.connect = connect  # type: ignore[method-assign, assignment]
        assert not harness.client.ready(-1, harness.now)
        await harness.until(lambda: bool(harness.closed))
        await asyncio.sleep(1.0)
        start = harness.now
        await harness.client.close(math.inf)
        assert harness.now - start < 0.5
        assert [transport.ended for transport in transports] == [True]
        assert dial_tasks() == []

    run(main, limit_s=7200.0)


@in_virtual_time
async def test_unexpected_exception_of_a_dialer_is_a_failed_attempt() -> None:
    harness = ConnectionHarness()

    async def broken(*args: Any) -> Any:
        raise RuntimeError("bug in a dialer")

    harness.network.connect = broken  # type: ignore[assignment,method-assign]
    harness.client.ready(-1, harness.now)
    await harness.until(lambda: bool(harness.disconnects))
    assert "bug in a dialer" in harness.disconnects[0][1].message
    assert isinstance(harness.disconnects[0][1].__cause__, RuntimeError)
    await harness.close()


class Local:
    """The type of a local variable in the frames of an error."""


def raised(failure: BaseException) -> BaseException:
    """Return the same error with a traceback whose frame has a local variable."""
    local = Local()
    try:
        raise failure
    except BaseException as error:
        assert local is not None
        return error


def chain_of(count: int, attribute: str) -> list[BaseException]:
    """Return raised errors, each of which is the cause or the context of the next."""
    errors = [raised(RuntimeError(f"link {number}")) for number in range(count)]
    for before, error in itertools.pairwise(errors):
        setattr(error, attribute, before)
    return errors


def chain_with_a_cycle(attribute: str) -> BaseException:
    errors = chain_of(5, attribute)
    setattr(errors[0], attribute, errors[3])
    return errors[-1]


CHAINS: dict[str, Callable[[], BaseException]] = {
    "cycle of contexts": lambda: chain_with_a_cycle("__context__"),
    "cycle of causes": lambda: chain_with_a_cycle("__cause__"),
    "5000 contexts": lambda: chain_of(5000, "__context__")[-1],
    "5000 causes": lambda: chain_of(5000, "__cause__")[-1],
    "group": lambda: raised(BaseExceptionGroup("both", chain_of(2, "__cause__"))),
}


@pytest.mark.parametrize("how", CHAINS)
def test_dial_error_of_any_chain_is_a_failed_attempt_and_keeps_no_local_variables(how: str) -> None:
    """The connection keeps the error, and local variables in its frames refer back to the
    connection."""

    async def main() -> None:
        harness = ConnectionHarness()
        dials: list[None] = []

        async def broken(*args: Any) -> Any:
            dials.append(None)
            raise CHAINS[how]()

        harness.network.connect = broken  # type: ignore[assignment,method-assign]
        gc.collect()
        gc.disable()
        try:
            for count in (1, 2):
                harness.client.ready(-1, harness.now)
                await harness.until(partial(disconnected, harness, count))
                await asyncio.sleep(harness.client.retry_at(-1, harness.now) - harness.now)
            assert len(dials) == 2
            assert isinstance(harness.disconnects[0][1], DialError)
            assert not any(isinstance(thing, Local) for thing in gc.get_objects())
        finally:
            gc.enable()
        await harness.close()

    run(main, limit_s=7200.0)


@in_virtual_time
async def test_observer_hooks_see_every_connection_come_and_go() -> None:
    harness = ConnectionHarness()
    broker = harness.broker("b")
    harness.broker("c")
    await harness.connect()
    assert (harness.opened, harness.closed) == ([-1], [])
    broker.sessions[0].link.reset()
    await harness.until(lambda: bool(harness.disconnects))
    assert harness.closed == harness.disconnects
    await harness.connect()
    harness.set_nodes((1, "c", 1))
    await harness.connect(1)
    assert harness.closed[1:] == [(-1, None)]
    await harness.close()
    assert harness.closed[2:] == [(1, None)]
    assert harness.opened == [-1, -1, 1]


@in_virtual_time
async def test_client_works_without_optional_callbacks() -> None:
    network = MemoryNetwork()
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    client = NetworkClient(
        ProducerConfig(bootstrap_servers="10.0.0.1:1"),
        Environment(network),
        loop,
        on_wakeup=ready.set,
        on_disconnect=lambda node_id, error: None,
        software_version="--",
    )
    broker = ScriptedBroker(network, "10.0.0.1", 1)
    broker.answers[18] = lambda header, message: versions_answer(throttle_time_ms=10)
    client.ready(-1, loop.time())
    await ready.wait()
    message = broker.seen[0][1]
    assert isinstance(message, ApiVersionsRequest)
    assert message.client_software_version == "unknown"
    assert broker.seen[0][0].client_id == "aiokprod"
    await client.close(loop.time() + 1.0)


# -- requests -------------------------------------------------------------------------------------


@in_virtual_time
async def test_request_is_answered_in_the_highest_shared_version() -> None:
    harness = ConnectionHarness()
    broker = harness.broker()
    await harness.connect()
    response = await harness.send()
    assert response.body.cluster_id == "b:1"
    assert response.version == MetadataRequest.max_version
    assert response.latency == pytest.approx(0.001)
    assert broker.seen[-1][0].request_api_version == MetadataRequest.max_version
    await harness.close()


@in_virtual_time
async def test_max_version_caps_the_negotiated_version() -> None:
    harness = ConnectionHarness()
    broker = harness.broker()
    await harness.connect()
    response = await harness.send(max_version=4)
    assert response.version == 4
    assert broker.seen[-1][0].request_api_version == 4
    await harness.close()


class MetadataCall:
    """A request whose body depends on the version."""

    api_key = 3

    def __init__(self) -> None:
        self.versions: list[int] = []

    def __call__(self, version: int) -> MetadataRequest:
        self.versions.append(version)
        return METADATA


@in_virtual_time
async def test_callable_request_is_given_the_version() -> None:
    harness = ConnectionHarness()
    harness.broker()
    await harness.connect()
    call = MetadataCall()
    response = await harness.send(request=call)
    assert call.versions == [response.version]
    await harness.close()


@in_virtual_time
async def test_callable_request_without_api_key_raises_at_once() -> None:
    harness = ConnectionHarness()
    harness.broker()
    await harness.connect()
    with pytest.raises(AttributeError, match="api_key"):
        harness.send(request=lambda version: METADATA)
    await harness.close()


@in_virtual_time
async def test_unsupported_version_ends_the_request_later_and_leaves_the_connection() -> None:
    harness = ConnectionHarness()
    broker = harness.broker()
    broker.answers[18] = lambda header, message: versions_answer({18: (0, 4), 3: (0, 5)})
    await harness.connect()
    done = harness.send(request=ProduceRequest(acks=1, timeout_ms=1))
    assert not done.done()
    response = await done
    assert isinstance(response.error, UnsupportedVersion)
    assert response.error.outcome is Outcome.NOT_SENT
    assert (response.version, response.maybe_written) == (-1, False)
    assert (await harness.send()).version == 5
    await harness.close()


@in_virtual_time
async def test_request_that_cannot_be_encoded_ends_as_not_sent() -> None:
    harness = ConnectionHarness()
    harness.broker()
    await harness.connect()
    response = await harness.send(request=MetadataRequest(topics=3))  # type: ignore[arg-type]
    assert isinstance(response.error, ProtocolError)
    assert response.error.outcome is Outcome.NOT_SENT
    assert response.version == MetadataRequest.max_version
    assert not response.maybe_written
    assert (response.latency, response.throttle_ms) == (0.0, 0)
    assert (await harness.send()).error is None
    await harness.close()


@in_virtual_time
async def test_send_on_a_connection_that_is_not_ready_raises() -> None:
    harness = ConnectionHarness(max_in_flight_requests_per_connection=1)
    broker = harness.broker()
    assert harness.client.ready(-1, harness.now) is None
    assert harness.client.ready(17, harness.now) is None
    await harness.connect()
    broker.silence(3)
    slot = harness.slot()
    harness.send(timeout=1.0)
    assert harness.client.ready(-1, harness.now) is None
    with pytest.raises(NotReady):
        slot.send(METADATA, print, harness.now, timeout=1.0)
    assert harness.client.retry_at(-1, harness.now) == math.inf
    await asyncio.sleep(2.0)
    await harness.close()


@in_virtual_time
async def test_unknown_node_is_never_ready() -> None:
    harness = ConnectionHarness()
    assert not harness.client.ready(7, harness.now)
    assert harness.client.retry_at(7, harness.now) == math.inf
    assert harness.client.in_flight_count(7) == 0
    assert harness.client.version_range(7, 3) is None
    await harness.close()


@in_virtual_time
async def test_in_flight_is_counted_per_node_and_in_total() -> None:
    harness = ConnectionHarness("b:1,c:1")
    for host in "bc":
        harness.broker(host).silence(3)
    await harness.connect(-1)
    await harness.connect(-2)
    harness.send(-1, timeout=1.0)
    harness.send(-2, timeout=1.0)
    harness.send(-2, timeout=1.0)
    assert harness.client.in_flight_count(-1) == 1
    assert harness.client.in_flight_count(-2) == 2
    assert harness.client.total_in_flight() == 3
    await asyncio.sleep(2.0)
    assert harness.client.total_in_flight() == 0
    await harness.close()


@in_virtual_time
async def test_acks_0_request_ends_without_body() -> None:
    harness = ConnectionHarness()
    broker = harness.broker()
    broker.silence(0)
    await harness.connect()
    response = await harness.send(
        request=ProduceRequest(acks=0, timeout_ms=1), expect_response=False
    )
    assert (response.body, response.error) == (None, None)
    assert harness.client.total_in_flight() == 0
    assert (await harness.send()).error is None
    await harness.close()


@in_virtual_time
async def test_raising_callback_is_reported_and_the_client_goes_on() -> None:
    harness = ConnectionHarness()
    broker = harness.broker()
    broker.answers[18] = lambda header, message: versions_answer({18: (0, 4), 3: (0, 5)})
    await harness.connect()

    def bad(response: Response) -> None:
        raise RuntimeError(str(response.version))

    harness.slot().send(METADATA, bad, harness.now, timeout=1.0)
    harness.slot().send(ProduceRequest(acks=1, timeout_ms=1), bad, harness.now, timeout=1.0)
    assert (await harness.send()).error is None
    assert [str(error) for error in harness.callback_errors] == ["-1", "5"]
    await harness.close()


def test_raising_callback_reaches_the_loops_exception_handler_by_default() -> None:
    seen: list[dict[str, Any]] = []

    async def main() -> None:
        harness = ConnectionHarness()
        harness.client._on_callback_error = None
        harness.broker()
        await harness.connect()
        harness.loop.set_exception_handler(lambda loop, context: seen.append(context))

        def bad(response: Response) -> None:
            raise RuntimeError("bug above")

        harness.slot().send(METADATA, bad, harness.now, timeout=1.0)
        assert (await harness.send()).error is None
        await harness.close()

    run(main)
    assert [str(context["exception"]) for context in seen] == ["bug above"]


# -- faults ---------------------------------------------------------------------------------------


@in_virtual_time
async def test_f1_killed_broker_fails_requests_and_is_dialled_again_after_the_backoff() -> None:
    harness = ConnectionHarness()
    broker = harness.broker()
    broker.silence(3)
    await harness.connect()
    first, second = harness.send(), harness.send()
    await asyncio.sleep(0.01)
    broker.stop()
    for done in (first, second):
        response = await done
        assert isinstance(response.error, Disconnected)
        assert response.maybe_written
    assert [node_id for node_id, _ in harness.disconnects] == [-1]
    assert not harness.client.ready(-1, harness.now)
    broker.start()
    await harness.connect()
    await harness.close()


@in_virtual_time
async def test_f4_answer_cut_in_the_middle_is_dropped_with_its_connection() -> None:
    harness = ConnectionHarness()
    broker = harness.broker()
    await harness.connect()
    link = broker.sessions[0].link
    link.down.cut_at = link.down.delivered + 9
    response = await harness.send()
    assert isinstance(response.error, Disconnected)
    assert response.maybe_written
    await harness.connect()
    assert (await harness.send()).body.cluster_id == "b:1"
    await harness.close()


@in_virtual_time
async def test_f5_blackhole_closes_after_the_request_timeout() -> None:
    harness = ConnectionHarness()
    broker = harness.broker()
    await harness.connect()
    broker.sessions[0].link.blackhole()
    start = harness.now
    response = await harness.send(timeout=30.0)
    assert isinstance(response.error, RequestTimedOut)
    assert response.maybe_written
    assert harness.now - start == pytest.approx(30.0, abs=0.01)
    assert isinstance(harness.disconnects[0][1], RequestTimedOut)
    await harness.connect()
    assert (await harness.send()).error is None
    await harness.close()


@in_virtual_time
async def test_f6_paused_broker_that_wakes_late_has_its_answers_ignored() -> None:
    harness = ConnectionHarness()
    broker = harness.broker()
    await harness.connect()
    link = broker.sessions[0].link
    link.blackhole()
    response = await harness.send(timeout=30.0)
    assert isinstance(response.error, RequestTimedOut)
    await asyncio.sleep(5.0)
    link.heal()
    await asyncio.sleep(5.0)
    await harness.connect()
    assert (await harness.send()).error is None
    await harness.close()


@in_virtual_time
async def test_f8_slow_broker_does_not_hold_up_another_one() -> None:
    harness = ConnectionHarness("b:1,c:1")
    harness.broker("b")
    harness.broker("c").silence(3)
    await harness.connect(-1)
    await harness.connect(-2)
    slow = harness.send(-2, timeout=20.0)
    for _ in range(20):
        assert (await harness.send(-1)).error is None
    assert not slow.done()
    await slow
    await harness.close()


@in_virtual_time
async def test_f9_throttled_node_is_quiet_for_the_time_given_and_others_are_not() -> None:
    harness = ConnectionHarness("b:1,c:1")
    broker = harness.broker("b")
    harness.broker("c")
    await harness.connect(-1)
    await harness.connect(-2)
    broker.answers[3] = lambda header, message: MetadataResponse(throttle_time_ms=2000)
    response = await harness.send(-1)
    assert response.throttle_ms == 2000
    start = harness.now
    assert not harness.client.can_send(-1, start)
    assert harness.client.can_send(-2, start)
    assert harness.client.retry_at(-1, start) == pytest.approx(start + 2.0)
    assert harness.throttles == [(-1, 2.0)]
    for _ in range(20):
        assert harness.client.least_loaded(start) == -2
    harness.wakeup.clear()
    await harness.wakeup.wait()
    assert harness.now == pytest.approx(start + 2.0)
    assert harness.client.ready(-1, harness.now)
    await harness.close()


@in_virtual_time
async def test_f9_smaller_throttle_does_not_shorten_a_longer_one() -> None:
    harness = ConnectionHarness()
    broker = harness.broker()
    broker.silence(3)
    await harness.connect()
    first, second = harness.send(), harness.send()
    await asyncio.sleep(0.01)
    session = broker.sessions[0]
    session.reply(session.open[0], MetadataResponse(throttle_time_ms=5000))
    session.reply(session.open[1], MetadataResponse(throttle_time_ms=10))
    await first
    await second
    assert harness.client.retry_at(-1, harness.now) == pytest.approx(harness.now + 5.0)
    await harness.close()


@in_virtual_time
async def test_f9_throttle_of_any_length_is_waited_out() -> None:
    """With a byte quota of 1 KiB/s, a broker throttles for 967 s after one request of 1 MB."""
    harness = ConnectionHarness()
    broker = harness.broker()
    await harness.connect()
    broker.answers[3] = lambda header, message: MetadataResponse(throttle_time_ms=966_851)
    await harness.send()
    start = harness.now
    await asyncio.sleep(966.8)
    assert not harness.client.ready(-1, harness.now)
    await harness.connect()
    assert harness.now - start == pytest.approx(966.851)
    broker.answers[3] = lambda header, message: MetadataResponse(throttle_time_ms=2**31 - 1)
    await harness.send()
    assert harness.client.retry_at(-1, harness.now) == pytest.approx(
        harness.now + (2**31 - 1) / 1000
    )
    await asyncio.sleep(3600.0)
    assert not harness.client.ready(-1, harness.now)
    assert harness.disconnects == []
    await harness.close()


@in_virtual_time
async def test_f9_throttles_of_several_answers_move_a_deadline_by_their_union() -> None:
    """Five responses with a throttle time of 300 s mean that the broker reads nothing for 300 s,
    not for 1,500 s."""
    harness = ConnectionHarness()
    broker = harness.broker()
    broker.silence(3)
    await harness.connect()
    start = harness.now
    requests = [harness.send(timeout=10.0) for _ in range(5)]
    session = broker.sessions[0]
    for index in range(4):
        await asyncio.sleep(1.0)
        session.reply(session.open[index], MetadataResponse(throttle_time_ms=300_000 - index))
    response = await requests[-1]
    assert isinstance(response.error, RequestTimedOut)
    # The throttle lasts from 1 s to 304 s after the start, less 3 ms.
    assert harness.now - start == pytest.approx(10.0 + 303.0 - 0.003, abs=0.01)
    await harness.close()


@in_virtual_time
async def test_f9_throttle_survives_a_reconnect() -> None:
    harness = ConnectionHarness()
    broker = harness.broker()
    broker.answers[3] = lambda header, message: MetadataResponse(throttle_time_ms=5000)
    await harness.connect()
    await harness.send()
    start = harness.now
    broker.sessions[0].link.reset()
    await harness.until(lambda: bool(harness.disconnects))
    await harness.connect()
    assert harness.now == pytest.approx(start + 5.0)
    await harness.close()


@in_virtual_time
async def test_f9_request_timeout_excludes_the_throttle() -> None:
    harness = ConnectionHarness()
    broker = harness.broker()
    broker.silence(3)
    await harness.connect()
    start = harness.now
    first, second = harness.send(timeout=10.0), harness.send(timeout=10.0)
    await asyncio.sleep(1.0)
    session = broker.sessions[0]
    session.reply(session.open[0], MetadataResponse(throttle_time_ms=20_000))
    await first
    response = await second
    assert isinstance(response.error, RequestTimedOut)
    assert harness.now - start == pytest.approx(30.0, abs=0.01)
    await harness.close()


@in_virtual_time
async def test_f9_throttle_told_with_the_versions_delays_the_first_request() -> None:
    harness = ConnectionHarness()
    broker = harness.broker()
    broker.answers[18] = lambda header, message: versions_answer(throttle_time_ms=3000)
    start = harness.now
    await harness.connect()
    assert harness.now - start == pytest.approx(3.0, abs=0.01)
    await harness.close()


@in_virtual_time
async def test_f11_idle_connection_is_closed_silently_and_redialled_without_backoff() -> None:
    harness = ConnectionHarness(connections_max_idle_ms=60_000)
    harness.broker()
    await harness.connect()
    await harness.until(lambda: bool(harness.closed))
    assert harness.closed == [(-1, None)]
    assert harness.disconnects == []
    assert not harness.client.can_send(-1, harness.now)
    assert harness.client.retry_at(-1, harness.now) == harness.now
    start = harness.now
    await harness.connect()
    assert harness.now - start < 0.01
    await harness.close()


@in_virtual_time
async def test_f11_idle_close_can_be_turned_off() -> None:
    harness = ConnectionHarness(connections_max_idle_ms=-1)
    harness.broker()
    await harness.connect()
    await asyncio.sleep(3600.0)
    assert harness.client.ready(-1, harness.now)
    await harness.close()


@in_virtual_time
async def test_f11_connection_reaped_by_the_broker_is_reported() -> None:
    harness = ConnectionHarness()
    broker = harness.broker()
    await harness.connect()
    broker.sessions[0].transport.close()
    await harness.until(lambda: bool(harness.disconnects))
    assert isinstance(harness.disconnects[0][1], Disconnected)
    await harness.close()


@in_virtual_time
async def test_f14_node_that_moved_gets_a_new_connection_and_the_old_one_ends_in_order() -> None:
    harness = ConnectionHarness()
    harness.set_nodes((1, "b", 1))
    old, new = harness.broker("b", 1), harness.broker("c", 1)
    old.silence(3)
    await harness.connect(1)
    pending = harness.send(1)
    await asyncio.sleep(0.01)
    harness.set_nodes((1, "c", 1))
    assert harness.client.in_flight_count(1) == 0
    assert harness.client.total_in_flight() == 1
    assert not harness.client.ready(1, harness.now)
    await harness.until(lambda: harness.client.ready(1, harness.now))
    assert not old.sessions[0].is_lost
    session = old.sessions[0]
    session.reply(session.open[0], MetadataResponse(cluster_id="late"))
    assert (await pending).body.cluster_id == "late"
    await asyncio.sleep(0.01)
    assert current(old.sessions[0].is_lost)
    assert (await harness.send(1)).body.cluster_id == "c:1"
    assert len(new.sessions) == 1
    assert harness.disconnects == []
    await harness.close()


@in_virtual_time
async def test_f14_vanished_node_is_closed_and_unchanged_one_kept() -> None:
    harness = ConnectionHarness()
    b, c = harness.broker("b"), harness.broker("c")
    harness.set_nodes((1, "b", 1), (2, "c", 1))
    await harness.connect(1)
    await harness.connect(2)
    harness.client.set_nodes([Node(2, "c", 1, rack="r")])
    await asyncio.sleep(0.01)
    assert b.sessions[0].is_lost
    assert not c.sessions[0].is_lost
    assert not harness.client.ready(1, harness.now)
    assert harness.client.can_send(2, harness.now)
    assert harness.disconnects == []
    await harness.close()


@in_virtual_time
async def test_f14_moved_node_is_dialled_without_the_old_addresss_backoff() -> None:
    harness = ConnectionHarness()
    harness.set_nodes((1, "b", 1))
    harness.client.ready(1, harness.now)
    await harness.until(lambda: bool(harness.disconnects))
    harness.broker("c")
    harness.set_nodes((1, "c", 1))
    assert harness.client.retry_at(1, harness.now) == harness.now
    await harness.connect(1)
    await harness.close()


@in_virtual_time
async def test_node_that_vanishes_while_dialled_is_given_up_silently() -> None:
    harness = ConnectionHarness()
    harness.network.hang("b", 1)
    harness.set_nodes((1, "b", 1))
    harness.client.ready(1, harness.now)
    await asyncio.sleep(0.1)
    harness.set_nodes((2, "c", 1))
    await asyncio.sleep(0.1)
    assert dial_tasks() == []
    assert harness.disconnects == []
    await harness.close()


@in_virtual_time
async def test_vanished_node_takes_its_throttle_with_it() -> None:
    harness = ConnectionHarness()
    broker = harness.broker("b")
    broker.answers[3] = lambda header, message: MetadataResponse(throttle_time_ms=60_000)
    harness.set_nodes((1, "b", 1))
    await harness.connect(1)
    await harness.send(1)
    harness.set_nodes((2, "c", 1))
    harness.set_nodes((1, "b", 1))
    await harness.connect(1)
    await harness.close()


@in_virtual_time
async def test_throttle_of_a_vanished_nodes_last_answer_does_not_touch_its_successor() -> None:
    harness = ConnectionHarness()
    old = harness.broker("b")
    old.silence(3)
    harness.broker("c")
    harness.set_nodes((1, "b", 1))
    await harness.connect(1)
    pending = harness.send(1)
    await asyncio.sleep(0.01)
    harness.set_nodes((1, "c", 1))
    await harness.connect(1)
    session = old.sessions[0]
    session.reply(session.open[0], MetadataResponse(throttle_time_ms=60_000))
    await pending
    assert harness.client.can_send(1, harness.now)
    await harness.close()


@in_virtual_time
async def test_no_nodes_at_all_means_bootstrap_again() -> None:
    harness = ConnectionHarness()
    harness.broker()
    harness.set_nodes((1, "gone", 1))
    assert not harness.client.ready(-1, harness.now)
    harness.set_nodes()
    await harness.connect(-1)
    await harness.close()


@in_virtual_time
async def test_reset_backoff_allows_a_dial_at_once() -> None:
    harness = ConnectionHarness()
    harness.client.ready(-1, harness.now)
    await harness.until(lambda: bool(harness.disconnects))
    assert harness.client.retry_at(-1, harness.now) > harness.now
    harness.client.reset_backoff()
    assert harness.client.retry_at(-1, harness.now) == harness.now
    await harness.close()


@in_virtual_time
async def test_metadata_callback_may_replace_the_nodes_of_its_own_connection() -> None:
    harness = ConnectionHarness()
    harness.broker("b")
    harness.broker("c")
    await harness.connect(-1)
    done: list[Response] = []

    def on_done(response: Response) -> None:
        done.append(response)
        harness.set_nodes((1, "c", 1))

    harness.slot().send(METADATA, on_done, harness.now, timeout=1.0)
    await harness.until(lambda: bool(done))
    assert done[0].error is None
    await asyncio.sleep(0.01)
    assert len(harness.network.links_to("b", 1)) == 0
    await harness.connect(1)
    await harness.close()


@in_virtual_time
async def test_f65_tls_alert_is_named_and_retried_with_backoff_only() -> None:
    harness = ConnectionHarness()
    broker = harness.broker()
    broker.greeting = bytes.fromhex("15030300020250")
    start = harness.now
    while harness.now - start < 30.0:
        harness.client.ready(-1, harness.now)
        await asyncio.sleep(0.01)
    assert len(harness.network.dials) <= 45
    assert {type(error) for _, error in harness.disconnects} == {DecodeError}
    assert "TLS" in harness.disconnects[0][1].message
    await harness.close()


@in_virtual_time
async def test_f65_server_that_hangs_up_is_named() -> None:
    harness = ConnectionHarness()
    broker = harness.broker()
    broker.greeting = b""
    harness.client.ready(-1, harness.now)
    await harness.until(lambda: bool(harness.disconnects))
    assert "TLS" in harness.disconnects[0][1].message
    await harness.close()


@in_virtual_time
async def test_f65_silent_server_is_given_up_within_the_request_timeout() -> None:
    """As in Java, ApiVersions has the request timeout. If that is smaller than the setup timeout,
    the setup timeout applies."""
    harness = ConnectionHarness()
    harness.broker().silence(18)
    start = harness.now
    harness.client.ready(-1, harness.now)
    await harness.until(lambda: bool(harness.disconnects))
    assert harness.now - start == pytest.approx(30.0, abs=0.01)
    assert isinstance(harness.disconnects[0][1], RequestTimedOut)
    await harness.close()
    harness = ConnectionHarness(request_timeout_ms=1_000, linger_ms=0)
    harness.broker().silence(18)
    start = harness.now
    harness.client.ready(-1, harness.now)
    await harness.until(lambda: bool(harness.disconnects))
    assert 8.0 <= harness.now - start <= 12.0
    assert isinstance(harness.disconnects[0][1], RequestTimedOut)
    await harness.close()


@in_virtual_time
async def test_f66_trickled_answer_times_out() -> None:
    harness = ConnectionHarness()
    broker = harness.broker()
    await harness.connect()
    link = broker.sessions[0].link
    link.down.bytes_per_s = 1.0
    link.down.chunk = 1
    response = await harness.send(timeout=5.0)
    assert isinstance(response.error, RequestTimedOut)
    await harness.close()


@in_virtual_time
async def test_f67_stalled_loop_reads_the_answer_before_it_judges_the_timeout() -> None:
    harness = ConnectionHarness()
    harness.broker()
    await harness.connect()
    done = harness.send(timeout=5.0)
    await asyncio.sleep(0.0006)
    harness.loop.stall(20.0)  # type: ignore[attr-defined]
    response = await done
    assert response.error is None
    assert harness.disconnects == []
    await harness.close()


@in_virtual_time
async def test_f67_request_stuck_behind_a_stall_gets_a_moment_for_its_answer() -> None:
    """The stall delayed the sending of the request, too."""
    harness = ConnectionHarness()
    harness.broker()
    await harness.connect()
    done = harness.send(timeout=5.0)
    harness.loop.stall(20.0)  # type: ignore[attr-defined]
    assert (await done).error is None
    assert harness.disconnects == []
    await harness.close()


@in_virtual_time
async def test_authenticator_is_made_per_connection_and_its_failure_reported() -> None:
    made: list[Node] = []
    refusal = AuthenticationError("wrong password")

    class Mechanism:
        def start(self, versions: Any) -> Any:
            if len(made) == 1:
                raise refusal
            return Authenticated()

        def receive(self, response: Any) -> Any: ...

    def make(node: Node) -> Any:
        made.append(node)
        return Mechanism()

    harness = ConnectionHarness(authenticator=make)
    harness.broker()
    harness.client.ready(-1, harness.now)
    await harness.until(lambda: bool(harness.disconnects))
    assert harness.disconnects == [(-1, refusal)]
    await harness.connect()
    assert made == [Node(-1, "b", 1)] * 2
    await harness.close()


# -- least loaded ---------------------------------------------------------------------------------


@in_virtual_time
async def test_least_loaded_before_any_connection_spreads_over_all_nodes() -> None:
    harness = ConnectionHarness("a:1,b:1,c:1")
    assert {harness.client.least_loaded(harness.now) for _ in range(60)} == {-1, -2, -3}
    await harness.close()


@in_virtual_time
async def test_least_loaded_prefers_sendable_with_fewest_requests() -> None:
    harness = ConnectionHarness("b:1,c:1")
    for host in "bc":
        harness.broker(host).silence(3)
    await harness.connect(-1)
    await harness.connect(-2)
    harness.send(-1, timeout=1.0)
    assert {harness.client.least_loaded(harness.now) for _ in range(20)} == {-2}
    harness.send(-2, timeout=1.0)
    harness.send(-2, timeout=1.0)
    assert {harness.client.least_loaded(harness.now) for _ in range(20)} == {-1}
    await asyncio.sleep(2.0)
    await harness.close()


@in_virtual_time
async def test_least_loaded_prefers_connecting_to_dialable() -> None:
    harness = ConnectionHarness("b:1,c:1")
    harness.network.hang("b", 1)
    harness.client.ready(-1, harness.now)
    assert {harness.client.least_loaded(harness.now) for _ in range(20)} == {-1}
    await asyncio.sleep(1.0)
    assert {harness.client.least_loaded(harness.now) for _ in range(20)} == {-2}, (
        "it takes too long"
    )
    harness.network.hang("c", 1)
    harness.client.ready(-2, harness.now)
    await asyncio.sleep(1.0)
    assert harness.client.least_loaded(harness.now) in {-1, -2}, "better than none"
    await harness.close()


@in_virtual_time
async def test_least_loaded_takes_the_node_tried_longest_ago_whose_backoff_is_over() -> None:
    harness = ConnectionHarness("b:1,c:1")
    harness.client.ready(-1, harness.now)
    await asyncio.sleep(0.01)
    harness.client.ready(-2, harness.now)
    await asyncio.sleep(0.01)
    assert harness.client.least_loaded(harness.now) is None
    await asyncio.sleep(1.0)
    assert {harness.client.least_loaded(harness.now) for _ in range(20)} == {-1}
    await harness.close()


@in_virtual_time
async def test_a_dead_node_dialled_for_its_data_does_not_end_the_search_for_a_living_one() -> None:
    harness = ConnectionHarness("b:1,c:1", reconnect_backoff_ms=1, reconnect_backoff_max_ms=10)
    harness.broker("c")
    for _ in range(40):
        harness.client.ready(-1, harness.now)
        await asyncio.sleep(0.02)
    assert harness.client.least_loaded(harness.now) == -2
    await harness.connect(-2)
    await harness.close()


@in_virtual_time
async def test_search_dials_ten_dead_nodes_a_second() -> None:
    nodes = ",".join(f"b{number}:1" for number in range(30))
    harness = ConnectionHarness(nodes, reconnect_backoff_ms=1, reconnect_backoff_max_ms=10)
    start, dials = harness.now, 0
    while harness.now < start + 0.9:
        chosen = harness.client.least_loaded(harness.now)
        if chosen is not None and harness.client.in_flight_count(chosen) == 0:
            harness.client.ready(chosen, harness.now)
            dials += 1
        await asyncio.sleep(0.01)
    assert dials == 10
    await harness.close()


@in_virtual_time
async def test_least_loaded_is_none_when_all_are_busy() -> None:
    harness = ConnectionHarness(max_in_flight_requests_per_connection=1)
    harness.broker().silence(3)
    await harness.connect()
    harness.send(timeout=1.0)
    assert harness.client.least_loaded(harness.now) is None
    await asyncio.sleep(2.0)
    await harness.close()


# -- closing --------------------------------------------------------------------------------------


@in_virtual_time
async def test_close_fails_open_requests_with_the_given_error_and_leaves_nothing() -> None:
    harness = ConnectionHarness("b:1,c:1")
    broker = harness.broker("b")
    broker.silence(3)
    harness.network.hang("c", 1)
    await harness.connect(-1)
    harness.client.ready(-2, harness.now)
    pending = harness.send(-1)
    reason = KafkaError("stopping", retriable=False)
    await harness.client.close(harness.now + 5.0, reason)
    response = await pending
    assert isinstance(response.error, KafkaError)
    assert response.error.__cause__ is reason
    assert response.maybe_written
    assert dial_tasks() == []
    assert harness.client.total_in_flight() == 0
    assert harness.disconnects == []
    assert not harness.client.ready(-1, harness.now)
    assert not harness.client.can_send(-1, harness.now)
    assert harness.client.least_loaded(harness.now) is None
    assert harness.client.retry_at(-1, harness.now) == math.inf
    harness.set_nodes((5, "z", 1))
    assert harness.client.ready(-1, harness.now) is None


@in_virtual_time
async def test_close_error_defaults_to_producer_closed() -> None:
    harness = ConnectionHarness()
    harness.broker().silence(3)
    await harness.connect()
    pending = harness.send()
    await harness.close()
    response = await pending
    assert isinstance(response.error, ProducerClosed)
    assert response.error.outcome is Outcome.UNKNOWN


@in_virtual_time
async def test_close_is_idempotent_and_may_run_twice_at_once() -> None:
    harness = ConnectionHarness()
    harness.broker()
    await harness.connect()
    await asyncio.gather(harness.close(), harness.close())
    await harness.close()
    assert repr(harness.client).startswith("<NetworkClient closed")


@in_virtual_time
async def test_close_with_no_time_left_still_leaves_nothing() -> None:
    harness = ConnectionHarness("b:1,c:1")
    harness.broker("b").silence(3)
    harness.network.hang("c", 1)
    await harness.connect(-1)
    harness.client.ready(-2, harness.now)
    pending = harness.send(-1)
    start = harness.now
    await harness.client.close(harness.now)
    assert harness.now == start
    assert (await pending).error is not None
    assert dial_tasks() == []


@in_virtual_time
async def test_close_during_a_throttle_leaves_no_timer() -> None:
    harness = ConnectionHarness()
    broker = harness.broker()
    broker.answers[3] = lambda header, message: MetadataResponse(throttle_time_ms=60_000)
    await harness.connect()
    await harness.send()
    await harness.close()


@in_virtual_time
async def test_throttle_told_while_closing_leaves_no_timer() -> None:
    harness = ConnectionHarness()
    harness.broker().silence(3)
    await harness.connect()
    harness.client.connection_throttled(harness.client._brokers[-1].connection, 5.0)  # type: ignore[arg-type]
    await harness.close()
    assert harness.client._throttle_timers == {}


@in_virtual_time
async def test_close_gives_up_on_transports_that_do_not_end() -> None:
    harness = ConnectionHarness()
    broker = harness.broker()
    await harness.connect()
    transport = broker.sessions[0].link.client
    ended: list[str] = []
    abort = transport.abort
    transport.close = lambda: ended.append("close")  # type: ignore[method-assign]
    transport.abort = lambda: (ended.append("abort"), abort())[1]  # type: ignore[method-assign, func-returns-value]
    start = harness.now
    await harness.client.close(harness.now + 5.0)
    assert harness.now - start == pytest.approx(5.0)
    assert ended == ["close", "abort"]


@in_virtual_time
async def test_cancelled_close_drops_the_transports() -> None:
    harness = ConnectionHarness()
    broker = harness.broker()
    await harness.connect()
    transport = broker.sessions[0].link.client
    transport.close = lambda: None  # type: ignore[method-assign]
    closing = asyncio.create_task(harness.close())
    await asyncio.sleep(0.01)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await asyncio.sleep(0.01)
    assert transport.is_lost


@in_virtual_time
async def test_f75_child_process_may_not_use_the_parents_connections() -> None:
    harness = ConnectionHarness()
    harness.broker()
    await harness.connect()
    harness.client._pid = os.getpid() + 1
    sent = harness.network.links[0].up.taken
    with pytest.raises(ForkedProcess):
        harness.send()
    with pytest.raises(ForkedProcess):
        await harness.close()
    with pytest.raises(ForkedProcess):
        harness.set_nodes((1, "c", 1))
    assert harness.network.links[0].up.taken == sent
    harness.client._pid = os.getpid()
    await harness.close()


@in_virtual_time
async def test_f75_child_process_is_told_so_also_if_the_connection_is_full() -> None:
    harness = ConnectionHarness()
    harness.broker()
    await harness.connect()
    while harness.client.ready(-1, harness.now) is not None:
        harness.send()
    harness.client._pid = os.getpid() + 1
    with pytest.raises(ForkedProcess):
        harness.client.ready(-1, harness.now)
    harness.client._pid = os.getpid()
    await harness.close()


@in_virtual_time
async def test_f75_child_process_does_not_dial() -> None:
    harness = ConnectionHarness()
    harness.broker()
    harness.client._pid = os.getpid() + 1
    with pytest.raises(ForkedProcess):
        harness.client.ready(-1, harness.now)
    assert dial_tasks() == []
    harness.client._pid = os.getpid()
    await harness.close()


def test_port_is_satisfied() -> None:
    assert callable(conforms)
