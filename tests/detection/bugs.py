"""Bugs of real clients. Each is reintroduced into this producer by patching the engine.

Every function takes a `pytest.MonkeyPatch` and breaks one thing; its docstring names the source of
the bug. The package contains no code for this.
"""

from __future__ import annotations

import asyncio
import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from aiokprod._client.runtime import Runtime
from aiokprod._client.topic_slots import TopicSlots
from aiokprod._engine.buffer.accumulator import RecordAccumulator
from aiokprod._engine.buffer.broker_memory_quota import BrokerMemoryQuota
from aiokprod._engine.buffer.buffer_memory import BufferMemory
from aiokprod._engine.buffer.flush import FlushTracker
from aiokprod._engine.buffer.producer_batch import ProducerBatch
from aiokprod._engine.buffer.queues import PartitionQueue
from aiokprod._engine.identity import idempotence, sequences
from aiokprod._engine.identity.idempotence import IdempotentSequences
from aiokprod._engine.identity.producer_state import NoSequences
from aiokprod._engine.identity.sequence_errors import NO_ACTION, SequenceAction, SequenceDecision
from aiokprod._engine.identity.sequences import PartitionSequences, SequenceTracker
from aiokprod._engine.metadata import merge
from aiokprod._engine.metadata.cache import Metadata
from aiokprod._engine.metadata.merge import ResponseMerger
from aiokprod._engine.metadata.schedule import UpdateSchedule
from aiokprod._engine.sender import batch_completion, produce_request
from aiokprod._engine.sender.batch_completion import BatchCompletion
from aiokprod._engine.sender.sender import Sender
from aiokprod._net import channel
from aiokprod._net.channel import KafkaChannel
from aiokprod._net.client import NetworkClient
from aiokprod._net.connection_states import ClusterConnectionStates
from aiokprod._net.in_flight import InFlightRequests
from aiokprod._wire import headers
from aiokprod.errors import Code, Outcome, UnknownTopic, error_code

Patch = pytest.MonkeyPatch
Bug = Callable[[Patch], None]

BUGS: dict[str, Bug] = {}

SIMULATION, TRANSACTIONS = "simulation", "transactions"
WHERE: dict[str, str] = {}
"""Where each bug is found: one of the two simulations, or, if the outcomes of records do not show
it, these tests (pytest ids)."""


def found_by(where: str) -> Callable[[Bug], Bug]:
    """Register a bug in the catalogue under its function's name."""

    def enter(function: Bug) -> Bug:
        name = function.__name__.replace("_", "-")
        BUGS[name], WHERE[name] = function, where
        return function

    return enter


bug = found_by(SIMULATION)


# -- bytes and memory -----------------------------------------------------------------------------


@bug
def buffer_reused_in_flight(patch: Patch) -> None:
    """CVE-2026-35554 (Java): an expired batch releases its buffer while a socket still uses it."""
    chunks, fail = ProducerBatch.chunks, ProducerBatch.fail

    def pooled(self: Any) -> Any:
        if isinstance(self.payload, bytes):
            self.payload = bytearray(self.payload)
        return chunks(self)

    def give_back(self: Any, *args: Any) -> bool:
        if isinstance(self.payload, bytearray):
            self.payload[:] = bytes(len(self.payload))
        return fail(self, *args)

    patch.setattr(ProducerBatch, "chunks", pooled)
    patch.setattr(ProducerBatch, "fail", give_back)


@bug
def half_frame_kept_after_a_reset(patch: Patch) -> None:
    """librdkafka 0047: the rest of a half-read frame was used on the next connection."""
    readers: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
    init = KafkaChannel.__init__

    def reuse(self: Any, **options: Any) -> None:
        init(self, **options)
        known = readers.setdefault(asyncio.get_running_loop(), {})
        self._reader = known.setdefault(self.peer, self._reader)

    patch.setattr(KafkaChannel, "__init__", reuse)


@bug
def memory_of_failed_batches_never_returned(patch: Patch) -> None:
    """Java BufferPoolTest, franz-go: buffered bytes leak when a batch that was sent fails."""
    deallocate = RecordAccumulator.deallocate

    def forgetful(self: Any, batch: Any) -> None:
        if batch.core.error is not None and batch.attempts and not batch.in_flight:
            batch.core.buffered_bytes = 0
        deallocate(self, batch)

    patch.setattr(RecordAccumulator, "deallocate", forgetful)


