"""Classification of sequence errors: pure, for idempotent and for transactional producers."""

from __future__ import annotations

from typing import Any

import pytest

from aiokprod._engine.buffer.producer_batch import ProducerBatch
from aiokprod._engine.identity.sequence_errors import (
    NO_ACTION,
    SequenceAction,
    SequenceDecision,
    classify_idempotent,
    classify_transactional,
)
from aiokprod._engine.identity.sequences import PartitionSequences
from aiokprod.errors import Code
from tests.engine.engine_harness import EngineHarness, virtual

RETRY, NONE = SequenceDecision.RETRY, SequenceDecision.NONE


def numbered(count: int) -> tuple[PartitionSequences, list[ProducerBatch]]:
    """Return the sequences of a partition with `count` open batches of one record, and the
    batches."""
    harness = EngineHarness()
    entry = PartitionSequences(1, 0)
    found: list[ProducerBatch] = []
    for _ in range(count):
        harness.append(b"v")
        found += harness.drain()
    for batch in found:
        entry.number(batch)
        entry.open.append(batch)
    return entry, found


def snapshot(entry: PartitionSequences, batches: list[ProducerBatch]) -> list[Any]:
    slots = [[getattr(b, name) for name in ProducerBatch.__slots__] for b in batches]
    fields = [getattr(entry, name) for name in PartitionSequences.__slots__]
    return [slots, [list(one) if isinstance(one, list) else one for one in fields]]


@pytest.mark.parametrize("code", list(map(int, Code)))
@virtual
async def test_classification_changes_nothing(code: int) -> None:
    entry, batches = numbered(2)
    for batch in batches:
        batch.in_doubt = True
    before = snapshot(entry, batches)
    for batch in batches:
        for log_start in (-1, 0, 9):
            classify_idempotent(batch, code, log_start, entry)
            classify_transactional(batch, code, log_start, entry, is_open=True)
    assert snapshot(entry, batches) == before


@pytest.mark.parametrize("transactional", [True, False])
@virtual
async def test_duplicate_and_oversized_batch_are_the_same_for_both(
    transactional: bool,
) -> None:
    entry, (batch,) = numbered(1)

    def classify(code: Code) -> SequenceAction:
        if transactional:
            return classify_transactional(batch, code, -1, entry, is_open=False)
        return classify_idempotent(batch, code, -1, entry)

    assert classify(Code.DUPLICATE_SEQUENCE_NUMBER).decision is SequenceDecision.DUPLICATE
    assert classify(Code.MESSAGE_TOO_LARGE) == NO_ACTION
    batch.in_doubt = True
    assert classify(Code.MESSAGE_TOO_LARGE) == NO_ACTION


@virtual
async def test_idempotent_out_of_order_behind_an_open_batch_is_retried_as_it_is() -> None:
    entry, (first, second) = numbered(2)
    code = Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert classify_idempotent(second, code, -1, entry) == SequenceAction(RETRY, clear_doubt=True)
    gap = SequenceAction(RETRY, clear_doubt=True, bump_epoch=True)
    assert classify_idempotent(first, code, -1, entry) == gap
    entry.unresolved = True
    first.in_doubt = True
    assert classify_idempotent(first, code, -1, entry) == gap, "no copy is under way"
    entry.lost = True
    assert classify_idempotent(first, code, -1, entry) == gap, "every attempt was answered"
    first.lost = True
    expected = SequenceAction(NONE, clear_doubt=True, bump_epoch=True)
    assert classify_idempotent(first, code, -1, entry) == expected


@pytest.mark.parametrize("code", [Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.UNKNOWN_PRODUCER_ID])
@virtual
async def test_idempotent_part_of_a_batch_in_doubt_is_neither_renumbered_nor_cleared(
    code: Code,
) -> None:
    entry, (part,) = numbered(1)
    part.in_doubt = part.divided_in_doubt = True
    for log_start in (-1, 0, 9):
        action = classify_idempotent(part, code, log_start, entry)
        assert action == SequenceAction(NONE, bump_epoch=True)


@virtual
async def test_idempotent_unknown_producer_bumps_once_if_the_log_start_is_known() -> None:
    entry, (batch,) = numbered(1)
    code = Code.UNKNOWN_PRODUCER_ID
    stays = SequenceAction(RETRY, clear_doubt=True)
    assert classify_idempotent(batch, code, -1, entry) == stays
    bump = SequenceAction(RETRY, clear_doubt=True, bump_epoch=True)
    assert classify_idempotent(batch, code, 5, entry) == bump
    batch.sequence_reset = True
    assert classify_idempotent(batch, code, 5, entry) == stays, "it has sequence 0 already"


@virtual
async def test_idempotent_invalid_epoch_means_another_id_and_a_retry_unless_in_doubt() -> None:
    entry, (batch,) = numbered(1)
    for in_doubt, decision in ((False, RETRY), (True, NONE)):
        batch.in_doubt = in_doubt
        action = classify_idempotent(batch, Code.INVALID_PRODUCER_EPOCH, -1, entry)
        assert action == SequenceAction(decision, bump_epoch=True, new_producer_id=True)


@virtual
async def test_idempotent_batch_in_doubt_is_given_up_under_the_id_of_another_cluster() -> None:
    entry, (batch,) = numbered(1)
    entry.foreign = True
    for code in (Code.NETWORK_EXCEPTION, Code.MESSAGE_TOO_LARGE, Code.NOT_ENOUGH_REPLICAS):
        batch.in_doubt = False
        assert classify_idempotent(batch, code, -1, entry) == NO_ACTION
        batch.in_doubt = True
        action = classify_idempotent(batch, code, -1, entry)
        assert action == SequenceAction(SequenceDecision.GIVE_UP)
    entry.reset_sequences(2, 0)
    assert not entry.foreign


@virtual
async def test_transactional_classification_never_asks_for_a_bump() -> None:
    entry, batches = numbered(2)
    for batch in batches:
        for code in map(int, Code):
            action = classify_transactional(batch, code, 9, entry, is_open=True)
            assert not action.bump_epoch


@virtual
async def test_transactional_gap_fails_and_an_older_open_batch_is_waited_for() -> None:
    entry, (first, second) = numbered(2)
    code = Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    for batch, decision in ((first, NONE), (second, RETRY)):
        action = classify_transactional(batch, code, -1, entry, is_open=True)
        assert action == SequenceAction(decision, clear_doubt=True)
        assert classify_transactional(batch, code, -1, entry, is_open=False) == NO_ACTION


@virtual
async def test_transactional_unknown_producer_restarts_after_retention_only() -> None:
    entry, (batch,) = numbered(1)
    entry.last_acked_offset = 5

    def classify(log_start: int) -> SequenceAction:
        return classify_transactional(
            batch, Code.UNKNOWN_PRODUCER_ID, log_start, entry, is_open=True
        )

    assert classify(-1) == SequenceAction(RETRY)
    assert classify(5) == NO_ACTION
    assert classify(6) == SequenceAction(RETRY, reset_sequences=True)
    batch.in_doubt = True
    assert classify(6) == SequenceAction(RETRY), "what may be in the log keeps its sequence"
    batch.sequence_reset = True
    assert classify(5) == SequenceAction(RETRY)
