from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import math
import os
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from aiokprod.cluster import Node
from aiokprod.config import ProducerConfig
from aiokprod.engine.ports import BrokerClient
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
from aiokprod.net.client import NetworkClient
from aiokprod.net.in_flight import Response
from aiokprod.net.security import Authenticated
from aiokprod.testing.memory import MemoryNetwork
from aiokprod.testing.virtual import run
from aiokprod.wire.messages.api_versions import ApiVersionsRequest
from aiokprod.wire.messages.metadata import MetadataRequest, MetadataResponse
from aiokprod.wire.messages.produce import ProduceRequest
from tests.net.scripted_broker import METADATA, ScriptedBroker, World
from tests.net.wire_helpers import versions_answer


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in virtual time; leaked tasks, timers and transports fail it."""

    def wrapper() -> None:
        run(test, limit_s=7200.0)

    wrapper.__name__ = test.__name__
    return wrapper


def conforms(client: NetworkClient) -> BrokerClient:
    """mypy proves here that the client satisfies the engine's port."""
    return client


def dial_tasks() -> list[str]:
    return [t.get_name() for t in asyncio.all_tasks() if t.get_name().startswith("aiokprod-")]


# -- connecting -----------------------------------------------------------------------------------


@in_virtual_time
async def test_ready_dials_in_a_named_task_and_turns_true_after_the_handshake():
    world = World("b:1,c:2")
    world.broker()
    assert not world.client.can_send(-1, world.now)
    assert not world.client.ready(-1, world.now)
    assert dial_tasks() == ["aiokprod-dial--1"]
    assert world.client.retry_at(-1, world.now) == math.inf
    assert not world.client.ready(-1, world.now)
    assert world.client.version_range(-1, 3) is None
    await world.until(lambda: world.client.ready(-1, world.now))
    assert dial_tasks() == []
    assert len(world.network.dials) == 1
    assert world.client.version_range(-1, 3) == (0, MetadataRequest.max_version)
    assert world.client.version_range(-1, 999) is None
    assert world.client.version_range(-2, 3) is None
    await world.close()


@in_virtual_time
async def test_constructor_contacts_no_broker():
    world = World()
    world.broker()
    await asyncio.sleep(10.0)
    assert world.network.dials == []
    await world.close()


@in_virtual_time
async def test_can_send_has_no_side_effect():
    world = World()
    world.broker()
    assert not world.client.can_send(-1, world.now)
    await asyncio.sleep(1.0)
    assert world.network.dials == []
    await world.close()


@in_virtual_time
async def test_client_id_and_software_version_are_sent_in_a_form_brokers_accept():
    world = World(client_id="svc", software_version="1.0+local g1")
    broker = world.broker()
    await world.connect()
    header, message = broker.seen[0]
    assert header.client_id == "svc"
    assert isinstance(message, ApiVersionsRequest)
    assert message.client_software_version == "1.0-local-g1"
    await world.close()


@in_virtual_time
async def test_start_to_ready_takes_one_connect_and_one_round_trip():
    world = World()
    world.broker()
    world.network.latency_s = 0.1
    start = world.now
    await world.connect()
    assert world.now - start == pytest.approx(0.4)
    await world.close()


@in_virtual_time
async def test_f7_refused_connects_back_off_exponentially_and_report_each_failure():
    world = World()
    for _ in range(8):
        world.client.ready(-1, world.now)
        await world.until(lambda: world.client.retry_at(-1, world.now) < math.inf)
        await asyncio.sleep(world.client.retry_at(-1, world.now) - world.now)
    times = [dial.time for dial in world.network.dials]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    for gap, base in zip(gaps, (0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0), strict=True):
        assert 0.8 * base <= gap <= min(1.2 * base, 1.0) + 0.01
    assert len(world.disconnects) == 8
    assert all(isinstance(error, DialError) for _, error in world.disconnects)
    assert "b:1" in world.disconnects[0][1].message
    await world.close()


@in_virtual_time
async def test_ready_within_the_backoff_does_not_dial():
    world = World()
    world.client.ready(-1, world.now)
    await world.until(lambda: bool(world.disconnects))
    for _ in range(10):
        assert not world.client.ready(-1, world.now)
    await asyncio.sleep(0.01)
    assert len(world.network.dials) == 1
    retry_at = world.client.retry_at(-1, world.now)
    assert 0.03 < retry_at - world.now < 0.06
    assert world.client.retry_at(-1, retry_at + 5.0) == retry_at + 5.0
    await world.close()


@in_virtual_time
async def test_f7_hanging_connect_ends_with_the_setup_timeout_and_the_next_address_follows():
    world = World("cluster:1")
    world.network.set_name("cluster", ["10.0.0.1", "10.0.0.2"])
    world.broker("10.0.0.2", 1)
    world.network.hang("10.0.0.1", 1)
    start = world.now
    await world.connect()
    assert [dial.address[0] for dial in world.network.dials] == ["10.0.0.1", "10.0.0.2"]
    assert 8.0 <= world.now - start <= 12.1
    assert len(world.network.lookups) == 1
    [(node_id, error)] = world.disconnects
    assert node_id == -1
    assert "setup timeout" in error.message
    await world.close()


