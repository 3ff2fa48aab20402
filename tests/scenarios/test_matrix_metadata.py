"""Every error from Metadata and ApiVersions, once and permanently: the caller's result and the
number of requests. A permanent error must be retried with backoff; a temporary one must have no
later effect."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from aiokprod._wire.messages.metadata import MetadataResponse
from aiokprod.errors import (
    AuthenticationError,
    KafkaError,
    MetadataTimeout,
    Outcome,
    UnsupportedVersion,
)
from aiokprod.testing.fake_cluster.control import edit, refuse
from tests.scenarios.scenario_helpers import harness, now, play

METADATA = 3
API_VERSIONS = 18

VERDICTS = {17, 29, 44}
"""Topic errors that are raised to the caller at once, because waiting fixes none of them."""

CODES = [
    *(-77, -1, 2, 3, 5, 6, 7, 8, 9, 13, 14, 15, 16, 17, 19, 29, 31, 35, 37, 41, 44, 56, 58, 72, 74),
    *(75, 76, 89, 100, 103, 104, 129, 9999),
]

MAX_BLOCK_S = 10.0

MAX_AGE_S = 300.0
"""Seconds for which a topic counts as invalid after a response with that error, as in Java."""

LASTING = 18
"""Maximum number of requests in ten seconds: pauses of 0.1, 0.2, 0.4, 0.8 and then 1 s, minus a
fifth of jitter, and one immediate request for a new topic."""


def at_top(code: int) -> Callable[[MetadataResponse], MetadataResponse]:
    return lambda body: replace(body, error_code=code, topics=[])


def at_topic(code: int) -> Callable[[MetadataResponse], MetadataResponse]:
    return lambda body: replace(
        body, topics=[replace(t, error_code=code, partitions=[]) for t in body.topics]
    )


def at_topic_with_partitions(code: int) -> Callable[[MetadataResponse], MetadataResponse]:
    """Return an error together with all data of a successful response, which the protocol
    forbids."""
    return lambda body: replace(body, topics=[replace(t, error_code=code) for t in body.topics])


def at_partition(code: int) -> Callable[[MetadataResponse], MetadataResponse]:
    """Return the leader together with the error, as with REPLICA_NOT_AVAILABLE."""
    return lambda body: replace(
        body,
        topics=[
            replace(t, partitions=[replace(p, error_code=code) for p in t.partitions])
            for t in body.topics
        ],
    )


def at_partition_without_leader(code: int) -> Callable[[MetadataResponse], MetadataResponse]:
    return lambda body: replace(
        body,
        topics=[
            replace(
                t,
                partitions=[
                    replace(p, error_code=code, leader_id=-1, leader_epoch=-1) for p in t.partitions
                ],
            )
            for t in body.topics
        ],
    )


PLACES = {
    "top": at_top,
    "topic": at_topic,
    "topic with partitions": at_topic_with_partitions,
    "partition": at_partition,
    "partition without leader": at_partition_without_leader,
}

SETTINGS: dict[str, Any] = {
    "linger_ms": 0,
    "max_block_ms": int(MAX_BLOCK_S * 1000),
    "delivery_timeout_ms": 10_000,
    "request_timeout_ms": 2_000,
}


async def outcome(producer: Any) -> tuple[Any, float]:
    """Return the result of a send and the seconds it takes."""
    start = now()
    try:
        result = await producer.send("t", b"x", partition=0)
    except KafkaError as error:
        return error, now() - start
    return result, now() - start


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("code", CODES)
def test_metadata_refused_once_is_asked_for_again(place: str, code: int) -> None:
    async def main() -> None:
        async with harness(partitions=1, **SETTINGS) as (cluster, producer, _):
            cluster.control(METADATA, edit(PLACES[place](code)), times=1)
            result, took = await outcome(producer)
            if place.startswith("topic") and code in VERDICTS:
                assert isinstance(result, KafkaError)
                assert result.code is not None
                assert result.code.number == code
                assert result.outcome is Outcome.NOT_SENT
                assert took < 0.1
                if code == 17:
                    await asyncio.sleep(MAX_AGE_S + 1.0)
                result, took = await outcome(producer)
            assert not isinstance(result, KafkaError), (place, code, result)
            assert took < 1.0
            assert cluster.count(METADATA) <= 5
            assert len(cluster.values("t", 0)) == 1

    play(main)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("code", CODES)
def test_metadata_that_stay_refused_meet_the_backoff_and_heal(place: str, code: int) -> None:
    async def main() -> None:
        async with harness(partitions=1, **SETTINGS) as (cluster, producer, _):
            cluster.control(METADATA, edit(PLACES[place](code)))
            result, took = await outcome(producer)
            if place == "partition":
                assert not isinstance(result, KafkaError), (place, code, result)
            elif place.startswith("topic") and code in VERDICTS:
                assert result.code.number == code
                assert took < 0.1
            elif place == "partition without leader":
                assert result.outcome is Outcome.NOT_SENT, result
                assert took == pytest.approx(10.0, abs=0.3)
            else:
                assert isinstance(result, MetadataTimeout), (place, code, result)
                assert result.outcome is Outcome.NOT_SENT
                assert took == pytest.approx(MAX_BLOCK_S, abs=0.1)
            await asyncio.sleep(max(0.0, 10.0 - took))
            assert cluster.count(METADATA) <= LASTING, (place, code)
            cluster.script.clear()
            if place.startswith("topic") and code == 17:
                await asyncio.sleep(MAX_AGE_S + 1.0)
            result, took = await outcome(producer)
            assert not isinstance(result, KafkaError), (place, code, result)
            assert took < 2.5
            assert cluster.violations == []

    play(main)


@pytest.mark.parametrize("times", [1, 4])
def test_versions_without_any_api_meet_the_reconnect_backoff_and_heal(times: int) -> None:
    async def main() -> None:
        async with harness(partitions=1, **SETTINGS) as (cluster, producer, _):
            empty = edit(lambda answer: replace(answer, api_keys=[]))
            cluster.control(API_VERSIONS, empty, times=times)
            result, took = await outcome(producer)
            assert not isinstance(result, KafkaError), result
            assert took < 2.5
            assert len(cluster.network.dials) > times

    play(main)


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("code", [-1, 3, 6, 7, 35, 42, 58, 76, 9999])
def test_refused_versions_meet_the_reconnect_backoff_and_heal(code: int, lasting: bool) -> None:
    async def main() -> None:
        async with harness(partitions=1, **SETTINGS) as (cluster, producer, _):
            cluster.control(API_VERSIONS, refuse(code), times=None if lasting else 1)
            result, took = await outcome(producer)
            if lasting:
                assert isinstance(result, (MetadataTimeout, UnsupportedVersion)), result
                assert not isinstance(result, AuthenticationError)
                assert result.outcome is Outcome.NOT_SENT
                with contextlib.suppress(KafkaError):
                    await asyncio.sleep(max(0.0, 10.0 - took))
                # Three bootstrap addresses: 5 connection attempts each in the first second, then
                # one per second, and at most three requests for each.
                dials = len(cluster.network.dials)
                assert dials <= 3 * 18
                assert cluster.count(API_VERSIONS) <= (3 if code == 35 else 1) * dials
                cluster.script.clear()
                result, took = await outcome(producer)
            assert not isinstance(result, KafkaError), (code, result)
            assert took < 2.5
            assert cluster.count(METADATA) <= 6

    play(main)
