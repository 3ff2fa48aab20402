"""Every error code x API: the class of outcome of faults.md, section 3 (issue 3 of the project)."""

from __future__ import annotations

import asyncio

import pytest

from aiokprod.errors import Code, KafkaError, Outcome
from aiokprod.testing import fake_cluster as faults
from tests.faults.kit import RECOVERY, TICK, error_of, now, play, world

TP = ("t", 0)

UNKNOWN_CODES = (-2, 134, 500)
CODES = [*(int(code) for code in Code if code is not Code.NONE), *UNKNOWN_CODES]

RETRIED = {
    2, 3, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 51, 56, 72, 74, 75, 100, 103,
    # retriable, although no producer should ever see them
    41, 70, 71, 78, 80, 83, 84, 88, 89, 106, 122, 123, 133,
}  # fmt: skip
"""Class retriable in Kafka 4.2: the record is delivered once the error is over."""

RETRIED_BY_PROPOSAL = {8}
"""BROKER_NOT_AVAILABLE: Java fails, franz-go and we retry."""

IDEMPOTENT_ONLY_RETRIED = {45, 59}
SUCCESS_WHEN_IDEMPOTENT = {46}
FATAL = {31, 35}
SPLIT = {10}
FREE = {90, 47, 48, 49, 120}
"""Transaction and fencing errors a producer without transactions cannot get: any end in time."""

MAYBE_WRITTEN = {-1, *UNKNOWN_CODES}


async def one_case(code: int, *, idempotent: bool) -> tuple[str, str]:
    """Meet the code once on Produce; how that record and the next one ended."""
    async with world(enable_idempotence=idempotent) as (cluster, _, history):
        await history.send()
        cluster.fail_produce(TP, code, leader_hint=False)
        start = now()
        attempt = await history.send()
        assert now() - start < RECOVERY, "took too long"
        later = await history.send()
        history.check(refusals=True)
        return _class_of(attempt), _class_of(later)


def _class_of(attempt) -> str:
    if attempt.acked:
        return "acked"
    error = error_of(attempt, KafkaError)
    return "definite" if error.outcome.definite else "unknown"


def expected(code: int, *, idempotent: bool) -> tuple[set[str], set[str]]:
    """Permitted classes for the record that met the code, and for the one after it."""
    if code in RETRIED | RETRIED_BY_PROPOSAL:
        return {"acked"}, {"acked"}
    if code in IDEMPOTENT_ONLY_RETRIED | SUCCESS_WHEN_IDEMPOTENT:
        return ({"acked"} if idempotent else {"definite"}), {"acked"}
    if code in FATAL:
        return {"definite"}, {"definite"}
    if code in FREE:
        return {"acked", "definite", "unknown"}, {"acked", "definite"}
    if code in MAYBE_WRITTEN:
        return {"unknown"}, {"acked"}
    if code in SPLIT:
        return {"definite"}, {"acked"}
    return {"definite", "unknown"}, {"acked"}


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("code", CODES)
def test_produce_error_ends_in_its_class(code, idempotent):
    if code in SUCCESS_WHEN_IDEMPOTENT:
        return  # needs the record in the log: test_duplicate_sequence_on_produce
    first, later = play(lambda: one_case(code, idempotent=idempotent))
    want_first, want_later = expected(code, idempotent=idempotent)
    if code in FATAL and not idempotent:
        want_later = {"acked", "definite"}
    assert first in want_first, (first, want_first)
    assert later in want_later, (later, want_later)


@pytest.mark.parametrize("idempotent", [True, False])
def test_duplicate_sequence_on_produce(idempotent):
    async def main():
        async with world(enable_idempotence=idempotent) as (cluster, _, history):
            cluster.fail_produce(TP, 46, append=True)
            attempt = await history.send()
            if idempotent:
                assert attempt.acked
                assert attempt.result.offset is None
            else:
                # A producer without sequences cannot get it; what it makes of it must be true.
                assert attempt.acked or error_of(attempt).outcome is Outcome.UNKNOWN
            await history.send()
            history.check()

    play(main)