@in_virtual_time
async def test_f13_unresolvable_name_is_a_dial_error_and_is_looked_up_each_time():
    world = World("nowhere:1")
    world.network.set_name("nowhere", None)
    for attempt in range(1, 4):
        world.client.ready(-1, world.now)
        await world.until(lambda n=attempt: len(world.disconnects) == n)
        await asyncio.sleep(1.0)
    assert len(world.network.lookups) == 3
    assert "nowhere" in world.disconnects[0][1].message
    assert isinstance(world.disconnects[0][1], DialError)
    await world.close()


@in_virtual_time
async def test_f13_resolver_that_finds_no_address_is_a_dial_error():
    world = World()

    async def nothing(host: str, port: int) -> list[tuple[str, int]]:
        return []

    world.network.resolve = nothing  # type: ignore[method-assign]
    world.client.ready(-1, world.now)
    await world.until(lambda: bool(world.disconnects))
    assert isinstance(world.disconnects[0][1], DialError)
    await world.close()


@in_virtual_time
async def test_f13_hanging_look_up_ends_with_the_setup_timeout():
    world = World("slow:1")
    world.network.hang_name("slow")
    start = world.now
    world.client.ready(-1, world.now)
    await world.until(lambda: bool(world.disconnects))
    assert 8.0 <= world.now - start <= 12.0
    await world.close()


@in_virtual_time
async def test_lost_connection_is_looked_up_again_and_avoids_the_lost_address():
    world = World("cluster:1")
    world.network.set_name("cluster", ["10.0.0.1", "10.0.0.2"])
    first, second = world.broker("10.0.0.1", 1), world.broker("10.0.0.2", 1)
    await world.connect()
    first.sessions[0].link.reset()
    await world.until(lambda: bool(world.disconnects))
    await world.connect()
    assert len(second.sessions) == 1
    assert len(world.network.lookups) == 2
    await world.close()


@in_virtual_time
async def test_f69_foreign_cancellation_of_a_dial_task_counts_as_a_failed_attempt():
    world = World()
    world.broker()
    world.network.hang("b", 1)
    world.client.ready(-1, world.now)
    await asyncio.sleep(0.1)
    for task in asyncio.all_tasks():
        if task.get_name() == "aiokprod-dial--1":
            task.cancel()
    await world.until(lambda: bool(world.disconnects))
    assert isinstance(world.disconnects[0][1], DialError)
    world.network.heal("b", 1)
    await world.connect()
    await world.close()


class ForgetfulTransport(asyncio.Transport):
    """As uvloop's: never tells that it ended if its dial was cancelled after `connection_made`."""

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
    """A peer that accepts and hangs up at once: `close` waited for ever, on uvloop."""

    async def main() -> None:
        world = World()
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

        world.network.connect = connect  # type: ignore[method-assign, assignment]
        assert not world.client.ready(-1, world.now)
        await world.until(lambda: bool(world.closed))
        await asyncio.sleep(1.0)
        start = world.now
        await world.client.close(math.inf)
        assert world.now - start < 0.5
        assert [transport.ended for transport in transports] == [True]
        assert dial_tasks() == []

    run(main, limit_s=7200.0)


@in_virtual_time
async def test_unexpected_exception_of_a_dialer_is_a_failed_attempt():
    world = World()

    async def broken(*args: Any) -> Any:
        raise RuntimeError("bug in a dialer")

    world.network.connect = broken  # type: ignore[method-assign]
    world.client.ready(-1, world.now)
    await world.until(lambda: bool(world.disconnects))
    assert "bug in a dialer" in world.disconnects[0][1].message
    assert isinstance(world.disconnects[0][1].__cause__, RuntimeError)
    await world.close()


class Local:
    """A local variable of the frames of an error."""


def raised(failure: BaseException) -> BaseException:
    """The same error with a traceback, and a frame in it with a local variable."""
    local = Local()
    try:
        raise failure
    except BaseException as error:
        assert local is not None
        return error


def chain_of(count: int, attribute: str) -> list[BaseException]:
    """Raised errors, each the cause or the context of the next."""
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
    "group": lambda: raised(ExceptionGroup("both", chain_of(2, "__cause__"))),
}


@pytest.mark.parametrize("how", CHAINS)
def test_dial_error_of_any_chain_is_a_failed_attempt_and_keeps_no_local_variables(how: str) -> None:
    """The connection keeps the error, and variables of its frames lead back to the connection."""

    async def main() -> None:
        world = World()
        dials = []

        async def broken(*args: Any) -> Any:
            dials.append(None)
            raise CHAINS[how]()

        world.network.connect = broken  # type: ignore[method-assign]
        gc.collect()
        gc.disable()
        try:
            for count in (1, 2):
                world.client.ready(-1, world.now)
                await world.until(lambda n=count: len(world.disconnects) == n)
                await asyncio.sleep(world.client.retry_at(-1, world.now) - world.now)
            assert len(dials) == 2
            assert isinstance(world.disconnects[0][1], DialError)
            assert not any(isinstance(thing, Local) for thing in gc.get_objects())
        finally:
            gc.enable()
        await world.close()

    run(main, limit_s=7200.0)


