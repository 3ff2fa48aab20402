"""S4: a rejection fails every kind of waiting call, attempts follow the backoff, and the producer
recovers."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pyarrow
import pytest

from aiokprod import (
    AbortableTransactionError,
    AuthenticationError,
    KafkaError,
    Outcome,
    Producer,
    ProducerRecord,
    RecordMetadata,
)
from aiokprod.environment import Environment
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.memory import MemoryNetwork
from tests.security.sasl_broker import BearerServer, PlainServer, ScramServer
from tests.security.sasl_cluster import PASSWORD, USER, SaslCluster, producer
from tests.virtual_time import in_virtual_time

SETUP_S = 10.0
"""Default of socket_connection_setup_timeout_ms, in seconds."""

TOKEN = "canary-right-token"


class Doors:
    """The credentials that the brokers accept. `shut` and `open` change them while a producer
    runs."""

    def __init__(self) -> None:
        self.users = {USER: PASSWORD}
        self.tokens = {TOKEN}

    def servers(self) -> dict[str, Callable[[], Any]]:
        return {
            "PLAIN": lambda: PlainServer(self.users),
            "SCRAM-SHA-256": lambda: ScramServer(self.users, "sha256"),
            "SCRAM-SHA-512": lambda: ScramServer(self.users, "sha512"),
            "OAUTHBEARER": lambda: BearerServer(self.tokens),
        }

    def shut(self) -> None:
        self.users[USER] = "canary-changed"
        self.tokens.clear()

    def open(self) -> None:
        self.users[USER] = PASSWORD
        self.tokens.add(TOKEN)


async def give_token() -> str:
    return TOKEN


def settings_for(mechanism: str) -> dict[str, Any]:
    if mechanism == "OAUTHBEARER":
        return {"sasl_mechanism": mechanism, "sasl_token_provider": give_token}
    return {"sasl_mechanism": mechanism, "sasl_username": USER, "sasl_password": PASSWORD}


MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]


async def ended(call: Awaitable[Any]) -> tuple[Any, float]:
    """Return the result or the error of a call, and its duration in seconds."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    try:
        return await call, loop.time() - started
    except KafkaError as error:
        return error, loop.time() - started


def spaced(cluster: SaslCluster, since: float, least_s: float) -> None:
    """Check that each broker gets at most one attempt per backoff."""
    last: dict[int, float] = {}
    for at, broker in cluster.attempts:
        if at <= since:
            continue
        assert at - last.get(broker, -100.0) >= least_s * 0.8, f"broker {broker} at {at}"
        last[broker] = at


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("mechanism", MECHANISMS)
@in_virtual_time
async def test_s4_refusal_reaches_buffered_records_and_heals(
    mechanism: str, idempotent: bool
) -> None:
    doors = Doors()
    cluster = SaslCluster(3, doors.servers())
    cluster.create_topic("t", 6)
    made = producer(
        cluster,
        enable_idempotence=idempotent,
        reconnect_backoff_ms=1_000,
        reconnect_backoff_max_ms=2_000,
        **settings_for(mechanism),
    )
    loop = asyncio.get_running_loop()
    for partition in range(6):
        assert isinstance(await made.send("t", b"before", partition=partition), RecordMetadata)
    doors.shut()
    cluster.cut()
    since = loop.time()
    calls: list[Coroutine[Any, Any, object]] = [
        made.send("t", b"canary-value", partition=number % 6) for number in range(60)
    ]
    calls.append(made.flush())
    found = await asyncio.gather(*map(ended, calls))
    for error, took in found[:-1]:
        assert isinstance(error, AuthenticationError), repr(error)
        assert took <= SETUP_S + 0.1
        assert "canary" not in str(error)
        assert error.outcome in (Outcome.NOT_SENT, Outcome.UNKNOWN)
    assert found[-1][1] <= SETUP_S + 0.1  # duration of the flush
    late, took = await ended(made.send("t", b"v", partition=1))
    assert isinstance(late, AuthenticationError)
    assert took <= SETUP_S + 0.1
    spaced(cluster, since, 1.0)
    doors.open()
    await asyncio.sleep(2.1)
    for partition in range(6):
        assert isinstance(await made.send("t", b"after", partition=partition), RecordMetadata)
    await made.close()
    assert cluster.violations == []


@in_virtual_time
async def test_s4_one_refused_attempt_costs_no_record() -> None:
    """The broker rejects one attempt and then accepts within the patience, so the records wait."""
    doors = Doors()
    cluster = SaslCluster(1, doors.servers())
    cluster.create_topic("t", 1)
    made = producer(cluster, **settings_for("SCRAM-SHA-512"))
    await made.send("t", b"before")
    doors.shut()
    cluster.cut()
    calls = [asyncio.ensure_future(made.send("t", b"v%d" % n)) for n in range(20)]
    await asyncio.sleep(3.0)
    assert len(cluster.attempts) >= 3
    assert not any(call.done() for call in calls)
    doors.open()
    assert [found.offset for found in await asyncio.gather(*calls)] == list(range(1, 21))
    await made.close()
    assert cluster.violations == []