@bug
def memory_waiters_not_woken(patch: Patch) -> None:
    """franz-go deadlock fixes: memory is released and no task is woken."""

    patch.setattr(BufferMemory, "returned", lambda self: None)


@bug
def turn_lost_with_a_cancelled_waiter(patch: Patch) -> None:
    """kgo TestAuditFlushWokenByBlockedProduceCancel: a cancelled waiter blocks the queue."""
    patch.setattr(BrokerMemoryQuota, "release", lambda self, node: None)


# -- sequences ------------------------------------------------------------------------------------


@bug
def sequence_wraps_to_negative(patch: Patch) -> None:
    """aiokafka increment_sequence_number, franz-go before 1.5.3: after the maximum comes -2³¹."""

    def wrap(sequence: int, by: int) -> int:
        return (sequence + by + 2**31) % 2**32 - 2**31

    patch.setattr(sequences, "increment_sequence", wrap)


@bug
def epoch_beyond_its_end(patch: Patch) -> None:
    """F35: the epoch counts past 32767 instead of requesting a new producer id."""
    patch.setattr(idempotence, "MAX_EPOCH", 10**9)


@bug
def concurrent_batches_share_a_sequence(patch: Patch) -> None:
    """platformatic/kafka #326: N sends all succeed with one record stored."""

    def number(self: Any, batch: Any) -> None:
        batch.producer_id, batch.producer_epoch = self.producer_id, self.epoch
        batch.base_sequence = self.next
        if not self.open:
            self.next += batch.core.record_count

    patch.setattr(PartitionSequences, "number", number)


@bug
def expired_in_flight_batch_gives_its_sequence_back(patch: Patch) -> None:
    """franz-go #1217: new records reuse the sequence of a record that is in the log, and are
    lost."""
    may_reuse, failure = PartitionSequences.may_reuse, IdempotentSequences.on_failure

    def careless(self: Any, batch: Any) -> bool:
        known, batch.maybe_written = batch.maybe_written, False
        try:
            return may_reuse(self, batch)
        finally:
            batch.maybe_written = known

    patch.setattr(PartitionSequences, "may_reuse", careless)
    patch.setattr(
        IdempotentSequences,
        "on_failure",
        lambda self, batch, *, unknown: failure(self, batch, unknown=False),
    )


@bug
def retry_takes_a_new_sequence(patch: Patch) -> None:
    """kafka-python's early idempotence: brokers treated a retried batch as a new one."""
    assign = SequenceTracker.assign_sequence

    def again(self: Any, batch: Any) -> None:
        if batch.has_sequence:
            self.of(batch).number(batch)
        assign(self, batch)

    patch.setattr(SequenceTracker, "assign_sequence", again)


@bug
def out_of_order_sequence_wedges_the_producer(patch: Patch) -> None:
    """aiokafka #1017: OUT_OF_ORDER_SEQUENCE until the process is restarted."""
    classify = IdempotentSequences.classify

    def helpless(self: Any, batch: Any, code: int, log_start: int) -> SequenceAction:
        if code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return NO_ACTION
        return classify(self, batch, code, log_start)

    patch.setattr(IdempotentSequences, "classify", helpless)


@bug
def duplicate_sequence_is_a_failure(patch: Patch) -> None:
    """The record is in the log, but its caller gets an error (F33)."""
    classify = IdempotentSequences.classify

    def strict(self: Any, batch: Any, code: int, log_start: int) -> SequenceAction:
        action = classify(self, batch, code, log_start)
        return NO_ACTION if action.decision is SequenceDecision.DUPLICATE else action

    patch.setattr(IdempotentSequences, "classify", strict)


@bug
def duplicate_sequence_gets_an_invented_offset(patch: Patch) -> None:
    """aiokafka sender: a duplicate is acknowledged at -1, 0, 1, …"""
    acknowledge = BatchCompletion._acknowledge

    def invent(self: Any, batch: Any, base_offset: int, append_time_ms: int) -> None:
        if base_offset < 0 and batch.has_sequence:
            base_offset = 0
        acknowledge(self, batch, base_offset, append_time_ms)

    patch.setattr(BatchCompletion, "_acknowledge", invent)


@bug
def epoch_bump_renumbers_what_is_on_the_wire(patch: Patch) -> None:
    """KAFKA-5793 and successors: a batch still in flight is sent a second time as a new one."""
    patch.setattr(PartitionSequences, "may_restart", lambda self: True)