@in_virtual_time
async def test_observer_hooks_see_every_connection_come_and_go():
    world = World()
    broker = world.broker("b")
    world.broker("c")
    await world.connect()
    assert (world.opened, world.closed) == ([-1], [])
    broker.sessions[0].link.reset()
    await world.until(lambda: bool(world.disconnects))
    assert world.closed == world.disconnects
    await world.connect()
    world.set_nodes((1, "c", 1))
    await world.connect(1)
    assert world.closed[1:] == [(-1, None)]
    await world.close()
    assert world.closed[2:] == [(1, None)]
    assert world.opened == [-1, -1, 1]


@in_virtual_time
async def test_client_works_without_optional_callbacks():
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
async def test_request_is_answered_in_the_highest_shared_version():
    world = World()
    broker = world.broker()
    await world.connect()
    response = await world.send()
    assert response.body.cluster_id == "b:1"
    assert response.version == MetadataRequest.max_version
    assert response.latency == pytest.approx(0.001)
    assert broker.seen[-1][0].request_api_version == MetadataRequest.max_version
    await world.close()


@in_virtual_time
async def test_max_version_caps_the_negotiated_version():
    world = World()
    broker = world.broker()
    await world.connect()
    response = await world.send(max_version=4)
    assert response.version == 4
    assert broker.seen[-1][0].request_api_version == 4
    await world.close()


class MetadataCall:
    """A request whose body depends on the version."""

    api_key = 3

    def __init__(self) -> None:
        self.versions: list[int] = []

    def __call__(self, version: int) -> MetadataRequest:
        self.versions.append(version)
        return METADATA


@in_virtual_time
async def test_callable_request_is_given_the_version():
    world = World()
    world.broker()
    await world.connect()
    call = MetadataCall()
    response = await world.send(request=call)
    assert call.versions == [response.version]
    await world.close()


@in_virtual_time
async def test_callable_request_without_api_key_raises_at_once():
    world = World()
    world.broker()
    await world.connect()
    with pytest.raises(AttributeError, match="api_key"):
        world.send(request=lambda version: METADATA)
    await world.close()


@in_virtual_time
async def test_unsupported_version_ends_the_request_later_and_leaves_the_connection():
    world = World()
    broker = world.broker()
    broker.answers[18] = lambda header, message: versions_answer({18: (0, 4), 3: (0, 5)})
    await world.connect()
    done = world.send(request=ProduceRequest(acks=1, timeout_ms=1))
    assert not done.done()
    response = await done
    assert isinstance(response.error, UnsupportedVersion)
    assert response.error.outcome is Outcome.NOT_SENT
    assert (response.version, response.maybe_written) == (-1, False)
    assert (await world.send()).version == 5
    await world.close()


@in_virtual_time
async def test_request_that_cannot_be_encoded_ends_as_not_sent():
    world = World()
    world.broker()
    await world.connect()
    response = await world.send(request=MetadataRequest(topics=3))  # type: ignore[arg-type]
    assert isinstance(response.error, ProtocolError)
    assert response.error.outcome is Outcome.NOT_SENT
    assert response.version == MetadataRequest.max_version
    assert not response.maybe_written
    assert (response.latency, response.throttle_ms) == (0.0, 0)
    assert (await world.send()).error is None
    await world.close()


@in_virtual_time
async def test_send_to_a_node_that_is_not_ready_raises():
    world = World(max_in_flight_requests_per_connection=1)
    broker = world.broker()
    with pytest.raises(NotReady):
        world.send()
    with pytest.raises(NotReady):
        world.send(17)
    await world.connect()
    broker.silence(3)
    world.send(timeout=1.0)
    with pytest.raises(NotReady):
        world.send()
    assert world.client.retry_at(-1, world.now) == math.inf
    await asyncio.sleep(2.0)
    await world.close()


@in_virtual_time
async def test_unknown_node_is_never_ready():
    world = World()
    assert not world.client.ready(7, world.now)
    assert world.client.retry_at(7, world.now) == math.inf
    assert world.client.in_flight_count(7) == 0
    assert world.client.version_range(7, 3) is None
    await world.close()


@in_virtual_time
async def test_in_flight_is_counted_per_node_and_in_total():
    world = World("b:1,c:1")
    for host in "bc":
        world.broker(host).silence(3)
    await world.connect(-1)
    await world.connect(-2)
    world.send(-1, timeout=1.0)
    world.send(-2, timeout=1.0)
    world.send(-2, timeout=1.0)
    assert world.client.in_flight_count(-1) == 1
    assert world.client.in_flight_count(-2) == 2
    assert world.client.total_in_flight() == 3
    await asyncio.sleep(2.0)
    assert world.client.total_in_flight() == 0
    await world.close()


@in_virtual_time
async def test_acks_0_request_ends_without_body():
    world = World()
    broker = world.broker()
    broker.silence(0)
    await world.connect()
    response = await world.send(request=ProduceRequest(acks=0, timeout_ms=1), expect_response=False)
    assert (response.body, response.error) == (None, None)
    assert world.client.total_in_flight() == 0
    assert (await world.send()).error is None
    await world.close()


@in_virtual_time
async def test_raising_callback_is_reported_and_the_client_goes_on():
    world = World()
    broker = world.broker()
    broker.answers[18] = lambda header, message: versions_answer({18: (0, 4), 3: (0, 5)})
    await world.connect()

    def bad(response: Response) -> None:
        raise RuntimeError(str(response.version))

    world.client.send(-1, METADATA, bad, world.now, timeout=1.0)
    world.client.send(-1, ProduceRequest(acks=1, timeout_ms=1), bad, world.now, timeout=1.0)
    assert (await world.send()).error is None
    assert [str(error) for error in world.callback_errors] == ["-1", "5"]
    await world.close()


