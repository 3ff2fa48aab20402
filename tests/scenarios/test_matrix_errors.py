"""Every error code in the response of every API of a producer: the outcome of the record and of the
next one. docs/design/error-codes.md explains the consequences of each code."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from aiokprod.errors import Code, DeliveryTimeout, KafkaError, Outcome, error_code
from aiokprod.testing import fake_cluster as faults
from aiokprod.testing.fake_cluster import FakeCluster
from tests.reference.error_codes import CHECKED_BEFORE_THE_APPEND, RETRIABLE_IN_JAVA, RETRIED
from tests.scenarios.scenario_helpers import RECOVERY, TICK, Attempt, error_of, harness, now, play

pytestmark = pytest.mark.matrix

TP = ("t", 0)

UNKNOWN_CODES = (-2, max(Code) + 1, 500)
CODES = [*(int(code) for code in Code if code is not Code.NONE), *UNKNOWN_CODES]

IDEMPOTENT_ONLY_RETRIED = {45, 47, 59}
SUCCESS_WHEN_IDEMPOTENT = {46}
FATAL_WHEN_IDEMPOTENT = {31, 35}


async def one_case(code: int, *, idempotent: bool, append: bool = False) -> tuple[str, str]:
    """Return the code once from Produce. Return the outcomes of that record and the next one."""
    async with harness(enable_idempotence=idempotent) as (cluster, _, history):
        await history.send()
        cluster.fail_produce(TP, code, leader_hint=False, append=append)
        start, before = now(), cluster.count(0)
        attempt = await history.send()
        assert now() - start < RECOVERY, "took too long"
        assert cluster.count(0) - before <= 2, "asked more than once more"
        later = await history.send()
        history.check(refusals=True, unique=idempotent, ordered=idempotent or not append)
        return _class_of(attempt), _class_of(later)


def _class_of(attempt: Attempt) -> str:
    if attempt.acked:
        return "acked"
    error = error_of(attempt, KafkaError)
    return "definite" if error.outcome.definite else "unknown"


def expected(code: int, *, idempotent: bool) -> tuple[str, str]:
    """Return the expected outcomes of the record that gets the code and of the next record."""
    if code in RETRIED:
        return "acked", "acked"
    if code in IDEMPOTENT_ONLY_RETRIED | SUCCESS_WHEN_IDEMPOTENT and idempotent:
        return "acked", "acked"
    if code in FATAL_WHEN_IDEMPOTENT and idempotent:
        return "definite", "definite"
    return ("definite" if code in CHECKED_BEFORE_THE_APPEND else "unknown"), "acked"


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("code", CODES)
def test_produce_error_ends_in_its_class(code: int, idempotent: bool) -> None:
    if code in SUCCESS_WHEN_IDEMPOTENT and idempotent:
        return  # requires the record in the log: test_duplicate_sequence_on_produce
    assert play(lambda: one_case(code, idempotent=idempotent)) == expected(
        code, idempotent=idempotent
    )


RETRIABLE = sorted(RETRIED)
MAY_FOLLOW_THE_APPEND = [
    code for code in CODES if code not in CHECKED_BEFORE_THE_APPEND | SUCCESS_WHEN_IDEMPOTENT
]


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("code", sorted({*RETRIABLE, *MAY_FOLLOW_THE_APPEND}))
def test_produce_error_after_the_append_ends_in_its_class(code: int, idempotent: bool) -> None:
    """The retry of an idempotent producer finds its record in the log; without idempotence the
    retry duplicates it."""
    ended = play(lambda: one_case(code, idempotent=idempotent, append=True))
    assert ended == expected(code, idempotent=idempotent)


@pytest.mark.parametrize("end", ["retries", "delivery timeout"])
@pytest.mark.parametrize("code", RETRIABLE)
def test_record_after_one_given_up_behind_an_append_is_stored(code: int, end: str) -> None:
    """The sequence of a batch that a broker has seen is never reused: the broker would treat the
    next record as a duplicate of the first, and acknowledge it without storing it."""
    options: dict[str, Any] = {"retries": 1} if end == "retries" else {"delivery_timeout_ms": 3_000,
                                                       "request_timeout_ms": 1_000}  # fmt: skip

    async def main() -> None:
        async with harness(linger_ms=0, **options) as (cluster, _, history):
            await history.send()
            cluster.fail_produce(TP, code, None, append=True, leader_hint=False)
            given_up = await history.send()
            cluster.produce_script.clear()
            later = [await history.send() for _ in range(3)]
            assert [attempt.acked for attempt in later] == [True] * 3
            values = cluster.values(*TP)
            assert [values.count(attempt.value) for attempt in later] == [1] * 3
            offsets = [attempt.metadata.offset for attempt in later]
            assert offsets == [values.index(attempt.value) for attempt in later]
            assert not given_up.acked
            # No broker appends and then returns a code that it checks before the append.
            if code not in CHECKED_BEFORE_THE_APPEND:
                assert error_of(given_up).outcome is Outcome.UNKNOWN
                history.check()

    play(main)


@pytest.mark.parametrize("idempotent", [True, False])
def test_duplicate_sequence_on_produce(idempotent: bool) -> None:
    async def main() -> None:
        async with harness(enable_idempotence=idempotent) as (cluster, _, history):
            cluster.fail_produce(TP, 46, append=True)
            attempt = await history.send()
            if idempotent:
                assert attempt.acked
                assert attempt.metadata.offset is None
            else:
                # Brokers do not send this code to producers without sequences, but the outcome must
                # be true even then.
                assert error_of(attempt).outcome is Outcome.UNKNOWN
            await history.send()
            history.check()

    play(main)


@pytest.mark.parametrize("code", CODES)
def test_produce_request_is_repeated_if_and_only_if_its_code_is_retriable(code: int) -> None:
    """`ErrorCode.retriable` and `KafkaError.retriable` describe what the engine does. Sequences are
    off: an idempotent producer also retries with new sequences after the codes that it recovers
    from."""

    async def main(retries: int) -> tuple[Attempt, int]:
        async with harness(enable_idempotence=False, retries=retries) as (cluster, _, history):
            await history.send()
            before = cluster.count(0)
            cluster.fail_produce(TP, code, leader_hint=False)
            return await history.send(), cluster.count(0) - before

    row = error_code(code)
    attempt, requests = play(lambda: main(retries=5))
    assert (requests, attempt.acked) == ((2, True) if row.retriable else (1, False))
    attempt, requests = play(lambda: main(retries=0))
    assert (requests, attempt.acked) == (1, False)
    assert error_of(attempt, KafkaError).retriable == row.retriable


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("code", CODES)
def test_produce_error_of_a_single_record_is_the_one_of_its_row(
    code: int, idempotent: bool
) -> None:
    async def main() -> None:
        options: dict[str, Any] = {"enable_idempotence": idempotent, "retries": 1}
        async with harness(**options) as (cluster, _, history):
            await history.send()
            cluster.fail_produce(TP, code, None, leader_hint=False)
            attempt = await history.send()
            cluster.produce_script.clear()
            if attempt.acked:
                assert idempotent
                assert code in SUCCESS_WHEN_IDEMPOTENT
                return
            error, row = error_of(attempt, KafkaError), error_code(code)
            assert type(error).__name__ == row.exception
            assert error.code == row
            assert error.outcome is row.outcome
            if row.hint and not (code == Code.CLUSTER_AUTHORIZATION_FAILED and not idempotent):
                assert row.hint in error.message
            later = await history.send()
            assert later.acked == (not (idempotent and row.fatal_idempotent))

    play(main)


def no_storm(cluster: FakeCluster, seconds: float) -> None:
    """Check the backoff of each kind of request: 100 ms, doubling up to 1 s."""
    assert cluster.count(0) <= 15 + 8 * seconds
    assert cluster.count(3) <= 15 + 8 * seconds
    assert cluster.count(22) <= 10 + 3 * seconds
    assert len(cluster.network.dials) <= 15 + 8 * seconds


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("code", CODES)
def test_produce_error_for_ever_ends_at_delivery_timeout(code: int, idempotent: bool) -> None:
    async def main() -> None:
        options: dict[str, Any] = {"delivery_timeout_ms": 3_000, "request_timeout_ms": 1_000}
        async with harness(enable_idempotence=idempotent, **options) as (cluster, _, history):
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


def test_retries_wait_for_the_backoff_and_twice_as_long_each_time() -> None:
    async def main() -> None:
        options: dict[str, Any] = {"retry_backoff_ms": 1_000, "retry_backoff_max_ms": 60_000}
        async with harness(**options) as (cluster, _, history):
            await history.send()
            cluster.fail_produce(TP, Code.NOT_ENOUGH_REPLICAS, 3)
            attempt = await history.send()
            assert attempt.acked
            times = [note.time for note in cluster.requests if note.api_key == 0]
            pauses = [after - before for before, after in itertools.pairwise(times[1:])]
            for pause, wanted in zip(pauses, (1, 2, 4), strict=True):
                assert 0.8 * wanted - 0.01 <= pause <= 1.2 * wanted + 0.01

    play(main)


INIT_RETRIED = RETRIABLE_IN_JAVA & set(range(104))


@pytest.mark.parametrize("code", CODES)
def test_init_producer_id_error_delays_or_fails_definite(code: int) -> None:
    async def main() -> None:
        async with harness(delivery_timeout_ms=40_000) as (cluster, _, history):
            cluster.control(22, faults.refuse(code), times=1)
            attempt = await history.send()
            assert attempt.settled_at - attempt.started_at < RECOVERY
            if code in INIT_RETRIED:
                assert attempt.acked
            assert attempt.acked or error_of(attempt).outcome is Outcome.NOT_SENT
            history.check()

    play(main)


@pytest.mark.parametrize("code", CODES)
def test_init_producer_id_error_for_ever_fails_definite_in_time(code: int) -> None:
    async def main() -> None:
        async with harness(delivery_timeout_ms=4_000, request_timeout_ms=1_000) as (
            cluster, _, history,
        ):  # fmt: skip
            cluster.control(22, faults.refuse(code))
            attempts = [await history.submit() for _ in range(3)]
            await history.settle()
            for attempt in attempts:
                error = error_of(attempt)
                assert error.outcome is Outcome.NOT_SENT
                assert attempt.settled_at - attempt.started_at <= 4 + TICK
                assert isinstance(error, DeliveryTimeout) == error_code(code).retriable
            assert cluster.count(0) == 0
            no_storm(cluster, 4)
            history.check()

    play(main)


METADATA_FAILS = {17, 29, 44}


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("code", CODES)
def test_metadata_topic_error_delays_or_fails_definite(code: int, idempotent: bool) -> None:
    async def main() -> None:
        options: dict[str, Any] = {"max_block_ms": 20_000, "enable_idempotence": idempotent}
        async with harness(cluster={"version_profile": "3.9"}, **options) as (cluster, _, history):
            cluster.control(3, faults.refuse(code), times=1)
            attempt = await history.send()
            assert attempt.settled_at - attempt.started_at < 20 + TICK
            assert attempt.acked or error_of(attempt).outcome is Outcome.NOT_SENT
            assert attempt.acked == (not error_code(code).fails_topic)
            if code in METADATA_FAILS:
                assert not attempt.acked
            elif code in RETRIABLE_IN_JAVA | {38, -1}:
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
def test_start_up_error_never_hangs_and_heals(code: int, api_key: int, idempotent: bool) -> None:
    async def main() -> None:
        options: dict[str, Any] = {"max_block_ms": 20_000, "enable_idempotence": idempotent}
        async with harness(**options) as (cluster, _, history):
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
def test_start_up_error_for_ever_fails_definite_in_time(
    code: int, api_key: int, idempotent: bool
) -> None:
    async def main() -> None:
        options: dict[str, Any] = {"max_block_ms": 4_000, "enable_idempotence": idempotent}
        async with harness(**options) as (cluster, _, history):
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
