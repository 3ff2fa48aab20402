"""InitProducerId of an idempotent producer (Java SenderTest): when it is sent and what follows."""

from __future__ import annotations

import asyncio
import math

import pytest

from aiokprod._engine.identity.producer_id_requests import ProducerIdRequests
from aiokprod._engine.identity.sequences import SequenceTracker
from aiokprod._engine.sender.unresponsive_brokers import OVERDUE_AFTER_S
from aiokprod._wire.messages.init_producer_id import InitProducerIdResponse
from aiokprod.errors import (
    AuthorizationError,
    Code,
    Disconnected,
    Outcome,
    ProducerFailed,
    UnsupportedVersion,
)
from tests.engine.engine_harness import (
    BACKOFF,
    EngineHarness,
    error_of,
    offset_of,
    quiet,
    virtual,
)


@virtual
async def test_id_is_requested_before_anything_is_sent() -> None:
    harness = EngineHarness(known_producer=False)
    delivery = harness.append(b"v")
    harness.step()
    assert len(harness.brokers.init_requests) == 1
    assert not harness.brokers.produce
    assert harness.brokers.init_requests[0].request.transactional_id is None
    harness.step()
    assert len(harness.brokers.init_requests) == 1, "one at a time"
    harness.init_producer(4711, 3)
    harness.step()
    assert harness.brokers.last.sequence == (4711, 3, 0)
    harness.brokers.last.ack()
    assert offset_of(delivery) == 0


@virtual
async def test_id_wakes_the_sender() -> None:
    harness = EngineHarness(known_producer=False)
    task = asyncio.ensure_future(harness.sender.run())
    await quiet()
    harness.append(b"v")
    await quiet()
    harness.init_producer()
    await quiet()
    assert len(harness.brokers.produce) == 1
    harness.brokers.last.ack()
    await quiet()
    task.cancel()
    await quiet()
    harness.check_idle()


@virtual
async def test_id_without_a_reachable_node_waits_for_an_event() -> None:
    harness = EngineHarness(known_producer=False)
    harness.brokers.down[1] = math.inf
    harness.append(b"v")
    assert harness.step() == harness.now + OVERDUE_AFTER_S
    harness.brokers.down[1] = harness.now + 0.5
    assert harness.step() == harness.now + 0.5
    harness.brokers.set_nodes([])
    assert harness.step() == harness.now + OVERDUE_AFTER_S


@pytest.mark.parametrize(
    "code", [Code.COORDINATOR_LOAD_IN_PROGRESS, Code.NOT_COORDINATOR, Code.NOT_ENOUGH_REPLICAS]
)
@virtual
async def test_id_request_that_may_be_retried_is_repeated_after_the_backoff(code: Code) -> None:
    harness = EngineHarness(known_producer=False)
    delivery = harness.append(b"v")
    harness.step()
    harness.init_producer(code=code)
    assert harness.step() == harness.now + BACKOFF
    assert len(harness.brokers.init_requests) == 1
    harness.later()
    assert len(harness.brokers.init_requests) == 2
    harness.init_producer()
    harness.step()
    harness.brokers.last.ack()
    assert offset_of(delivery) == 0


@virtual
async def test_id_request_lost_is_repeated() -> None:
    harness = EngineHarness(known_producer=False)
    harness.append(b"v")
    harness.step()
    harness.brokers.init_requests[-1].fail(Disconnected("gone"))
    harness.step()
    harness.later()
    assert len(harness.brokers.init_requests) == 2


@virtual
async def test_rejected_id_request_fails_pending_records_and_a_later_record_retries() -> None:
    harness = EngineHarness(known_producer=False)
    delivery = harness.append(b"v")
    harness.step()
    harness.init_producer(code=Code.CLUSTER_AUTHORIZATION_FAILED)
    assert harness.step() == math.inf, "no retry while no record waits for it"
    error = error_of(delivery)
    assert isinstance(error, AuthorizationError)
    assert error.outcome is Outcome.NOT_SENT
    assert "IdempotentWrite" in str(error)
    harness.check_idle()
    harness.later(1.0)
    assert len(harness.brokers.init_requests) == 1
    again = harness.append(b"w")
    harness.step()
    assert len(harness.brokers.init_requests) == 2
    harness.init_producer()
    harness.step()
    harness.brokers.last.ack()
    assert offset_of(again) == 0


@virtual
async def test_broker_without_idempotence_ends_the_producer() -> None:
    harness = EngineHarness(known_producer=False)
    delivery = harness.append(b"v")
    harness.step()
    harness.brokers.init_requests[-1].fail(
        UnsupportedVersion("no InitProducerId"), maybe_written=False
    )
    assert harness.step() == math.inf
    assert isinstance(error_of(delivery), ProducerFailed)
    with pytest.raises(ProducerFailed, match="enable_idempotence=False"):
        harness.append(b"w")
    assert len(harness.brokers.init_requests) == 1


def test_requests_come_one_at_a_time_and_after_failures_only_if_records_wait() -> None:
    tracker = SequenceTracker()
    wakeups: list[None] = []
    requests = ProducerIdRequests(
        tracker, lambda attempts: 0.1 * attempts, lambda: wakeups.append(None)
    )
    first = requests.next_request(1.0, False)
    assert first is not None
    assert requests.next_request(1.0, True) is None
    assert requests.next_request_at(1.0, True) == math.inf
    first.on_body(InitProducerIdResponse(0, 0, -1, -1), 1.0)  # neither an id nor an error
    assert requests.next_request_at(1.0, False) == math.inf, "no records wait for it"
    assert requests.next_request(1.0, True) is None
    assert requests.next_request_at(1.0, True) == pytest.approx(1.1)
    second = requests.next_request(1.2, True)
    assert second is not None
    assert not wakeups
    second.on_body(InitProducerIdResponse(0, 0, 7, 3), 1.3)
    assert (tracker.producer_id, tracker.epoch) == (7, 3)
    assert len(wakeups) == 1
    assert requests.next_request(2.0, True) is None
    tracker.producer_id = -1  # the epochs of this id are exhausted
    assert requests.next_request(2.0, False) is not None, "failures before the last id do not count"
    requests.close(Disconnected("closed"))
