"""Counters of authentications in `producer.metrics()`."""

from __future__ import annotations

import asyncio

import pytest

from aiokprod.errors import KafkaError
from aiokprod.security import Secret
from aiokprod.testing.virtual import run
from tests.security.sasl_broker import PlainServer
from tests.security.sasl_cluster import PASSWORD, USER, SaslCluster, producer


def cluster_of_one() -> SaslCluster:
    cluster = SaslCluster(1, {"PLAIN": lambda: PlainServer({USER: PASSWORD})})
    cluster.create_topic("t", 1)
    return cluster


def test_authentications_and_reauthentications_are_counted() -> None:
    async def main() -> None:
        cluster = cluster_of_one()
        cluster.lifetime_ms = 10_000
        async with producer(
            cluster, sasl_mechanism="PLAIN", sasl_username=USER, sasl_password=Secret(PASSWORD)
        ) as made:
            for _ in range(30):
                await made.send("t", b"value")
                await asyncio.sleep(1)
            values = made.metrics()
        assert values["authentications"] == values["connections_opened"] > 0
        assert values["reauthentications"] + values["authentications"] == len(cluster.attempts)
        assert values["reauthentications"] >= 2
        assert values["authentication_failures"] == 0

    run(main)


def test_refused_credentials_are_counted() -> None:
    async def main() -> None:
        cluster = cluster_of_one()
        async with producer(
            cluster, sasl_mechanism="PLAIN", sasl_username=USER, sasl_password=Secret("canary-no"),
            max_block_ms=3_000,
        ) as made:  # fmt: skip
            with pytest.raises(KafkaError):
                await made.send("t", b"value")
            values = made.metrics()
        assert values["authentication_failures"] == len(cluster.attempts) > 0
        assert values["connection_failures"] >= values["authentication_failures"]
        assert values["authentications"] == values["connections_opened"] == 0

    run(main)
