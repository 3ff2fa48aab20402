"""Three nodes with SASL_SSL and sessions of a few seconds, which are restarted one after
another."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aiokprod import Producer
from aiokprod.testing.kafka_cluster import KafkaCluster
from tests.integration.checker import History, check
from tests.integration.load import by_submit
from tests.integration.runner import Run
from tests.integration.test_security import (
    CA,
    RECORDS,
    SESSION_MS,
    TRUST,
    USERS,
    Connections,
    jaas,
    sasl,
)

pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {"security_protocol": "SASL_SSL", **TRUST}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    folder: Path = tmp_path_factory.mktemp("certificates")
    store = CA.issue("127.0.0.1", number=75).write(folder, "broker")
    tls = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(store)}
    sessions = {
        f"{mechanism}.connections.max.reauth.ms": str(SESSION_MS)
        for mechanism in ("plain", "scram-sha-512", "oauthbearer")
    }
    cluster = KafkaCluster(
        3,
        listeners={"SHORT": {"security.protocol": "SASL_SSL", **tls, **jaas(), **sessions}},
        scram_users=USERS,
    )
    cluster.start_blocking()
    yield cluster
    cluster.stop_blocking()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "OAUTHBEARER"])
def test_security_three_nodes_restarted_in_turn_lose_nothing(
    nodes: KafkaCluster, run_uvloop: Run, topic: str, mechanism: str
) -> None:
    connections = Connections()

    async def scenario() -> History:
        await nodes.create_topic(topic, partitions=12)
        history = History(topic)
        async with Producer(
            bootstrap_servers=nodes.listener("SHORT"),
            observer=connections,
            **SETTINGS,
            **sasl(mechanism),
        ) as producer:
            await by_submit(producer, history, RECORDS // 2, keyed=True)
            rolling = asyncio.create_task(restart_all(nodes))
            while not rolling.done() or len(history) < RECORDS:
                await by_submit(producer, history, 5_000, keyed=True)
                await asyncio.sleep(0.2)
            await rolling
        return history

    history = run_uvloop(scenario())
    report = check(nodes.bootstrap_servers, history)
    assert report.ok, str(report)
    assert report.acknowledged == report.in_log == len(history) >= RECORDS
    assert connections.opened >= 6  # two connections to every node
    run_uvloop(nodes.delete_topic(topic))


async def restart_all(nodes: KafkaCluster) -> None:
    for node in nodes.node_ids:
        await nodes.restart(node)
