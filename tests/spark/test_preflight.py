"""Checks before the first task: requests, rejections, and how long a result is valid."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from aiokprod._client.cluster_client import ClusterClient
from aiokprod.errors import Code
from aiokprod.spark import preflight as module
from aiokprod.spark.options import SinkOptions
from aiokprod.spark.preflight import SECONDS, PreflightError, preflight
from aiokprod.testing.fake_cluster import FakeCluster, transactions
from aiokprod.testing.fake_cluster.control import lose_request, refuse
from aiokprod.testing.fake_cluster.framing import Request
from aiokprod.testing.virtual import run
from tests.security.sasl_broker import PlainServer
from tests.security.sasl_cluster import PASSWORD, USER, SaslCluster

METADATA, INIT_PRODUCER_ID = 3, 22
WRITE, DESCRIBE, READ = 1 << 4, 1 << 8, 1 << 3
NOT_TOLD = -(2**31)


def options_for(cluster: FakeCluster, **options: str) -> SinkOptions:
    given = {key.replace("__", "."): value for key, value in options.items()}
    return SinkOptions.parse(
        {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": "t"} | given
    )


async def check(patch: pytest.MonkeyPatch, cluster: FakeCluster, **options: str) -> float:
    """Run the check as the driver does, and return the seconds that it took.

    The virtual loop checks that no connection and no task is left behind.
    """
    environment = cluster.environment()
    patch.setattr(module, "ClusterClient", partial(ClusterClient, environment=environment))
    loop = asyncio.get_running_loop()
    started = loop.time()
    await module._check(options_for(cluster, **options))
    return loop.time() - started


def refusal(patch: pytest.MonkeyPatch, make: Callable[[], FakeCluster], **options: str) -> str:
    """Return the text of the error, and assert that the error shows no context."""

    async def main() -> str:
        with pytest.raises(PreflightError) as caught:
            await check(patch, make(), **options)
        assert caught.value.__suppress_context__
        return str(caught.value)

    return run(main)


def allow(cluster: FakeCluster, operations: int) -> None:
    """Make Metadata responses contain these authorized operations."""

    def tell(request: Request, message: Any) -> Any:
        if request.api_key != METADATA or request.version < 8:
            return message
        told = operations if request.body.include_topic_authorized_operations else NOT_TOLD
        topics = [
            dataclasses.replace(topic, topic_authorized_operations=told) for topic in message.topics
        ]
        return dataclasses.replace(message, topics=topics)

    cluster.answer_filters.append(tell)


def with_topic(*, auto_create: bool = True, profile: str = "4.3") -> FakeCluster:
    cluster = FakeCluster(auto_create=auto_create, version_profile=profile)
    cluster.create_topic("t", 3)
    return cluster


@pytest.mark.parametrize("profile", ["0.11", "2.1", "2.8", "4.3"])
def test_topic_that_is_there_is_found_on_brokers_of_any_age(
    profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    async def main() -> None:
        cluster = with_topic(profile=profile)
        allow(cluster, WRITE | DESCRIBE)
        cluster.control(METADATA, lambda request: seen.append(request))
        assert await check(monkeypatch, cluster) < 1.0
        assert cluster.violations == []

    run(main)
    ours = [one for one in seen if one.body.topics]
    (asked,) = ours
    assert [topic.name for topic in asked.body.topics] == ["t"]
    assert asked.body.allow_auto_topic_creation
    assert asked.version <= 12, "the last one that names topics"
    assert asked.body.include_topic_authorized_operations is (asked.version >= 8)


def test_query_with_a_topic_column_asks_for_no_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    async def main() -> None:
        cluster = FakeCluster()
        cluster.control(METADATA, lambda request: seen.append(request))
        environment = cluster.environment()
        monkeypatch.setattr(
            module, "ClusterClient", partial(ClusterClient, environment=environment)
        )
        servers = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
        await module._check(SinkOptions.parse(servers))

    run(main)
    assert {len(one.body.topics) for one in seen} == {0}


@pytest.mark.parametrize("operations", [WRITE, WRITE | READ | DESCRIBE, NOT_TOLD])
def test_permission_to_write_is_enough_and_so_is_one_that_is_not_told(
    operations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        cluster = with_topic()
        allow(cluster, operations)
        await check(monkeypatch, cluster)

    run(main)


@pytest.mark.parametrize("operations", [DESCRIBE, READ | DESCRIBE, 0])
def test_topic_that_may_not_be_written_is_refused(
    operations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make() -> FakeCluster:
        cluster = with_topic()
        allow(cluster, operations)
        return cluster

    text = refusal(monkeypatch, make)
    assert "topic 't': these credentials may not write to it; grant WRITE on the topic" in text
    assert "TOPIC_AUTHORIZATION_FAILED" in text
    assert text.endswith("; nothing was sent")
    assert text.startswith("aiokprod: broker1:9092, broker2:9092, broker3:9092: ")


def test_topic_that_may_not_be_seen_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> FakeCluster:
        cluster = with_topic()
        cluster.denied_topics.add("t")
        return cluster

    text = refusal(monkeypatch, make)
    assert (
        "topic 't': these credentials may not describe it; grant DESCRIBE and WRITE on it" in text
    )
    assert "TOPIC_AUTHORIZATION_FAILED" in text


def test_topic_that_is_just_created_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        cluster = FakeCluster(create_s=3.0)
        assert 3.0 <= await check(monkeypatch, cluster) < 3.5
        assert "t" in cluster.topics

    run(main)


def test_topic_whose_leader_is_not_elected_yet_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        cluster = with_topic()
        until = asyncio.get_running_loop().time() + 2.0

        def electing(request: Request, message: Any) -> Any:
            if request.api_key != METADATA or request.time >= until:
                return message
            topics = [
                dataclasses.replace(topic, error_code=int(Code.LEADER_NOT_AVAILABLE))
                for topic in message.topics
            ]
            return dataclasses.replace(message, topics=topics)

        cluster.answer_filters.append(electing)
        assert 2.0 <= await check(monkeypatch, cluster) < 2.5

    run(main)


@pytest.mark.parametrize(
    ("option", "why", "seconds"),
    [
        ("true", "the brokers do not create topics", SECONDS),
        ("false", "kafka.allow.auto.create.topics is false", 0.0),
    ],
)
def test_topic_that_is_missing_is_refused(
    option: str, why: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        cluster = FakeCluster(auto_create=False)
        loop = asyncio.get_running_loop()
        started = loop.time()
        with pytest.raises(PreflightError) as caught:
            await check(monkeypatch, cluster, kafka__allow__auto__create__topics=option)
        assert seconds - 0.5 <= loop.time() - started < seconds + 0.5
        assert (
            f"topic 't' does not exist, and {why}: create it, or correct the option 'topic'"
            in str(caught.value)
        )

    run(main)


def test_topic_is_not_created_against_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        cluster = FakeCluster(create_s=0.1)
        with pytest.raises(PreflightError, match=r"kafka\.allow\.auto\.create\.topics is false"):
            await check(monkeypatch, cluster, kafka__allow__auto__create__topics="false")
        await asyncio.sleep(1.0)
        assert "t" not in cluster.topics

    run(main)


def test_topic_with_an_error_that_does_not_pass_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        cluster = with_topic()

        def invalid(request: Request, message: Any) -> Any:
            if request.api_key != METADATA:
                return message
            code = int(Code.INVALID_TOPIC_EXCEPTION)
            topics = [dataclasses.replace(topic, error_code=code) for topic in message.topics]
            return dataclasses.replace(message, topics=topics)

        cluster.answer_filters.append(invalid)
        loop = asyncio.get_running_loop()
        started = loop.time()
        with pytest.raises(PreflightError, match=r"topic 't': .*INVALID_TOPIC_EXCEPTION"):
            await check(monkeypatch, cluster)
        assert loop.time() - started < 1.0

    run(main)


def test_credentials_that_are_refused_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        cluster = SaslCluster(3, {"PLAIN": lambda: PlainServer({USER: "other"})})
        loop = asyncio.get_running_loop()
        started = loop.time()
        with pytest.raises(PreflightError) as caught:
            await check(
                monkeypatch, cluster, kafka__security__protocol="SASL_PLAINTEXT",
                kafka__sasl__mechanism="PLAIN", kafka__sasl__username=USER,
                kafka__sasl__password=PASSWORD, kafka__sasl_allow_cleartext="true",
            )  # fmt: skip
        assert loop.time() - started < 2.0
        assert "the credentials were refused: " in str(caught.value)
        assert "kafka.sasl.*" in str(caught.value)
        assert PASSWORD not in str(caught.value)

    run(main)


def test_servers_that_cannot_be_reached_are_told_after_ten_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        cluster = with_topic()
        for broker in (1, 2, 3):
            cluster.kill(broker)
        loop = asyncio.get_running_loop()
        started = loop.time()
        with pytest.raises(PreflightError, match=r"no broker could be reached .* within 10 s"):
            await check(monkeypatch, cluster)
        assert SECONDS <= loop.time() - started < SECONDS + 2.0

    run(main)


def test_brokers_that_do_not_answer_are_told_after_ten_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        cluster = with_topic()
        cluster.control(METADATA, lose_request())
        loop = asyncio.get_running_loop()
        started = loop.time()
        with pytest.raises(PreflightError, match=r"; nothing was sent$"):
            await check(monkeypatch, cluster)
        assert SECONDS <= loop.time() - started < SECONDS + 2.0

    run(main)


# -- how long a result is valid --------------------------------------------------------------------


class Clock:
    """A stand-in for the loop thread. It has a clock and records the checks that run on it."""

    def __init__(self, now: float) -> None:
        self.now = now
        self.loop = SimpleNamespace(time=lambda: self.now)
        self.kinds: list[str] = []
        self.bounds: list[float | None] = []
        self.refused = False

    def run(self, work: Coroutine[Any, Any, None], timeout: float | None = None) -> None:
        work.close()
        self.bounds.append(timeout)
        if self.refused:
            raise PreflightError("on purpose")


@pytest.mark.parametrize("now", [0.0, 5.0, 1e6])
def test_result_counts_for_a_minute_and_for_the_same_options(
    now: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This also holds for a loop whose clock has just started."""
    clock = Clock(now)

    def loop_thread(kind: str) -> Clock:
        clock.kinds.append(kind)
        return clock

    monkeypatch.setattr(module, "loop_thread", loop_thread)
    monkeypatch.setattr(module, "_passed", {})
    servers = {"kafka.bootstrap.servers": "b:9092", "loop": "asyncio"}
    one, other = (SinkOptions.parse(servers | {"topic": name}) for name in ("one", "other"))
    preflight(one)
    assert len(clock.bounds) == 1
    clock.now += 59.0
    preflight(one)
    preflight(SinkOptions.parse(servers | {"topic": "one"}))
    assert len(clock.bounds) == 1
    preflight(other)
    assert len(clock.bounds) == 2
    assert list(module._passed) == [other], "one entry is kept"
    preflight(one)
    assert len(clock.bounds) == 3
    clock.now += 60.5
    clock.refused = True
    for _ in range(2):
        with pytest.raises(PreflightError):
            preflight(one)
    assert len(clock.bounds) == 5, "a refusal does not count"
    assert set(clock.kinds) == {"asyncio"}
    assert all(bound is not None and bound > SECONDS for bound in clock.bounds)