@in_virtual_time
async def test_s4_one_broker_that_refuses_fails_only_its_own_records() -> None:
    doors = Doors()
    cluster = SaslCluster(3, doors.servers())
    cluster.create_topic("t", 3)
    made = producer(cluster, **settings_for("PLAIN"))
    for partition in range(3):
        await made.send("t", b"before", partition=partition)
    leader = cluster.topics["t"].partitions[1].leader
    assert leader is not None
    cluster.servers_of[leader] = {"PLAIN": lambda: PlainServer({USER: "canary-other"})}
    cluster.cut([leader])
    ends = await asyncio.gather(
        *(ended(made.send("t", b"v", partition=number % 3)) for number in range(30))
    )
    for number, (found, took) in enumerate(ends):
        if number % 3 == 1:
            assert isinstance(found, AuthenticationError), repr(found)
            assert took <= SETUP_S + 0.1
        else:
            assert isinstance(found, RecordMetadata)
            assert took < 1.0
    cluster.servers_of.clear()
    await asyncio.sleep(1.5)
    assert isinstance(await made.send("t", b"after", partition=1), RecordMetadata)
    await made.close()


@in_virtual_time
async def test_s4_one_broker_that_refuses_for_long_costs_no_record_without_a_leader() -> None:
    doors = Doors()
    cluster = SaslCluster(3, doors.servers())
    cluster.create_topic("t", 3)
    made = producer(cluster, retry_backoff_ms=100, **settings_for("PLAIN"))
    for partition in range(3):
        await made.send("t", b"before", partition=partition)
    hostile, elected = (cluster.topics["t"].partitions[number] for number in (1, 2))
    assert hostile.leader is not None
    cluster.servers_of[hostile.leader] = {"PLAIN": lambda: PlainServer({USER: "canary-other"})}
    cluster.cut([hostile.leader])
    refused = [asyncio.ensure_future(ended(made.send("t", b"v", partition=1)))]
    await asyncio.sleep(SETUP_S)
    leader = elected.leader
    elected.elect(None)
    asyncio.get_running_loop().call_later(5.0, elected.elect, leader)
    waiting = asyncio.ensure_future(made.send("t", b"v", partition=2))
    for _ in range(5):
        refused.append(asyncio.ensure_future(ended(made.send("t", b"v", partition=1))))
        await asyncio.sleep(1.0)
    assert isinstance(await waiting, RecordMetadata)
    for error, _ in await asyncio.gather(*refused):
        assert isinstance(error, AuthenticationError)
    await made.close()


@in_virtual_time
async def test_s4_refusal_reaches_calls_that_wait_for_memory_and_for_connections() -> None:
    doors = Doors()
    cluster = SaslCluster(1, doors.servers())
    cluster.create_topic("t", 1)
    made = producer(
        cluster, buffer_memory=200_000, batch_size=20_000, linger_ms=0, **settings_for("PLAIN")
    )
    await made.send("t", b"before")
    doors.shut()
    cluster.cut()
    full = [ended(made.send("t", bytes(9_000))) for _ in range(60)]
    found = await asyncio.gather(ended(made.warm(["t"])), *full)
    assert isinstance(found[0][0], AuthenticationError)
    assert found[0][1] <= SETUP_S
    for error, took in found[1:]:
        assert isinstance(error, AuthenticationError), repr(error)
        assert took <= SETUP_S + 1.0  # the patience begins with the first rejection
    doors.open()
    await made.warm(["t"])
    assert isinstance(await made.send("t", b"after"), RecordMetadata)
    await made.close()


@pytest.mark.parametrize("way", ["send_many", "records", "send_table"])
@in_virtual_time
async def test_s4_refusal_reaches_every_record_of_a_bulk_call_in_time(way: str) -> None:
    """The records belong to topics for which no metadata request was possible. Each record would
    wait for a separate rejection."""
    doors = Doors()
    doors.shut()
    cluster = SaslCluster(2, doors.servers())
    made = producer(cluster, **settings_for("SCRAM-SHA-256"))
    topics = [f"t{number % 50}" for number in range(500)]
    if way == "send_many":
        call = made.send_many("t", [b"v"] * 500)
    elif way == "records":
        call = made.send_many([ProducerRecord(topic, b"v") for topic in topics])
    else:
        call = made.send_table(None, pyarrow.table({"topic": topics, "value": [b"v"] * 500}))
    result, took = await ended(call)
    assert took <= SETUP_S + 2.0  # the patience begins with the first rejection
    if not isinstance(result, AuthenticationError):
        errors = result.errors
        assert len(errors) == 500
        assert all(isinstance(error, AuthenticationError) for error in errors.values())
    doors.open()
    for topic in ("t", *topics[:50]):
        cluster.create_topic(topic, 2)
    await asyncio.sleep(2.1)
    assert isinstance(await made.send("t7", b"after"), RecordMetadata)
    await made.close()