@bug
def codes_that_may_follow_the_append_count_as_refusals(patch: Patch) -> None:
    """Our own bug, until 2026: a batch that returned KAFKA_STORAGE_ERROR or
    UNKNOWN_TOPIC_OR_PARTITION after its append releases its sequence; the next record counts as a
    duplicate and is lost."""
    may_reuse = PartitionSequences.may_reuse
    doubtful = {Code.KAFKA_STORAGE_ERROR, Code.UNKNOWN_TOPIC_OR_PARTITION}

    def trusting(self: Any, batch: Any) -> bool:
        known, batch.maybe_written = batch.maybe_written, batch.possibly_appended
        try:
            return may_reuse(self, batch)
        finally:
            batch.maybe_written = known

    def row(number: int) -> Any:
        found = error_code(number)
        return dataclasses.replace(found, outcome=Outcome.REJECTED) if number in doubtful else found

    patch.setattr(PartitionSequences, "may_reuse", trusting)
    patch.setattr(batch_completion, "error_code", row)


@bug
def sequences_die_with_the_metadata(patch: Patch) -> None:
    """librdkafka 0105 topic_disappears_for_awhile: sequence 0 again under the same epoch."""
    refresh = TopicSlots._refresh

    def forget(self: Any, snapshot: Any, topic: str, slot: Any) -> None:
        if snapshot.partition_count(topic) is None:
            tracker = getattr(self._sequences, "tracker", None)
            known = {} if tracker is None else tracker.partitions
            for key in [key for key in known if key.topic == topic and not known[key].open]:
                del known[key]
        refresh(self, snapshot, topic, slot)

    patch.setattr(TopicSlots, "_refresh", forget)


@bug
def more_requests_in_flight_than_brokers_remember(patch: Patch) -> None:
    """Java before KAFKA-5494: idempotence holds for five batches in flight, not for more."""
    init = InFlightRequests.__init__
    patch.setattr(InFlightRequests, "__init__", lambda self, limit: init(self, 4 * limit))


# -- order ----------------------------------------------------------------------------------------


@bug
def reorder_over_a_leader_change(patch: Patch) -> None:
    """aiokafka test_producer_leader_change_preserves_order: the new leader gets the next batch
    while the old one still has the last."""
    patch.setattr(NoSequences, "may_drain", lambda self, queue, batch: True)


@bug
def retry_goes_to_the_end_of_the_queue(patch: Patch) -> None:
    """Java `RecordAccumulator.reenqueue` exists for this: a retry overtaken by younger batches."""
    patch.setattr(PartitionQueue, "insert", lambda self, batch: self.batches.append(batch))


@bug
def split_parts_are_sent_backwards(patch: Patch) -> None:
    """Java `splitAndReenqueue`, KAFKA-6054: parts of a batch that was too large change places."""
    split = RecordAccumulator.split

    def backwards(self: Any, batch: Any, payload: Any, limit: int, now: float) -> list[Any]:
        parts = split(self, batch, payload, limit, now)
        for part in parts:
            batch.queue.batches.remove(part)
        orders = [part.order for part in parts]
        for part, order in zip(parts, reversed(orders), strict=True):
            part.order = order
        for part in parts:
            batch.queue.insert(part)
        return parts[::-1]

    patch.setattr(RecordAccumulator, "split", backwards)


# -- outcomes -------------------------------------------------------------------------------------


def rated(patch: Patch, codes: set[int]) -> None:
    """Change these codes to mean that nothing was appended."""
    original = error_code

    def lenient(number: int) -> Any:
        row = original(number)
        return dataclasses.replace(row, outcome=Outcome.REJECTED) if number in codes else row

    patch.setattr(batch_completion, "error_code", lenient)


@bug
def appended_yet_called_definite(patch: Patch) -> None:
    """KAFKA-13574, NOT_ENOUGH_REPLICAS_AFTER_APPEND: records reported as not stored are in the
    log."""
    rated(patch, {6, 7, 13, 20})


@bug
def server_error_called_definite(patch: Patch) -> None:
    """UNKNOWN_SERVER_ERROR proves nothing about the log; clients treat it as a refusal."""
    rated(patch, {-1, 500})