def test_raising_callback_reaches_the_loops_exception_handler_by_default():
    seen: list[dict[str, Any]] = []

    async def main() -> None:
        world = World()
        world.client._on_callback_error = None
        world.broker()
        await world.connect()
        world.loop.set_exception_handler(lambda loop, context: seen.append(context))

        def bad(response: Response) -> None:
            raise RuntimeError("bug above")

        world.client.send(-1, METADATA, bad, world.now, timeout=1.0)
        assert (await world.send()).error is None
        await world.close()

    run(main)
    assert [str(context["exception"]) for context in seen] == ["bug above"]


# -- faults ---------------------------------------------------------------------------------------


@in_virtual_time
async def test_f1_killed_broker_fails_requests_and_is_dialled_again_after_the_backoff():
    world = World()
    broker = world.broker()
    broker.silence(3)
    await world.connect()
    first, second = world.send(), world.send()
    await asyncio.sleep(0.01)
    broker.stop()
    for done in (first, second):
        response = await done
        assert isinstance(response.error, Disconnected)
        assert response.maybe_written
    assert [node_id for node_id, _ in world.disconnects] == [-1]
    assert not world.client.ready(-1, world.now)
    broker.start()
    await world.connect()
    await world.close()


def test_broker_that_is_away_is_warned_of_twice_a_minute_and_after_each_connection(caplog):
    caplog.set_level(logging.DEBUG)
    at: list[tuple[float, int]] = []

    async def main() -> None:
        world = World()
        broker = world.broker()

        def note(record: logging.LogRecord) -> bool:
            if record.getMessage().startswith("connection closed ("):
                at.append((round(world.now - start), record.levelno))
            return True

        caplog.handler.addFilter(note)
        for up_at in (0.0, 45.0):
            await world.connect()
            broker.stop()
            start = world.now - up_at
            while world.now < start + up_at + 40.0:
                world.client.ready(-1, world.now)
                await asyncio.sleep(0.5)
            broker.start()
        caplog.handler.removeFilter(note)
        await world.close()

    run(main, limit_s=7200.0)
    assert [second for second, level in at if level == logging.INFO] == [0, 45]
    first, *others = [second for second, level in at if level == logging.WARNING]
    assert first <= 2
    assert [second - first for second in others] == [30, 45, 75]
    assert len([level for _, level in at if level == logging.DEBUG]) > 40


@in_virtual_time
async def test_f4_answer_cut_in_the_middle_is_dropped_with_its_connection():
    world = World()
    broker = world.broker()
    await world.connect()
    link = broker.sessions[0].link
    link.down.cut_at = link.down.delivered + 9
    response = await world.send()
    assert isinstance(response.error, Disconnected)
    assert response.maybe_written
    await world.connect()
    assert (await world.send()).body.cluster_id == "b:1"
    await world.close()


@in_virtual_time
async def test_f5_blackhole_closes_after_the_request_timeout():
    world = World()
    broker = world.broker()
    await world.connect()
    broker.sessions[0].link.blackhole()
    start = world.now
    response = await world.send(timeout=30.0)
    assert isinstance(response.error, RequestTimedOut)
    assert response.maybe_written
    assert world.now - start == pytest.approx(30.0, abs=0.01)
    assert isinstance(world.disconnects[0][1], RequestTimedOut)
    await world.connect()
    assert (await world.send()).error is None
    await world.close()


@in_virtual_time
async def test_f6_paused_broker_that_wakes_late_has_its_answers_ignored():
    world = World()
    broker = world.broker()
    await world.connect()
    link = broker.sessions[0].link
    link.blackhole()
    response = await world.send(timeout=30.0)
    assert isinstance(response.error, RequestTimedOut)
    await asyncio.sleep(5.0)
    link.heal()
    await asyncio.sleep(5.0)
    await world.connect()
    assert (await world.send()).error is None
    await world.close()


@in_virtual_time
async def test_f8_slow_broker_does_not_hold_up_another_one():
    world = World("b:1,c:1")
    world.broker("b")
    world.broker("c").silence(3)
    await world.connect(-1)
    await world.connect(-2)
    slow = world.send(-2, timeout=20.0)
    for _ in range(20):
        assert (await world.send(-1)).error is None
    assert not slow.done()
    await slow
    await world.close()


@in_virtual_time
async def test_f9_throttled_node_is_quiet_for_the_time_given_and_others_are_not():
    world = World("b:1,c:1")
    broker = world.broker("b")
    world.broker("c")
    await world.connect(-1)
    await world.connect(-2)
    broker.answers[3] = lambda header, message: MetadataResponse(throttle_time_ms=2000)
    response = await world.send(-1)
    assert response.throttle_ms == 2000
    start = world.now
    assert not world.client.can_send(-1, start)
    assert world.client.can_send(-2, start)
    assert world.client.retry_at(-1, start) == pytest.approx(start + 2.0)
    assert world.throttles == [(-1, 2.0)]
    for _ in range(20):
        assert world.client.least_loaded(start) == -2
    world.wakeup.clear()
    await world.wakeup.wait()
    assert world.now == pytest.approx(start + 2.0)
    assert world.client.ready(-1, world.now)
    await world.close()


