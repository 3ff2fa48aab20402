"""`Producer.check` against a fake cluster with one fault per test: the code and the remedy of the
finding, and the duration of the check."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from dataclasses import replace
from typing import Any

import pytest

from aiokprod import ConfigError, Finding, Producer, ProducerConfig, Severity
from aiokprod._wire.messages.sasl_handshake import SaslHandshakeResponse
from aiokprod.errors import Code, error_code
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.fake_cluster.control import answer, close, edit, garbage, lose_answer, refuse
from aiokprod.testing.fake_cluster.topology import TopicConfig
from tests.client.outages import tapped
from tests.security.sasl_broker import PlainServer
from tests.security.sasl_cluster import PASSWORD, USER, SaslCluster
from tests.virtual_time import in_virtual_time

METADATA, SASL_HANDSHAKE, API_VERSIONS, DESCRIBE_CONFIGS = 3, 17, 18, 32
ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
SECONDS = 15.0
"""Limit of a check, in virtual seconds."""


def healthy(brokers: int = 3, **options: Any) -> FakeCluster:
    cluster = FakeCluster(brokers, **options)
    cluster.create_topic("orders", 3, config=TopicConfig(min_insync_replicas=min(2, brokers)))
    return cluster


async def check(
    cluster: FakeCluster, *topics: str, timeout: float = 15.0, **settings: Any
) -> tuple[Finding, ...]:
    """Return the findings of a producer that is not started. Assert that no connection stays open
    and that no record was sent."""
    settings.setdefault("bootstrap_servers", cluster.bootstrap_servers)
    producer: Producer[Any, Any] = Producer(environment=cluster.environment(), **settings)
    loop = asyncio.get_running_loop()
    start = loop.time()
    found = await producer.check(topics, timeout=timeout)
    assert loop.time() - start <= SECONDS
    await producer.close()
    await asyncio.sleep(0.1)
    served = [broker for broker in cluster.brokers.values() if not broker.is_paused]
    assert not any(broker.connections for broker in served)
    assert not cluster.violations
    assert not cluster.count(0), "a record was sent"
    assert all(finding.remedy and finding.text and finding.subject for finding in found)
    return found


def one(found: tuple[Finding, ...], code: str, severity: Severity = ERROR) -> Finding:
    """Return the only finding, and assert its code and severity."""
    assert [(finding.code, finding.severity) for finding in found] == [(code, severity)], found
    return found[0]


@in_virtual_time
async def test_healthy_cluster_has_no_finding() -> None:
    assert await check(healthy(), "orders") == ()


@in_virtual_time
async def test_server_that_knows_no_brokers_yet_is_asked_again() -> None:
    cluster = healthy()
    cluster.control(METADATA, edit(lambda message: replace(message, brokers=[])), times=1)
    assert await check(cluster, "orders", bootstrap_servers="broker1:9092") == ()


@in_virtual_time
async def test_wrong_port_is_found() -> None:
    cluster = healthy()
    found = one(await check(cluster, "orders", bootstrap_servers="broker1:1"), "unreachable")
    assert found.subject == "broker1:1"
    assert "refused" in found.text
    assert "check host and port" in found.remedy


@in_virtual_time
async def test_one_wrong_server_among_others_is_a_warning() -> None:
    cluster = healthy()
    servers = "broker1:1,nowhere:9092," + cluster.bootstrap_servers
    found = await check(cluster, "orders", bootstrap_servers=servers)
    assert {(f.code, f.severity, f.subject) for f in found} == {
        ("unreachable", WARNING, "broker1:1"),
        ("dns_failed", WARNING, "nowhere:9092"),
    }


@in_virtual_time
async def test_name_that_does_not_resolve_is_found() -> None:
    found = one(await check(healthy(), bootstrap_servers="nowhere:9092"), "dns_failed")
    assert "correct the host name in bootstrap_servers, or the DNS" in found.remedy


@in_virtual_time
async def test_resolver_that_hangs_is_found() -> None:
    cluster = healthy()
    cluster.network.hang_name("slow")
    found = await check(cluster, bootstrap_servers="slow:9092", timeout=5.0)
    assert "no response from the resolver in time" in one(found, "dns_failed").text


@in_virtual_time
async def test_one_dead_address_of_a_name_is_found() -> None:
    cluster = healthy()
    cluster.network.set_name("kafka", ["dead", "broker1"])
    found = one(
        await check(cluster, "orders", bootstrap_servers="kafka:9092"),
        "address_unreachable", WARNING,
    )  # fmt: skip
    assert "1 of 2 addresses" in found.text
    assert "dead: cannot connect" in found.text
    assert "remove the dead addresses from the DNS" in found.remedy


@in_virtual_time
async def test_address_that_drops_packets_is_found() -> None:
    cluster = healthy()
    cluster.network.set_name("kafka", ["dead", "broker1"])
    cluster.network.hang("dead", 9092)
    found = await check(cluster, "orders", bootstrap_servers="kafka:9092")
    assert "dead: not connected in time" in one(found, "address_unreachable", WARNING).text


@in_virtual_time
async def test_unreachable_advertised_listener_is_found() -> None:
    cluster = healthy()
    cluster.brokers[2].host = "internal"  # the advertised host; the broker listens at broker2
    found = one(
        await check(cluster, "orders", bootstrap_servers="broker1:9092"),
        "advertised_listener_unreachable",
    )
    assert found.subject == "broker internal:9092 (id 2)"
    assert "set advertised.listeners of the broker" in found.remedy


@in_virtual_time
async def test_advertised_listener_that_drops_packets_is_found() -> None:
    cluster = healthy()
    cluster.brokers[2].host = "internal"
    cluster.network.set_name("internal", ["internal"])
    cluster.network.hang("internal", 9092)
    found = await check(cluster, "orders", bootstrap_servers="broker1:9092")
    assert one(found, "advertised_listener_unreachable").subject.startswith("broker internal")


@in_virtual_time
async def test_frozen_server_is_found() -> None:
    cluster = healthy(1)
    cluster.pause(1)
    found = one(await check(cluster, "orders"), "no_answer")
    assert "did not respond" in found.text


@in_virtual_time
async def test_connection_that_is_closed_once_is_no_finding() -> None:
    cluster = healthy()
    cluster.control(API_VERSIONS, close(), times=1)
    assert await check(cluster, "orders", bootstrap_servers="broker1:9092") == ()


@in_virtual_time
async def test_one_frozen_server_is_a_warning_and_a_broker_an_error() -> None:
    cluster = healthy()
    cluster.pause(2)
    found = await check(cluster, "orders")
    assert {(f.code, f.severity, f.subject) for f in found} == {
        ("no_answer", WARNING, "broker2:9092"),
        ("no_answer", ERROR, "broker broker2:9092 (id 2)"),
    }


@in_virtual_time
async def test_port_of_something_else_is_found() -> None:
    cluster = healthy(1)
    cluster.control(API_VERSIONS, garbage(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    found = one(await check(cluster), "not_kafka")
    assert "HTTP" in found.text
    assert "check the port" in found.remedy


@pytest.mark.parametrize(
    ("profile", "settings", "text", "remedy"),
    [
        ("2.0", {}, "", ""),
        ("2.0", {"compression_type": "zstd"}, "needs Produce v7", "Kafka 2.1 or newer"),
        ("0.10", {}, "record batches needs Produce v3", "Kafka 0.11 or newer"),
    ],
)
@in_virtual_time
async def test_broker_that_is_too_old_is_found(
    profile: str, settings: dict[str, Any], text: str, remedy: str
) -> None:
    cluster = healthy(1, default_replication=1, version_profile="2.1")
    broker = cluster.brokers[1]
    newest = {"2.0": 6, "0.10": 2}[profile]
    ranges = {**broker.profile.ranges, 0: (0, newest)}
    object.__setattr__(broker.profile, "ranges", ranges)
    try:
        found = await check(cluster, **settings)
    finally:
        object.__setattr__(broker.profile, "ranges", {**ranges, 0: (0, 7)})
    if not text:
        assert found == ()
        return
    one_found = one(found, "version_too_old")
    assert text in one_found.text
    assert remedy in one_found.remedy


# -- SASL -----------------------------------------------------------------------------------------

SASL: dict[str, Any] = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_username": USER,
    "sasl_password": PASSWORD,
    "sasl_allow_cleartext": True,
}


def sasl_cluster(password: str = PASSWORD) -> SaslCluster:
    cluster = SaslCluster(3, {"PLAIN": lambda: PlainServer({USER: password})})
    cluster.create_topic("orders", 3, config=TopicConfig(min_insync_replicas=2))
    return cluster


@in_virtual_time
async def test_right_password_has_no_finding() -> None:
    assert await check(sasl_cluster(), "orders", **SASL) == ()


@in_virtual_time
async def test_bad_password_is_found() -> None:
    found = await check(sasl_cluster("other"), "orders", **SASL)
    assert [finding.code for finding in found] == ["authentication_failed"] * 3
    assert "check sasl_username and sasl_password" in found[0].remedy
    assert PASSWORD not in repr(found)


@in_virtual_time
async def test_client_without_sasl_is_found() -> None:
    cluster = healthy()
    cluster.control(METADATA, close())  # close the connection, like a listener with SASL
    found = await check(cluster, "orders", bootstrap_servers="broker1:9092")
    assert 'set security_protocol="SASL_PLAINTEXT"' in one(found, "sasl_required").remedy


@in_virtual_time
async def test_mechanism_that_is_not_enabled_is_found() -> None:
    settings = {**SASL, "sasl_mechanism": "SCRAM-SHA-256", "bootstrap_servers": "broker1:9092"}
    found = await check(sasl_cluster(), "orders", **settings)
    assert "PLAIN" in one(found, "sasl_mechanism_not_enabled").text


@in_virtual_time
async def test_listener_without_sasl_is_found() -> None:
    cluster = sasl_cluster()
    cluster.script.clear()
    refusal = SaslHandshakeResponse(error_code=Code.ILLEGAL_SASL_STATE)
    cluster.control(SASL_HANDSHAKE, answer(refusal))
    settings = {**SASL, "bootstrap_servers": "broker1:9092"}
    found = one(await check(cluster, "orders", **settings), "sasl_not_expected")
    assert 'security_protocol="PLAINTEXT"' in found.remedy


@pytest.mark.parametrize(
    ("claims", "text"),
    [
        ({"iat": 600.0, "exp": 4_000.0}, "issued 600 s in the future"),
        ({"nbf": 600.0, "exp": 4_000.0}, "not valid for another 600 s"),
        ({"iat": -700.0, "exp": -100.0}, "a new token expired 100 s ago"),
        ({"iat": 20.0, "exp": 4_000.0}, None),
        ({"exp": "soon"}, None),
    ],
)
@in_virtual_time
async def test_clock_skew_of_tokens_is_found(claims: dict[str, Any], text: str | None) -> None:
    cluster = sasl_cluster()
    now = cluster.unix_ms() / 1000
    times = {k: now + v if isinstance(v, float) else v for k, v in claims.items()}

    async def token() -> str:
        parts = [base64.urlsafe_b64encode(json.dumps(p).encode()).decode() for p in ({}, times)]
        return ".".join([part.rstrip("=") for part in parts] + ["c2ln"])

    settings: dict[str, Any] = {
        "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER",
        "sasl_token_provider": token, "sasl_allow_cleartext": True,
        "bootstrap_servers": "broker1:9092",
    }  # fmt: skip
    found = [f for f in await check(cluster, **settings) if f.code == "token_clock_skew"]
    assert [text in finding.text for finding in found if text] == ([True] if text else [])
    assert len(found) == (text is not None)
    assert all("synchronise the clocks" in finding.remedy for finding in found)


@in_virtual_time
async def test_one_broker_that_refuses_the_credentials_is_found() -> None:
    cluster = sasl_cluster()
    cluster.servers_of[2] = {"PLAIN": lambda: PlainServer({USER: "other"})}
    found = await check(cluster, "orders", bootstrap_servers="broker1:9092", **SASL)
    assert one(found, "authentication_failed").subject == "broker broker2:9092 (id 2)"


@in_virtual_time
async def test_server_that_never_lists_brokers_is_found() -> None:
    cluster = healthy()
    cluster.control(METADATA, edit(lambda message: replace(message, brokers=[])))
    found = await check(cluster, "orders", bootstrap_servers="broker1:9092", timeout=8.0)
    assert one(found, "check_incomplete", WARNING).subject == "the cluster"


# -- topics ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("brokers_create", "client_creates", "severity", "text"),
    [
        (True, True, WARNING, "the brokers create it with their defaults"),
        (False, True, ERROR, "auto.create.topics.enable=false"),
        (True, False, ERROR, "allow_auto_create_topics is off"),
    ],
)
@in_virtual_time
async def test_missing_topic_is_found_and_not_created(
    brokers_create: bool, client_creates: bool, severity: Severity, text: str
) -> None:
    cluster = healthy(auto_create=brokers_create)
    found = one(
        await check(cluster, "orderz", allow_auto_create_topics=client_creates),
        "topic_missing", severity,
    )  # fmt: skip
    assert found.subject == "topic orderz"
    assert text in found.text
    assert "create" in found.remedy
    assert "orderz" not in cluster.topics


@in_virtual_time
async def test_missing_topic_without_permission_to_see_the_brokers_settings_is_an_error() -> None:
    cluster = healthy()
    cluster.control(DESCRIBE_CONFIGS, refuse(Code.CLUSTER_AUTHORIZATION_FAILED))
    found = one(await check(cluster, "orderz"), "topic_missing")
    assert "it is unknown whether the brokers create topics" in found.text


@pytest.mark.parametrize(
    ("code", "severity", "remedy"),
    [
        (Code.LEADER_NOT_AVAILABLE, WARNING, "try again later"),
        (Code.INVALID_TOPIC_EXCEPTION, ERROR, "use another topic"),
    ],
)
@in_virtual_time
async def test_topic_with_another_error_is_found(
    code: int, severity: Severity, remedy: str
) -> None:
    cluster = healthy(version_profile="3.9")
    cluster.control(METADATA, refuse(code))
    found = one(await check(cluster, "orders"), "topic_unavailable", severity)
    assert error_code(code).name in found.text
    assert found.remedy == remedy


@in_virtual_time
async def test_settings_of_the_broker_that_cannot_be_read_are_no_obstacle() -> None:
    cluster = healthy()
    cluster.control(DESCRIBE_CONFIGS, close())
    found = one(await check(cluster, "orderz"), "topic_missing")
    assert "it is unknown" in found.text


@pytest.mark.parametrize("how", ["denied_topics", "read_only_topics"])
@in_virtual_time
async def test_missing_permission_is_found(how: str) -> None:
    cluster = healthy()
    getattr(cluster, how).add("orders")
    found = one(await check(cluster, "orders"), "not_authorized")
    assert "WRITE on the topic to the principal" in found.remedy


@in_virtual_time
async def test_partition_without_a_leader_is_found() -> None:
    cluster = healthy()
    cluster.topics["orders"].partitions[1].elect(None)
    found = one(await check(cluster, "orders"), "no_leader")
    assert "1 of 3 partitions have no leader: 1" in found.text
    assert "start the brokers" in found.remedy


@in_virtual_time
async def test_single_replica_is_found_only_with_acks_all() -> None:
    cluster = FakeCluster(3)
    cluster.create_topic("orders", 3, replication=1)
    found = one(await check(cluster, "orders"), "single_replica", WARNING)
    assert "raise the replication factor" in found.remedy
    assert await check(cluster, "orders", acks=1) == ()


@in_virtual_time
async def test_too_few_in_sync_replicas_are_found() -> None:
    cluster = healthy()
    cluster.topics["orders"].partitions[2].isr = cluster.topics["orders"].partitions[2].isr[:1]
    found = one(await check(cluster, "orders"), "too_few_in_sync_replicas")
    assert "partitions 2 have fewer than min.insync.replicas=2" in found.text
    assert "start the brokers that are down" in found.remedy
    assert await check(cluster, "orders", acks=1) == ()


@pytest.mark.parametrize(
    ("least", "code", "severity"),
    [(4, "too_few_replicas", ERROR), (3, "no_spare_replica", WARNING)],
)
@in_virtual_time
async def test_min_insync_replicas_against_the_replication_factor(
    least: int, code: str, severity: Severity
) -> None:
    cluster = FakeCluster(3)
    cluster.create_topic("orders", 3, config=TopicConfig(min_insync_replicas=least))
    assert "lower min.insync.replicas" in one(await check(cluster, "orders"), code, severity).remedy


@pytest.mark.parametrize(
    ("limit", "settings", "text"),
    [
        (100_000, {}, "is less than batch_size=131072"),
        (500_000, {}, "is less than max_request_size=1048576"),
        (100_000, {"batch_size": 50_000, "max_request_size": 100_000}, None),
        (1_048_588, {}, None),
    ],
)
@in_virtual_time
async def test_limit_of_message_sizes_is_found(
    limit: int, settings: dict[str, Any], text: str | None
) -> None:
    cluster = FakeCluster(3)
    config = TopicConfig(max_message_bytes=limit, min_insync_replicas=2)
    cluster.create_topic("orders", 3, config=config)
    found = await check(cluster, "orders", **settings)
    if text is None:
        assert found == ()
        return
    message_size = one(found, "message_size", WARNING)
    assert text in message_size.text
    assert f"={limit}" in message_size.remedy


@in_virtual_time
async def test_settings_that_are_not_visible_are_mentioned() -> None:
    cluster = healthy()
    cluster.hidden_settings.add("orders")
    found = one(await check(cluster, "orders"), "topic_settings_not_visible", INFO)
    assert "grant DESCRIBE_CONFIGS" in found.remedy


@in_virtual_time
async def test_topics_are_checked_if_brokers_do_not_offer_their_settings() -> None:
    cluster = healthy()
    for broker in cluster.brokers.values():
        ranges = {key: one for key, one in broker.profile.ranges.items() if key != DESCRIBE_CONFIGS}
        broker.profile = replace(broker.profile, ranges=ranges)
    found = await check(cluster, "orders", "orderz")
    assert [finding.code for finding in found] == ["topic_missing", "topic_settings_not_visible"]
    assert "does not offer DescribeConfigs" in found[1].text


@in_virtual_time
async def test_token_provider_that_hangs_does_not_delay_the_check() -> None:
    async def token() -> str:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    found = await check(
        sasl_cluster(), security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER",
        sasl_token_provider=token, sasl_allow_cleartext=True,
    )  # fmt: skip
    assert {finding.severity for finding in found} == {ERROR}


@in_virtual_time
async def test_what_is_not_checked_in_time_is_mentioned() -> None:
    cluster = healthy()
    cluster.control(DESCRIBE_CONFIGS, lose_answer())
    found = one(await check(cluster, "orders", timeout=5.0), "check_incomplete", WARNING)
    assert "with a longer timeout" in found.remedy


@in_virtual_time
async def test_server_that_answers_no_metadata_request_is_found() -> None:
    cluster = healthy(1)
    cluster.control(METADATA, lose_answer())
    one(await check(cluster, "orders"), "no_answer")


@in_virtual_time
async def test_findings_are_sorted_by_severity() -> None:
    cluster = FakeCluster(3)
    cluster.create_topic("a", 1, replication=1)
    cluster.denied_topics.add("b")
    found = await check(cluster, "a", "b")
    assert [finding.severity for finding in found] == [ERROR, WARNING]
    assert str(found[0]).startswith("error: topic b: the credentials may not write to it. grant")


# -- public methods -------------------------------------------------------------------------------


@in_virtual_time
async def test_start_with_check_logs_the_findings_and_starts() -> None:
    cluster = healthy()
    with tapped() as log:
        producer: Producer[Any, Any] = Producer(
            bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment(),
            client_id="shop",
        )  # fmt: skip
        assert await producer.start(check=True) == ()
        assert not log.events("check_finding")
        (found,) = await producer.start(check=["orderz"])
        assert found.code == "topic_missing"
        (logged,) = log.events("check_finding")
        assert logged["levelno"] == logging.WARNING
        assert (logged["kafka_finding"], logged["kafka_client_id"]) == ("topic_missing", "shop")
        assert "topic orderz: it does not exist" in logged["message"]
        assert await producer.start() == ()
        await producer.send("orders", b"x")
        assert await producer.check(["orders"]) == (), "while it runs"
        await producer.close()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"topics": "orders"}, "check takes a list of topics"),
        ({"topics": ["no/legal"]}, "not legal"),
        ({"timeout": 0}, "check: timeout"),
    ],
)
@in_virtual_time
async def test_check_rejects_wrong_arguments(arguments: dict[str, Any], text: str) -> None:
    producer: Producer[Any, Any] = Producer(ProducerConfig(bootstrap_servers="a:1"))
    with pytest.raises(ConfigError, match=text):
        await producer.check(**arguments)
    with pytest.raises(ConfigError, match="start takes a list of topics"):
        await producer.start(check="orders")


@in_virtual_time
async def test_cancelled_check_closes_its_connections() -> None:
    cluster = healthy()
    cluster.control(METADATA, lose_answer())
    producer: Producer[Any, Any] = Producer(
        bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment()
    )
    task = asyncio.create_task(producer.check(["orders"]))
    await asyncio.sleep(1.0)
    assert cluster.open_connections() > 0
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.1)
    assert cluster.open_connections() == 0


@in_virtual_time
async def test_connection_that_is_closed_again_and_again_is_found() -> None:
    cluster = healthy(1)
    cluster.control(API_VERSIONS, close())
    found = one(await check(cluster, "orders"), "no_answer")
    assert "closed the connection" in found.text