@bug
def disconnect_called_definite(patch: Patch) -> None:
    """The request was written, its response was lost, and the record was reported as not stored."""

    def note(self: Any, *, lost: bool = False) -> None:
        self.in_doubt = True

    patch.setattr(ProducerBatch, "note_unknown", note)


@bug
def missing_partition_hangs(patch: Patch) -> None:
    """aiokafka 0.14: a batch whose partition the response omits never got an outcome."""
    answers = produce_request.partition_responses

    def only_present(call: Any, body: Any, version: int) -> Any:
        return [pair for pair in answers(call, body, version) if pair[1] is not None]

    patch.setattr(batch_completion, "partition_responses", only_present)


@bug
def second_entry_for_a_partition_wins(patch: Patch) -> None:
    """kfake TestAuditProduceDuplicateResponseEntryKeepsHook: the second entry replaces the
    first."""
    answers = produce_request.partition_responses

    def last(call: Any, body: Any, version: int) -> Any:
        reversed_body = dataclasses.replace(
            body,
            responses=[
                dataclasses.replace(t, partition_responses=tuple(t.partition_responses)[::-1])
                for t in body.responses
            ],
        )
        return answers(call, reversed_body, version)

    patch.setattr(batch_completion, "partition_responses", last)


@bug
def answers_matched_by_position(patch: Patch) -> None:
    """aiokafka test_invalid_correlation_id: every response is assigned to the oldest request."""
    decode = headers.decode_response_header

    class Anything(int):
        def __eq__(self, other: object) -> bool:
            return True

        def __ne__(self, other: object) -> bool:
            return False

        __hash__ = int.__hash__

    def blind(frame: Any, api_key: int, version: int) -> Any:
        correlation_id, body = decode(frame, api_key, version)
        return Anything(correlation_id), body

    patch.setattr(channel, "decode_response_header", blind)


# -- metadata -------------------------------------------------------------------------------------


def _without_memory(patch: Patch, applies: Callable[[Any, Any], bool]) -> None:
    original = ResponseMerger._partition_info

    def believe(self: Any, name: str, new: Any, known: Any, *, same_id: bool) -> Any:
        if known is not None and applies(new, known):
            known = None
        return original(self, name, new, known, same_id=same_id)

    patch.setattr(ResponseMerger, "_partition_info", believe)


@bug
def stale_metadata_believed(patch: Patch) -> None:
    """Java testRejectOldMetadata: a broker with outdated metadata rolls the leader back (F56)."""
    _without_memory(patch, lambda new, known: 0 <= new.leader_epoch < known.leader_epoch)


@bug
def leader_errors_fetch_no_metadata(patch: Patch) -> None:
    """aiokafka before test_producer_invalid_leader_retry_metadata: retried at the old leader."""
    patch.setattr(Metadata, "request_update", lambda self, *seen: self.snapshot.generation)


@bug
def recreated_topic_never_adopted(patch: Patch) -> None:
    """franz-go: the new topic's epochs are lower, so its leaders are never accepted (F52)."""
    patch.setattr(ResponseMerger, "_is_another", lambda self, known, topic: False)


@bug
def one_omission_is_a_verdict(patch: Patch) -> None:
    """kfake TestProduceTransientMissingPartitionKeepsRecords: records fail at the first answer
    that lacks their topic."""
    on_snapshot = Runtime._on_snapshot

    def impatient(self: Any, snapshot: Any) -> None:
        for topic in list(self.appender.topics):
            if snapshot.partition_count(topic) is not None:
                continue
            for batch in list(self.accumulator.incomplete):
                if batch.topic_partition.topic == topic and self.accumulator.remove(batch):
                    self.sender._completion.fail(batch, UnknownTopic(f"{topic} does not exist"))
        on_snapshot(self, snapshot)

    patch.setattr(Runtime, "_on_snapshot", impatient)
    patch.setattr(merge, "MISSES_BEFORE_FORGETTING", 1)


@bug
def versions_remembered_over_reconnects(patch: Patch) -> None:
    """NetworkClientTest.testUnsupportedApiVersions*: a broker restarted with an older version."""
    known: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
    on_versions = KafkaChannel._on_versions

    def remember(self: Any, answer: Any, asked: int, now: float) -> None:
        on_versions(self, answer, asked, now)
        if self.versions:
            first = known.setdefault(asyncio.get_running_loop(), {})
            self.versions = first.setdefault(self.peer, self.versions)

    patch.setattr(KafkaChannel, "_on_versions", remember)