def no_storm(cluster, seconds):
    """Backoff of 100 ms doubling to 1 s, of each kind of request."""
    assert cluster.count(0) <= 15 + 8 * seconds
    assert cluster.count(3) <= 15 + 8 * seconds
    assert cluster.count(22) <= 10 + 3 * seconds
    assert len(cluster.network.dials) <= 15 + 8 * seconds


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("code", CODES)
def test_produce_error_for_ever_ends_at_delivery_timeout(code, idempotent):
    async def main():
        options = {"delivery_timeout_ms": 3_000, "request_timeout_ms": 1_000}
        async with world(enable_idempotence=idempotent, **options) as (cluster, _, history):
            await history.send()
            cluster.fail_produce(TP, code, None)
            attempts = [await history.submit() for _ in range(3)]
            start = now()
            await history.settle()
            assert now() - start <= 3 + TICK
            if code not in SUCCESS_WHEN_IDEMPOTENT:
                assert not any(a.acked for a in attempts)
                history.check()
            no_storm(cluster, 3)

    play(main)


INIT_RETRIED = RETRIED & set(range(104))


@pytest.mark.parametrize("code", CODES)
def test_init_producer_id_error_delays_or_fails_definite(code):
    async def main():
        async with world(delivery_timeout_ms=40_000) as (cluster, _, history):
            cluster.control(22, faults.refuse(code), times=1)
            attempt = await history.send()
            assert attempt.settled_at - attempt.started_at < RECOVERY
            if code in INIT_RETRIED:
                assert attempt.acked
            assert attempt.acked or error_of(attempt).outcome is Outcome.NOT_SENT
            history.check()

    play(main)


@pytest.mark.parametrize("code", CODES)
def test_init_producer_id_error_for_ever_fails_definite_in_time(code):
    async def main():
        async with world(delivery_timeout_ms=4_000, request_timeout_ms=1_000) as (
            cluster, _, history,
        ):  # fmt: skip
            cluster.control(22, faults.refuse(code))
            attempts = [await history.submit() for _ in range(3)]
            await history.settle()
            for attempt in attempts:
                assert error_of(attempt).outcome is Outcome.NOT_SENT
                assert attempt.settled_at - attempt.started_at <= 4 + TICK
            assert cluster.count(0) == 0
            no_storm(cluster, 4)
            history.check()

    play(main)


METADATA_FAILS = {17, 29}


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("code", CODES)
def test_metadata_topic_error_delays_or_fails_definite(code, idempotent):
    async def main():
        options = {"max_block_ms": 20_000, "enable_idempotence": idempotent}
        async with world(cluster={"version_profile": "3.9"}, **options) as (cluster, _, history):
            cluster.control(3, faults.refuse(code), times=1)
            attempt = await history.send()
            assert attempt.settled_at - attempt.started_at < 20 + TICK
            assert attempt.acked or error_of(attempt).outcome is Outcome.NOT_SENT
            if code in METADATA_FAILS:
                assert not attempt.acked
            elif code in RETRIED | {38, -1}:
                assert attempt.acked
                assert attempt.settled_at - attempt.started_at < RECOVERY
            later = await history.send()
            # An invalid name stays invalid until the next refresh.
            assert later.acked or code == Code.INVALID_TOPIC_EXCEPTION
            history.check()

    play(main)


@pytest.mark.parametrize("api_key", [3, 18])
@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("code", CODES)
def test_start_up_error_never_hangs_and_heals(code, api_key, idempotent):
    async def main():
        options = {"max_block_ms": 20_000, "enable_idempotence": idempotent}
        async with world(**options) as (cluster, _, history):
            cluster.control(api_key, faults.refuse(code), times=1)
            attempt = await history.send()
            assert attempt.acked or error_of(attempt).outcome is Outcome.NOT_SENT
            assert attempt.settled_at - attempt.started_at < 20 + TICK
            later = await history.send()
            assert later.acked
            history.check()

    play(main)


@pytest.mark.parametrize("api_key", [3, 18])
@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("code", CODES)
def test_start_up_error_for_ever_fails_definite_in_time(code, api_key, idempotent):
    async def main():
        options = {"max_block_ms": 4_000, "enable_idempotence": idempotent}
        async with world(**options) as (cluster, _, history):
            remove = cluster.control(api_key, faults.refuse(code))
            attempt = await history.send()
            took = attempt.settled_at - attempt.started_at
            assert took <= 4 + TICK
            assert error_of(attempt).outcome is Outcome.NOT_SENT
            no_storm(cluster, 4)
            remove()
            await asyncio.sleep(RECOVERY)
            later = await history.send()
            assert later.acked
            history.check()

    play(main)
