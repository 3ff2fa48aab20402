"""Log records about connections, and errors about a broker that was connected before."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from aiokprod._net.connection_log import ConnectionLog
from aiokprod._net.dialer import HandshakeEnded
from aiokprod.errors import Disconnected, KafkaError, RequestTimedOut
from aiokprod.testing.memory import MemoryNetwork
from tests.net.scripted_broker import ConnectionHarness
from tests.virtual_time import in_virtual_time

API_VERSIONS = 18
GUESS = "is the port a TLS"


class EndsHandshakes(MemoryNetwork):
    """A network whose listeners end every TLS handshake."""

    async def resolve(self, host: str, port: int) -> list[tuple[str, int]]:
        return [(host, port)]

    async def connect(self, *arguments: Any, **options: Any) -> Any:
        raise HandshakeEnded("b:1 ended the connection during the TLS handshake")


class Log(logging.Handler):
    """Collects the log records of `_net.connection_log`."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def levels(self, event: str) -> list[int]:
        return [r.levelno for r in self.records if vars(r)["kafka_event"] == event]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Log:
    caplog.set_level(logging.DEBUG)
    handler = Log()

    def note(record: logging.LogRecord) -> bool:
        handler.emit(record)
        return True

    caplog.handler.addFilter(note)
    return handler


async def dial_for(harness: ConnectionHarness, seconds: float, nodes: tuple[int, ...]) -> None:
    end = harness.now + seconds
    while harness.now < end:
        for node_id in nodes:
            harness.client.ready(node_id, harness.now)
        await asyncio.sleep(0.5)


def net_records(log: Log) -> Log:
    found = Log()
    found.records = [r for r in log.records if r.name == "aiokprod._net.connection_log"]
    return found


@in_virtual_time
async def test_brokers_that_were_never_connected_are_warned_of_twice_a_minute(log: Log) -> None:
    harness = ConnectionHarness("b:1,c:2,d:3")
    await dial_for(harness, 65.0, (-1, -2, -3))
    await harness.close()
    levels = net_records(log).levels("connection_closed")
    assert levels.count(logging.WARNING) == 3
    texts = [record.getMessage() for record in net_records(log).records]
    assert any(text.startswith("could not connect: ") for text in texts)
    assert not any("connection closed" in text for text in texts)
    assert levels.count(logging.DEBUG) > 100
    assert harness.client.log.warned_at > 0


@in_virtual_time
async def test_broker_that_goes_away_is_not_warned_of(log: Log) -> None:
    harness = ConnectionHarness()
    broker = harness.broker()
    for _ in range(2):
        await harness.connect()
        broker.stop()
        await dial_for(harness, 40.0, (-1,))
        broker.start()
    await harness.close()
    own = net_records(log)
    assert set(own.levels("connection_closed")) == {logging.DEBUG}
    assert own.levels("connected") == [logging.INFO, logging.DEBUG]
    fields = vars(own.records[-1])
    assert (fields["kafka_node_id"], fields["kafka_host"], fields["kafka_port"]) == (-1, "b", 1)
    assert fields["kafka_reason"] == "never_connected"
    assert fields["kafka_error"] == "DialError"


async def error_of_next_attempt(harness: ConnectionHarness) -> KafkaError:
    count = len(harness.disconnects)
    while len(harness.disconnects) == count:
        harness.client.ready(-1, harness.now)
        await asyncio.sleep(0.1)
    return harness.disconnects[-1][1]


@pytest.mark.parametrize("connected_before", [False, True])
@in_virtual_time
async def test_broker_that_does_not_answer_is_not_asked_for_tls_if_it_was_connected(
    connected_before: bool,
) -> None:
    harness = ConnectionHarness(request_timeout_ms=2_000)
    broker = harness.broker()
    if connected_before:
        await harness.connect()
        broker.stop()
        broker.start()
        await harness.until(lambda: harness.disconnects)
    broker.silence(API_VERSIONS)
    error = await error_of_next_attempt(harness)
    assert isinstance(error, RequestTimedOut)
    assert (GUESS in error.message) is not connected_before
    await harness.close()


@pytest.mark.parametrize("connected_before", [False, True])
@in_virtual_time
async def test_broker_that_hangs_up_is_not_asked_for_tls_if_it_was_connected(
    connected_before: bool,
) -> None:
    harness = ConnectionHarness()
    broker = harness.broker()
    if connected_before:
        await harness.connect()
        broker.stop()
        broker.start()
        await harness.until(lambda: harness.disconnects)
    broker.silence(API_VERSIONS)
    asyncio.get_running_loop().call_later(1.0, broker.stop)
    error = await error_of_next_attempt(harness)
    assert isinstance(error, Disconnected)
    assert "before responding to ApiVersions" in error.message
    assert (GUESS in error.message) is not connected_before
    await harness.close()


@pytest.mark.parametrize("connected_before", [False, True])
@in_virtual_time
async def test_end_of_a_tls_handshake_is_explained_unless_it_succeeded_before(
    connected_before: bool,
) -> None:
    harness = ConnectionHarness()
    broker = harness.broker()
    if connected_before:
        await harness.connect()
        broker.stop()
        await harness.until(lambda: harness.disconnects)

    harness.client._dials._dialer = EndsHandshakes()
    error = await error_of_next_attempt(harness)
    assert ("is the port a plaintext listener?" in error.message) is not connected_before
    await harness.close()


def test_connections_that_are_dropped_are_counted(log: Log) -> None:
    ConnectionLog("orders").dropped(2)
    (record,) = log.records
    assert record.levelno == logging.WARNING
    assert (vars(record)["kafka_connections"], vars(record)["kafka_client_id"]) == (2, "orders")


def test_number_of_known_addresses_is_limited() -> None:
    log = ConnectionLog("c")

    def connected(number: int) -> None:
        connection: Any = SimpleNamespace(
            address=("b", number), node_id=number, channel=SimpleNamespace(peer="broker b")
        )
        log.connected(connection)

    for number in range(10_000):
        connected(number)
    assert log.is_kafka(("b", 0))
    connected(10_000)
    assert log.is_kafka(("b", 10_000))
    assert not log.is_kafka(("b", 0))
