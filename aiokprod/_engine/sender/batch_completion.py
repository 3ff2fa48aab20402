"""What becomes of the batches of a Produce request: acknowledged, tried again, divided or failed.

Source: Java `Sender.handleProduceResponse`, `completeBatch`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from aiokprod._engine.identity.sequence_errors import SequenceDecision
from aiokprod._engine.sender.produce_request import ProduceCall, partition_answers
from aiokprod._engine.sender.retry_policy import (
    Action,
    batch_error,
    decide,
    delivery_timeout_error,
    given_up_error,
    record_errors,
)
from aiokprod.cluster import Node
from aiokprod.errors import (
    Code,
    KafkaError,
    Outcome,
    ProtocolError,
    UnsupportedVersion,
    error_code,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiokprod._engine.buffer.accumulator import RecordAccumulator
    from aiokprod._engine.buffer.batch_splitter import BatchSplitter
    from aiokprod._engine.buffer.producer_batch import ProducerBatch
    from aiokprod._engine.identity.producer_state import ProducerState
    from aiokprod._engine.metadata.cache import Metadata
    from aiokprod._engine.ports import ClientResponse
    from aiokprod.errors import ErrorCode
    from aiokprod.observer import Observer
    from aiokprod.records import TopicPartition

logger = logging.getLogger(__name__)

_LEADER_HINT_VERSION: Final = 10
_WARN_EVERY: Final = 30.0
"""Seconds between two warnings about retries of one partition."""
_MARKERS_BACKOFF: Final = 0.02
"""Seconds; the leader itself has waited for the transaction before, more of it is not needed."""
_MARKERS_ATTEMPTS: Final = 5
"""Attempts for which that holds: after those the markers hang, and the usual backoff applies."""


class BatchCompletion:
    """Decides on batches and carries the decision out; `wakeup` is called when the sender has to
    look again at once."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        accumulator: RecordAccumulator,
        metadata: Metadata,
        state: ProducerState,
        retries: int,
        backoff: Callable[[int], float],
        splitter: BatchSplitter,
        observer: Observer,
        wakeup: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._accumulator = accumulator
        self._metadata = metadata
        self._sequences = state.sequences
        self._gate = state.gate
        self._source = state.source
        self._retries = retries
        self._backoff = backoff
        self._splitter = splitter
        self._observer = observer
        self._wakeup = wakeup

    def on_done(
        self, node_id: int, call: ProduceCall, response: ClientResponse, now: float
    ) -> None:
        """A request was answered, needs no answer, or was lost."""
        if response.error is not None:
            self._on_request_failed(node_id, call, response, response.error, now)
        elif response.body is None:
            for batch in call.batches.values():
                self.acknowledge(batch, -1, -1)
        else:
            self._on_answer(node_id, call, response, now)

    def _on_request_failed(
        self,
        node_id: int,
        call: ProduceCall,
        response: ClientResponse,
        error: KafkaError,
        now: float,
    ) -> None:
        """No answer: a client-made code stands for the broker's.

        Source: Java `Sender.handleProduceResponse`.
        """
        if isinstance(error, ProtocolError) and not response.maybe_written:
            for batch in call.batches.values():  # a retry could not encode it either
                self.fail(batch, given_up_error(batch, error))
            if isinstance(error, UnsupportedVersion):
                self._on_fatal(error)
            return
        code = error.code or error_code(Code.NETWORK_EXCEPTION)
        if code.number != Code.REQUEST_TIMED_OUT:
            code = error_code(Code.NETWORK_EXCEPTION)
        if response.maybe_written:
            for batch in call.batches.values():
                batch.note_unknown(lost=True)
        self._metadata.request_update(call.generation)
        for batch in call.batches.values():
            self._conclude(batch, code, node_id, now, None, cause=error)

    def _on_answer(
        self, node_id: int, call: ProduceCall, response: ClientResponse, now: float
    ) -> None:
        answers = partition_answers(call, response.body, response.version)
        failed = [pair for pair in answers if pair[1] is None or pair[1].error_code]
        moved = self._apply_leader_hints(call, failed, response) if failed else frozenset()
        for batch, answer in answers:
            if answer is None:
                # F64: the broker left the partition out; nobody knows what it did.
                batch.note_unknown()
                code = error_code(Code.NETWORK_EXCEPTION)
                self._metadata.request_update(call.generation)
                self._conclude(batch, code, node_id, now, None)
            elif answer.error_code == Code.NONE:
                self.acknowledge(batch, answer.base_offset, answer.log_append_time_ms)
            else:
                code = error_code(answer.error_code)
                batch.seen = True
                if code.outcome is Outcome.UNKNOWN:
                    batch.note_unknown()
                if code.refresh_metadata and batch.topic_partition not in moved:
                    self._metadata.request_update(call.generation)
                self._conclude(
                    batch, code, node_id, now, answer,
                    at_once=batch.topic_partition in moved,
                )  # fmt: skip

    def _apply_leader_hints(
        self,
        call: ProduceCall,
        answers: Sequence[tuple[ProducerBatch, Any]],
        response: ClientResponse,
    ) -> frozenset[TopicPartition]:
        """New leaders named by error answers (KIP-951), used without a metadata fetch. Those of a
        topic that was deleted and created again meanwhile say nothing of the new one."""
        if response.version < _LEADER_HINT_VERSION:
            return frozenset()
        snapshot = self._metadata.snapshot
        leaders = {
            batch.topic_partition: (
                answer.current_leader.leader_id,
                answer.current_leader.leader_epoch,
            )
            for batch, answer in answers
            if answer is not None
            and answer.current_leader.leader_id >= 0
            and call.topic_ids[batch.queue.topic] == snapshot.topic_id(batch.queue.topic)
        }
        if not leaders:
            return frozenset()
        nodes = [Node(n.node_id, n.host, n.port, n.rack) for n in response.body.node_endpoints]
        return self._metadata.update_leaders(leaders, nodes)

    def acknowledge(self, batch: ProducerBatch, base_offset: int, append_time_ms: int) -> None:
        # Kafka returns the highest timestamp of a batch that was in the log already as its append
        # time (Java `UnifiedLog.append`). If that is the producer's, the records keep theirs.
        repeated = batch.in_doubt and append_time_ms == batch.core.max_timestamp
        if repeated:
            append_time_ms = -1
        self._sequences.on_success(batch, base_offset, repeated=repeated)
        first = batch.acknowledge(base_offset, append_time_ms)
        self._accumulator.settle(batch)
        if first:
            self._observer.on_batch_acknowledged(batch, self._loop.time())

    def _conclude(
        self,
        batch: ProducerBatch,
        code: ErrorCode,
        node_id: int,
        now: float,
        answer: Any,
        *,
        at_once: bool = False,
        cause: KafkaError | None = None,
    ) -> None:
        """Decide on a batch whose attempt failed."""
        batch.last_failure = (code.name, cause)
        if code.too_large:
            self._accumulator.disable_growth(batch.queue.topic)
        log_start = answer.log_start_offset if answer is not None else -1
        sequence = self._sequences.classify(batch, code.number, log_start)
        self._sequences.apply(batch, sequence)
        action = decide(
            code,
            records=batch.core.record_count,
            attempts=batch.attempts,
            retries=self._retries,
            sequence=sequence.decision,
        )
        if batch.core.settled and sequence.decision is not SequenceDecision.DUPLICATE:
            # It expired on the wire; only its sequence is still to be settled.
            self._sequences.on_failure(batch, unknown=batch.possibly_appended)
            self._accumulator.release(batch)
            self._accumulator.reclassify(batch.queue, now)
        elif action is Action.ACKNOWLEDGE:
            self.acknowledge(batch, batch.proven_offset, -1)
        elif action is Action.RETRY and now < batch.deadline:
            delay = self._backoff(batch.attempts)
            if batch.attempts >= self._retries:
                batch.leader_epoch = -1  # haste would waste the last attempt
            elif at_once or self._has_newer_leader(batch):
                delay = 0.0
            awaits_markers = code.number == Code.CONCURRENT_TRANSACTIONS
            if (
                awaits_markers
                and self._source.transactional_id
                and batch.attempts <= _MARKERS_ATTEMPTS
            ):
                delay = min(delay, _MARKERS_BACKOFF)
            self._observer.on_batch_retry(batch, code)
            level = logging.DEBUG
            # Java warns of each. Waiting for the markers of a transaction is no failure.
            if now >= batch.queue.warn_at and not awaits_markers:
                batch.queue.warn_at = now + _WARN_EVERY
                level = logging.WARNING
            logger.log(
                level, "%s: retrying after %s from broker %d in %.3f s (attempt %d)",
                batch, code.name, node_id, delay, batch.attempts,
            )  # fmt: skip
            self._accumulator.reenqueue(batch, now, now + delay)
        elif action is Action.SPLIT and now < batch.deadline:
            self._split(batch, now)
        elif action in (Action.RETRY, Action.SPLIT):
            # Only its time is over: as if the answer had come a pass later, when it has expired.
            self.fail(batch, delivery_timeout_error(batch, now, None))
        else:
            text = answer.error_message if answer is not None else None
            error = batch_error(code, batch, now, node_id, text, cause)
            self.fail(batch, error, record_errors(batch, answer, error))
            if action is Action.FATAL:
                self._on_fatal(error)

    def _has_newer_leader(self, batch: ProducerBatch) -> bool:
        """True if metadata have named another leader since the batch was sent: nothing to wait
        for."""
        snapshot, key = self._metadata.snapshot, batch.topic_partition
        newer = batch.leader_changed(snapshot.leader_epoch_of(key))
        return newer and snapshot.leader_of(key) is not None

    def _on_fatal(self, error: KafkaError) -> None:
        """Every pending and later record fails; its error says that it is another one's fault."""
        fatal = error.copy().with_(
            message=f"the producer cannot send any more since: {error.message}",
            outcome=Outcome.NOT_SENT,
        )
        self._source.on_fatal(fatal)
        self._wakeup()

    def _split(self, batch: ProducerBatch, now: float) -> None:
        payload = self._splitter.plain(batch)
        limit = self._splitter.limit(batch)
        self._observer.on_batch_split(batch)
        logger.info("%s: too large for the broker, splitting", batch)
        parts = self._accumulator.split(batch, payload, limit, now)
        self._sequences.on_split(batch, parts)

    def fail(
        self,
        batch: ProducerBatch,
        error: KafkaError,
        record_errors: dict[int, KafkaError] | None = None,
    ) -> None:
        """Its records fail with `error`; its sequence is settled once it is off the wire."""
        if not batch.in_flight:
            self._sequences.on_failure(batch, unknown=batch.possibly_appended)
        unwatched = batch.core.unwatched
        if batch.fail(error, record_errors):
            self._gate.on_records_failed(batch, error)
            self._observer.on_batch_failed(batch, error)
            if unwatched:
                self._observer.on_unretrieved_failure(batch.topic_partition, unwatched, error)
                logger.error(
                    "%d records to %s failed and nobody was waiting for them: %s",
                    unwatched, batch.topic_partition, error,
                )  # fmt: skip
        self._accumulator.settle(batch)
        self._accumulator.reclassify(batch.queue, self._loop.time())