@in_virtual_time
async def test_f9_smaller_throttle_does_not_shorten_a_longer_one():
    world = World()
    broker = world.broker()
    broker.silence(3)
    await world.connect()
    first, second = world.send(), world.send()
    await asyncio.sleep(0.01)
    session = broker.sessions[0]
    session.reply(session.open[0], MetadataResponse(throttle_time_ms=5000))
    session.reply(session.open[1], MetadataResponse(throttle_time_ms=10))
    await first
    await second
    assert world.client.retry_at(-1, world.now) == pytest.approx(world.now + 5.0)
    await world.close()


@in_virtual_time
async def test_f9_throttle_of_any_length_is_waited_out():
    """A byte quota of 1 KiB/s asks 967 s for one request of 1 MB."""
    world = World()
    broker = world.broker()
    await world.connect()
    broker.answers[3] = lambda header, message: MetadataResponse(throttle_time_ms=966_851)
    await world.send()
    start = world.now
    await asyncio.sleep(966.8)
    assert not world.client.ready(-1, world.now)
    await world.connect()
    assert world.now - start == pytest.approx(966.851)
    broker.answers[3] = lambda header, message: MetadataResponse(throttle_time_ms=2**31 - 1)
    await world.send()
    assert world.client.retry_at(-1, world.now) == pytest.approx(world.now + (2**31 - 1) / 1000)
    await asyncio.sleep(3600.0)
    assert not world.client.ready(-1, world.now)
    assert world.disconnects == []
    await world.close()


@in_virtual_time
async def test_f9_throttles_of_several_answers_move_a_deadline_by_their_union():
    """Five answers that say 300 s mean that the broker reads nothing for 300 s, not for 1,500."""
    world = World()
    broker = world.broker()
    broker.silence(3)
    await world.connect()
    start = world.now
    requests = [world.send(timeout=10.0) for _ in range(5)]
    session = broker.sessions[0]
    for index in range(4):
        await asyncio.sleep(1.0)
        session.reply(session.open[index], MetadataResponse(throttle_time_ms=300_000 - index))
    response = await requests[-1]
    assert isinstance(response.error, RequestTimedOut)
    # Throttled from 1 s to 304 s after the start, less 3 ms.
    assert world.now - start == pytest.approx(10.0 + 303.0 - 0.003, abs=0.01)
    await world.close()


@in_virtual_time
async def test_f9_throttle_survives_a_reconnect():
    world = World()
    broker = world.broker()
    broker.answers[3] = lambda header, message: MetadataResponse(throttle_time_ms=5000)
    await world.connect()
    await world.send()
    start = world.now
    broker.sessions[0].link.reset()
    await world.until(lambda: bool(world.disconnects))
    await world.connect()
    assert world.now == pytest.approx(start + 5.0)
    await world.close()


@in_virtual_time
async def test_f9_request_timeout_excludes_the_throttle():
    world = World()
    broker = world.broker()
    broker.silence(3)
    await world.connect()
    start = world.now
    first, second = world.send(timeout=10.0), world.send(timeout=10.0)
    await asyncio.sleep(1.0)
    session = broker.sessions[0]
    session.reply(session.open[0], MetadataResponse(throttle_time_ms=20_000))
    await first
    response = await second
    assert isinstance(response.error, RequestTimedOut)
    assert world.now - start == pytest.approx(30.0, abs=0.01)
    await world.close()


@in_virtual_time
async def test_f9_throttle_told_with_the_versions_delays_the_first_request():
    world = World()
    broker = world.broker()
    broker.answers[18] = lambda header, message: versions_answer(throttle_time_ms=3000)
    start = world.now
    await world.connect()
    assert world.now - start == pytest.approx(3.0, abs=0.01)
    await world.close()


@in_virtual_time
async def test_f11_idle_connection_is_closed_silently_and_redialled_without_backoff():
    world = World(connections_max_idle_ms=60_000)
    world.broker()
    await world.connect()
    await world.until(lambda: bool(world.closed))
    assert world.closed == [(-1, None)]
    assert world.disconnects == []
    assert not world.client.can_send(-1, world.now)
    assert world.client.retry_at(-1, world.now) == world.now
    start = world.now
    await world.connect()
    assert world.now - start < 0.01
    await world.close()


@in_virtual_time
async def test_f11_idle_close_can_be_turned_off():
    world = World(connections_max_idle_ms=-1)
    world.broker()
    await world.connect()
    await asyncio.sleep(3600.0)
    assert world.client.ready(-1, world.now)
    await world.close()


@in_virtual_time
async def test_f11_connection_reaped_by_the_broker_is_reported():
    world = World()
    broker = world.broker()
    await world.connect()
    broker.sessions[0].transport.close()
    await world.until(lambda: bool(world.disconnects))
    assert isinstance(world.disconnects[0][1], Disconnected)
    await world.close()


