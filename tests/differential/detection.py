"""Defects that this producer had, reintroduced one at a time: the scripts must find each of
them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest

from aiokprod import _backoff as backoff
from aiokprod import _errors as error_codes
from aiokprod._engine.buffer.accumulator import RecordAccumulator
from aiokprod._engine.buffer.producer_batch import ProducerBatch
from aiokprod._engine.identity import transaction_driver
from aiokprod._engine.identity.idempotence import IdempotentSequences
from aiokprod._engine.identity.producer_id_requests import ProducerIdRequests
from aiokprod._engine.identity.producer_state import NoProducerId
from aiokprod._engine.identity.sequence_errors import NO_ACTION, SequenceAction
from aiokprod._engine.identity.transaction_driver import TransactionDriver
from aiokprod._engine.metadata.merge import ResponseMerger
from aiokprod._engine.sender.sender import Sender
from aiokprod._errors import TxnApi
from aiokprod.errors import Code, NetworkError, Outcome
from tests.differential.campaign import Campaign, Result, campaign
from tests.differential.catalogue import scripts
from tests.differential.clients import JAVA, OURS
from tests.differential.journal import Journal
from tests.differential.script import Script

MOST: Final = 2_000
"""Number of scripts after which a defect counts as not found."""


@dataclass(frozen=True)
class Defect:
    """A defect.

    Attributes:
        families: families of scripts, or name prefixes, in which the defect is searched.
        put_back: patches the producer in this process.
    """

    name: str
    families: tuple[str, ...]
    put_back: Callable[[pytest.MonkeyPatch], None]


DEFECTS: dict[str, Defect] = {}


def defect(*families: str) -> Callable[[Callable[[pytest.MonkeyPatch], None]], None]:
    """Register a defect under the name of its function."""

    def enter(function: Callable[[pytest.MonkeyPatch], None]) -> None:
        name = function.__name__.replace("_", "-")
        DEFECTS[name] = Defect(name, families, function)

    return enter


@defect("last-attempts", "produce-codes")
def sequence_of_an_appended_batch_given_out_again(patch: pytest.MonkeyPatch) -> None:
    """KAFKA_STORAGE_ERROR and UNKNOWN_TOPIC_OR_PARTITION after the append counted as refusals: the
    next record reused the sequence, and was acknowledged with the offset of the earlier record."""
    for code in (3, 56):
        row = replace(error_codes._ROWS[code], outcome=Outcome.REJECTED)
        patch.setitem(error_codes._ROWS, code, row)
    patch.setattr(ProducerBatch, "maybe_written", _Never())


class _Never:
    """An attribute that stays False."""

    def __get__(self, instance: object, owner: object = None) -> bool:
        return False

    def __set__(self, instance: object, value: bool) -> None:
        pass


@defect("end-txn-codes", "coordinators")
def end_of_a_transaction_called_refused(patch: pytest.MonkeyPatch) -> None:
    """EndTxn with code 15, 16 or an unknown code was reported as not committed."""
    _undoubted(patch, TxnApi.END)


@defect("coordinators", "add-partitions-codes")
def transaction_opened_in_doubt_never_ended(patch: pytest.MonkeyPatch) -> None:
    """AddPartitionsToTxn was executed but returned 15 or 16, then abort: no EndTxn was sent."""
    _undoubted(patch, TxnApi.ADD_PARTITIONS)


def _undoubted(patch: pytest.MonkeyPatch, forgotten: TxnApi) -> None:
    read = TransactionDriver._read

    def certain(call: TxnApi, reply: Any, result: Any, *rest: Any) -> None:
        read(call, reply, result, *rest)
        if call is forgotten:
            result.in_doubt = result.lost

    patch.setattr(TransactionDriver, "_read", staticmethod(certain))


@defect("odd-metadata")
def partition_without_leader_waits_for_ever(patch: pytest.MonkeyPatch) -> None:
    """No leader and no error code: batches that became ready at the same time caused no metadata
    request."""
    advance, refresh = RecordAccumulator.advance, Sender._refresh_leaderless

    def noting(self: Any, now: float) -> None:
        seen[id(self)] = bool(self.leaderless)
        advance(self, now)

    def late(self: Any, now: float) -> None:
        if seen.get(id(self._accumulator)):
            refresh(self, now)

    seen: dict[int, bool] = {}
    patch.setattr(RecordAccumulator, "advance", noting)
    patch.setattr(Sender, "_refresh_leaderless", late)


@defect("epochs")
def epoch_minus_1_is_older_than_any(patch: pytest.MonkeyPatch) -> None:
    """Responses without leader epochs, after one with an epoch, never changed a leader."""
    patch.setattr(
        ResponseMerger,
        "_lags",
        lambda self, known, epoch, *, same_id: epoch < known.leader_epoch,
    )


@defect("moves", "odd-metadata")
def epochs_that_begin_anew_never_believed(patch: pytest.MonkeyPatch) -> None:
    """A recreated topic kept the leaders of the old topic where responses contain no topic ids."""
    patch.setattr(
        ResponseMerger,
        "_lags",
        lambda self, known, epoch, *, same_id: 0 <= epoch < known.leader_epoch,
    )


@defect("backoff")
def backoff_without_jitter_at_its_maximum(patch: pytest.MonkeyPatch) -> None:
    """Pauses grew above the maximum before the jitter was applied, and were then limited to it: no
    jitter."""

    def after(self: Any, failures: int, rng: Any) -> float:
        base = self.initial * self.multiplier ** min(failures, 32)
        return float(min(base * rng.uniform(1 - self.jitter, 1 + self.jitter), self.maximum))

    patch.setattr(backoff.ExponentialBackoff, "after", after)


@defect("produce/31", "produce/35")
def refusals_end_a_producer_without_idempotence(patch: pytest.MonkeyPatch) -> None:
    """CLUSTER_AUTHORIZATION_FAILED and UNSUPPORTED_VERSION ended every kind of producer."""
    patch.setattr(NoProducerId, "on_fatal", ProducerIdRequests.on_fatal)


@defect("produce/47")
def invalid_producer_epoch_fails_the_batch_and_no_bump(patch: pytest.MonkeyPatch) -> None:
    """INVALID_PRODUCER_EPOCH without transactions failed the batch without an epoch bump."""
    classify = IdempotentSequences.classify

    def none(self: Any, batch: Any, code: int, log_start_offset: int) -> SequenceAction:
        if code == Code.INVALID_PRODUCER_EPOCH:
            return NO_ACTION
        return classify(self, batch, code, log_start_offset)

    patch.setattr(IdempotentSequences, "classify", none)


@defect("breaks")
def damaged_answer_ends_a_transactional_producer(patch: pytest.MonkeyPatch) -> None:
    """Invalid bytes in a FindCoordinator response made the producer unusable."""
    patch.setattr(
        transaction_driver,
        "_unsendable",
        lambda reply: not isinstance(reply.error, NetworkError),
    )


async def detect(
    names: list[str], jobs: int, journal: Journal | None = None, most: int = MOST
) -> list[str]:
    """Reintroduce each defect and search it; print the first script that finds it. Return the names
    of the defects that were not found. The journal is used for Java only."""
    survived = []
    async with campaign(jobs, (OURS, JAVA), journal=journal, journaled=(JAVA,)) as playing:
        for name in names or list(DEFECTS):
            started = time.monotonic()
            with pytest.MonkeyPatch.context() as patch:
                DEFECTS[name].put_back(patch)
                number, found = await _search(playing, _chosen(DEFECTS[name])[:most])
            seconds = time.monotonic() - started
            if found is None:
                survived.append(name)
                print(f"{name:52} survived {number} scripts, {seconds:.0f} s", flush=True)
                continue
            finding = found.unexplained[0]
            print(f"{name:52} {number:5} scripts, {seconds:3.0f} s  {found.script.name}")
            print(f"    {finding}"[:200], flush=True)
    return survived


def _chosen(defect: Defect) -> list[Script]:
    everything = scripts()
    return [
        one
        for family in defect.families
        for one in everything
        if one.family == family or one.name.startswith(f"{family}/")
    ]


async def _search(playing: Campaign, chosen: list[Script]) -> tuple[int, Result | None]:
    """Return the number of scripts played until one had an unexplained finding, and its result."""
    found: list[Result] = []
    played = 0

    def until_found() -> Any:
        for script in chosen:
            if found:
                return
            yield script

    def done(result: Result) -> None:
        nonlocal played
        played += 1
        if result.unexplained:
            found.append(result)

    await playing.run(until_found(), done)
    return played, found[0] if found else None
