"""`ClusterClient` with brokers that reject its credentials: one broker, some, or all."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from aiokprod._client.cluster_client import ClusterClient
from aiokprod._engine.identity.coordinators import CoordinatorKind, VersionedRequest
from aiokprod._wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from aiokprod._wire.messages.metadata import MetadataRequest
from aiokprod.config import ProducerConfig
from aiokprod.errors import AuthenticationError, KafkaTimeout
from aiokprod.testing import virtual
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.fake_cluster.control import Reaction, answer
from aiokprod.testing.fake_cluster.framing import Request
from tests.security.sasl_broker import PlainServer
from tests.security.sasl_cluster import PASSWORD, USER, SaslCluster
from tests.virtual_time import in_virtual_time

FIND_COORDINATOR = 10
SETUP_S = 10.0
"""Default of socket_connection_setup_timeout_ms, in seconds."""


class ClientHarness:
    """Brokers that require SASL/PLAIN, and a client of these brokers."""

    def __init__(self, brokers: int, *, patience: float | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self.cluster = SaslCluster(brokers, {"PLAIN": lambda: PlainServer({USER: PASSWORD})})
        self.cluster.create_topic("t", brokers)
        self.config = ProducerConfig.from_mapping(
            {
                "bootstrap.servers": self.cluster.bootstrap_servers,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": USER,
                "sasl.password": PASSWORD,
                "sasl_allow_cleartext": True,
            }
        )
        self._patience = patience

    async def refuse(self, *brokers: int) -> None:
        """Make these brokers reject every client from now on. Return after the client has noticed
        that its connections to them are closed."""
        for broker in brokers:
            self.cluster.servers_of[broker] = {"PLAIN": lambda: PlainServer({USER: "other"})}
        self.cluster.cut(brokers)
        await asyncio.sleep(0.01)

    def admit(self, *brokers: int) -> None:
        for broker in brokers:
            del self.cluster.servers_of[broker]

    async def __aenter__(self) -> ClientHarness:
        environment = self.cluster.environment()
        self.client = ClusterClient(self.config, environment, patience=self._patience)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.client.close(1.0)

    async def ask(self, node_id: int | None = None, seconds: float = 60.0) -> Any:
        return await self.client.ask(node_id, METADATA, self.loop.time() + seconds)

    async def find_coordinator(self, key: str) -> int:
        """Send a request to the coordinator and return its node id."""
        deadline = self.loop.time() + 120.0
        await self.client.coordinate(
            CoordinatorKind.TRANSACTION, key, METADATA, deadline, lambda body: 0
        )
        (node,) = self.client._coordinators.values()
        return node.id


METADATA = VersionedRequest(MetadataRequest.api_key, lambda version: MetadataRequest(topics=[]), 9)


@in_virtual_time
async def test_preflight_tells_a_wrong_credential_at_once() -> None:
    async with ClientHarness(3, patience=0.0) as harness:
        await harness.refuse(1, 2, 3)
        started = harness.loop.time()
        with pytest.raises(AuthenticationError):
            await harness.ask()
        assert harness.loop.time() - started < 2.0
        # All brokers were tried, because a rejection by one broker does not predict those of
        # others.
        assert {broker for _, broker in harness.cluster.attempts} == {1, 2, 3}


@in_virtual_time
async def test_preflight_goes_to_a_broker_that_lets_us_in() -> None:
    async with ClientHarness(3, patience=0.0) as harness:
        await harness.refuse(1, 3)
        for _ in range(5):
            assert (await harness.ask()).node_id in (-2, 2)


@in_virtual_time
async def test_refusal_is_told_beside_brokers_that_are_down() -> None:
    async with ClientHarness(3, patience=0.0) as harness:
        for broker in (1, 3):
            harness.cluster.kill(broker)
        await harness.refuse(2)
        started = harness.loop.time()
        with pytest.raises(AuthenticationError):
            await harness.ask(seconds=10.0)
        assert harness.loop.time() - started < 10.5


@in_virtual_time
async def test_nobody_there_is_no_matter_of_credentials() -> None:
    async with ClientHarness(3, patience=0.0) as harness:
        for broker in (1, 2, 3):
            harness.cluster.kill(broker)
        with pytest.raises(KafkaTimeout, match="no connection in time"):
            await harness.ask(seconds=10.0)


@in_virtual_time
async def test_commit_outlasts_a_refusal_that_passes() -> None:
    async with ClientHarness(3) as harness:
        await harness.ask()
        await harness.refuse(1, 2, 3)
        harness.loop.call_later(SETUP_S - 2.0, harness.admit, 1, 2, 3)
        assert (await harness.ask()).error is None


@in_virtual_time
async def test_refusal_of_all_ends_every_call_after_the_patience() -> None:
    async with ClientHarness(3) as harness:
        await harness.ask()
        await harness.refuse(1, 2, 3)
        started = harness.loop.time()
        with pytest.raises(AuthenticationError):
            await harness.ask()
        assert SETUP_S <= harness.loop.time() - started < SETUP_S + 2.0
        with pytest.raises(AuthenticationError):
            await harness.client.topic("t", harness.loop.time() + 60.0)


@in_virtual_time
async def test_refusal_of_one_broker_ends_only_calls_that_need_it() -> None:
    async with ClientHarness(3) as harness:
        await harness.client.topic("t", harness.loop.time() + 60.0)
        await harness.refuse(1)
        started = harness.loop.time()
        with pytest.raises(AuthenticationError):
            await harness.ask(1)
        assert SETUP_S <= harness.loop.time() - started < SETUP_S + 2.0
        assert (await harness.ask(2)).node_id == 2
        for _ in range(5):
            assert (await harness.ask()).node_id != 1
        harness.admit(1)  # rejections before the call do not count
        assert (await harness.ask(1)).node_id == 1


@in_virtual_time
async def test_topics_are_found_while_one_broker_refuses_us() -> None:
    async with ClientHarness(3) as harness:
        await harness.refuse(2)
        found = await harness.client.topic("t", harness.loop.time() + 60.0)
        assert len(found.partitions) == 3


@in_virtual_time
async def test_coordinator_that_refuses_us_for_long_fails_the_commit() -> None:
    async with ClientHarness(3) as harness:
        node = await harness.find_coordinator("x")
        await harness.refuse(node)
        started = harness.loop.time()
        with pytest.raises(AuthenticationError):
            await harness.find_coordinator("x")
        assert SETUP_S <= harness.loop.time() - started < SETUP_S + 5.0


@pytest.mark.parametrize(
    "place",
    [{"node_id": -1}, {"host": ""}, {"port": 0}, {"port": -1}, {"port": 1 << 16}],
    ids=lambda place: "{} {!r}".format(*next(iter(place.items()))),
)
@pytest.mark.parametrize("version", [3, 6])
def test_coordinator_without_an_address_is_looked_for_again(
    version: int, place: dict[str, Any]
) -> None:
    """Gateways respond without an error code while they have no coordinator."""

    async def main() -> None:
        cluster = FakeCluster()
        for broker in cluster.brokers.values():
            ranges = broker.profile.ranges | {FIND_COORDINATOR: (0, version)}
            broker.profile = dataclasses.replace(broker.profile, ranges=ranges)
        found: dict[str, Any] = {"node_id": 2, "host": "broker2", "port": 9092} | place

        def nowhere(request: Request) -> Reaction:
            if request.version < 4:
                return answer(FindCoordinatorResponse(error_code=0, error_message=None, **found))
            (key,) = request.body.coordinator_keys
            named = Coordinator(key=key, error_code=0, error_message=None, **found)
            return answer(FindCoordinatorResponse(coordinators=[named]))

        cluster.control(FIND_COORDINATOR, nowhere, times=3)
        config = ProducerConfig.from_mapping({"bootstrap.servers": cluster.bootstrap_servers})
        client = ClusterClient(config, cluster.environment())
        loop = asyncio.get_running_loop()
        deadline = loop.time() + 30.0
        body = await client.coordinate(
            CoordinatorKind.TRANSACTION, "x", METADATA, deadline, lambda body: 0
        )
        assert body.brokers
        assert cluster.count(FIND_COORDINATOR) == 4
        cluster.control(FIND_COORDINATOR, nowhere)
        with pytest.raises(
            KafkaTimeout, match="no definite response in time: COORDINATOR_NOT_AVAIL"
        ):
            await client.coordinate(
                CoordinatorKind.GROUP, "y", METADATA, loop.time() + 5.0, lambda body: 0
            )
        await client.close(1.0)

    virtual.run(main)
