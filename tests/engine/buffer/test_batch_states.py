"""The transition table of batch states, and the transitions of real batches."""

from __future__ import annotations

import asyncio

import pytest

from aiokprod._engine.buffer.batch_states import (
    IN_REQUEST,
    QUEUED,
    TRANSITIONS,
    BatchState,
)
from aiokprod._engine.buffer.producer_batch import ProducerBatch
from aiokprod._wire.compression import codec_for
from aiokprod.errors import Code, Outcome, ProducerFailed
from aiokprod.testing.virtual import VirtualLoop, run
from tests.current import current
from tests.engine.engine_harness import EngineHarness, error_of, quiet, virtual

S = BatchState

# The shortest path from OPEN.
PATHS: dict[BatchState, list[BatchState]] = {
    S.OPEN: [],
    S.SEALED: [S.SEALED],
    S.COMPRESSING: [S.SEALED, S.COMPRESSING],
    S.READY: [S.SEALED, S.READY],
    S.DRAINED: [S.SEALED, S.READY, S.DRAINED],
    S.IN_FLIGHT: [S.SEALED, S.READY, S.DRAINED, S.IN_FLIGHT],
    S.IN_FLIGHT_FAILED: [S.SEALED, S.READY, S.DRAINED, S.IN_FLIGHT, S.IN_FLIGHT_FAILED],
    S.COMPLETING: [S.COMPLETING],
    S.DONE: [S.COMPLETING, S.DONE],
}
LEGAL = {
    (S.OPEN, S.SEALED),
    (S.OPEN, S.COMPRESSING),  # drained before it is full
    (S.OPEN, S.READY),
    (S.OPEN, S.COMPLETING),  # expired, given up, or all its records were withdrawn
    (S.SEALED, S.COMPRESSING),
    (S.SEALED, S.READY),
    (S.SEALED, S.COMPLETING),
    (S.COMPRESSING, S.READY),
    (S.COMPRESSING, S.SEALED),  # compression failed
    (S.COMPRESSING, S.COMPLETING),
    (S.READY, S.DRAINED),
    (S.READY, S.COMPLETING),
    (S.DRAINED, S.IN_FLIGHT),
    (S.DRAINED, S.DONE),  # the sender ended before the batch was sent
    (S.IN_FLIGHT, S.COMPLETING),
    (S.IN_FLIGHT, S.IN_FLIGHT_FAILED),
    (S.IN_FLIGHT_FAILED, S.COMPLETING),
    (S.COMPLETING, S.READY),  # retry
    (S.COMPLETING, S.DONE),
}


@pytest.mark.parametrize("before", S, ids=lambda state: state.name)
def test_legal_transitions_are_taken_all_others_raise(before: BatchState) -> None:
    async def main() -> None:
        for after in S:
            batch = open_batch(EngineHarness())
            for state in PATHS[before]:
                batch.change_state(state)
            if (before, after) in LEGAL:
                batch.change_state(after)
                assert batch.state is after
            else:
                with pytest.raises(AssertionError, match=f"{before} -> {after}"):
                    batch.change_state(after)
                assert batch.state is before
            assert (after in TRANSITIONS[before]) is ((before, after) in LEGAL)

    run(main)


def test_sets_of_states_do_not_overlap() -> None:
    assert not QUEUED & IN_REQUEST
    assert set(TRANSITIONS) == set(S)


def open_batch(harness: EngineHarness) -> ProducerBatch:
    harness.append(b"v")
    (batch,) = harness.queued()
    return batch


@virtual
async def test_acknowledged_batch_goes_from_open_to_done() -> None:
    harness = EngineHarness()
    batch = open_batch(harness)
    assert batch.state is S.OPEN
    harness.step()
    assert current(batch.state) is S.IN_FLIGHT
    assert batch.in_flight
    harness.brokers.last.ack()
    assert current(batch.state) is S.DONE
    assert not batch.in_flight


@virtual
async def test_full_batch_is_sealed_by_the_append_and_encoded_by_the_next_pass() -> None:
    harness = EngineHarness(batch_size=200)
    batch = open_batch(harness)
    harness.append(b"x" * 150)
    assert batch.state is S.SEALED
    harness.accumulator.advance(harness.now)
    assert current(batch.state) is S.READY
    assert harness.queued()[1].state is S.OPEN


@virtual
async def test_refused_batch_is_ready_again_for_its_retry() -> None:
    harness = EngineHarness()
    batch = open_batch(harness)
    harness.step()
    harness.brokers.last.refuse(Code.NOT_ENOUGH_REPLICAS)
    assert batch.state is S.READY
    assert harness.queued() == [batch]


@virtual
async def test_batch_that_expires_in_flight_keeps_its_memory_until_the_response() -> None:
    harness = EngineHarness(delivery_timeout_ms=30_000, request_timeout_ms=30_000)
    delivery = harness.append(b"v")
    (batch,) = harness.queued()
    harness.step()
    harness.later(30.0)
    assert error_of(delivery).outcome is Outcome.UNKNOWN
    assert batch.state is S.IN_FLIGHT_FAILED
    assert batch.in_flight
    assert harness.memory.used
    harness.brokers.last.ack()
    assert current(batch.state) is S.DONE
    harness.check_idle()


@virtual
async def test_split_batch_is_done_and_its_parts_are_sealed() -> None:
    harness = EngineHarness()
    batch = open_batch(harness)
    harness.append(b"w")
    harness.step()
    harness.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
    assert batch.state is S.DONE
    assert [part.state for part in harness.queued()] == [S.SEALED, S.SEALED]


@virtual
async def test_batch_that_expires_while_it_is_compressed_stays_done() -> None:
    harness = EngineHarness(
        codec=codec_for("gzip"),
        executor=object(),  # type: ignore[arg-type]
        batch_size=100_000,
        delivery_timeout_ms=30_000,
        request_timeout_ms=30_000,
    )
    assert isinstance(harness.loop, VirtualLoop)
    harness.loop.executor_delay_s = 60.0
    harness.append(b"x" * 50_000)
    (batch,) = harness.queued()
    harness.step()
    assert batch.state is S.COMPRESSING
    harness.later(30.0)
    assert current(batch.state) is S.DONE
    await asyncio.sleep(61)
    await quiet()
    assert batch.payload is None


@virtual
async def test_batch_without_records_is_done() -> None:
    harness = EngineHarness()
    delivery = harness.append(b"v")
    (batch,) = harness.queued()
    delivery.cancel()
    harness.step()
    assert batch.state is S.DONE
    harness.check_idle()


@pytest.mark.parametrize("sent", [False, True])
def test_batches_given_up_are_done_unless_they_are_in_flight(sent: bool) -> None:
    async def main() -> None:
        harness = EngineHarness()
        batch = open_batch(harness)
        if sent:
            harness.step()
        harness.sender.fail_all(ProducerFailed("broken"))
        assert batch.state is (S.IN_FLIGHT_FAILED if sent else S.DONE)

    run(main)
