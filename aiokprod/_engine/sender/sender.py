"""The sender coroutine: what is due leaves, what comes back is settled.

`run_once(now)` never suspends; between two passes `run` waits on one Event or the next deadline.
Unlike Java, an unexpected exception ends the sender, and with it the producer, loudly.

Source: Java `Sender`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from functools import partial
from typing import TYPE_CHECKING

from aiokprod._engine.buffer.batch_states import COMPLETING, IN_FLIGHT
from aiokprod._engine.sender.auth_failures import AuthFailures
from aiokprod._engine.sender.batch_completion import BatchCompletion
from aiokprod._engine.sender.produce_request import ProduceCall
from aiokprod._engine.sender.retry_policy import (
    delivery_timeout_error,
    given_up_error,
)
from aiokprod._engine.sender.unresponsive_brokers import UnresponsiveBrokers
from aiokprod.errors import (
    KafkaError,
    Outcome,
    ProducerFailed,
    RequestTimedOut,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiokprod._engine.buffer.accumulator import RecordAccumulator
    from aiokprod._engine.buffer.batch_splitter import BatchSplitter
    from aiokprod._engine.buffer.producer_batch import ProducerBatch
    from aiokprod._engine.identity.producer_state import ProducerState
    from aiokprod._engine.metadata.cache import Metadata
    from aiokprod._engine.ports import BrokerClient, ClientResponse, Slot
    from aiokprod._engine.wakeup import WakeupEvent
    from aiokprod.config import ProducerConfig
    from aiokprod.observer import Observer

logger = logging.getLogger(__name__)


class Sender:
    """Drains the accumulator into Produce requests and settles the answers.

    Attributes:
        auth_failures: must be called for every connection that is made or ends.
    """

    def __init__(
        self,
        config: ProducerConfig,
        *,
        loop: asyncio.AbstractEventLoop,
        accumulator: RecordAccumulator,
        client: BrokerClient,
        metadata: Metadata,
        state: ProducerState,
        wakeup: WakeupEvent,
        backoff: Callable[[int], float],
        splitter: BatchSplitter,
        observer: Observer,
    ) -> None:
        self._acks = config.required_acks
        self._retries = config.retries
        self._request_timeout_ms = config.request_timeout_ms
        self._max_request_size = config.max_request_size
        self._loop = loop
        self._accumulator = accumulator
        self._client = client
        self._metadata = metadata
        self._sequences = state.sequences
        self._source = state.source
        self._observer = observer
        self.auth_failures = AuthFailures(config.socket_connection_setup_timeout_ms / 1000)
        self._wakeup = wakeup
        self.wakeup = wakeup.set
        """Make a pass in the next turn of the loop. Idempotent and cheap."""
        self._settlement = BatchCompletion(
            loop=loop,
            accumulator=accumulator,
            metadata=metadata,
            state=state,
            retries=config.retries,
            backoff=backoff,
            splitter=splitter,
            observer=observer,
            wakeup=self.wakeup,
        )
        self._unresponsive = UnresponsiveBrokers()
        self._leaders_changed = False
        self._expiry_noticed = False

    # -- loop -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Pass after pass until cancelled."""
        wakeup, clock = self._wakeup, self._loop.time
        try:
            while True:
                wakeup.clear()
                deadline = self.run_once(clock())
                await wakeup.wait(deadline)
        finally:
            wakeup.close()

    def run_once(self, now: float) -> float:
        """One pass; the loop time at which the next one is due without any event.

        Invariant: what a step leaves to be done is done by a later step of the same pass. Expiry
        may plan an epoch bump, and a bump may ask for a producer id; nothing else would wake us.
        """
        accumulator = self._accumulator
        if accumulator.expires_at > now:
            self._expiry_noticed = False
        elif self._expire(now) <= now:
            return now  # what is about to expire must not leave any more
        unresponsive, refusals = self._unresponsive, self.auth_failures
        if self._leaders_changed or unresponsive.next_check_at <= now:
            self._look_at_silent(now)
        if refusals.next_check_at <= now:
            self._fail_refused(now)
        self._sequences.bump_epochs()
        next_at = self._request_for_state(now)
        accumulator.advance(now)
        if accumulator.leaderless:
            self._refresh_leaderless(now)
        updating = self._metadata.update_due(now)  # then the updater goes first and wakes us
        stuck = []
        for node_id in accumulator.due_nodes(unresponsive.in_flight):
            if node_id == self._source.reserved_node:
                continue
            slot = self._client.ready(node_id, now)
            if slot is not None:
                if not updating and node_id not in self._metadata.claimed:
                    self._send_to(slot, now)
                continue
            accumulator.note_undrainable(node_id, now)
            retry_at = self._client.retry_at(node_id, now)
            next_at = min(next_at, retry_at)
            if retry_at == math.inf:
                stuck.append(node_id)
        unresponsive.connecting_to(stuck, now)
        refused_at = refusals.next_check_at if accumulator.incomplete else math.inf
        deadline = min(next_at, accumulator.next_due(), accumulator.expires_at)
        return min(deadline, refused_at, unresponsive.next_check_at)

    def _look_at_silent(self, now: float) -> None:
        """Ask who leads the partitions of brokers that say nothing, and take back from them what
        another one leads by now."""
        if self._unresponsive.next_check_at <= now and self._unresponsive.any_overdue(now):
            self._metadata.request_refresh()
        self._leaders_changed = False
        silent = self._unresponsive.overdue_nodes(now)
        if not silent:
            return
        leader_of = self._metadata.snapshot.leader_of
        lost, kept = set(), set()
        for batch in self._accumulator.incomplete:
            if batch.in_flight and batch.wire_node in silent:
                if batch.attempts > self._retries:
                    kept.add(batch.wire_node)  # its batch would have no other attempt
                elif leader_of(batch.topic_partition) not in (None, batch.wire_node):
                    lost.add(batch.wire_node)
        for node_id in lost - kept:
            text = f"broker {node_id} did not respond, and another one leads its partitions by now"
            self._client.give_up(node_id, RequestTimedOut(text))

    def on_snapshot(self) -> None:
        """Metadata have changed."""
        self._leaders_changed = True
        self.wakeup()

    def _refresh_leaderless(self, now: float) -> None:
        for topic in self._accumulator.leaderless_topics():
            self._metadata.request_topic(topic, now)

    # -- the producer state's own requests ------------------------------------------------------

    def _request_for_state(self, now: float) -> float:
        """Send what the producer state wants sent; when to look again by time alone."""
        source = self._source
        failure = source.fatal_error or source.take_failure()
        if failure is not None:
            self.fail_all(failure)
        pending = bool(self._accumulator.incomplete)
        due_at = source.next_request_at(now, pending)
        if due_at > now:
            return due_at
        node_id = self._client.least_loaded(now)
        if node_id is None:
            return math.inf  # a dial in progress or the metadata updater's next one wakes us
        slot = self._client.ready(node_id, now)
        if slot is None:
            return self._client.retry_at(node_id, now)
        request = source.next_request(now, pending)
        assert request is not None, "a request was due"

        def on_done(response: ClientResponse) -> None:
            if response.error is not None:
                request.on_error(response.error, self._loop.time())
            else:
                request.on_body(response.body, self._loop.time())

        slot.send(request.request, on_done, now, timeout=self._request_timeout_ms / 1000)
        return math.inf

    # -- sending --------------------------------------------------------------------------------

    def _send_to(self, slot: Slot, now: float) -> None:
        """Send to a broker that takes a request, until it takes no more or nothing must leave."""
        accumulator, node_id = self._accumulator, slot.node_id
        while True:
            batches = accumulator.drain(node_id, self._max_request_size, self._sequences.may_drain)
            if not batches:
                return
            self._send_batches(slot, batches, now)
            if not accumulator.has_ready(node_id) or not slot.can_send(now):
                return

    def _send_batches(self, slot: Slot, batches: list[ProducerBatch], now: float) -> None:
        metadata, sequences, node_id = self._metadata, self._sequences, slot.node_id
        snapshot = metadata.snapshot
        for batch in batches:
            sequences.assign_sequence(batch)
            queue = batch.queue
            queue.in_flight += 1
            queue.wire_node = batch.wire_node = node_id
            batch.change_state(IN_FLIGHT)
            batch.attempts += 1
            batch.sent_at = now
            batch.leader_epoch = snapshot.leader_epoch_of(batch.topic_partition)
            metadata.mark_used(queue.topic, now)
        call = ProduceCall(
            batches,
            snapshot,
            acks=self._acks,
            timeout_ms=self._request_timeout_ms,
            transactional_id=self._source.transactional_id,
            max_version=self._source.max_produce_version,
        )
        self._unresponsive.request_sent(node_id, now)
        self._observer.on_batches_sent(node_id, batches)
        slot.send(
            call,
            partial(self._on_produce_done, node_id, call),
            now,
            timeout=self._request_timeout_ms / 1000,
            max_version=call.max_version,
            expect_response=self._acks != 0,
        )

    # -- answers --------------------------------------------------------------------------------

    def _on_produce_done(self, node_id: int, call: ProduceCall, response: ClientResponse) -> None:
        now = self._loop.time()
        self._unresponsive.response_received(node_id, now + response.throttle_ms / 1000)
        for batch in call.batches.values():
            batch.change_state(COMPLETING)
            batch.queue.in_flight -= 1
        self._observer.on_produce_done(node_id, response.latency)
        self._settlement.on_done(node_id, call, response, now)

    # -- giving up ------------------------------------------------------------------------------

    def _expire(self, now: float) -> float:
        """Fail batches past their deadline, not before the sockets were read once more: after a
        stall of the loop their answers may be waiting there. Returns when to look again."""
        accumulator = self._accumulator
        if accumulator.next_expiry() > now:
            self._expiry_noticed = False
            return accumulator.expires_at
        if not self._expiry_noticed:
            self._expiry_noticed = True
            return now
        self._expiry_noticed = False
        for batch in accumulator.expired(now):
            if batch.in_flight:
                batch.note_unknown(lost=True)
            elif not accumulator.remove(batch) and batch.attempts:
                batch.note_unknown(lost=True)  # the callback with its answer was interrupted
            error = delivery_timeout_error(batch, now, self._metadata.last_error)
            self._settlement.fail(batch, error)
        return accumulator.next_expiry()

    def _fail_refused(self, now: float) -> None:
        """Fail the batches, and the calls that wait for memory, that have waited long enough for a
        broker that refuses the credentials."""
        failures = self.auth_failures
        self._accumulator.refuse_waiters(failures.final_failures(now), failures.final_of_all(now))
        for batch, error in failures.batches_to_fail(list(self._accumulator.incomplete), now):
            if self._accumulator.remove(batch):
                self._settlement.fail(batch, given_up_error(batch, error))

    def fail_all(self, error: KafkaError) -> None:
        """Fail everything without an outcome; each record's error says whether it may be in the
        log."""
        for batch in list(self._accumulator.incomplete):
            if batch.core.settled:
                self._accumulator.settle(batch)  # the callback that settled it was interrupted
                continue
            if batch.in_flight or (not self._accumulator.remove(batch) and batch.attempts):
                batch.note_unknown(lost=True)
            self._settlement.fail(batch, given_up_error(batch, error))

    def fail_unsent(self, error: KafkaError, *, with_sequence: bool, in_doubt: bool) -> None:
        """Fail the batches that are not in flight and have no sequence.

        Args:
            with_sequence: also those that have one and are certainly not in the log, which leaves
                a sequence gap.
            in_doubt: also those that have one and may be in the log.
        """
        for batch in list(self._accumulator.incomplete):
            if batch.in_flight or batch.core.settled:
                continue
            if batch.has_sequence and not (in_doubt if batch.in_doubt else with_sequence):
                continue
            self._accumulator.remove(batch)
            self._settlement.fail(batch, given_up_error(batch, error))

    def on_batch_closed(self, batch: ProducerBatch, error: BaseException | None) -> None:
        """A worker thread has compressed a batch, or failed to."""
        if error is not None and not batch.core.settled:
            self._accumulator.remove(batch)
            failure = ProducerFailed(
                f"{batch.topic_partition}: compressing the batch failed; the record is not in the "
                "log",
                outcome=Outcome.NOT_SENT,
            )
            failure.__cause__ = error
            self._settlement.fail(batch, failure)
        self._accumulator.reclassify(batch.queue, self._loop.time())
        self.wakeup()
