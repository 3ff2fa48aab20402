"""The state of a producer without a producer id, and the gate of producers without transactions."""

from __future__ import annotations

import math
from typing import Any

import pytest

from aiokprod._engine.identity.idempotence import idempotent_state
from aiokprod._engine.identity.producer_state import ProducerState, non_idempotent_state
from aiokprod._engine.identity.sequence_errors import NO_ACTION
from aiokprod.errors import BrokerError, Code
from aiokprod.records import TopicPartition
from tests.engine.engine_harness import EngineHarness, virtual
from tests.engine.identity.identity_helpers import batches

T0 = TopicPartition("t", 0)


@virtual
async def test_plain_producer_needs_no_id_and_writes_none() -> None:
    harness = EngineHarness(idempotent=False, known_producer=False)
    harness.append(b"v")
    harness.step()
    assert not harness.brokers.init_requests
    assert harness.brokers.last.sequence == (-1, -1, -1)


@virtual
async def test_plain_producer_keeps_and_requests_nothing() -> None:
    state = non_idempotent_state(guarantee_order=False)
    source, sequences = state.source, state.sequences
    assert source.next_request(0.0, True) is None
    assert source.next_request_at(0.0, True) == math.inf
    assert source.pending_failure is None
    assert source.transactional_id is None
    assert source.max_produce_version is None
    assert source.reserved_node is None
    batch, *parts = batches(3)
    sequences.assign_sequence(batch)
    assert not batch.has_sequence
    assert sequences.classify(batch, Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1) == NO_ACTION
    sequences.apply(batch, NO_ACTION)
    sequences.on_split(batch, parts)
    sequences.on_success(parts[0], 0)
    sequences.on_failure(parts[1], unknown=True)
    sequences.on_topic_recreated("t")
    sequences.on_topic_forgotten("t", 1)
    assert not sequences.on_cluster_changed()
    sequences.bump_epochs()
    source.close(BrokerError("closed"))


@pytest.mark.parametrize("guarantee_order", [True, False])
@virtual
async def test_plain_producer_drains_one_batch_at_a_time_if_that_keeps_the_order(
    guarantee_order: bool,
) -> None:
    state: Any = non_idempotent_state(guarantee_order=guarantee_order)
    first, second = batches(2)
    assert state.sequences.may_drain(first.queue, first)
    second.queue.in_flight = 1
    assert state.sequences.may_drain(second.queue, second) is not guarantee_order


def idempotent() -> ProducerState:
    return idempotent_state(lambda attempts: 0.1, lambda: None)


def test_first_fatal_error_is_kept_and_raised_by_admit() -> None:
    state = idempotent()
    first = BrokerError("first")
    state.gate.maybe_add_partition(T0)
    state.source.on_fatal(first)
    state.source.on_fatal(BrokerError("second"))
    assert state.source.fatal_error is first
    with pytest.raises(BrokerError, match="first") as caught:
        state.gate.maybe_add_partition(T0)
    assert caught.value is not first, "each caller gets a copy"
    state.gate.check_open()  # records are still added to batches that are already open


def test_nothing_is_fatal_to_a_producer_without_idempotence() -> None:
    state = non_idempotent_state(guarantee_order=True)
    state.source.on_fatal(BrokerError("of one batch"))
    assert state.source.fatal_error is None
    state.gate.maybe_add_partition(T0)


@virtual
async def test_failures_of_records_do_not_close_the_gate_without_transactions() -> None:
    state = idempotent()
    (batch,) = batches(1)
    state.gate.on_refused(BrokerError("refused"))
    state.gate.on_refused(BrokerError("refused"), raised=False)
    state.gate.on_records_failed(batch, BrokerError("failed"))
    state.gate.maybe_add_partition(T0)
