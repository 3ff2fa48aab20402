"""Brokers that are slow to accept a connection, and brokers with long throttle times."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiokprod.errors import AuthenticationError
from aiokprod.producer import Producer
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.fake_cluster.control import answer_late
from aiokprod.testing.memory import MemoryNetwork
from tests.scenarios.scenario_helpers import RECOVERY, History, now, play, scenario, until
from tests.security.sasl_broker import AUTHENTICATE, SaslBroker, new_producer
from tests.security.test_sasl import honest, settings_for

API_VERSIONS = 18


@scenario(partitions=1, brokers=1)
async def test_versions_answered_after_the_setup_timeout_are_waited_for(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    cluster.control(API_VERSIONS, answer_late(15.0))
    start = now()
    await history.send()
    history.all_acked()
    # The setup takes this time once for the bootstrap address and once for the broker.
    assert now() - start < 30.0 + RECOVERY
    assert len(cluster.network.dials) == 2


@scenario(
    partitions=1,
    brokers=1,
    request_timeout_ms=1_000,
    socket_connection_setup_timeout_ms=1_000,
)
async def test_setup_timeout_grows_until_a_slow_handshake_fits(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    cluster.control(API_VERSIONS, answer_late(3.0))
    start = now()
    await history.send()
    history.all_acked()
    # About 1, 2 and 4 s, for the bootstrap address and for the broker.
    assert now() - start < 2 * (1.2 + 2.4 + 3.0) + RECOVERY
    assert len(cluster.network.dials) <= 6


@scenario(partitions=1, brokers=1, delivery_timeout_ms=3_000_000, request_timeout_ms=30_000)
async def test_throttle_beyond_minutes_is_waited_out(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    """The throttle time follows the broker's formula for 1 MB under a quota of 1 KiB/s."""
    await history.send()
    cluster.throttle(966_851)
    await history.send()
    cluster.throttle(0)
    start = now()
    await history.send()
    history.all_acked()
    assert 966.8 < now() - start < 966.9
    assert cluster.sends_while_throttled == 0
    # Connections are closed because they are idle, not because of throttling.
    assert len(cluster.network.dials) <= 3


@scenario(partitions=1, brokers=1)
async def test_hostile_throttle_ends_records_by_their_deadline(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.throttle(2**31 - 1)
    await history.send()
    cluster.throttle(0)
    start = now()
    attempt = await history.send()
    assert not attempt.acked
    assert abs(now() - start - 120.0) < 1.0
    await asyncio.sleep(600.0)
    assert cluster.sends_while_throttled == 0
    history.check()


@pytest.mark.parametrize(("count", "first_second"), [(1, 6), (3, 18), (50, 20)])
def test_dead_bootstrap_addresses_are_not_stormed(count: int, first_second: int) -> None:
    """A live address among a few is found at once; the addresses of a long dead list are tried with
    the metadata backoff."""
    servers = ",".join(f"dead{number}:9092" for number in range(count))

    @scenario(bootstrap_servers=servers, max_block_ms=30_000)
    async def play(cluster: FakeCluster, producer: Producer[Any, Any], history: History) -> None:
        for number in range(count):
            cluster.network.set_name(f"dead{number}", ["broker9"])
        start = now()
        await history.send()
        dials = [dial.time - start for dial in cluster.network.dials]
        assert count <= len(dials) <= min(38 * count, 350)
        assert len({dial.address for dial in cluster.network.dials}) == 1
        assert {host for _, host in cluster.network.lookups} >= {
            f"dead{number}" for number in range(count)
        }
        assert sum(at < 1.0 for at in dials) <= first_second
        assert {attempt.acked for attempt in history.attempts} == {False}

    play()


class SlowSasl:
    """A SASL broker that takes `delay_s` for each authentication."""

    def __init__(self, delay_s: float) -> None:
        self.network = MemoryNetwork()
        self.broker: SaslBroker = honest(self.network)
        answer = self.broker.answers[AUTHENTICATE]

        def late(header: Any, message: Any) -> None:
            session = self.broker.sessions[-1]
            answered = answer(header, message)
            assert answered is not None
            asyncio.get_running_loop().call_later(delay_s, session.reply, header, answered)

        self.broker.answers[AUTHENTICATE] = late


@pytest.mark.parametrize("versions_s", [0.0, 3.0])
def test_slow_authentication_is_waited_for_longer_each_time(versions_s: float) -> None:
    """SASL takes 1.5 s with a setup timeout of 1 s; the time of the ApiVersions exchange does not
    count."""

    async def main() -> None:
        slow = SlowSasl(1.5)
        versions = slow.broker.answers[API_VERSIONS]

        def late(header: Any, message: Any) -> None:
            session = slow.broker.sessions[-1]
            answer = versions(header, message)
            assert answer is not None
            asyncio.get_running_loop().call_later(versions_s, session.reply, header, answer)

        slow.broker.answers[API_VERSIONS] = late
        made = new_producer(
            slow.network, socket_connection_setup_timeout_ms=1_000, **settings_for("PLAIN")
        )
        sending = asyncio.ensure_future(made.send("t", b"v", timeout=30.0))
        await until(lambda: slow.broker.count(3) > 0, within=3 * (2.0 + versions_s + 1.5))
        assert 2 <= len(slow.network.dials) <= 3
        sending.cancel()
        await made.close(0)

    play(main)


def test_token_provider_has_the_setup_timeout_whatever_the_versions_took() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        broker = honest(network)
        versions = broker.answers[API_VERSIONS]

        def late(header: Any, message: Any) -> None:
            session = broker.sessions[-1]
            answer = versions(header, message)
            assert answer is not None
            asyncio.get_running_loop().call_later(5.0, session.reply, header, answer)

        broker.answers[API_VERSIONS] = late

        async def hanging() -> str:
            await asyncio.Event().wait()
            return ""

        settings = settings_for("OAUTHBEARER") | {"sasl_token_provider": hanging}
        made = new_producer(network, socket_connection_setup_timeout_ms=2_000, **settings)
        start = now()
        with pytest.raises(AuthenticationError, match="does the token provider hang"):
            await made.send("t", b"v", timeout=60.0)
        assert 5.0 + 1.6 <= now() - start <= 5.0 + 2.4 + 0.1
        await made.close(0)

    play(main)
