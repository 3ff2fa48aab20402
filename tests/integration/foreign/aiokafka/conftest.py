"""Run aiokafka's own tests (release 0.14.0, unchanged) with `aiokprod.compat.aiokafka`.

A node of `KafkaCluster` replaces the fixtures that start Kafka in Docker.
`tests/integration/test_foreign_suites.py` runs this folder in a separate process, because `install`
changes aiokafka for the whole process.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

import aiokprod.compat.aiokafka
from aiokprod.testing.kafka_cluster import KafkaCluster
from tests.security.certs import Authority

aiokprod.compat.aiokafka.install()  # before the test modules import the name

PASSWORD = "abcdefgh"  # for aiokafka's test certificates
CA = Authority("compat CA", number=91)


@pytest.fixture(scope="session")
def ssl_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    client = CA.issue("client", number=92)
    (folder / "ca.crt").write_text(CA.pem)
    (folder / "client.crt").write_text(client.chain)
    (folder / "client.key").write_text(client.key(PASSWORD))
    return folder


@pytest.fixture(scope="session")
def cluster(ssl_folder: Path) -> Iterator[KafkaCluster]:
    store = CA.issue("127.0.0.1", number=93).write(ssl_folder, "broker")
    tls = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(store)}
    cluster = KafkaCluster(
        1,
        config={"num.partitions": "2"},
        listeners={"TLS": {"security.protocol": "SSL", **tls}},
    )
    cluster.start_blocking()
    yield cluster
    cluster.stop_blocking()


@pytest.fixture(scope="class")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield loop
    if not loop.is_closed():
        loop.call_soon(loop.stop)
        loop.run_forever()
        loop.close()
    gc.collect()
    asyncio.set_event_loop(None)


@pytest.fixture(scope="class")
def setup_test_class(
    request: pytest.FixtureRequest,
    loop: asyncio.AbstractEventLoop,
    cluster: KafkaCluster,
    ssl_folder: Path,
) -> None:
    cls = request.cls
    cls.loop = loop
    cls.kafka_host, _, port = cluster.bootstrap_servers.rpartition(":")
    cls.kafka_port = int(port)
    cls.kafka_ssl_port = int(cluster.listener("TLS").rpartition(":")[2])
    cls.hosts = [cluster.bootstrap_servers]
    cls.ssl_folder = ssl_folder
    cls.kafka_version = "4.3.1"
