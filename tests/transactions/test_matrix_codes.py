"""Every error code in a response to every coordinator request: the class of the resulting error,
and P7.

`ErrorCode.retriable` must match the behaviour (docs/design/error-codes.md).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from aiokprod import AbortableTransactionError, FatalTransactionError, KafkaError
from aiokprod.errors import error_code
from aiokprod.producer import Producer
from aiokprod.testing.fake_cluster import FakeCluster, refuse
from aiokprod.testing.memory import MemoryNetwork
from tests.reference.error_codes import RETRIED
from tests.scenarios.scenario_helpers import TICK, make_producer, now, play, until
from tests.scenarios.test_matrix_errors import CODES
from tests.transactions.transaction_helpers import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    APIS,
    COMMIT_OFFSETS,
    END,
    FIND,
    ID,
    INIT,
    committed,
    full,
    one,
    stable,
)

pytestmark = pytest.mark.matrix

FENCING = {47, 90}
ABORTING = {120}
RETRIED_BY_API = {(END, -1)}
"""UNKNOWN_SERVER_ERROR is not retriable. After EndTxn, however, the transaction may or may not have
ended, so the request is repeated."""
LIMIT_S = 130.0
"""Time limit of a test case. Each call may take max_block_ms or the timeout of the transaction (100
s), and some calls run one after another."""


async def one_case(api: int, code: int, tv: int) -> str:
    """Run a transaction in which the code is returned once. Return the class of the resulting
    error."""
    cluster = FakeCluster(network=MemoryNetwork(), transaction_version=tv)
    cluster.create_topic("t", 3)
    producer = make_producer(
        cluster, transactional_id=ID, request_timeout_ms=2_000, max_block_ms=10_000
    )
    try:
        stop = cluster.control(api, refuse(code), times=1)
        start = now()
        try:
            await full(producer, b"1")
        except KafkaError as error:
            ended = _class_of(error)
            in_doubt = not error.outcome.definite
        else:
            ended, in_doubt = "committed", False
        stop()
        assert now() - start <= LIMIT_S + TICK
        await _check_effects(cluster, producer, ended, in_doubt=in_doubt)
    finally:
        await producer.close(timeout=30.0)
    assert cluster.violations == []
    return ended


def _class_of(error: KafkaError) -> str:
    if isinstance(error, FatalTransactionError):
        return "fatal"
    return "abortable" if isinstance(error, AbortableTransactionError) else "failed"


async def _check_effects(
    cluster: FakeCluster, producer: Producer[Any, Any], ended: str, *, in_doubt: bool
) -> None:
    """Check that all or none of the records are visible (P7), and that a producer without a fatal
    error can continue."""
    seen = committed(cluster)
    if ended == "committed":
        assert seen == [b"1", b"1"]
    elif not in_doubt:
        assert seen == []
    else:
        assert seen in ([], [b"1", b"1"])
    if ended == "fatal":
        with pytest.raises(KafkaError):
            await one(producer, b"next")
    else:
        await one(producer, b"next")
        assert sorted(committed(cluster)) == sorted([*seen, b"next"])
        assert stable(cluster)


@pytest.mark.parametrize("tv", [1, 2], ids=["TV1", "TV2"])
@pytest.mark.parametrize("name", APIS)
def test_every_code_ends_in_its_class(name: str, tv: int) -> None:
    api = APIS[name]
    for code in CODES:
        try:
            ended = play(partial(one_case, api, code, tv))
        except BaseException as error:
            error.add_note(f"{name}, code {code}, protocol {tv}")
            raise
        if tv == 2 and api in (ADD_PARTITIONS, ADD_OFFSETS):
            assert ended == "committed"  # never sent
            continue
        committed_at_last = error_code(code).retriable or (api, code) in RETRIED_BY_API
        assert (ended == "committed") == committed_at_last, (code, ended)
        if code in RETRIED:
            assert ended == "committed", (code, ended)
        elif code in FENCING and api != FIND:
            assert ended == "fatal", (code, ended)
        elif code in ABORTING:
            assert ended != "fatal", (code, ended)
        else:
            assert ended != "committed" or (api, code) in RETRIED_BY_API, (code, ended)


LASTING = {
    FIND: (14, 15, 16), INIT: (14, 15, 16, 7, 51), ADD_PARTITIONS: (14, 15, 16, 3, 51),
    ADD_OFFSETS: (14, 15, 16, 51), COMMIT_OFFSETS: (14, 15, 16, 7, 51), END: (14, 15, 16, -1, 51),
}  # fmt: skip
LASTS_S = 10.0


async def lasting_case(api: int, code: int, tv: int) -> tuple[int, int]:
    """Return the numbers of requests of the API and of coordinator lookups during 10 s of
    rejections."""
    cluster = FakeCluster(network=MemoryNetwork(), transaction_version=tv)
    cluster.create_topic("t", 3)
    producer = make_producer(cluster, transactional_id=ID, max_block_ms=600_000)
    try:
        if api not in (FIND, INIT):
            await producer.start()
        finds = cluster.count(FIND)
        stop = cluster.control(api, refuse(code))
        running = asyncio.ensure_future(full(producer, b"1"))
        await until(lambda: cluster.count(api) > 0)
        await asyncio.sleep(LASTS_S)
        counts = cluster.count(api), cluster.count(FIND) - finds
        stop()
        await running
        assert committed(cluster) == [b"1", b"1"]
        assert cluster.transactions.committed_offsets == {"g": {("in", 0): 1}}
    finally:
        await producer.close(timeout=30.0)
    return counts


@pytest.mark.parametrize("tv", [1, 2], ids=["TV1", "TV2"])
@pytest.mark.parametrize("name", APIS)
def test_refusal_that_lasts_is_repeated_with_backoff(name: str, tv: int) -> None:
    """Pauses of 0.1, 0.2, 0.4, 0.8 s, then 1 s, each ±20 %, result in 13 requests in 10 s. With
    code 51 the first pauses are 2, 4, 8 ms and so on up to the backoff. AddPartitionsToTxn of a new
    transaction is repeated every 20 ms (KAFKA-5477)."""
    api = APIS[name]
    for code in () if tv == 2 and api in (ADD_PARTITIONS, ADD_OFFSETS) else LASTING[api]:
        requests, finds = play(partial(lasting_case, api, code, tv))
        if code != 51:
            assert 11 <= requests <= 17, (code, requests)
        elif api == ADD_PARTITIONS:
            assert 400 <= requests <= 520, requests
        else:
            assert 15 <= requests <= 24, requests
        # The group has a separate coordinator.
        lookups = requests if api == FIND or code in (15, 16) or (code, api) == (7, 28) else 0
        assert lookups - 1 <= finds <= lookups + 2, (code, finds)
