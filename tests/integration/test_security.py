"""Real brokers with TLS and SASL listeners: every record is stored once, and wrong credentials are
rejected."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aiokprod import AuthenticationError, Credentials, Observer, Producer
from aiokprod.testing.kafka_cluster import KafkaCluster
from tests.integration.checker import History, check
from tests.integration.load import by_submit, every_record_once, every_record_once_for, healed
from tests.integration.runner import Run
from tests.security.certs import Authority
from tests.transactions.readback import read_committed

CA = Authority("integration CA", 10)
OTHER_CA = Authority("other CA", 11)
RECORDS = 100_000
USERS = {"alice": "canary-alice-secret", "bob": "canary-bob-secret"}
SESSION_MS = 4_000


def bearer(lifetime_s: float = 3600.0) -> str:
    """Return an unsecured JWS, which brokers without a validator accept."""
    now = time.time()
    parts = ({"alg": "none"}, {"sub": "alice", "iat": now - 10, "exp": now + lifetime_s})
    texts = [base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in parts]
    return ".".join((*texts, ""))


async def give_token() -> str:
    return bearer()


def jaas() -> dict[str, str]:
    package = "org.apache.kafka.common.security"
    users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
    scram = f"{package}.scram.ScramLoginModule required;"
    return {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "plain.sasl.jaas.config": f"{package}.plain.PlainLoginModule required {users};",
        "scram-sha-256.sasl.jaas.config": scram,
        "scram-sha-512.sasl.jaas.config": scram,
        "oauthbearer.sasl.jaas.config": f"{package}.oauthbearer.OAuthBearerLoginModule required "
        'unsecuredLoginStringClaim_sub="broker";',
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def secure_cluster(folder: Path) -> Iterator[KafkaCluster]:
    store = CA.issue("127.0.0.1", "localhost", number=70).write(folder, "broker")
    wrong = CA.issue("other.example", number=71).write(folder, "wrong-name")
    (folder / "ca.pem").write_text(CA.pem)

    def tls(location: Path) -> dict[str, str]:
        return {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(location)}

    sessions = {
        f"{mechanism}.connections.max.reauth.ms": str(SESSION_MS)
        for mechanism in ("plain", "scram-sha-256", "scram-sha-512", "oauthbearer")
    }
    cluster = KafkaCluster(
        1,
        listeners={
            "TLS": {"security.protocol": "SSL", **tls(store)},
            "WRONG": {"security.protocol": "SSL", **tls(wrong)},
            "MTLS": {
                "security.protocol": "SSL",
                **tls(store),
                "ssl.client.auth": "required",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(folder / "ca.pem"),
            },
            "SECURE": {"security.protocol": "SASL_SSL", **tls(store), **jaas()},
            "CLEAR": {"security.protocol": "SASL_PLAINTEXT", **jaas()},
            "SHORT": {"security.protocol": "SASL_SSL", **tls(store), **jaas(), **sessions},
        },
        scram_users=USERS,
    )
    cluster.start_blocking()
    yield cluster
    cluster.stop_blocking()


TRUST: dict[str, Any] = {"ssl_truststore_certificates": CA.pem}
CLIENT = CA.issue(number=72, common="alice", client=True)
ALICE: dict[str, Any] = {"sasl_username": "alice", "sasl_password": USERS["alice"]}
BEARER: dict[str, Any] = {"sasl_mechanism": "OAUTHBEARER", "sasl_token_provider": give_token}


def sasl(mechanism: str) -> dict[str, Any]:
    return BEARER if mechanism == "OAUTHBEARER" else {"sasl_mechanism": mechanism, **ALICE}


MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
ACCEPTED: dict[str, tuple[str, dict[str, Any]]] = {
    "SSL": ("TLS", {"security_protocol": "SSL", **TRUST}),
    "SSL-mutual": (
        "MTLS",
        {
            "security_protocol": "SSL",
            "ssl_keystore_certificate_chain": CLIENT.chain,
            "ssl_keystore_key": CLIENT.key("canary-pass"),
            "ssl_key_password": "canary-pass",
            **TRUST,
        },
    ),
    **{
        f"SASL_SSL-{name}": ("SECURE", {"security_protocol": "SASL_SSL", **sasl(name), **TRUST})
        for name in MECHANISMS
    },
    **{
        f"SASL_PLAINTEXT-{name}": (
            "CLEAR",
            {"security_protocol": "SASL_PLAINTEXT", "sasl_allow_cleartext": True, **sasl(name)},
        )
        for name in MECHANISMS
    },
}


@pytest.mark.parametrize("listener", ACCEPTED)
def test_security_listener_every_record_once_in_order(
    secure_cluster: KafkaCluster, run_uvloop: Run, topic: str, listener: str
) -> None:
    name, settings = ACCEPTED[listener]

    settings = {**settings, "bootstrap_servers": secure_cluster.listener(name)}
    run_uvloop(every_record_once(secure_cluster, topic, RECORDS, settings))


WRONG_CLIENT = OTHER_CA.issue(number=73, client=True)
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "unknown-ca": (
        "TLS",
        {"security_protocol": "SSL", "ssl_truststore_certificates": OTHER_CA.pem},
        "unable to get local issuer|self-signed|signature failure",
    ),
    "wrong-name": ("WRONG", {"security_protocol": "SSL", **TRUST}, "not valid for '127.0.0.1'"),
    "no-client-certificate": (
        "MTLS",
        {"security_protocol": "SSL", **TRUST},
        "client certificate",
    ),
    "foreign-client-certificate": (
        "MTLS",
        {
            "security_protocol": "SSL",
            "ssl_keystore_certificate_chain": WRONG_CLIENT.chain,
            "ssl_keystore_key": WRONG_CLIENT.key(),
            **TRUST,
        },
        "client certificate",
    ),
    **{
        f"wrong-password-{mechanism}": (
            "SECURE",
            {
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": mechanism,
                "sasl_username": "alice",
                "sasl_password": "canary-wrong",
                **TRUST,
            },
            mechanism,
        )
        for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
    },
    "rejected-token": (
        "SECURE",
        {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_token_provider": None,
            **TRUST,
        },
        "OAUTHBEARER",
    ),
}


async def bad_token() -> str:
    return "canary.is.bad"


@pytest.mark.parametrize("case", REFUSED)
def test_security_refusal_is_named_to_all_waiting_calls_in_time(
    secure_cluster: KafkaCluster, run: Run, topic: str, case: str
) -> None:
    name, settings, text = REFUSED[case]
    if settings.get("sasl_mechanism") == "OAUTHBEARER":
        settings = settings | {"sasl_token_provider": bad_token}

    async def scenario() -> list[BaseException]:
        producer = Producer(bootstrap_servers=secure_cluster.listener(name), **settings)
        try:
            async with asyncio.timeout(60):
                calls = (producer.send(topic, b"v") for _ in range(10))
                found: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
                return found
        finally:
            await producer.close(0)

    for error in run(scenario()):
        assert isinstance(error, AuthenticationError), repr(error)
        assert any(part in str(error) for part in text.split("|")), str(error)
        assert "canary" not in str(error)


@pytest.mark.parametrize(
    "mechanism",
    [
        # CI runs one mechanism with a password, and the one with tokens. Each takes half a minute.
        pytest.param(
            name, marks=() if name in ("SCRAM-SHA-256", "OAUTHBEARER") else pytest.mark.slow
        )
        for name in MECHANISMS
    ],
)
def test_f78_sessions_of_seconds_under_load_lose_nothing(
    secure_cluster: KafkaCluster, run_uvloop: Run, topic: str, mechanism: str
) -> None:
    """Each connection is re-authenticated several times during the load. No record fails or changes
    its order."""
    connections = Connections()
    settings = {
        "bootstrap_servers": secure_cluster.listener("SHORT"),
        "security_protocol": "SASL_SSL",
        "observer": connections,
        **sasl(mechanism),
        **TRUST,
    }
    seconds = 3.5 * SESSION_MS / 1000
    run_uvloop(every_record_once_for(secure_cluster, topic, seconds, settings))
    # One to the bootstrap address and one to the broker: no session was closed.
    assert connections.opened <= 2


class Connections(Observer):
    """Counts opened connections."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = 0

    def on_connection_opened(self, node_id: int) -> None:
        self.opened += 1