@pytest.mark.parametrize("one", [1, 2, 3])
@in_virtual_time
async def test_s4_one_broker_that_refuses_ends_no_bulk_call(one: int) -> None:
    doors = Doors()
    cluster = SaslCluster(3, doors.servers())
    topics = [f"t{number}" for number in range(20)]
    for topic in topics:
        cluster.create_topic(topic, 1)
        cluster.topics[topic].partitions[0].elect(one % 3 + 1)
    cluster.servers_of[one] = {"PLAIN": lambda: PlainServer({USER: "canary-other"})}
    made = producer(cluster, **settings_for("PLAIN"))
    await ended(made.send("t0", b"first"))
    result = await made.send_many([ProducerRecord(topics[n % 20], b"v") for n in range(500)])
    assert len(result.errors) <= 20, "a refusal may cost the record that waits, not those behind it"
    await made.close()


@in_virtual_time
async def test_s4_bulk_call_goes_on_once_brokers_let_us_in() -> None:
    doors = Doors()
    doors.shut()
    cluster = SaslCluster(2, doors.servers())
    cluster.create_topic("a", 1)
    cluster.create_topic("b", 1)
    made = producer(cluster, **settings_for("PLAIN"))
    asyncio.get_running_loop().call_later(SETUP_S + 3.0, doors.open)

    records: list[ProducerRecord[Any, Any]] = [
        ProducerRecord("b" if n % 2 else "a", b"%d" % n) for n in range(40)
    ]

    found = []
    for start in range(0, 40, 2):
        found.append(await made.send_many(records[start : start + 2]))
        await asyncio.sleep(1.0)
    assert not found[0].ok
    assert all(one.ok for one in found[-5:])
    await made.close()


@in_virtual_time
async def test_s4_refusal_reaches_transactional_calls_and_heals() -> None:
    doors = Doors()
    cluster = SaslCluster(1, doors.servers())
    cluster.create_topic("t", 1)
    made = producer(cluster, transactional_id="x", **settings_for("SCRAM-SHA-256"))
    doors.shut()
    error, took = await ended(made.begin_transaction())
    assert isinstance(error, AuthenticationError), repr(error)
    assert took <= SETUP_S
    doors.open()
    await asyncio.sleep(1.5)
    async with made.transaction():
        await made.send("t", b"one")
    await made.begin_transaction()
    await made.send("t", b"two")
    doors.shut()
    cluster.cut()
    error, took = await ended(made.commit_transaction())
    assert isinstance(error, AuthenticationError), repr(error)
    assert took <= SETUP_S
    doors.open()
    await asyncio.sleep(1.5)
    await made.commit_transaction()  # continues to wait for the same response
    values = [record.value for record in cluster.topics["t"].partitions[0].log.records()]
    assert values == [b"one", b"two"]
    await made.close()
    assert cluster.violations == []


@in_virtual_time
async def test_s4_transaction_that_lacks_a_refused_record_is_not_committed() -> None:
    doors = Doors()
    cluster = SaslCluster(1, doors.servers())
    cluster.create_topic("t", 1)
    cluster.create_topic("new", 1)
    made = producer(cluster, transactional_id="x", **settings_for("PLAIN"))
    await made.begin_transaction()
    await made.send("t", b"one")
    doors.shut()
    cluster.cut()
    error, _ = await ended(made.send("new", b"two"))
    assert isinstance(error, AuthenticationError), repr(error)
    doors.open()
    await asyncio.sleep(2.0)
    error, _ = await ended(made.commit_transaction())
    assert isinstance(error, AbortableTransactionError), repr(error)
    await made.abort_transaction()
    await made.close()
    assert cluster.violations == []


@in_virtual_time
async def test_s4_token_provider_that_hangs_reaches_buffered_records_in_time() -> None:
    hang = False

    async def provider() -> str:
        if hang:
            await asyncio.Event().wait()
        return TOKEN

    cluster = SaslCluster(1, Doors().servers())
    cluster.create_topic("t", 1)
    made = producer(cluster, sasl_mechanism="OAUTHBEARER", sasl_token_provider=provider)
    await made.send("t", b"before")
    hang = True
    cluster.cut()
    await asyncio.sleep(0.01)
    found, took = await ended(made.send("t", b"v"))
    assert isinstance(found, AuthenticationError)
    assert took <= SETUP_S + 0.1
    hang = False
    # The attempt in flight still hangs. As the second attempt it has twice the timeout, plus
    # jitter.
    await asyncio.sleep(2 * 1.2 * SETUP_S + 2.0)
    assert isinstance(await made.send("t", b"after"), RecordMetadata)
    await made.close()


