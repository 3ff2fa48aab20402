"""Completes the batches of a Produce request: each is acknowledged, sent again, split or failed.

Source: Java `Sender.handleProduceResponse`, `completeBatch`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from aiokprod._engine.buffer.batch_splitter import part_limit, plain_records
from aiokprod._engine.sender.batch_errors import (
    batch_error,
    delivery_timeout_error,
    given_up_error,
    record_errors,
)
from aiokprod._engine.sender.failure_log import FailureLog
from aiokprod._engine.sender.produce_request import ProduceCall, partition_responses
from aiokprod._engine.sender.retry_log import RetryLog
from aiokprod._engine.sender.retry_policy import (
    Action,
    decide,
    next_is_last_attempt,
    retry_delay,
)
from aiokprod._log_fields import log_fields
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
    from aiokprod._engine.buffer.producer_batch import ProducerBatch
    from aiokprod._engine.identity.producer_state import ProducerState
    from aiokprod._engine.metadata.cache import Metadata
    from aiokprod._engine.ports import ClientResponse
    from aiokprod.errors import ErrorCode
    from aiokprod.observer import Observer
    from aiokprod.records import TopicPartition

logger = logging.getLogger(__name__)

_LEADER_HINT_VERSION: Final = 10


class BatchCompletion:
    """Acknowledges stored batches, and carries out the decision of `retry_policy.decide` for
    others.

    Attributes:
        acknowledged_at: loop time of the last acknowledgment, None before the first.
        retry_log: retries that are not logged yet.
        failure_log: failed records for which no task was waiting, which are not logged yet.

    Args:
        wakeup: called when the sender has to run again immediately.
    """

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        accumulator: RecordAccumulator,
        metadata: Metadata,
        state: ProducerState,
        retries: int,
        backoff: Callable[[int], float],
        observer: Observer,
        wakeup: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._accumulator = accumulator
        self._metadata = metadata
        self._sequences = state.sequences
        self._gate = state.gate
        self._source = state.source
        self.acknowledged_at: float | None = None
        self.retry_log = RetryLog()
        self.failure_log = FailureLog()
        self._max_retries = retries
        self._backoff = backoff
        self._observer = observer
        self._wakeup = wakeup

    def on_done(
        self, node_id: int, call: ProduceCall, response: ClientResponse, now: float
    ) -> None:
        """Complete the batches of a request that ended with a response, without a response
        (acks=0), or with an error."""
        if response.error is not None:
            self._on_request_failed(node_id, call, response, response.error, now)
        elif response.body is None:
            for batch in call.batches.values():
                self._acknowledge(batch, -1, -1)
        else:
            answers = partition_responses(call, response.body, response.version)
            moved: frozenset[TopicPartition] | None = None
            for batch, answer in answers:
                if answer is not None and answer.error_code == Code.NONE:
                    self._on_stored(batch, answer)
                    continue
                if moved is None:
                    moved = self._apply_leader_hints(call, answers, response)
                has_moved = batch.topic_partition in moved
                self._on_partition_failed(node_id, call, batch, answer, now, moved=has_moved)

    def _on_request_failed(
        self,
        node_id: int,
        call: ProduceCall,
        response: ClientResponse,
        error: KafkaError,
        now: float,
    ) -> None:
        """Complete the batches of a request that failed without a response. The error code is
        derived from `error`.

        Source: Java `Sender.handleProduceResponse`.
        """
        if isinstance(error, ProtocolError) and not response.maybe_written:
            for batch in call.batches.values():  # a retry could not be encoded either
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
            self._complete_failed_attempt(batch, code, node_id, now, None, cause=error)

    def _on_partition_failed(
        self,
        node_id: int,
        call: ProduceCall,
        batch: ProducerBatch,
        answer: Any,
        now: float,
        *,
        moved: bool,
    ) -> None:
        """Complete a batch for which the response reports an error, or whose partition it omits.

        Args:
            answer: the partition's part of the response; None if it is missing.
            moved: True if the response names a newer leader, which the metadata already contains.
        """
        if answer is None:
            batch.note_unknown()  # the broker may have appended the batch (F64 in docs/faults.md)
            code = error_code(Code.NETWORK_EXCEPTION)
        else:
            batch.maybe_written = True
            code = error_code(answer.error_code)
            if code.outcome is Outcome.UNKNOWN:
                batch.note_unknown()
        if code.number == Code.UNKNOWN_TOPIC_ID:
            topic = batch.queue.topic
            self._metadata.refuse_topic_id(topic, call.topic_ids[topic])
        if answer is None or (code.refresh_metadata and not moved):
            self._metadata.request_update(call.generation, batch.topic_partition)
        self._complete_failed_attempt(batch, code, node_id, now, answer, at_once=moved)

    def _apply_leader_hints(
        self,
        call: ProduceCall,
        answers: Sequence[tuple[ProducerBatch, Any]],
        response: ClientResponse,
    ) -> frozenset[TopicPartition]:
        """Apply the new leaders that a response has for failed partitions, without a metadata
        request. Return the partitions that have a new leader (KIP-951).

        Leaders of a topic that was deleted and created again since the request are ignored.
        """
        leaders: dict[TopicPartition, tuple[int, int]] = {}
        for batch, answer in answers:
            if answer is None or not answer.error_code or response.version < _LEADER_HINT_VERSION:
                continue
            hint, topic = answer.current_leader, batch.queue.topic
            if hint.leader_id >= 0 and call.topic_ids[topic] == self._metadata.snapshot.topic_id(
                topic
            ):
                leaders[batch.topic_partition] = (hint.leader_id, hint.leader_epoch)
        if not leaders:
            return frozenset()
        nodes = [Node(n.node_id, n.host, n.port, n.rack) for n in response.body.node_endpoints]
        return self._metadata.update_leaders(leaders, nodes)

    def _on_stored(self, batch: ProducerBatch, answer: Any) -> None:
        """Acknowledge a batch that is in the log according to the response for its partition."""
        # For a batch that was already in the log, Kafka returns its highest timestamp as the append
        # time (Java `UnifiedLog.append`). If this is the timestamp from the producer, the topic
        # uses CreateTime, and the records keep their own timestamps. The response then also proves
        # that an earlier copy is in the log. `possibly_appended` is checked, because a late copy
        # may have been appended even after OUT_OF_ORDER_SEQUENCE_NUMBER has cleared `in_doubt`.
        append_time_ms = answer.log_append_time_ms
        if batch.possibly_appended and append_time_ms == batch.core.max_timestamp:
            append_time_ms = -1
            if batch.in_doubt:
                self._sequences.on_duplicate(batch, answer.base_offset, answer.log_start_offset)
        self._acknowledge(batch, answer.base_offset, append_time_ms)

    def _acknowledge(self, batch: ProducerBatch, base_offset: int, append_time_ms: int) -> None:
        self._sequences.on_success(batch, base_offset)
        first = batch.core.acknowledge(base_offset, append_time_ms, batch)
        self._accumulator.deallocate(batch)
        if first:
            now = self._loop.time()
            self.acknowledged_at = batch.queue.acknowledged_at = now
            self._observer.on_batch_acknowledged(batch, now)

    def _complete_failed_attempt(
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
        """Decide what to do with a batch whose attempt failed, and carry out the decision."""
        batch.last_failure = (code.name, cause)
        if code.too_large:
            self._accumulator.growth.disable(batch.queue.topic)
        log_start = answer.log_start_offset if answer is not None else -1
        sequence = self._sequences.classify(batch, code.number, log_start)
        self._sequences.apply(batch, sequence)
        action = decide(
            code,
            records=batch.core.record_count,
            attempts=batch.attempts,
            retries=self._max_retries,
            sequence=sequence.decision,
            settled=batch.core.settled,
            expired=now >= batch.deadline,
        )
        if action is Action.ACKNOWLEDGE:
            self._acknowledge(batch, batch.proven_offset, -1)
        elif action is Action.RETRY:
            self._retry(batch, code, node_id, now, at_once=at_once)
        elif action is Action.SPLIT:
            self._split(batch, now)
        elif action is Action.EXPIRE:
            self.fail(batch, delivery_timeout_error(batch, now, None))
        elif action is Action.SETTLE_SEQUENCE:
            self._sequences.on_failure(batch, unknown=batch.possibly_appended)
            self._accumulator.deallocate(batch)
            self._accumulator.reclassify(batch.queue, now)
        else:
            text = answer.error_message if answer is not None else None
            error = batch_error(code, batch, now, node_id, text, cause)
            self.fail(batch, error, record_errors(batch, answer, error))
            if action is Action.FATAL:
                self._on_fatal(error)

    def _retry(
        self, batch: ProducerBatch, code: ErrorCode, node_id: int, now: float, *, at_once: bool
    ) -> None:
        """Put the batch back into its queue, to be sent again after a backoff."""
        if next_is_last_attempt(batch.attempts, self._max_retries):
            batch.leader_epoch = -1  # a new leader must not end the backoff of the last attempt
        awaits_markers = code.number == Code.CONCURRENT_TRANSACTIONS
        delay = retry_delay(
            self._backoff(batch.attempts),
            attempts=batch.attempts,
            retries=self._max_retries,
            at_once=at_once or self._has_newer_leader(batch),
            awaits_markers=awaits_markers and self._source.transactional_id is not None,
        )
        self._observer.on_batch_retry(batch, code)
        if not awaits_markers:  # waiting for transaction markers is not a failure
            self.retry_log.note(batch, code, node_id, now)
        # Log only at DEBUG, unlike Java, which logs a warning for each retry: `DeliveryWatch` warns
        # once per outage.
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug(
                "%s: retrying after %s from broker %d in %.3f s (attempt %d)",
                batch, code.name, node_id, delay, batch.attempts,
                extra=log_fields(
                    "batch_retried", topic_partition=batch.topic_partition, node_id=node_id,
                    code=code.name, attempt=batch.attempts, records=batch.core.record_count,
                ),
            )  # fmt: skip
        self._accumulator.reenqueue(batch, now, now + delay)

    def _has_newer_leader(self, batch: ProducerBatch) -> bool:
        """Return True if the metadata has a newer leader than the one to which the batch was sent,
        so that a retry does not have to wait."""
        snapshot, key = self._metadata.snapshot, batch.topic_partition
        newer = batch.leader_changed(snapshot.leader_epoch_of(key))
        return newer and snapshot.leader_of(key) is not None

    def _on_fatal(self, error: KafkaError) -> None:
        """End the producer. Pending and later records fail with NOT_SENT and a message that
        contains the cause."""
        fatal = error.copy().with_(
            message="the producer can no longer send, because of an earlier error: "
            f"{error.message}",
            outcome=Outcome.NOT_SENT,
        )
        self._source.on_fatal(fatal)
        self._wakeup()

    def _split(self, batch: ProducerBatch, now: float) -> None:
        payload, limit = plain_records(batch), part_limit(batch)
        self._observer.on_batch_split(batch)
        logger.info(
            "%s: too large for the broker, splitting", batch,
            extra=log_fields(
                "batch_split", topic_partition=batch.topic_partition, size=batch.size,
                records=batch.core.record_count,
            ),
        )  # fmt: skip
        parts = self._accumulator.split(batch, payload, limit, now)
        self._sequences.on_split(batch, parts)

    def fail(
        self,
        batch: ProducerBatch,
        error: KafkaError,
        record_errors: dict[int, KafkaError] | None = None,
    ) -> None:
        """Fail the records of a batch. Its sequence is released now, or after the response if the
        batch is in flight."""
        if not batch.in_flight:
            self._sequences.on_failure(batch, unknown=batch.possibly_appended)
        unwatched = batch.core.unwatched
        if batch.fail(error, record_errors):
            self._gate.on_records_failed(batch, error)
            self._observer.on_batch_failed(batch, error)
            if unwatched:
                self._observer.on_unretrieved_failure(batch.topic_partition, unwatched, error)
                now = self._loop.time()
                self.failure_log.note(batch.topic_partition, unwatched, error, now)
        self._accumulator.deallocate(batch)
        self._accumulator.reclassify(batch.queue, self._loop.time())