@in_virtual_time
async def test_f14_node_that_moved_gets_a_new_connection_and_the_old_one_ends_in_order():
    world = World()
    world.set_nodes((1, "b", 1))
    old, new = world.broker("b", 1), world.broker("c", 1)
    old.silence(3)
    await world.connect(1)
    pending = world.send(1)
    await asyncio.sleep(0.01)
    world.set_nodes((1, "c", 1))
    assert world.client.in_flight_count(1) == 0
    assert world.client.total_in_flight() == 1
    assert not world.client.ready(1, world.now)
    await world.until(lambda: world.client.ready(1, world.now))
    assert not old.sessions[0].is_lost
    session = old.sessions[0]
    session.reply(session.open[0], MetadataResponse(cluster_id="late"))
    assert (await pending).body.cluster_id == "late"
    await asyncio.sleep(0.01)
    assert old.sessions[0].is_lost
    assert (await world.send(1)).body.cluster_id == "c:1"
    assert len(new.sessions) == 1
    assert world.disconnects == []
    await world.close()


@in_virtual_time
async def test_f14_vanished_node_is_closed_and_unchanged_one_kept():
    world = World()
    b, c = world.broker("b"), world.broker("c")
    world.set_nodes((1, "b", 1), (2, "c", 1))
    await world.connect(1)
    await world.connect(2)
    world.client.set_nodes([Node(2, "c", 1, rack="r")])
    await asyncio.sleep(0.01)
    assert b.sessions[0].is_lost
    assert not c.sessions[0].is_lost
    assert not world.client.ready(1, world.now)
    assert world.client.can_send(2, world.now)
    assert world.disconnects == []
    await world.close()


@in_virtual_time
async def test_f14_moved_node_is_dialled_without_the_old_addresss_backoff():
    world = World()
    world.set_nodes((1, "b", 1))
    world.client.ready(1, world.now)
    await world.until(lambda: bool(world.disconnects))
    world.broker("c")
    world.set_nodes((1, "c", 1))
    assert world.client.retry_at(1, world.now) == world.now
    await world.connect(1)
    await world.close()


@in_virtual_time
async def test_node_that_vanishes_while_dialled_is_given_up_silently():
    world = World()
    world.network.hang("b", 1)
    world.set_nodes((1, "b", 1))
    world.client.ready(1, world.now)
    await asyncio.sleep(0.1)
    world.set_nodes((2, "c", 1))
    await asyncio.sleep(0.1)
    assert dial_tasks() == []
    assert world.disconnects == []
    await world.close()


@in_virtual_time
async def test_vanished_node_takes_its_throttle_with_it():
    world = World()
    broker = world.broker("b")
    broker.answers[3] = lambda header, message: MetadataResponse(throttle_time_ms=60_000)
    world.set_nodes((1, "b", 1))
    await world.connect(1)
    await world.send(1)
    world.set_nodes((2, "c", 1))
    world.set_nodes((1, "b", 1))
    await world.connect(1)
    await world.close()


@in_virtual_time
async def test_throttle_of_a_vanished_nodes_last_answer_does_not_touch_its_successor():
    world = World()
    old = world.broker("b")
    old.silence(3)
    world.broker("c")
    world.set_nodes((1, "b", 1))
    await world.connect(1)
    pending = world.send(1)
    await asyncio.sleep(0.01)
    world.set_nodes((1, "c", 1))
    await world.connect(1)
    session = old.sessions[0]
    session.reply(session.open[0], MetadataResponse(throttle_time_ms=60_000))
    await pending
    assert world.client.can_send(1, world.now)
    await world.close()


@in_virtual_time
async def test_no_nodes_at_all_means_bootstrap_again():
    world = World()
    world.broker()
    world.set_nodes((1, "gone", 1))
    assert not world.client.ready(-1, world.now)
    world.set_nodes()
    await world.connect(-1)
    await world.close()


@in_virtual_time
async def test_reset_backoff_allows_a_dial_at_once():
    world = World()
    world.client.ready(-1, world.now)
    await world.until(lambda: bool(world.disconnects))
    assert world.client.retry_at(-1, world.now) > world.now
    world.client.reset_backoff()
    assert world.client.retry_at(-1, world.now) == world.now
    await world.close()


@in_virtual_time
async def test_metadata_callback_may_replace_the_nodes_of_its_own_connection():
    world = World()
    world.broker("b")
    world.broker("c")
    await world.connect(-1)
    done: list[Response] = []

    def on_done(response: Response) -> None:
        done.append(response)
        world.set_nodes((1, "c", 1))

    world.client.send(-1, METADATA, on_done, world.now, timeout=1.0)
    await world.until(lambda: bool(done))
    assert done[0].error is None
    await asyncio.sleep(0.01)
    assert len(world.network.links_to("b", 1)) == 0
    await world.connect(1)
    await world.close()


@in_virtual_time
async def test_f65_tls_alert_is_named_and_retried_with_backoff_only():
    world = World()
    broker = world.broker()
    broker.greeting = bytes.fromhex("15030300020250")
    start = world.now
    while world.now - start < 30.0:
        world.client.ready(-1, world.now)
        await asyncio.sleep(0.01)
    assert len(world.network.dials) <= 45
    assert {type(error) for _, error in world.disconnects} == {DecodeError}
    assert "TLS" in world.disconnects[0][1].message
    await world.close()


@in_virtual_time
async def test_f65_server_that_hangs_up_is_named():
    world = World()
    broker = world.broker()
    broker.greeting = b""
    world.client.ready(-1, world.now)
    await world.until(lambda: bool(world.disconnects))
    assert "TLS" in world.disconnects[0][1].message
    await world.close()


