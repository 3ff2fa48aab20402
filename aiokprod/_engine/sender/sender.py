"""The sender: sends batches that are due and passes responses to `BatchCompletion`.

`run_once(now)` never suspends. Between two passes, `run` waits for a wake-up or the next deadline.
Unlike in Java, an unexpected exception ends the sender and fails the producer.

Source: Java `Sender`.
"""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import TYPE_CHECKING

from aiokprod._engine.buffer.batch_states import COMPLETING, DRAINED, IN_FLIGHT
from aiokprod._engine.sender.auth_failures import AuthFailures
from aiokprod._engine.sender.batch_completion import BatchCompletion
from aiokprod._engine.sender.batch_errors import delivery_timeout_error, given_up_error
from aiokprod._engine.sender.produce_request import ProduceCall
from aiokprod._engine.sender.retry_policy import is_last_attempt
from aiokprod._engine.sender.unresponsive_brokers import UnresponsiveBrokers
from aiokprod._histogram import Histogram
from aiokprod.errors import (
    Code,
    KafkaError,
    Outcome,
    ProducerFailed,
    RequestTimedOut,
    broker_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiokprod._engine.buffer.accumulator import RecordAccumulator
    from aiokprod._engine.buffer.producer_batch import ProducerBatch
    from aiokprod._engine.identity.producer_state import ProducerState
    from aiokprod._engine.metadata.cache import Metadata
    from aiokprod._engine.ports import BrokerClient, ClientResponse, ReadyConnection
    from aiokprod._engine.sender.failure_log import FailureLog
    from aiokprod._engine.sender.retry_log import RetryLog
    from aiokprod._engine.wakeup import WakeupEvent
    from aiokprod.config import ProducerConfig
    from aiokprod.observer import Observer


class Sender:
    """Drains the accumulator into Produce requests.

    Args:
        loop_lag: histogram of the times by which the event loop delays the sender.

    Attributes:
        auth_failures: authentication failures of brokers. The network layer reports to it every
            connection that is opened or closed.
        on_waiting: called after a pass that leaves batches without an outcome; may be None.
        waits_for: returns a description of the event for which a batch waits, for the error of an
            expired batch.
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
        observer: Observer,
        loop_lag: Histogram | None = None,
    ) -> None:
        self._acks = config.required_acks
        self._max_retries = config.retries
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
        self._loop_lag = Histogram() if loop_lag is None else loop_lag
        self._wakeup_event = wakeup
        self.wakeup = wakeup.set
        """Request a pass in the next iteration of the event loop. Idempotent and cheap."""
        self._completion = BatchCompletion(
            loop=loop,
            accumulator=accumulator,
            metadata=metadata,
            state=state,
            retries=config.retries,
            backoff=backoff,
            observer=observer,
            wakeup=self.wakeup,
        )
        self._unresponsive = UnresponsiveBrokers()
        self.silent_since = self._unresponsive.silent_since
        """See `UnresponsiveBrokers.silent_since`."""
        self.on_waiting: Callable[[], None] | None = None
        self.waits_for: Callable[[ProducerBatch, float], str] = lambda batch, now: ""
        self._leaders_changed = False
        self._cluster_changed = False
        self._expiry_noticed = False

    @property
    def acknowledged_at(self) -> float | None:
        """Loop time of the last acknowledgment, None before the first."""
        return self._completion.acknowledged_at

    @property
    def failure_log(self) -> FailureLog:
        """Failed records for which no task was waiting, which are not logged yet."""
        return self._completion.failure_log

    @property
    def retry_log(self) -> RetryLog:
        """Retries that are not logged yet."""
        return self._completion.retry_log

    # -- loop -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until cancelled: do what is due, then wait for the next event or due time."""
        wakeup, clock = self._wakeup_event, self._loop.time
        try:
            while True:
                wakeup.clear()
                now = clock()
                if wakeup.due_at:
                    self._loop_lag.add(now - wakeup.due_at)
                    wakeup.due_at = 0.0
                deadline = self.run_once(now)
                if self.on_waiting is not None and self._accumulator.incomplete:
                    self.on_waiting()
                await wakeup.wait(deadline)
        finally:
            wakeup.close()

    def run_once(self, now: float) -> float:
        """Do everything that is due, once. Return the loop time at which the next pass is due if no
        event occurs first.

        The order of the steps matters: a step may cause work for a later step but never for an
        earlier one, because nothing would wake the sender for it. For example, expiry may plan an
        epoch bump, and a bump may request a producer id.
        """
        accumulator = self._accumulator
        if accumulator.emptied:
            accumulator.drop_emptied(now)
        if accumulator.expires_at > now:
            self._expiry_noticed = False
        elif self._expire(now) <= now:
            return now  # do not send batches that are about to expire
        unresponsive, refusals = self._unresponsive, self.auth_failures
        if self._leaders_changed or unresponsive.next_check_at <= now:
            self._check_overdue(now)
        if refusals.next_check_at <= now:
            self._fail_refused(now)
        if self._cluster_changed:
            self._leave_cluster()
        self._sequences.bump_epochs()
        next_at = self._request_for_state(now)
        accumulator.advance(now)
        if accumulator.leaderless:
            self._refresh_leaderless(now)
        updating = self._metadata.update_due(now)  # the updater sends first, then wakes the sender
        stuck = []
        for node_id in accumulator.due_nodes(unresponsive.in_flight):
            if node_id == self._source.reserved_node:
                continue
            connection = self._client.ready(node_id, now)
            if connection is not None:
                if not updating and node_id not in self._metadata.claimed:
                    self._send_to(connection, now)
                continue
            accumulator.note_undrainable(node_id, now)
            retry_at = self._client.retry_at(node_id, now)
            next_at = min(next_at, retry_at)
            if retry_at == math.inf:
                stuck.append(node_id)
        if stuck or unresponsive.connecting:
            unresponsive.connecting_to(stuck, now)
        refused_at = refusals.next_check_at if accumulator.incomplete else math.inf
        deadline = min(next_at, accumulator.next_due(), accumulator.expires_at)
        return min(deadline, refused_at, unresponsive.next_check_at)

    def _check_overdue(self, now: float) -> None:
        """Request metadata while brokers are unresponsive, and close the connections to those whose
        partitions now have another leader, so that their batches are sent to that leader."""
        if self._unresponsive.next_check_at <= now and self._unresponsive.any_overdue(now):
            self._metadata.request_refresh()
        self._leaders_changed = False
        overdue = self._unresponsive.overdue_nodes(now)
        if not overdue:
            return
        leader_of = self._metadata.snapshot.leader_of
        lost, kept = set(), set()
        for batch in list(self._accumulator.incomplete):
            if batch.in_flight and batch.wire_node in overdue:
                if is_last_attempt(batch.attempts, self._max_retries):
                    kept.add(batch.wire_node)
                elif leader_of(batch.topic_partition) not in (None, batch.wire_node):
                    lost.add(batch.wire_node)
        for node_id in lost - kept:
            text = f"broker {node_id} did not respond, and another one leads its partitions by now"
            self._client.give_up(node_id, RequestTimedOut(text))

    def on_snapshot(self) -> None:
        """Make the next `run_once` check for changed leaders, and wake the sender."""
        self._leaders_changed = True
        self.wakeup()

    def on_cluster_changed(self) -> None:
        """Make the next pass give up the producer id and the batches that belong to the previous
        cluster."""
        self._cluster_changed = True
        self.wakeup()

    def _leave_cluster(self) -> None:
        self._cluster_changed = False
        if not self._sequences.on_cluster_changed():
            return
        text = (
            "the cluster id changed, and the record may be in the log of either cluster; see "
            "bootstrap_servers"
        )
        error = broker_error(Code.INCONSISTENT_CLUSTER_ID, text)
        for batch in list(self._accumulator.incomplete):
            if batch.has_sequence and batch.in_doubt and self._accumulator.remove(batch):
                self._completion.fail(batch, given_up_error(batch, error))

    def _refresh_leaderless(self, now: float) -> None:
        for topic in self._accumulator.leaderless_topics():
            self._metadata.request_topic(topic, now)

    # -- requests for the producer state --------------------------------------------------------

    def _request_for_state(self, now: float) -> float:
        """Send the next request of the producer state if one is due. Return the time at which to
        call this again if no event occurs first."""
        source = self._source
        failure = source.fatal_error or source.pending_failure
        if failure is not None:
            source.pending_failure = None
            self.fail_all(failure)
        pending = bool(self._accumulator.incomplete)
        due_at = source.next_request_at(now, pending)
        if due_at > now:
            return due_at
        node_id = self._client.least_loaded(now)
        if node_id is None:
            return math.inf  # the end of any connection attempt wakes the sender
        connection = self._client.ready(node_id, now)
        if connection is None:
            return self._client.retry_at(node_id, now)
        request = source.next_request(now, pending)
        assert request is not None, "a request was due"

        def on_done(response: ClientResponse) -> None:
            if response.error is not None:
                request.on_error(response.error, self._loop.time())
            else:
                request.on_body(response.body, self._loop.time())

        connection.send(request.request, on_done, now, timeout=self._request_timeout_ms / 1000)
        return math.inf

    # -- sending --------------------------------------------------------------------------------

    def _send_to(self, connection: ReadyConnection, now: float) -> None:
        """Send requests to a broker until it accepts no more, or until no batch is due for it."""
        accumulator, node_id = self._accumulator, connection.node_id
        while True:
            batches = accumulator.drain(node_id, self._max_request_size, self._sequences.may_drain)
            if not batches:
                return
            self._send_batches(connection, batches, now)
            if not accumulator.has_ready(node_id) or not connection.can_send(now):
                return

    def _send_batches(
        self, connection: ReadyConnection, batches: list[ProducerBatch], now: float
    ) -> None:
        metadata, sequences, node_id = self._metadata, self._sequences, connection.node_id
        snapshot = metadata.snapshot
        for batch in batches:
            sequences.assign_sequence(batch)
            queue = batch.queue
            queue.in_flight += 1
            queue.wire_node = batch.wire_node = node_id
            batch.change_state(IN_FLIGHT)
            batch.attempts += 1
            batch.sent_at = now
            known = snapshot.partition(*batch.topic_partition)
            batch.leader_epoch = -1 if known is None else known.leader_epoch
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
        connection.send(
            call,
            partial(self._on_produce_done, node_id, call),
            now,
            timeout=self._request_timeout_ms / 1000,
            max_version=call.max_version,
            expect_response=self._acks != 0,
        )

    # -- responses ------------------------------------------------------------------------------

    def _on_produce_done(self, node_id: int, call: ProduceCall, response: ClientResponse) -> None:
        now = self._loop.time()
        self._unresponsive.response_received(node_id, now + response.throttle_ms / 1000)
        for batch in call.batches.values():
            batch.change_state(COMPLETING)
            batch.queue.in_flight -= 1
        self._observer.on_produce_done(node_id, response.latency)
        self._completion.on_done(node_id, call, response, now)

    # -- expiry and failures --------------------------------------------------------------------

    def _expire(self, now: float) -> float:
        """Fail batches whose delivery deadline has passed. Return the time at which to call this
        again.

        The first call that finds such a batch only requests another pass, so that sockets are read
        first: after the event loop was blocked, they may contain a response.
        """
        accumulator = self._accumulator
        if accumulator.next_expiry() > now:
            self._expiry_noticed = False
            return accumulator.expires_at
        if not self._expiry_noticed:
            self._expiry_noticed = True
            return now
        self._expiry_noticed = False
        for batch in accumulator.expired(now):
            waits_for = self.waits_for(batch, now)
            batch.queue.on_given_up(batch, now)
            if batch.in_flight:
                batch.note_unknown(lost=True)
            elif not accumulator.remove(batch) and batch.attempts:
                batch.note_unknown(lost=True)  # the callback for its response was interrupted
            error = delivery_timeout_error(batch, now, self._metadata.last_error, waits_for)
            self._completion.fail(batch, error)
        return accumulator.next_expiry()

    def _fail_refused(self, now: float) -> None:
        """Fail the batches of brokers that have rejected the credentials for longer than the
        connection setup timeout, and the calls that wait for these brokers' shares of the
        memory."""
        failures = self.auth_failures
        self._accumulator.fail_waiters(failures.final_failures(now), failures.final_of_all(now))
        for batch, error in failures.batches_to_fail(list(self._accumulator.incomplete), now):
            if self._accumulator.remove(batch):
                self._completion.fail(batch, given_up_error(batch, error))

    def fail_all(self, error: KafkaError) -> None:
        """Fail all batches without an outcome. The error of each batch shows whether the batch may
        be in the log."""
        self._accumulator.drop_emptied(self._loop.time())
        for batch in list(self._accumulator.incomplete):
            if batch.core.settled:
                self._accumulator.deallocate(batch)  # its completion callback was interrupted
                continue
            queued = self._accumulator.remove(batch)
            if batch.attempts and not queued and batch.state is not DRAINED:
                # The batch may be in the log: it is in flight, or the callback for its response was
                # interrupted.
                batch.note_unknown(lost=True)
            self._completion.fail(batch, given_up_error(batch, error))

    def fail_unsent(self, error: KafkaError, *, with_sequence: bool, in_doubt: bool) -> None:
        """Fail the batches that are not in flight and have no sequence.

        Args:
            with_sequence: also fail batches that have a sequence and are certainly not in the log.
                This leaves a sequence gap.
            in_doubt: also fail batches that have a sequence and may be in the log.
        """
        for batch in list(self._accumulator.incomplete):
            if batch.in_flight or batch.core.settled:
                continue
            if batch.has_sequence and not (in_doubt if batch.in_doubt else with_sequence):
                continue
            self._accumulator.remove(batch)
            self._completion.fail(batch, given_up_error(batch, error))

    def on_batch_compressed(self, batch: ProducerBatch, error: BaseException | None) -> None:
        """Make a compressed batch ready to be sent, or fail it if its compression failed with
        `error`."""
        if error is not None and not batch.core.settled:
            self._accumulator.remove(batch)
            failure = ProducerFailed(
                f"{batch.topic_partition}: compressing the batch failed; the record is not in the "
                "log",
                outcome=Outcome.NOT_SENT,
            )
            failure.__cause__ = error
            self._completion.fail(batch, failure)
        self._accumulator.reclassify(batch.queue, self._loop.time())
        self.wakeup()
