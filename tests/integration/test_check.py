"""`Producer.check` with real brokers and fifteen faults. It must report each fault together with a
remedy.

Kafka 2.0 serves as the broker that is too old.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from aiokprod import Environment, Finding, Producer, Severity
from aiokprod._net.dialer import TcpDialer
from aiokprod.testing.kafka_cluster import HOST, KafkaCluster
from aiokprod.testing.kafka_node import free_ports
from tests.integration.runner import Run
from tests.integration.test_security import ALICE, CA, OTHER_CA, TRUST, USERS, bearer, jaas
from tests.security.certs import DAY, NOW, Authority

pytestmark = pytest.mark.slow

EXPIRED_CA = Authority("expired CA", 12, end=NOW - DAY / 2)
SECONDS = 30.0
"""Limit of one check, in real seconds."""
CLEAR: dict[str, Any] = {"security_protocol": "SASL_PLAINTEXT", "sasl_allow_cleartext": True}
PLAIN: dict[str, Any] = {**CLEAR, "sasl_mechanism": "PLAIN", **ALICE}


class HiddenCluster(KafkaCluster):
    """Brokers whose listener HIDDEN advertises a port without a listening socket."""

    def _properties(self, node_id: int, controllers: Mapping[int, int]) -> dict[str, str]:
        found = super()._properties(node_id, controllers)
        port = self._listener_ports["HIDDEN", node_id]
        advertised = found["advertised.listeners"]
        found["advertised.listeners"] = advertised.replace(
            f"HIDDEN://{HOST}:{port}", f"HIDDEN://{HOST}:1"
        )
        return found


class TwoAddresses(TcpDialer):
    """A resolver that puts an address without a listening socket before the addresses of every
    name."""

    async def resolve(self, host: str, port: int) -> list[tuple[str, int]]:
        return [("127.0.0.9", port), *await super().resolve(host, port)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    folder: Path = tmp_path_factory.mktemp("certificates")

    def tls(authority: Authority, name: str, number: int) -> dict[str, str]:
        store = authority.issue(name, number=number).write(folder, f"broker-{number}")
        return {
            "security.protocol": "SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(store),
        }

    made = HiddenCluster(
        3,
        heap="384m",
        config={
            "auto.create.topics.enable": "false",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:bob",
        },
        listeners={
            "TLS": tls(CA, HOST, 80),
            "WRONG": tls(CA, "other.example", 81),
            "EXPIRED": tls(EXPIRED_CA, HOST, 82),
            "CLEAR": {"security.protocol": "SASL_PLAINTEXT", **jaas()},
            "HIDDEN": {"security.protocol": "PLAINTEXT"},
        },
        scram_users=USERS,
    )
    made.start_blocking()
    yield made
    made.stop_blocking()


@pytest.fixture(scope="module")
def kafka_2_0() -> Iterator[KafkaCluster]:
    made = KafkaCluster(1, version="2.0.1", heap="384m")
    made.start_blocking()
    yield made
    made.stop_blocking()


@pytest.fixture(scope="module")
def topics(cluster: KafkaCluster) -> None:
    async def main() -> None:
        await cluster.create_topic("orders")
        await cluster.create_topic("single", replication_factor=1)
        await cluster.create_topic("small", configs={"max.message.bytes": "50000"})
        await cluster.create_topic("strict", configs={"min.insync.replicas": "3"})

    asyncio.run(main())
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    binding = AclBinding(
        ResourceType.TOPIC, "small", ResourcePatternType.LITERAL, "User:alice", "*",
        AclOperation.DESCRIBE, AclPermissionType.ALLOW,
    )  # fmt: skip
    for done in admin.create_acls([binding]).values():
        done.result(30.0)


def check(
    run: Run, servers: str, *names: str, environment: Environment | None = None, **settings: Any
) -> tuple[Finding, ...]:
    async def main() -> tuple[Finding, ...]:
        producer: Producer[Any, Any] = Producer(
            bootstrap_servers=servers, environment=environment, **settings
        )
        start = time.monotonic()
        found = await producer.check(names)
        print(f"{time.monotonic() - start:.2f} s", *found, sep="\n  ")
        assert time.monotonic() - start < SECONDS
        await producer.close()
        return found

    return run(main())


def has(found: tuple[Finding, ...], code: str, severity: Severity, remedy: str) -> Finding:
    """Assert that all findings have the same code, and return the first finding."""
    assert {finding.code for finding in found} == {code}, found
    assert found[0].severity is severity
    assert remedy in found[0].remedy
    return found[0]


def first(servers: str) -> str:
    return servers.split(",")[0]


ERROR, WARNING = Severity.ERROR, Severity.WARNING


@pytest.mark.usefixtures("topics")
class TestFaults:
    """The fifteen faults. The tests that need a dead broker come last."""

    def test_00_no_fault(self, cluster: KafkaCluster, run_uvloop: Run) -> None:
        assert check(run_uvloop, cluster.bootstrap_servers, "orders") == ()
        trusted = {"security_protocol": "SSL", **TRUST}
        assert check(run_uvloop, cluster.listener("TLS"), "orders", **trusted) == ()

    def test_01_wrong_port(self, run: Run) -> None:
        (port,) = free_ports(1)
        found = check(run, f"{HOST}:{port}", "orders")
        has(found, "unreachable", ERROR, "check host and port")

    def test_02_plaintext_on_tls(self, cluster: KafkaCluster, run: Run) -> None:
        found = check(run, first(cluster.listener("TLS")), "orders")
        has(found, "tls_required", ERROR, 'set security_protocol="SSL"')

    def test_02b_tls_on_plaintext(self, cluster: KafkaCluster, run: Run) -> None:
        servers = first(cluster.bootstrap_servers)
        found = check(run, servers, "orders", security_protocol="SSL", **TRUST)
        has(found, "tls_not_spoken", ERROR, "use the port of a TLS listener")

    def test_02c_plaintext_on_sasl(self, cluster: KafkaCluster, run: Run) -> None:
        found = check(run, first(cluster.listener("CLEAR")), "orders")
        has(found, "sasl_required", ERROR, 'set security_protocol="SASL_PLAINTEXT"')

    def test_02d_sasl_on_plaintext(self, cluster: KafkaCluster, run: Run) -> None:
        found = check(run, first(cluster.bootstrap_servers), "orders", **PLAIN)
        has(found, "sasl_not_expected", ERROR, 'set security_protocol="PLAINTEXT"')

    def test_03_expired_ca(self, cluster: KafkaCluster, run: Run) -> None:
        settings: dict[str, Any] = {
            "security_protocol": "SSL", "ssl_truststore_certificates": EXPIRED_CA.pem
        }  # fmt: skip
        found = check(run, first(cluster.listener("EXPIRED")), "orders", **settings)
        has(found, "tls_certificate_expired", ERROR, "renew the certificate")

    def test_03b_unknown_ca(self, cluster: KafkaCluster, run: Run) -> None:
        trusted = OTHER_CA.pem
        settings: dict[str, Any] = {
            "security_protocol": "SSL", "ssl_truststore_certificates": trusted
        }  # fmt: skip
        found = check(run, first(cluster.listener("TLS")), "orders", **settings)
        has(found, "tls_not_trusted", ERROR, "put the CA of the broker's certificate")

    def test_04_wrong_name(self, cluster: KafkaCluster, run: Run) -> None:
        settings = {"security_protocol": "SSL", **TRUST}
        found = check(run, first(cluster.listener("WRONG")), "orders", **settings)
        has(found, "tls_name_mismatch", ERROR, "connect by a name that the certificate has")

    @pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
    def test_05_bad_password(self, cluster: KafkaCluster, run: Run, mechanism: str) -> None:
        settings = {**PLAIN, "sasl_mechanism": mechanism, "sasl_password": "canary-wrong"}
        found = check(run, first(cluster.listener("CLEAR")), "orders", **settings)
        has(found, "authentication_failed", ERROR, "check sasl_username and sasl_password")
        assert "canary" not in str(found)

    @pytest.mark.parametrize("topic_name", ["orders", "small"])  # alice may describe small
    def test_06_no_acl(self, cluster: KafkaCluster, run: Run, topic_name: str) -> None:
        found = check(run, first(cluster.listener("CLEAR")), topic_name, **PLAIN)
        denied = [finding for finding in found if finding.severity is ERROR]
        has(tuple(denied), "not_authorized", ERROR, "WRITE on the topic to the principal")

    def test_07_topic_missing(self, cluster: KafkaCluster, run: Run) -> None:
        found = check(run, cluster.bootstrap_servers, "orderz")
        text = has(found, "topic_missing", ERROR, "create the topic, or correct its name").text
        assert "auto.create.topics.enable=false" in text

    def test_09_one_replica_with_acks_all(self, cluster: KafkaCluster, run: Run) -> None:
        found = check(run, cluster.bootstrap_servers, "single")
        codes = {finding.code for finding in found}
        assert "single_replica" in codes
        # min.insync.replicas=2 is the default of these brokers.
        assert codes == {"single_replica", "too_few_replicas"}
        assert {f.remedy for f in found if f.code == "single_replica"} == {
            "raise the replication factor to 3"
        }

    def test_11_messages_smaller_than_batches(self, cluster: KafkaCluster, run: Run) -> None:
        found = check(run, cluster.bootstrap_servers, "small")
        text = has(found, "message_size", WARNING, "set batch_size=50000 or less").text
        assert "max.message.bytes=50000 is less than batch_size=131072" in text

    def test_12_clock_skew_on_tokens(self, cluster: KafkaCluster, run: Run) -> None:
        async def from_the_future() -> str:
            head, body, _ = bearer().split(".")
            claims = json.loads(base64.urlsafe_b64decode(body + "=="))
            claims |= {"iat": time.time() + 600, "exp": time.time() + 4_000}
            text = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
            return f"{head}.{text}."

        settings = {
            **CLEAR, "sasl_mechanism": "OAUTHBEARER", "sasl_token_provider": from_the_future
        }  # fmt: skip
        found = check(run, first(cluster.listener("CLEAR")), "orders", **settings)
        skew = tuple(finding for finding in found if finding.code == "token_clock_skew")
        text = has(skew, "token_clock_skew", ERROR, "synchronise the clocks").text
        assert "s in the future by the clock of this host" in text
        assert {finding.code for finding in found} == {"token_clock_skew", "authentication_failed"}

    def test_13_name_with_one_dead_address(self, cluster: KafkaCluster, run: Run) -> None:
        port = first(cluster.bootstrap_servers).rpartition(":")[2]
        environment = Environment(TwoAddresses())
        found = check(run, f"localhost:{port}", "orders", environment=environment)
        server = tuple(f for f in found if f.subject == f"localhost:{port}")
        text = has(server, "address_unreachable", WARNING, "remove the dead addresses").text
        assert "1 of 2 addresses" in text
        assert "127.0.0.9: cannot connect" in text

    def test_14_advertised_listener_unreachable(self, cluster: KafkaCluster, run: Run) -> None:
        found = check(run, first(cluster.listener("HIDDEN")), "orders")
        subject = has(
            found, "advertised_listener_unreachable", ERROR, "set advertised.listeners"
        ).subject
        assert len(found) == 3
        assert subject == f"broker {HOST}:1 (id 1)"

    def test_15_version_too_old(self, kafka_2_0: KafkaCluster, run: Run) -> None:
        assert check(run, kafka_2_0.bootstrap_servers) == ()
        found = check(run, kafka_2_0.bootstrap_servers, compression_type="zstd")
        text = has(found, "version_too_old", ERROR, "upgrade the broker to Kafka 2.1").text
        assert "zstd" in text

    def test_16_dead_broker(self, cluster: KafkaCluster, run_uvloop: Run) -> None:
        """Faults 8 and 10: a partition without a leader, and a min.insync.replicas that exceeds the
        number of live brokers."""

        async def kill() -> None:
            await cluster.kill(3)
            for _ in range(90):
                if 3 not in await cluster.serving():
                    return
                await asyncio.sleep(0.5)

        run_uvloop(kill())
        servers = ",".join(cluster.address(node) for node in (1, 2))
        found = check(run_uvloop, servers, "single", "strict")
        by_code = {finding.code: finding for finding in found}
        assert by_code["no_leader"].subject == "topic single"
        assert "1 of 3 partitions have no leader" in by_code["no_leader"].text
        assert "start the brokers that have the replicas" in by_code["no_leader"].remedy
        short = by_code["too_few_in_sync_replicas"]
        assert short.subject == "topic strict"
        assert "fewer than min.insync.replicas=3 in-sync replicas" in short.text
        assert "start the brokers that are down" in short.remedy