@in_virtual_time
async def test_f65_silent_server_is_given_up_within_the_request_timeout():
    """Java gives ApiVersions the request timeout; with a smaller one the setup timeout counts."""
    world = World()
    world.broker().silence(18)
    start = world.now
    world.client.ready(-1, world.now)
    await world.until(lambda: bool(world.disconnects))
    assert world.now - start == pytest.approx(30.0, abs=0.01)
    assert isinstance(world.disconnects[0][1], RequestTimedOut)
    await world.close()
    world = World(request_timeout_ms=1_000, linger_ms=0)
    world.broker().silence(18)
    start = world.now
    world.client.ready(-1, world.now)
    await world.until(lambda: bool(world.disconnects))
    assert 8.0 <= world.now - start <= 12.0
    assert isinstance(world.disconnects[0][1], RequestTimedOut)
    await world.close()


@in_virtual_time
async def test_f66_trickled_answer_times_out():
    world = World()
    broker = world.broker()
    await world.connect()
    link = broker.sessions[0].link
    link.down.bytes_per_s = 1.0
    link.down.chunk = 1
    response = await world.send(timeout=5.0)
    assert isinstance(response.error, RequestTimedOut)
    await world.close()


@in_virtual_time
async def test_f67_stalled_loop_reads_the_answer_before_it_judges_the_timeout():
    world = World()
    world.broker()
    await world.connect()
    done = world.send(timeout=5.0)
    await asyncio.sleep(0.0006)
    world.loop.stall(20.0)  # type: ignore[attr-defined]
    response = await done
    assert response.error is None
    assert world.disconnects == []
    await world.close()


@in_virtual_time
async def test_f67_request_stuck_behind_a_stall_gets_a_moment_for_its_answer():
    """The stall held up the request as much as the answer."""
    world = World()
    world.broker()
    await world.connect()
    done = world.send(timeout=5.0)
    world.loop.stall(20.0)  # type: ignore[attr-defined]
    assert (await done).error is None
    assert world.disconnects == []
    await world.close()


@in_virtual_time
async def test_authenticator_is_made_per_connection_and_its_failure_reported():
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

    world = World(authenticator=make)
    world.broker()
    world.client.ready(-1, world.now)
    await world.until(lambda: bool(world.disconnects))
    assert world.disconnects == [(-1, refusal)]
    await world.connect()
    assert made == [Node(-1, "b", 1)] * 2
    await world.close()


# -- least loaded ---------------------------------------------------------------------------------


@in_virtual_time
async def test_least_loaded_before_any_connection_spreads_over_all_nodes():
    world = World("a:1,b:1,c:1")
    assert {world.client.least_loaded(world.now) for _ in range(60)} == {-1, -2, -3}
    await world.close()


@in_virtual_time
async def test_least_loaded_prefers_sendable_with_fewest_requests():
    world = World("b:1,c:1")
    for host in "bc":
        world.broker(host).silence(3)
    await world.connect(-1)
    await world.connect(-2)
    world.send(-1, timeout=1.0)
    assert {world.client.least_loaded(world.now) for _ in range(20)} == {-2}
    world.send(-2, timeout=1.0)
    world.send(-2, timeout=1.0)
    assert {world.client.least_loaded(world.now) for _ in range(20)} == {-1}
    await asyncio.sleep(2.0)
    await world.close()


@in_virtual_time
async def test_least_loaded_prefers_connecting_to_dialable():
    world = World("b:1,c:1")
    world.network.hang("b", 1)
    world.client.ready(-1, world.now)
    assert {world.client.least_loaded(world.now) for _ in range(20)} == {-1}
    await asyncio.sleep(1.0)
    assert {world.client.least_loaded(world.now) for _ in range(20)} == {-2}, "it takes too long"
    world.network.hang("c", 1)
    world.client.ready(-2, world.now)
    await asyncio.sleep(1.0)
    assert world.client.least_loaded(world.now) in {-1, -2}, "better than none"
    await world.close()


@in_virtual_time
async def test_least_loaded_takes_the_node_tried_longest_ago_whose_backoff_is_over():
    world = World("b:1,c:1")
    world.client.ready(-1, world.now)
    await asyncio.sleep(0.01)
    world.client.ready(-2, world.now)
    await asyncio.sleep(0.01)
    assert world.client.least_loaded(world.now) is None
    await asyncio.sleep(1.0)
    assert {world.client.least_loaded(world.now) for _ in range(20)} == {-1}
    await world.close()


@in_virtual_time
async def test_a_dead_node_that_is_dialled_for_its_data_does_not_end_the_search_for_a_living_one():
    world = World("b:1,c:1", reconnect_backoff_ms=1, reconnect_backoff_max_ms=10)
    world.broker("c")
    for _ in range(40):
        world.client.ready(-1, world.now)
        await asyncio.sleep(0.02)
    assert world.client.least_loaded(world.now) == -2
    await world.connect(-2)
    await world.close()


