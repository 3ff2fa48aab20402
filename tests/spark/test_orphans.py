"""How a run of a batch job treats transactions that earlier runs left open."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial

import pytest

from aiokprod._client.cluster_client import ClusterClient, ongoing_transactions
from aiokprod.errors import Code
from aiokprod.spark import orphans
from aiokprod.spark.options import SinkOptions
from aiokprod.spark.orphans import end_orphans
from aiokprod.testing.fake_cluster.apis.find_coordinator import refusal
from aiokprod.testing.fake_cluster.control import close, refuse
from tests.spark.cluster import INIT_PRODUCER_ID, LIST_TRANSACTIONS
from tests.spark.test_writer import JOB, STREAM, World

HANG_S = 60.0


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    found = World(monkeypatch)
    yield found
    found.thread.run(found.thread.drop(lambda key: True), HANG_S)
    assert found.on_loop(lambda: found.cluster.violations) == []


def test_next_run_ends_what_a_dead_driver_left_open(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    dead = world.writer(**JOB)
    for number in range(3):
        world.write(dead, "a", partition=number)
    assert len(world.open_ids()) == 3
    with caplog.at_level(logging.WARNING, logger="aiokprod.spark"):
        later = world.writer(**JOB)
    assert world.open_ids() == set()
    assert len(caplog.records) == 1, "one warning for all of them"
    assert "ended 3 transactions that an earlier run" in caplog.text
    later.commit([world.write(later, "b")])
    assert world.committed() == ["b"]


def test_run_that_was_overtaken_commits_nothing(world: World) -> None:
    """Two jobs wrongly use one prefix at the same time. Only the newest job is valid."""
    older = world.writer(**JOB)
    prepared = [world.write(older, "a", partition=number) for number in range(2)]
    newer = world.writer(**JOB)
    with pytest.raises(RuntimeError, match="another query or job with the same transactionalIdPre"):
        older.commit(prepared)
    newer.commit([world.write(newer, "b")])
    assert world.committed() == ["b"]


@pytest.mark.parametrize("other", ["p2", "p.more", "other", "p|x"])
def test_transactions_of_other_prefixes_and_of_streams_are_left_alone(
    world: World, other: str
) -> None:
    world.write(world.writer(**JOB | {"transactionalIdPrefix": other}), "a")
    world.write(world.writer(**STREAM), "b", batch=1)
    before = world.open_ids()
    assert len(before) == 2
    world.writer(**JOB)
    assert world.open_ids() == before


def test_streams_and_plain_jobs_look_for_nothing(world: World) -> None:
    world.writer(**STREAM)
    world.writer(topic="t")
    assert world.on_loop(lambda: world.cluster.count(LIST_TRANSACTIONS)) == 0


def test_run_starts_although_nothing_can_be_ended(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.write(world.writer(**JOB), "a")
    world.on_loop(
        lambda: world.cluster.control(
            INIT_PRODUCER_ID, refuse(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED), times=1
        )
    )
    with caplog.at_level(logging.WARNING, logger="aiokprod.spark"):
        world.writer(**JOB)
    assert "are left to their timeout" in caplog.text
    assert len(world.open_ids()) == 1


def test_broker_that_cannot_be_asked_hides_nothing_of_the_others(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(6):  # their coordinators are different brokers
        world.write(world.writer(**JOB | {"transactionalIdPrefix": f"q{number}"}), "a")
    options = SinkOptions.parse(world.options(**JOB))
    every = world.open_ids()
    brokers = world.cluster.brokers.values()
    of_broker = {
        one.broker_id: {name for name in every if not refusal(one, name)} for one in brokers
    }
    silent = max(of_broker, key=lambda broker: len(of_broker[broker]))
    found: set[str] = set()

    async def search() -> None:
        world.cluster.control(LIST_TRANSACTIONS, close(), broker_id=silent)
        client = ClusterClient(options.producer_config(), world.cluster.environment())
        failures: list[Exception] = []
        try:
            deadline = client.loop.time() + 10.0
            found.update(await ongoing_transactions(client, deadline, failures.append))
        finally:
            await client.close(1.0)
        assert len(failures) == 1

    world.thread.run(search(), HANG_S)
    assert found == every - of_broker[silent]
    assert len(found) < 6


def test_brokers_that_list_no_transactions_are_told(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers before Kafka 3.0 lack ListTransactions."""
    from tests.spark.cluster import SparkCluster

    old = world.on_loop(lambda: SparkCluster(1, version_profile="2.8"))
    client = partial(ClusterClient, environment=old.environment())
    monkeypatch.setattr(orphans, "ClusterClient", client)
    options = world.options(**JOB) | {"kafka.bootstrap.servers": old.bootstrap_servers}
    with caplog.at_level(logging.WARNING, logger="aiokprod.spark"):
        end_orphans(SinkOptions.parse(options))
    assert len(caplog.records) == 1
    assert "not searched for on every broker" in caplog.text