# -- transactions ----------------------------------------------------------------------------------

JOB = {"delivery": "transactional", "transactionalIdPrefix": "p"}


@pytest.mark.parametrize("wanted", [900_001, 1_800_000, 2**31 - 1])
@pytest.mark.parametrize("limit", [900_000, 899_999, 60_000, 1, 1_000_000])
def test_transaction_timeout_longer_than_the_brokers_allow_is_refused_with_the_limit(
    wanted: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "MAX_TIMEOUT_MS", limit)
    if wanted <= limit:
        wanted = limit + 1
    found = refusal(monkeypatch, with_topic, **JOB, kafka__transaction__timeout__ms=str(wanted))
    assert f"option 'kafka.transaction.timeout.ms' is {wanted}" in found
    assert f"the brokers allow {limit} at most" in found
    assert "raise transaction.max.timeout.ms of the brokers; nothing was sent" in found


@pytest.mark.parametrize("wanted", ["1", "60000", "900000"])
def test_transaction_timeout_that_the_brokers_allow_passes(
    wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        cluster = with_topic()
        settings = {"kafka__transaction__timeout__ms": wanted}
        await check(monkeypatch, cluster, **JOB, **settings)
        assert set(cluster.transactions.ids) == {"p.preflight"}
        assert cluster.count(INIT_PRODUCER_ID) == 1

    run(main)


def test_plain_job_needs_no_transactional_id(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        cluster = with_topic()
        await check(monkeypatch, cluster)
        assert cluster.count(INIT_PRODUCER_ID) == 0

    run(main)


def test_missing_permission_for_transactional_ids_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> FakeCluster:
        cluster = with_topic()
        cluster.control(INIT_PRODUCER_ID, refuse(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
        return cluster

    found = refusal(monkeypatch, make, **JOB)
    assert "transactional id 'p.preflight'" in found
    assert "grant WRITE on transactional ids with the prefix of transactionalIdPrefix" in found


def test_coordinator_that_is_not_ready_in_time_is_left_to_the_tasks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first transaction of a cluster creates the topic for transaction states."""

    async def main() -> None:
        cluster = with_topic()
        cluster.control(INIT_PRODUCER_ID, refuse(Code.COORDINATOR_NOT_AVAILABLE))
        with caplog.at_level("INFO", logger="aiokprod.spark"):
            assert await check(monkeypatch, cluster, **JOB) < SECONDS + 1.0
        assert "the transaction timeout was not checked" in caplog.text

    run(main)