@in_virtual_time
async def test_f78_refused_renewal_under_load_reaches_all_and_heals() -> None:
    doors = Doors()
    cluster = SaslCluster(1, doors.servers())
    cluster.lifetime_ms = 5_000
    cluster.create_topic("t", 1)
    made = producer(cluster, **settings_for("PLAIN"))
    results: list[Any] = []

    async def stream() -> None:
        while not results or not isinstance(results[-1], AuthenticationError):
            found, took = await ended(made.send("t", b"v"))
            assert took <= SETUP_S + 0.1
            results.append(found)
            await asyncio.sleep(0.1)

    tasks = [asyncio.ensure_future(stream()) for _ in range(5)]
    await asyncio.sleep(12.0)
    assert all(isinstance(found, RecordMetadata) for found in results)
    assert len({id(link) for link in cluster.network.links}) <= 2
    doors.shut()
    await asyncio.gather(*tasks)
    doors.open()
    await asyncio.sleep(2.0)
    assert isinstance(await made.send("t", b"after"), RecordMetadata)
    await made.close()


# -- TLS ------------------------------------------------------------------------------------------


def unverified(why: str) -> ssl.SSLError:
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED]")
    error.verify_message = why
    return error


def broken(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}]")
    error.reason = reason
    return error


TLS_KINDS = {
    "expired": (unverified("certificate has expired"), "has expired"),
    "wrong-name": (unverified("Hostname mismatch, certificate is not valid for 'x'"), "Hostname"),
    "unknown-ca": (unverified("unable to get local issuer certificate"), "local issuer"),
    "plaintext-port": (broken("WRONG_VERSION_NUMBER"), "does not use TLS"),
    "client-certificate": (broken("TLSV13_ALERT_CERTIFICATE_REQUIRED"), "client certificate"),
    "old-tls": (broken("UNSUPPORTED_PROTOCOL"), "no TLS 1.2"),
}


class Handshakes:
    """A dialer whose handshakes fail with `fault`. Without `fault` they succeed."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.network = cluster.network
        self.fault: Exception | None = None
        self.attempts: list[tuple[float, int]] = []

    async def resolve(self, host: str, port: int) -> list[tuple[str, int]]:
        return await self.network.resolve(host, port)

    async def connect(
        self, factory: Any, host: str, port: int, *, tls: Any = None, server_hostname: Any = None
    ) -> Any:
        assert tls is not None
        assert server_hostname
        now = asyncio.get_running_loop().time()
        self.attempts.append((now, hash((host, port))))
        if self.fault is not None:
            raise self.fault
        return await self.network.connect(factory, host, port)


@pytest.mark.parametrize("kind", TLS_KINDS)
@in_virtual_time
async def test_s4_tls_refusal_of_each_kind_reaches_all_waiting_calls_and_heals(kind: str) -> None:
    fault, text = TLS_KINDS[kind]
    cluster = FakeCluster(3, network=MemoryNetwork())
    cluster.create_topic("t", 6)
    cluster.create_topic("new", 1)
    dialer = Handshakes(cluster)
    made: Any = Producer(
        bootstrap_servers=cluster.bootstrap_servers,
        security_protocol="SSL",
        environment=Environment(dialer, cluster.unix_ms, random.Random(5)),
        reconnect_backoff_ms=1_000,
        reconnect_backoff_max_ms=2_000,
    )
    for partition in range(6):
        await made.send("t", b"before", partition=partition)
    dialer.fault = fault
    dialer.attempts.clear()
    for broker in cluster.brokers.values():
        for connection in list(broker.connections):
            connection.reset()
    calls = [made.send("t", b"canary-value", partition=number % 6) for number in range(30)]
    calls += [made.send("new", b"canary-value"), made.warm(["t"]), made.partitions_for("new")]
    for error, took in await asyncio.gather(*map(ended, calls)):
        assert isinstance(error, AuthenticationError), repr(error)
        assert text in str(error)
        assert took <= SETUP_S + 0.1
    last: dict[int, float] = {}
    for at, where in dialer.attempts:
        assert at - last.get(where, -100.0) >= 0.8
        last[where] = at
    dialer.fault = None
    await asyncio.sleep(2.5)
    for partition in range(6):
        assert isinstance(await made.send("t", b"after", partition=partition), RecordMetadata)
    await made.close()
    assert cluster.violations == []
