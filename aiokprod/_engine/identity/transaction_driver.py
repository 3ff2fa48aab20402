"""`TransactionDriver`: the task that sends the requests of a transaction, one at a time.

Every request is repeated, with backoff, until its response is definite. The coordinator is looked
up again if it may have moved. Deadlines apply only to the callers, which wait in
`transaction_calls`. Partitions that are added while a request is in flight are sent together in the
next request.

Source: Java `TransactionManager` request handlers; `ErrorCode.action_after` returns the action
after an error code.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aiokprod._engine.identity import transaction_requests as requests
from aiokprod._engine.identity.coordinators import CoordinatorKind
from aiokprod._engine.identity.transaction_pacing import MARKERS_LATE_S, MARKERS_SOON_S
from aiokprod._engine.identity.transaction_progress import CoordinatorView, OffsetsJob, TxnStep
from aiokprod._engine.identity.transaction_states import may_be_carried_out
from aiokprod._engine.wakeup import WakeupEvent
from aiokprod._errors import ErrorAction, TxnApi
from aiokprod._log_fields import log_fields
from aiokprod.errors import (
    AuthenticationError,
    Code,
    FatalTransactionError,
    KafkaError,
    NetworkError,
    Outcome,
    ProducerFenced,
    broker_error,
    error_code,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aiokprod._engine.identity.coordinators import Coordinators, Reply, VersionedRequest
    from aiokprod._engine.identity.transaction_manager import TransactionManager
    from aiokprod.records import TopicPartition

logger = logging.getLogger(__name__)


# If a response has several error codes, the action that comes first in this order is taken.
_PRECEDENCE: Final = (
    ErrorAction.FENCED,
    ErrorAction.FATAL,
    ErrorAction.LOOKUP,
    ErrorAction.LOST,
    ErrorAction.RETRY,
    ErrorAction.ABORT,
    ErrorAction.OK,
)


@dataclass(slots=True)
class _RequestResult:
    """The result of a request and all its attempts.

    Attributes:
        action: None if the request is no longer wanted.
        code: error code of the broker, from which `action` follows.
        error: an error of the client, if there is no error code.
        lost: an attempt without a response may have been carried out, or may still arrive.
        in_doubt: an attempt may have been carried out: it got no response, or an error code that
            does not exclude that.
        version: version of the last request that was sent, or -1 if none was.
    """

    action: ErrorAction | None = None
    code: int = 0
    body: Any = None
    error: KafkaError | None = None
    lost: bool = False
    in_doubt: bool = False
    version: int = -1


class TransactionDriver:
    """Carries out the steps of a `TransactionManager`."""

    def __init__(
        self,
        manager: TransactionManager,
        coordinators: Coordinators,
        *,
        loop: asyncio.AbstractEventLoop,
        timeout_ms: int,
        backoff: Callable[[int], float],
    ) -> None:
        self._manager = manager
        self._coordinators = coordinators
        self._timeout_ms = timeout_ms
        self._backoff = backoff
        self._id = manager.transactional_id
        self._target = (CoordinatorKind.TRANSACTION, self._id)
        self._last_end: VersionedRequest | None = None
        self._loop = loop
        self._wakeup = WakeupEvent(loop)
        self._steps = {
            TxnStep.INIT: self._init,
            TxnStep.MARKERS: self._await_markers,
            TxnStep.ADD: self._add_partitions,
            TxnStep.OFFSETS: self._commit_offsets,
            TxnStep.END: self._end,
        }

    def wake(self) -> None:
        """Make `run` check for a new step, and for a step that waits for a coordinator but is no
        longer wanted."""
        self._wakeup.set()
        self._coordinators.on_network()

    async def run(self) -> None:
        """Carry out the steps, one after the other, until cancelled."""
        while True:
            self._wakeup.clear()
            step = self._manager.next_step()
            if step is None:
                await self._wakeup.wait(math.inf)
            else:
                await self._steps[step]()

    # -- steps ----------------------------------------------------------------------------------

    async def _init(self) -> None:
        manager, ids = self._manager, self._manager.tracker
        result = await self._exchange(
            TxnApi.INIT,
            TxnStep.INIT,
            requests.init(self._id, self._timeout_ms, ids.producer_id, ids.epoch),
        )
        if result.action is ErrorAction.OK:
            manager.can_bump = result.version >= requests.EPOCH_BUMP_FROM
            manager.initialised(result.body.producer_id, result.body.producer_epoch)
        elif result.action is ErrorAction.ABORT:
            manager.init_refused(self._error(TxnApi.INIT, result))
        else:
            self._apply_result(TxnApi.INIT, result)

    async def _await_markers(self) -> None:
        """See `TransactionPacing.wait_for_markers`."""
        await self._manager.pacing.wait_for_markers(
            self._markers_pending,
            lambda: self._last_end is not None and self._manager.wants(TxnStep.MARKERS),
        )

    async def _markers_pending(self) -> bool:
        """Repeat the EndTxn request of the previous transaction once. Return True if the markers of
        that transaction are still being written.

        In the second protocol, the epoch of this request is no longer current. Therefore it cannot
        affect the open transaction, even if it arrives late, and other error codes in its response
        are ignored.
        """
        request = self._last_end
        if request is None or self._coordinators.known(*self._target) is None:
            return False
        reply = await self._coordinators.attempt(*self._target, request)
        if reply is None or reply.body is None:
            return False
        return bool(reply.body.error_code == Code.CONCURRENT_TRANSACTIONS)

    async def _add_partitions(self) -> None:
        manager, ids = self._manager, self._manager.tracker
        partitions = list(manager.progress.pending_partitions)
        result = await self._exchange(
            TxnApi.ADD_PARTITIONS,
            TxnStep.ADD,
            requests.add_partitions(self._id, ids.producer_id, ids.epoch, partitions),
            codes=requests.added_codes,
            expected=partitions,
        )
        if result.body is not None:
            codes = requests.added_codes(result.body)
            manager.added([key for key in partitions if codes.get(key) == Code.NONE])
        if result.in_doubt:
            manager.progress.note(CoordinatorView.POSSIBLY_STARTED)
        self._note_lost(result)
        self._apply_result(TxnApi.ADD_PARTITIONS, result)

    async def _commit_offsets(self) -> None:
        manager, ids = self._manager, self._manager.tracker
        job = manager.offsets[0]
        tv2 = manager.progress.tv2
        if tv2:
            # In the second protocol, TxnOffsetCommit opens the transaction itself.
            manager.progress.note(CoordinatorView.STARTED)
        elif not await self._add_offsets(job):
            return
        result = await self._exchange(
            TxnApi.COMMIT_OFFSETS,
            TxnStep.OFFSETS,
            requests.commit_offsets(
                self._id, ids.producer_id, ids.epoch, job.offsets, job.group, tv2=tv2
            ),
            where=(CoordinatorKind.GROUP, job.group.group_id),
            codes=requests.committed_codes,
            expected=list(job.offsets),
        )  # fmt: skip
        if not tv2:
            self._note_lost(result)
        if self._apply_result(TxnApi.COMMIT_OFFSETS, result):
            manager.offsets_accepted(job)

    async def _add_offsets(self, job: OffsetsJob) -> bool:
        manager, ids = self._manager, self._manager.tracker
        result = await self._exchange(
            TxnApi.ADD_OFFSETS,
            TxnStep.OFFSETS,
            requests.add_offsets(self._id, ids.producer_id, ids.epoch, job.group.group_id),
        )
        if result.action is ErrorAction.OK:
            manager.progress.note(CoordinatorView.STARTED)
        elif result.in_doubt:
            manager.progress.note(CoordinatorView.POSSIBLY_STARTED)
        self._note_lost(result)
        return self._apply_result(TxnApi.ADD_OFFSETS, result)

    def _note_lost(self, result: _RequestResult) -> None:
        """Require a new epoch if a copy of the request may still arrive, even if the request was
        repeated with success. After the end of the transaction, AddPartitionsToTxn and
        AddOffsetsToTxn would start another one, which the coordinator would abort at its timeout,
        fencing this producer. TxnOffsetCommit would add its offsets to the next transaction, after
        the newer ones. Brokers that cannot bump the epoch (before 2.5) leave no choice."""
        if result.lost and self._manager.can_bump:
            self._manager.progress.needs_bump = True

    async def _end(self) -> None:
        manager, ids = self._manager, self._manager.tracker
        ending, progress = manager.ending, manager.progress
        assert ending is not None, "the step END needs an ending"
        if progress.view is CoordinatorView.UNKNOWN:
            manager.ended()
            return
        request = requests.end(
            self._id, ids.producer_id, ids.epoch, commit=ending.commit, tv2=progress.tv2
        )

        def on_lost() -> None:
            ending.lost = True

        if self._last_end is not None and progress.view < CoordinatorView.CONFIRMED:
            # While the markers of the previous transaction are being written, the coordinator
            # treats an EndTxn request of this one like a request of a fenced producer. Repeat the
            # previous EndTxn until the markers have been written, and ignore its result.
            before = await self._exchange(TxnApi.END, TxnStep.END, self._last_end)
            if before.action is None:
                return
        ending.request = request
        result = await self._exchange(TxnApi.END, TxnStep.END, request, on_lost=on_lost)
        if result.action is ErrorAction.OK:
            body = result.body
            self._last_end = request if progress.tv2 else None
            manager.ended(body.producer_id, body.producer_epoch)
        elif (
            result.code == Code.INVALID_TXN_STATE
            and progress.view is CoordinatorView.POSSIBLY_STARTED
        ):
            manager.ended()  # the request that might have started it never arrived
        elif result.code == Code.INVALID_PRODUCER_ID_MAPPING and not ending.commit:
            progress.unmapped = True
            manager.ended()  # no transaction is open under this producer id
        elif result.action is not None:
            self._end_refused(result, commit=ending.commit)

    def _end_refused(self, result: _RequestResult, *, commit: bool) -> None:
        if not result.in_doubt or (result.action is ErrorAction.ABORT and not commit):
            self._apply_result(TxnApi.END, result)
            return
        # The outcome is unknown: the coordinator may have executed this request, or an earlier copy
        # of it.
        error = self._error(TxnApi.END, result)
        cls = type(error) if isinstance(error, FatalTransactionError) else FatalTransactionError
        fatal = cls(
            f"transactional id {self._id}: EndTxn was refused, but it, or an earlier copy of it, "
            f"may have been carried out: the transaction may be "
            f"{'committed' if commit else 'open'}; "
            f"close the producer and create a new one: {error.message}",
            code=error.code,
            outcome=Outcome.UNKNOWN,
        )
        fatal.__cause__ = error
        self._manager.fail(fatal, answered=True)

    # -- requests -------------------------------------------------------------------------------

    async def _exchange(
        self,
        call: TxnApi,
        step: TxnStep,
        request: VersionedRequest,
        *,
        where: tuple[CoordinatorKind, str] | None = None,
        codes: Callable[[Any], Mapping[TopicPartition, int]] | None = None,
        expected: list[TopicPartition] | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> _RequestResult:
        """Repeat `request` until its response is definite or the step is no longer wanted.

        Args:
            where: the coordinator; None for the transaction coordinator.
            codes: returns the error codes by partition, for responses that have several.
            expected: the partitions that `codes` must contain.
            on_lost: called when an attempt may have been carried out without a response.
        """
        result = _RequestResult()
        attempts = 0
        target = where or self._target
        while self._manager.wants(step):
            found = await self._find(target, step)
            if found is not None:
                found.lost, found.in_doubt = result.lost, result.in_doubt
                return found
            reply = await self._coordinators.attempt(
                *target, request, lambda: self._manager.wants(step)
            )
            self._read(call, reply, result, codes, expected or [])
            if result.lost and on_lost is not None:
                on_lost()
            if result.action is ErrorAction.LOOKUP:
                self._coordinators.forget(*target)
            elif result.action not in (ErrorAction.RETRY, ErrorAction.LOST):
                return result
            if not self._manager.wants(step):
                break
            if step is TxnStep.ADD and self._manager.drop_unused_partitions():
                break  # the next request omits them
            attempts += 1
            logger.debug(
                "%s: %s again after %s", self._id, call.value, result,
                extra=log_fields(
                    "transaction_request_retried", transactional_id=self._id, request=call.value
                ),
            )  # fmt: skip
            await asyncio.sleep(self._pause(call, result.code, attempts))
        result.action = None
        return result

    def _pause(self, call: TxnApi, code: int, attempts: int) -> float:
        pause = self._backoff(attempts)
        if code != Code.CONCURRENT_TRANSACTIONS:
            return pause
        soon = MARKERS_SOON_S * 2.0 ** min(attempts - 1, 10)
        first_add = call is TxnApi.ADD_PARTITIONS and not self._manager.progress.partitions
        return min(soon, MARKERS_LATE_S if first_add else pause)

    async def _find(
        self, target: tuple[CoordinatorKind, str], step: TxnStep
    ) -> _RequestResult | None:
        """Look up the coordinator until it is known.

        Returns:
            None if the coordinator is known; the definite error of the lookup; or an empty result
            if the step is no longer wanted.
        """
        attempts = 0
        while self._coordinators.known(*target) is None:
            if not self._manager.wants(step):
                return _RequestResult()
            code, failed = await self._coordinators.find(*target, lambda: self._manager.wants(step))
            if failed is not None:
                if _unsendable(failed):
                    return _RequestResult(ErrorAction.FATAL, error=failed.error)
            elif code != Code.NONE:
                found = error_code(code).action_after(TxnApi.FIND)
                if found is not ErrorAction.RETRY:
                    return _RequestResult(found, code)
            else:
                continue  # found, or no longer wanted
            attempts += 1
            await asyncio.sleep(self._backoff(attempts))
        return None

    @staticmethod
    def _read(
        call: TxnApi,
        reply: Reply | None,
        result: _RequestResult,
        codes: Callable[[Any], Mapping[TopicPartition, int]] | None,
        expected: list[TopicPartition],
    ) -> None:
        """Store the outcome of one attempt in `result`; `lost` and `in_doubt` are never cleared."""
        result.body, result.error, result.code = None, None, 0
        if reply is None:
            result.action = ErrorAction.LOOKUP  # nothing was sent
            return
        result.version = reply.version
        if reply.body is None:
            result.error = reply.error
            result.lost = result.lost or reply.maybe_written
            result.in_doubt = result.in_doubt or result.lost
            result.action = ErrorAction.FATAL if _unsendable(reply) else ErrorAction.LOOKUP
            return
        result.body = reply.body
        if codes is None:
            found = [requests.code_of(reply.body)]
        else:
            answered = codes(reply.body)
            # It is unknown whether a partition that the response omits was accepted: repeat the
            # request.
            found = [answered.get(key, Code.NETWORK_EXCEPTION) for key in expected]
            result.lost = result.lost or any(key not in answered for key in expected)
        result.in_doubt = any(may_be_carried_out(code, earlier=result.in_doubt) for code in found)
        rows = [error_code(code) for code in found]
        strictest = min(rows, key=lambda row: _PRECEDENCE.index(row.action_after(call)))
        result.code, result.action = strictest.number, strictest.action_after(call)
        result.lost = result.lost or result.action is ErrorAction.LOST

    # -- results --------------------------------------------------------------------------------

    def _apply_result(self, call: TxnApi, result: _RequestResult) -> bool:
        """Apply a definite response to the transaction. Return True if the request succeeded."""
        if result.action is ErrorAction.OK:
            return True
        if result.action is ErrorAction.ABORT:
            self._manager.abort_with(self._error(call, result))
        elif result.action is not None:
            self._manager.fail(self._error(call, result), answered=True)
        return False

    def _error(self, call: TxnApi, result: _RequestResult) -> KafkaError:
        what = f"transactional id {self._id}: {call.value}"
        if result.error is not None:
            return result.error.copy().with_(message=f"{what} failed: {result.error.message}")
        if result.action is ErrorAction.FENCED:
            return ProducerFenced(
                f"{what}: another producer with this transactional_id took over, or the "
                f"transaction was open for longer than transaction_timeout_ms "
                f"({self._timeout_ms}); close this producer and do not repeat its work here",
                code=error_code(result.code),
                outcome=Outcome.REJECTED,
            )
        return broker_error(result.code, f"{what} was refused", outcome=Outcome.REJECTED)


def _unsendable(reply: Reply) -> bool:
    """Return True if the request cannot be encoded for this broker. All other failures, including
    damaged responses, end a connection, and another attempt may succeed."""
    error = reply.error
    passing = (
        error is None or error.retriable or isinstance(error, (NetworkError, AuthenticationError))
    )
    return not (passing or reply.maybe_written)
