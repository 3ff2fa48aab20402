"""Faults that the oracle once accepted, introduced one at a time: each shows that an exemption has
been removed.

No client is known to have these faults; they do what the exemption would have accepted.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiokprod._client.lifecycle import Lifecycle
from aiokprod._client.runtime import Runtime
from aiokprod._engine.buffer import producer_batch as batch
from aiokprod._engine.identity.producer_id_requests import ProducerIdRequests
from aiokprod._engine.identity.transaction_driver import TransactionDriver
from aiokprod._engine.metadata.schedule import UpdateSchedule
from aiokprod._engine.sender import batch_completion, batch_errors, retry_policy, sender
from aiokprod._engine.sender.retry_policy import Action
from aiokprod._wire import record_batch
from aiokprod.errors import Code, Outcome, error_code
from tests.detection.bugs import TRANSACTIONS, Patch, bug, found_by


@bug
def batch_that_is_too_large_is_not_divided(patch: Patch) -> None:
    """The oracle accepted MESSAGE_TOO_LARGE as the end of any record."""
    decide = retry_policy.decide

    def whole(code: Any, **options: Any) -> Action:
        action = decide(code, **options)
        return Action.FAIL if action is Action.SPLIT else action

    patch.setattr(batch_completion, "decide", whole)


@bug
def every_failure_called_unknown(patch: Patch) -> None:
    """The oracle accepted outcome UNKNOWN for every failure."""
    patch.setattr(batch_errors, "outcome_of", lambda batch: Outcome.UNKNOWN)


@bug
def failure_has_the_code_of_another(patch: Patch) -> None:
    """The oracle accepted any final error code, whatever the broker had returned."""
    batch_error = batch_errors.batch_error

    def wrong(code: Any, *args: Any) -> Any:
        if code.number in (32, 44):
            code = error_code(Code.INVALID_RECORD)
        return batch_error(code, *args)

    patch.setattr(batch_completion, "batch_error", wrong)


@bug
def timestamps_are_a_second_late(patch: Patch) -> None:
    """The oracle did not check timestamps."""
    header = record_batch.batch_header

    def late(payload: Any, **fields: Any) -> bytes:
        fields["base_timestamp"] += 1_000
        return header(payload, **fields)

    patch.setattr(batch, "batch_header", late)


@bug
def close_takes_three_seconds_more(patch: Patch) -> None:
    """The oracle allowed a close the time of all stalls of a seed (`test_simulation` shows how
    stalls count)."""
    close = Lifecycle.close

    async def slow(self: Any, timeout: float | None = None) -> Any:
        await asyncio.sleep(3.0)
        return await close(self, timeout)

    patch.setattr(Lifecycle, "close", slow)


@bug
def metadata_at_twice_their_rate(patch: Patch) -> None:
    """The oracle allowed 20 Metadata requests a second."""
    ended = UpdateSchedule._ended

    def sooner(self: Any, now: float, steps: int) -> None:
        ended(self, now, steps)
        self._allowed_at = now + (self._allowed_at - now) / 2

    patch.setattr(UpdateSchedule, "_ended", sooner)


@bug
def producer_ids_asked_for_without_backoff(patch: Patch) -> None:
    """The oracle allowed 12 InitProducerId requests a second."""
    after = Runtime._backoff
    patch.setattr(Runtime, "_backoff", lambda self, attempts: after(self, attempts) / 20)


@bug
def producer_id_given_up_unused(patch: Patch) -> None:
    """The oracle ignored producer ids that were assigned and not used, where ids have few
    epochs."""
    on_body = ProducerIdRequests._on_body
    given = 0

    def again(self: Any, body: Any, now: float) -> None:
        nonlocal given
        given += 1
        on_body(self, body, now)
        if given % 2:
            self._tracker.producer_id = -1

    patch.setattr(ProducerIdRequests, "_on_body", again)


@bug
def record_kept_a_second_past_its_time(patch: Patch) -> None:
    """The oracle treated a response after the expiry like one before it. It must nevertheless check
    how late the outcome came."""
    init = batch.ProducerBatch.__init__

    def later(
        self: Any, core: Any, queue: Any, order: tuple[int, ...], created_at: float, deadline: float
    ) -> None:
        init(self, core, queue, order, created_at, deadline + 1.0)

    patch.setattr(batch.ProducerBatch, "__init__", later)


@bug
def expired_record_called_unknown(patch: Patch) -> None:
    """The oracle did not check the outcome of an expired record if a refusal came after its
    deadline. A record whose attempts were all refused before must have a definite outcome."""
    expired = batch_errors.delivery_timeout_error

    def doubtful(batch: Any, now: float, network: Any, waits_for: str = "") -> Any:
        error = expired(batch, now, network, waits_for)
        if batch.maybe_written:
            return error.with_(outcome=Outcome.UNKNOWN)
        return error

    patch.setattr(sender, "delivery_timeout_error", doubtful)


@bug
def failed_record_kept_none_of_its_retries(patch: Patch) -> None:
    """With few `retries` the oracle accepted any number of failures of a record sent after
    recovery."""
    decide = retry_policy.decide

    def impatient(code: Any, *, attempts: int, retries: int, **options: Any) -> Action:
        few = 0 < retries < 100
        return decide(code, attempts=attempts + few, retries=retries, **options)

    patch.setattr(batch_completion, "decide", impatient)


@bug
def attempt_without_an_answer_counts_twice(patch: Patch) -> None:
    """Each connection that broke while a record was in flight excused an attempt, even if no
    request contained the record."""
    failed = batch_completion.BatchCompletion._on_request_failed

    def hasty(self: Any, node_id: int, call: Any, response: Any, error: Any, now: float) -> None:
        for lost in call.batches.values():
            lost.attempts += 1
        failed(self, node_id, call, response, error, now)

    patch.setattr(batch_completion.BatchCompletion, "_on_request_failed", hasty)


@bug
def one_attempt_more_than_retries_allow(patch: Patch) -> None:
    """The oracle counted attempts only for records that failed, and accepted any number above
    `retries`."""
    decide = retry_policy.decide

    def stubborn(code: Any, *, retries: int, **options: Any) -> Action:
        return decide(code, retries=retries + 1, **options)

    patch.setattr(batch_completion, "decide", stubborn)


@bug
def metadata_asked_for_again_at_once_after_a_failure(patch: Patch) -> None:
    """The oracle allowed any three Metadata requests without a pause."""
    failed = UpdateSchedule.failed

    def at_once(self: Any, now: float) -> None:
        failed(self, now)
        self._allowed_at = now

    patch.setattr(UpdateSchedule, "failed", at_once)


@found_by(TRANSACTIONS)
def coordinators_asked_at_twice_their_rate(patch: Patch) -> None:
    """The oracle did not count FindCoordinator requests."""
    init = TransactionDriver.__init__

    def hasty(
        self: Any, manager: Any, coordinators: Any, *, loop: Any, timeout_ms: int, backoff: Any
    ) -> None:
        def half(attempts: int) -> float:
            return float(backoff(attempts) / 2)

        init(self, manager, coordinators, loop=loop, timeout_ms=timeout_ms, backoff=half)

    patch.setattr(TransactionDriver, "__init__", hasty)
