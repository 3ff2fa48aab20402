"""Commit and abort return within their timeout for every behaviour of the coordinator, and the
reported outcome is true."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from aiokprod import AbortableTransactionError, KafkaError, KafkaTimeout, Outcome, Producer
from aiokprod._errors import Code
from aiokprod.testing.fake_cluster import (
    FakeCluster,
    Reaction,
    answer_late,
    close,
    cut,
    delay,
    garbage,
    lose_answer,
    lose_request,
    refuse,
)
from tests.scenarios.scenario_helpers import now
from tests.transactions.transaction_helpers import (
    APIS,
    END,
    ID,
    PRODUCE,
    committed,
    one,
    stable,
    transactional,
)

pytestmark = pytest.mark.matrix

TICK = 0.001
TIMEOUTS = [0.0, 3.0]
REQUESTS = APIS | {"Produce": PRODUCE}
SILENT = {"request-lost": lose_request(), "answer-lost": lose_answer(), "late": delay(60.0),
          "answered-late": answer_late(60.0)}  # fmt: skip
RUDE = {"closed": close(), "closed-after": close(process=True), "reset": cut(0), "cut": cut(7),
        "garbage": garbage(b"\x00\x00\x00\x10" + b"\xff" * 16),
        "endless": garbage(b"\x7f\xff\xff\xff")}  # fmt: skip


DICE = random.Random(5)


def something_else(request: Any) -> Reaction:
    """Return a random fault, which differs from request to request."""
    return DICE.choice([*SILENT.values(), *RUDE.values(), refuse(16), refuse(15), refuse(51)])


FAULTS: dict[str, Any] = {**SILENT, **RUDE, "changing": something_else}

Ender = Callable[[Producer[Any, Any], float], Any]
ENDERS: dict[str, Ender] = {
    "commit": lambda producer, timeout: producer.commit_transaction(timeout),
    "abort": lambda producer, timeout: producer.abort_transaction(timeout),
}


async def outcome_of(producer: Producer[Any, Any], end: Ender, timeout: float) -> KafkaError | None:
    """Return the error of the call, or None if it succeeded. Assert that it returns in time."""
    started = now()
    error = None
    try:
        await end(producer, timeout)
    except KafkaError as found:
        error = found
    assert now() - started <= timeout + TICK
    return error


def check_truth(cluster: FakeCluster, error: KafkaError | None, verdict: str, values: int) -> None:
    """Check the outcome: after a success the request was carried out, and after an error with a
    definite outcome it was not."""
    seen = len(committed(cluster))
    if error is None:
        assert seen == (values if verdict == "commit" else 0)
    elif error.outcome is not Outcome.UNKNOWN or verdict == "abort":
        assert seen == 0
    else:
        assert seen in (0, values)


@pytest.mark.parametrize("timeout", TIMEOUTS)
@pytest.mark.parametrize("verdict", ENDERS)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("api", REQUESTS)
@transactional(linger_ms=0)
async def test_end_any_request_troubled_returns_in_time_with_the_true_outcome(
    cluster: FakeCluster,
    producer: Producer[Any, Any],
    api: str,
    fault: str,
    verdict: str,
    timeout: float,
) -> None:
    await producer.warm(["t"])
    await producer.start()
    cluster.control(REQUESTS[api], FAULTS[fault])
    await producer.begin_transaction()
    await producer.submit("t", b"v", partition=0)
    try:
        await producer.send_offsets_to_transaction({("in", 0): 1}, "g", timeout=0.1)
    except KafkaError:
        assert now() > 0
    error = await outcome_of(producer, ENDERS[verdict], timeout)
    check_truth(cluster, error, verdict, 1)
    cluster.script.clear()


@pytest.mark.parametrize("code", list(Code), ids=lambda code: code.name)
@pytest.mark.parametrize("verdict", ENDERS)
@transactional(linger_ms=0)
async def test_end_always_refused_with_any_code_returns_in_time(
    cluster: FakeCluster, producer: Producer[Any, Any], code: Code, verdict: str
) -> None:
    await producer.begin_transaction()
    await producer.send("t", b"v", partition=0)
    cluster.control(END, refuse(code))
    error = await outcome_of(producer, ENDERS[verdict], 3.0)
    if code is Code.NONE:
        return  # a broker that falsely reports success cannot be detected
    if code is Code.INVALID_PRODUCER_ID_MAPPING and verdict == "abort":
        return  # the producer got another id, under which nothing is open
    assert error is not None
    assert committed(cluster) == []
    cluster.script.clear()
    if isinstance(error, KafkaTimeout):
        assert await outcome_of(producer, ENDERS[verdict], 30.0) is None
        check_truth(cluster, None, verdict, 1)
    if isinstance(error, AbortableTransactionError):
        await producer.abort_transaction()
        await one(producer, b"next")
        assert committed(cluster) == [b"next"]


@pytest.mark.parametrize("timeout", TIMEOUTS)
@pytest.mark.parametrize("verdict", ENDERS)
@pytest.mark.parametrize("how", ["killed", "silent-network"])
@transactional(linger_ms=0)
async def test_end_all_brokers_gone_returns_in_time_then_resumes(
    cluster: FakeCluster, producer: Producer[Any, Any], how: str, verdict: str, timeout: float
) -> None:
    await producer.begin_transaction()
    await producer.send("t", b"v", partition=0)
    brokers = list(cluster.brokers.values())
    for broker in brokers:
        if how == "killed":
            cluster.kill(broker.broker_id)
        else:
            cluster.network.blackhole(broker.host, broker.port)
    for _ in range(2):
        error = await outcome_of(producer, ENDERS[verdict], timeout)
        assert isinstance(error, KafkaTimeout)
        assert error.outcome is Outcome.UNKNOWN
    for broker in brokers:
        if how == "killed":
            cluster.start(broker.broker_id)
        else:
            cluster.network.heal(broker.host, broker.port)
    assert await outcome_of(producer, ENDERS[verdict], 100.0) is None
    check_truth(cluster, None, verdict, 1)
    await one(producer, b"next", timeout=100)
    assert stable(cluster)


@pytest.mark.parametrize("verdict", ENDERS)
@transactional(linger_ms=0)
async def test_end_coordinator_always_elsewhere_returns_in_time(
    cluster: FakeCluster, producer: Producer[Any, Any], verdict: str
) -> None:
    """Every broker names another broker as the coordinator, and each returns NOT_COORDINATOR."""
    await producer.begin_transaction()
    await producer.send("t", b"v", partition=0)
    cluster.control(END, refuse(Code.NOT_COORDINATOR))
    before = cluster.count(END)
    error = await outcome_of(producer, ENDERS[verdict], 20.0)
    assert isinstance(error, KafkaTimeout)
    assert 10 < cluster.count(END) - before < 60, "asked again, with backoff"
    cluster.script.clear()
    assert await outcome_of(producer, ENDERS[verdict], 20.0) is None


@pytest.mark.parametrize("verdict", ENDERS)
@transactional(linger_ms=0)
async def test_end_cancelled_while_the_coordinator_is_unresponsive_returns_at_once(
    cluster: FakeCluster, producer: Producer[Any, Any], verdict: str
) -> None:
    await producer.begin_transaction()
    await producer.send("t", b"v", partition=0)
    stop = cluster.control(END, lose_request())
    task = asyncio.ensure_future(ENDERS[verdict](producer, 100.0))
    await asyncio.sleep(1)
    task.cancel()
    started = now()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert now() - started <= TICK
    stop()
    assert await outcome_of(producer, ENDERS[verdict], 100.0) is None
    assert cluster.transactions.ids[ID].history == [verdict == "commit"]