# -- waiting, waking, ending ----------------------------------------------------------------------


@bug
def flush_forgets_the_parts_of_a_split_batch(patch: Patch) -> None:
    """librdkafka 0125, Java IncompleteBatches: flush returns while split records are in flight."""
    patch.setattr(FlushTracker, "replace", lambda self, batch, parts: None)


@bug
def flush_waits_for_failed_batches_for_ever(patch: Patch) -> None:
    """franz-go: a flush waiter is lost when a batch fails instead of being acknowledged."""
    on_batch_done = FlushTracker.on_batch_done

    def only_good(self: Any, batch: Any) -> None:
        if batch.core.error is None:
            on_batch_done(self, batch)

    patch.setattr(FlushTracker, "on_batch_done", only_good)


@bug
def foreign_cancellation_unnoticed(patch: Patch) -> None:
    """aiokafka #1039: other code cancels all tasks, and send_and_wait hangs forever."""
    patch.setattr(Runtime, "_on_task_done", lambda self, task: None)


@bug
def close_forgets_the_waiting(patch: Patch) -> None:
    """KafkaProducerTest.testCloseIsForcedOnPending*: records without an outcome after close."""

    def quiet(self: Any, error: Any) -> None:
        self.failure = error
        self.fast_path.stop()
        self.memory.close(error)
        self.quota.close(error)
        self.metadata.close(error)
        self.state.source.close(error)

    patch.setattr(Runtime, "_stop_with", quiet)


@bug
def linger_timer_lost(patch: Patch) -> None:
    """kafka-python #1412 and this client once: a batch behind a retry waits for an event that
    never comes."""
    place = RecordAccumulator.reclassify

    def once(self: Any, queue: PartitionQueue, now: float) -> None:
        if queue.linger_at == -1.0 and queue.load > 1:
            queue.linger_at = (
                queue.batches[0].created_at + queue.settings.linger if queue.batches else 0.0
            )
        place(self, queue, now)

    patch.setattr(RecordAccumulator, "reclassify", once)


@bug
def wall_clock_judges_deadlines(patch: Patch) -> None:
    """Deadlines use the wall clock, as in Java: a jump of an hour expires everything (F76)."""
    init, expire = Runtime.__init__, Sender._expire

    def with_wall(self: Any, config: Any, environment: Any, loop: Any, **rest: Any) -> None:
        init(self, config, environment, loop, **rest)
        self.sender._wall = lambda: environment.unix_ms() / 1000 - loop.time()
        self.sender._offset = self.sender._wall()

    def by_the_wall(self: Any, now: float) -> float:
        return expire(self, now + self._wall() - self._offset)

    patch.setattr(Runtime, "__init__", with_wall)
    patch.setattr(Sender, "_expire", by_the_wall)


# -- storms ---------------------------------------------------------------------------------------


@bug
def retries_without_backoff(patch: Patch) -> None:
    """librdkafka 0075/0143: a retriable error causes an immediate retry."""
    patch.setattr(Runtime, "_backoff", lambda self, attempts: 0.0)


@bug
def metadata_without_backoff(patch: Patch) -> None:
    """F51: the metadata of a deleted topic is requested without a pause."""
    ended = UpdateSchedule._ended

    def at_once(self: Any, now: float, steps: int) -> None:
        ended(self, now, steps)
        self._allowed_at = now

    patch.setattr(UpdateSchedule, "_ended", at_once)


@bug
def reconnects_without_backoff(patch: Patch) -> None:
    """franz-go, Java ClusterConnectionStatesTest: a dead broker is dialled without a pause."""
    disconnected = ClusterConnectionStates.disconnected

    def at_once(self: Any, node_id: int, now: float, *, was_up: bool, was_ready: bool) -> None:
        disconnected(self, node_id, now, was_up=was_up, was_ready=was_ready)
        self._record(node_id).not_before = now

    patch.setattr(ClusterConnectionStates, "disconnected", at_once)


@bug
def throttle_ignored(patch: Patch) -> None:
    """KIP-219, NetworkClientTest.testConnectionThrottling: requests are sent during a throttle time
    (F9)."""
    patch.setattr(NetworkClient, "connection_throttled", lambda self, connection, seconds: None)


__all__ = [
    "BUGS", "SIMULATION", "TRANSACTIONS", "WHERE", "Bug", "Patch", "bug", "found_by", "rated",
]  # fmt: skip