TASKS, MINUTES = 16, 5


@pytest.mark.slow
def test_f78_five_minutes_of_renewals_cost_no_error_and_little_latency(
    secure_cluster: KafkaCluster, run_uvloop: Run, topic: str
) -> None:
    """Two producers run at the same time, one of which authenticates again every few seconds."""
    settings = {"security_protocol": "SASL_SSL", **sasl("SCRAM-SHA-512"), **TRUST}
    connections = Connections()

    async def load(listener: str, number: int, observer: Observer) -> tuple[History, list[float]]:
        history, times = History(topic, number), array("d")
        ends = time.monotonic() + 60 * MINUTES

        async def worker(producer: Producer[bytes, bytes], key: bytes) -> None:
            while (started := time.monotonic()) < ends:
                sequence, value = history.next_value(key)
                found = await producer.send(topic, value, key=key)
                times.append(time.monotonic() - started)
                history.acknowledged(sequence, found)

        servers = secure_cluster.listener(listener)
        async with Producer(bootstrap_servers=servers, observer=observer, **settings) as producer:
            await producer.warm([topic])
            await asyncio.gather(*(worker(producer, b"k%d" % task) for task in range(TASKS)))
        return history, sorted(times)

    async def scenario() -> Any:
        await secure_cluster.create_topic(topic, partitions=6)
        return await asyncio.gather(load("SHORT", 0, connections), load("SECURE", 1, Observer()))

    (renewed, times), (steady, floor) = run_uvloop(scenario())
    report = check(secure_cluster.bootstrap_servers, renewed, steady)
    p99, base = times[len(times) * 99 // 100], floor[len(floor) * 99 // 100]
    print(f"{len(times)} sends, p99 {p99 * 1000:.1f} ms; without renewals {base * 1000:.1f} ms")
    assert report.ok, str(report)
    assert connections.opened <= 2
    assert p99 <= 2 * base


def test_f79_password_mended_at_run_time_heals_without_a_restart(
    secure_cluster: KafkaCluster, run: Run, topic: str
) -> None:
    async def scenario() -> None:
        await secure_cluster.create_topic(topic, partitions=1)
        credentials = Credentials("alice", "canary-wrong")
        async with Producer(
            bootstrap_servers=secure_cluster.listener("SECURE"),
            security_protocol="SASL_SSL",
            sasl_mechanism="SCRAM-SHA-512",
            sasl_credentials=credentials,
            **TRUST,
        ) as producer:
            with pytest.raises(AuthenticationError):
                await producer.send(topic, b"v")
            credentials.replace("alice", USERS["alice"])
            await healed(producer, topic)

    run(scenario())


@pytest.mark.slow
def test_f78_transactions_go_on_over_sessions_of_seconds(
    secure_cluster: KafkaCluster, run_uvloop: Run, topic: str
) -> None:
    async def scenario() -> History:
        await secure_cluster.create_topic(topic, partitions=6)
        history = History(topic)
        async with Producer(
            bootstrap_servers=secure_cluster.listener("SHORT"),
            transactional_id=topic,
            security_protocol="SASL_SSL",
            **TRUST,
            **sasl("SCRAM-SHA-512"),
        ) as producer:
            ends = time.monotonic() + 3 * SESSION_MS / 1000
            while time.monotonic() < ends:
                async with producer.transaction():
                    await by_submit(producer, history, 500, keyed=True)
        return history

    history = run_uvloop(scenario())
    committed = read_committed(secure_cluster.bootstrap_servers, topic)
    assert sum(map(len, committed.values())) == len(history)
    assert len({value for values in committed.values() for value in values}) == len(history)
    run_uvloop(secure_cluster.delete_topic(topic))