@in_virtual_time
async def test_search_dials_ten_dead_nodes_a_second():
    nodes = ",".join(f"b{number}:1" for number in range(30))
    world = World(nodes, reconnect_backoff_ms=1, reconnect_backoff_max_ms=10)
    start, dials = world.now, 0
    while world.now < start + 0.9:
        chosen = world.client.least_loaded(world.now)
        if chosen is not None and world.client.in_flight_count(chosen) == 0:
            world.client.ready(chosen, world.now)
            dials += 1
        await asyncio.sleep(0.01)
    assert dials == 10
    await world.close()


@in_virtual_time
async def test_least_loaded_is_none_when_all_are_busy():
    world = World(max_in_flight_requests_per_connection=1)
    world.broker().silence(3)
    await world.connect()
    world.send(timeout=1.0)
    assert world.client.least_loaded(world.now) is None
    await asyncio.sleep(2.0)
    await world.close()


# -- closing --------------------------------------------------------------------------------------


@in_virtual_time
async def test_close_fails_open_requests_with_the_given_error_and_leaves_nothing():
    world = World("b:1,c:1")
    broker = world.broker("b")
    broker.silence(3)
    world.network.hang("c", 1)
    await world.connect(-1)
    world.client.ready(-2, world.now)
    pending = world.send(-1)
    reason = KafkaError("stopping", retriable=False)
    await world.client.close(world.now + 5.0, reason)
    response = await pending
    assert isinstance(response.error, KafkaError)
    assert response.error.__cause__ is reason
    assert response.maybe_written
    assert dial_tasks() == []
    assert world.client.total_in_flight() == 0
    assert world.disconnects == []
    assert not world.client.ready(-1, world.now)
    assert not world.client.can_send(-1, world.now)
    assert world.client.least_loaded(world.now) is None
    assert world.client.retry_at(-1, world.now) == math.inf
    world.set_nodes((5, "z", 1))
    with pytest.raises(ProducerClosed):
        world.send(-1)


@in_virtual_time
async def test_close_error_defaults_to_producer_closed():
    world = World()
    world.broker().silence(3)
    await world.connect()
    pending = world.send()
    await world.close()
    response = await pending
    assert isinstance(response.error, ProducerClosed)
    assert response.error.outcome is Outcome.UNKNOWN


@in_virtual_time
async def test_close_is_idempotent_and_may_run_twice_at_once():
    world = World()
    world.broker()
    await world.connect()
    await asyncio.gather(world.close(), world.close())
    await world.close()
    assert repr(world.client).startswith("<NetworkClient closed")


@in_virtual_time
async def test_close_with_no_time_left_still_leaves_nothing():
    world = World("b:1,c:1")
    world.broker("b").silence(3)
    world.network.hang("c", 1)
    await world.connect(-1)
    world.client.ready(-2, world.now)
    pending = world.send(-1)
    start = world.now
    await world.client.close(world.now)
    assert world.now == start
    assert (await pending).error is not None
    assert dial_tasks() == []


@in_virtual_time
async def test_close_during_a_throttle_leaves_no_timer():
    world = World()
    broker = world.broker()
    broker.answers[3] = lambda header, message: MetadataResponse(throttle_time_ms=60_000)
    await world.connect()
    await world.send()
    await world.close()


@in_virtual_time
async def test_throttle_told_while_closing_leaves_no_timer():
    world = World()
    world.broker().silence(3)
    await world.connect()
    world.client.connection_throttled(world.client._brokers[-1].connection, 5.0)  # type: ignore[arg-type]
    await world.close()
    assert world.client._throttle_timers == {}


@in_virtual_time
async def test_close_gives_up_on_transports_that_do_not_end():
    world = World()
    broker = world.broker()
    await world.connect()
    transport = broker.sessions[0].link.client
    ended: list[str] = []
    abort = transport.abort
    transport.close = lambda: ended.append("close")  # type: ignore[method-assign]
    transport.abort = lambda: (ended.append("abort"), abort())[1]  # type: ignore[method-assign, func-returns-value]
    start = world.now
    await world.client.close(world.now + 5.0)
    assert world.now - start == pytest.approx(5.0)
    assert ended == ["close", "abort"]


@in_virtual_time
async def test_cancelled_close_drops_the_transports():
    world = World()
    broker = world.broker()
    await world.connect()
    transport = broker.sessions[0].link.client
    transport.close = lambda: None  # type: ignore[method-assign]
    closing = asyncio.create_task(world.close())
    await asyncio.sleep(0.01)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await asyncio.sleep(0.01)
    assert transport.is_lost


@in_virtual_time
async def test_f75_child_process_may_not_use_the_parents_connections():
    world = World()
    world.broker()
    await world.connect()
    world.client._pid = os.getpid() + 1
    sent = world.network.links[0].up.taken
    with pytest.raises(ForkedProcess):
        world.send()
    with pytest.raises(ForkedProcess):
        await world.close()
    with pytest.raises(ForkedProcess):
        world.set_nodes((1, "c", 1))
    assert world.network.links[0].up.taken == sent
    world.client._pid = os.getpid()
    await world.close()


@in_virtual_time
async def test_f75_child_process_does_not_dial():
    world = World()
    world.broker()
    world.client._pid = os.getpid() + 1
    with pytest.raises(ForkedProcess):
        world.client.ready(-1, world.now)
    assert dial_tasks() == []
    world.client._pid = os.getpid()
    await world.close()


def test_port_is_satisfied():
    assert callable(conforms)
