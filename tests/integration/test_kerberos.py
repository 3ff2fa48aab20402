"""GSSAPI with a real KDC and a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aiokprod import Producer
from aiokprod.testing.kafka_cluster import HOST, KafkaCluster
from tests.integration.kdc import REALM, Realm, missing, realm
from tests.integration.load import every_record_once, every_record_once_for, healed, refused
from tests.integration.runner import Run
from tests.integration.test_security import CA, RECORDS, SESSION_MS, TRUST, Connections

# The KDC and the headers are system packages and not on PyPI. `.ci/kerberos` installs them if it
# has the permission, and fails if the installation fails. These tests are therefore skipped only on
# machines without that permission.
pytestmark = pytest.mark.skipif(bool(missing()), reason=f"no Kerberos: {missing()}")

PASSWORD = "canary-kerberos-password"


@pytest.fixture(scope="module")
def kerberos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    with realm(tmp_path_factory.mktemp("realm")) as made:
        made.principal(f"kafka/{HOST}")
        made.principal("app")
        made.principal("brief", life="10 seconds")
        made.principal("alice", password=PASSWORD)
        yield made


@pytest.fixture(scope="module")
def cluster(kerberos: Realm) -> Iterator[KafkaCluster]:
    store = CA.issue(HOST, number=74).write(kerberos.folder, "broker")
    login = (
        "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
        f'keyTab="{kerberos.folder / f"kafka-{HOST}.keytab"}" principal="kafka/{HOST}@{REALM}";'
    )
    gssapi = {
        "sasl.enabled.mechanisms": "GSSAPI",
        "gssapi.sasl.jaas.config": login,
        "sasl.kerberos.service.name": "kafka",
    }
    tls = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(store)}
    short = {"gssapi.connections.max.reauth.ms": str(SESSION_MS)}
    made = KafkaCluster(
        1,
        listeners={
            "CLEAR": {"security.protocol": "SASL_PLAINTEXT", **gssapi},
            "SECURE": {"security.protocol": "SASL_SSL", **tls, **gssapi},
            "SHORT": {"security.protocol": "SASL_SSL", **tls, **gssapi, **short},
        },
    )
    made.start_blocking()
    yield made
    made.stop_blocking()


def keytab_of(kerberos: Realm, name: str) -> dict[str, Any]:
    path: Path = kerberos.folder / f"{name}.keytab"
    return {"sasl_kerberos_principal": f"{name}@{REALM}", "sasl_kerberos_keytab": path}


@pytest.mark.parametrize("tickets", ["keytab", "cache"])
def test_gssapi_listener_every_record_once_in_order(
    kerberos: Realm, cluster: KafkaCluster, run_uvloop: Run, topic: str, tickets: str
) -> None:
    if tickets == "keytab":
        settings = {"security_protocol": "SASL_PLAINTEXT", **keytab_of(kerberos, "app")}
        name = "CLEAR"
    else:
        kerberos.kinit("alice", PASSWORD)
        settings, name = {"security_protocol": "SASL_SSL", **TRUST}, "SECURE"

    settings |= {"bootstrap_servers": cluster.listener(name), "sasl_mechanism": "GSSAPI"}
    run_uvloop(every_record_once(cluster, topic, RECORDS, settings))


def test_f78_gssapi_sessions_and_tickets_of_seconds_under_load_lose_nothing(
    kerberos: Realm, cluster: KafkaCluster, run_uvloop: Run, topic: str
) -> None:
    """Sessions expire every 4 s and tickets every 10 s. New tickets come from the keytab."""
    connections = Connections()
    settings = {"security_protocol": "SASL_SSL", **TRUST, **keytab_of(kerberos, "brief")}

    settings |= {"bootstrap_servers": cluster.listener("SHORT"), "sasl_mechanism": "GSSAPI"}
    settings["observer"] = connections
    run_uvloop(every_record_once_for(cluster, topic, 12.5, settings))
    assert connections.opened <= 2
    log = (kerberos.folder / "kdc.log").read_text().splitlines()
    assert sum("AS_REQ" in line and f"brief@{REALM} for" in line for line in log) >= 2


def test_s4_gssapi_refusal_names_the_reason_and_heals_without_a_restart(
    kerberos: Realm, cluster: KafkaCluster, run: Run, topic: str
) -> None:
    kerberos.kdestroy()

    async def scenario() -> None:
        await cluster.create_topic(topic, partitions=1)
        async with Producer(
            bootstrap_servers=cluster.listener("CLEAR"),
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="GSSAPI",
        ) as producer:
            await refused(producer, topic, "No credentials were supplied")
            await asyncio.to_thread(kerberos.kinit, "alice", PASSWORD)
            await healed(producer, topic)

    run(scenario())


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no-such-principal": ({"sasl_kerberos_principal": f"nobody@{REALM}"}, "GSSAPI"),
    "no-such-service": ({"sasl_kerberos_service_name": "other"}, "not found in Kerberos database"),
    "no-such-keytab": ({"sasl_kerberos_keytab": "/no/such.keytab"}, "GSSAPI"),
}


@pytest.mark.parametrize("case", WRONG)
def test_s4_gssapi_wrong_setting_is_named_to_all_waiting_calls_in_time(
    kerberos: Realm, cluster: KafkaCluster, run_uvloop: Run, topic: str, case: str
) -> None:
    settings, text = WRONG[case]
    kerberos.kinit("alice", PASSWORD)

    async def scenario() -> None:
        async with Producer(
            bootstrap_servers=cluster.listener("CLEAR"),
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="GSSAPI",
            **settings,
        ) as producer:
            await refused(producer, topic, text)

    run_uvloop(scenario())


def test_s4_gssapi_outdated_keytab_and_dead_kdc_are_named_and_heal(
    kerberos: Realm, cluster: KafkaCluster, run_uvloop: Run, topic: str
) -> None:
    kerberos.principal("rotated")
    settings = keytab_of(kerberos, "rotated")
    path: Path = settings["sasl_kerberos_keytab"]
    outdated = path.read_bytes()
    fresh = kerberos.keytab("rotated").read_bytes()
    path.write_bytes(outdated)

    async def scenario() -> None:
        await cluster.create_topic(topic, partitions=1)
        async with Producer(
            bootstrap_servers=cluster.listener("CLEAR"),
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="GSSAPI",
            **settings,
        ) as producer:
            await refused(producer, topic, "GSSAPI: ")
            await asyncio.to_thread(path.write_bytes, fresh)
            kerberos.stop()
            await refused(producer, topic, "GSSAPI: |not done in time")
            await asyncio.to_thread(kerberos.start)
            await healed(producer, topic)

    run_uvloop(scenario())
