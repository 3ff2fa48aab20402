"""Unreachable brokers: how long a command tries to connect, and which error it reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from aiokprod._cli.first_contact import LIMIT_S, connected
from aiokprod._cli.settings import config_of
from aiokprod.errors import AuthorizationError, DialError, KafkaError, MetadataTimeout
from aiokprod.testing import FakeCluster, run
from aiokprod.testing.api import Api
from aiokprod.testing.fake_cluster.control import answer_late
from aiokprod_cli import parser


def contact(
    cluster: FakeCluster, *arguments: str, then: Callable[[], None] | None = None
) -> tuple[Any, float]:
    """Return the error of the first contact, or None, and its duration in virtual seconds.

    Args:
        then: called after half of `LIMIT_S`.
    """
    options = parser().parse_args(
        ["produce", "-b", cluster.bootstrap_servers, "-t", "t", *arguments]
    )

    async def main() -> tuple[KafkaError | None, float]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        if then is not None:
            loop.call_later(LIMIT_S / 2, then)
        try:
            producer = await connected(options, config_of(options), cluster.environment())
        except KafkaError as error:
            return error, loop.time() - began
        await producer.close(0)
        return None, loop.time() - began

    return run(main)


def all_dead() -> FakeCluster:
    cluster = FakeCluster(brokers=2)

    async def kill() -> None:
        for broker_id in list(cluster.brokers):
            cluster.kill(broker_id)

    run(kill)
    return cluster


def test_servers_that_all_refuse_end_the_contact_early() -> None:
    error, seconds = contact(all_dead())
    assert isinstance(error, DialError)
    assert str(error).startswith("no bootstrap server could be reached within 10 s: broker broker")
    assert LIMIT_S <= seconds < LIMIT_S + 1


def test_brokers_that_start_in_time_are_found() -> None:
    cluster = all_dead()

    def start() -> None:
        cluster.start(1)
        cluster.start(2)

    error, seconds = contact(cluster, then=start)
    assert error is None
    assert LIMIT_S / 2 < seconds < LIMIT_S


@pytest.mark.parametrize("api", [Api.METADATA, Api.API_VERSIONS])
def test_brokers_that_start_in_time_may_be_slow(api: Api) -> None:
    cluster = all_dead()

    def start() -> None:
        cluster.start(1)
        cluster.start(2)
        cluster.control(api, lambda _: answer_late(8))

    error, seconds = contact(cluster, then=start)
    assert error is None
    assert seconds > LIMIT_S


@pytest.mark.parametrize("name", ["max.block.ms", "max_block_ms"])
def test_a_limit_that_is_given_holds(name: str) -> None:
    error, seconds = contact(all_dead(), "-X", f"{name}=40000")
    assert isinstance(error, MetadataTimeout)
    assert 40 <= seconds < 41


def test_a_server_that_accepts_connections_has_the_usual_time() -> None:
    """Such a server may only be slow, so the contact must not end before its request times out
    after 30 s."""
    cluster = all_dead()

    async def freeze() -> None:
        cluster.start(2)
        cluster.pause(2)

    run(freeze)
    error, seconds = contact(cluster)
    assert isinstance(error, DialError)
    assert 30 <= seconds < 60


def test_after_the_first_metadata_the_limit_of_the_settings_holds() -> None:
    error, seconds = contact(FakeCluster(auto_create=False))
    assert isinstance(error, MetadataTimeout)
    assert 60 <= seconds < 61


def test_a_refusal_ends_the_contact_at_once() -> None:
    cluster = FakeCluster()
    cluster.denied_topics.add("t")
    error, seconds = contact(cluster)
    assert isinstance(error, AuthorizationError)
    assert seconds < 1


def test_an_interruption_closes_the_producer() -> None:
    cluster = all_dead()
    options = parser().parse_args(["perf", "-b", cluster.bootstrap_servers, "-t", "t"])

    async def main() -> None:
        task = asyncio.ensure_future(connected(options, config_of(options), cluster.environment()))
        await asyncio.sleep(3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main)


@pytest.mark.parametrize("command", ["produce", "perf"])
def test_the_last_line_names_the_command_that_looks_for_the_reason(
    command: str, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiokprod._cli.first_contact.LIMIT_S", 0.1)
    code, out, err = run(command, "-b", "127.0.0.1:1", "-t", "t")
    assert (code, out) == (3, "")
    first, last = err.splitlines()
    assert first.startswith("aiokprod: no bootstrap server could be reached within ")
    assert "127.0.0.1:1" in first
    assert last == "aiokprod: run aiokprod check with the same -b, -F and -X to find the reason"
