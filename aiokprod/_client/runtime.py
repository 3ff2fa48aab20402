"""The components of a started producer, all on one event loop.

`Runtime` connects the engine with the network and runs the background tasks. If a task ends, the
producer fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from aiokprod._backoff import ExponentialBackoff
from aiokprod._client.delivery_watch import DeliveryWatch
from aiokprod._client.fast_path import FastPathSwitch
from aiokprod._client.late_executor import LateExecutor
from aiokprod._client.topic_slots import TopicSlots
from aiokprod._client.validation import check_timeout
from aiokprod._client.waiting import reason_of, shortest_stall
from aiokprod._client.warm_up import WarmUp
from aiokprod._core.append import Appender
from aiokprod._core.deadlines import Deadlines
from aiokprod._core.yielding import YieldQueue
from aiokprod._engine.buffer.topic_settings import TopicSettingsTable, configured_codec
from aiokprod._engine.engine import Engine
from aiokprod._engine.identity.idempotence import idempotent_state
from aiokprod._engine.identity.producer_state import ProducerState, non_idempotent_state
from aiokprod._engine.metadata.cache import Metadata
from aiokprod._engine.metadata.updater import MetadataUpdater
from aiokprod._engine.telemetry.collection import Collection
from aiokprod._engine.telemetry.pusher import TelemetryPusher
from aiokprod._engine.wakeup import WakeupEvent
from aiokprod._log_fields import log_fields
from aiokprod._net.client import NetworkClient
from aiokprod.errors import KafkaError, ProducerClosed, ProducerFailed
from aiokprod.partitioners import StickyLoad, calls_of, checked
from aiokprod.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from aiokprod._client.record_hooks import RecordHooks
    from aiokprod._client.record_serializers import RecordSerializers
    from aiokprod._core.slots import TopicSlot
    from aiokprod._engine.identity.coordinators import Coordinators
    from aiokprod._engine.identity.transaction_calls import TransactionCalls
    from aiokprod._engine.identity.transaction_driver import TransactionDriver
    from aiokprod.cluster import ClusterSnapshot
    from aiokprod.config import ProducerConfig
    from aiokprod.environment import Environment
    from aiokprod.observer import Metrics, Observer
    from aiokprod.partitioners import Partitioner

logger = logging.getLogger(__name__)

_NOT_IDEMPOTENT_ORDERED = 1
_PRODUCE = 0
_STICKY_SAMPLE = 32
_TRANSACTION_FEATURE = "transaction.version"
_GET_TELEMETRY_SUBSCRIPTIONS = 71
_LAST_PUSH_S = 1.0
"""Maximum time in seconds that `close` waits for the response to the last push of metrics."""


class Runtime:
    """Engine, network and tasks of a started producer, all on one event loop.

    Attributes:
        failure: the error that ended the producer, or None.
        transactions: the transactional calls, or None if the producer is not transactional.
        watch: detects and logs outages.
        on_failure: called with the error that ends the producer.
    """

    def __init__(
        self,
        config: ProducerConfig,
        environment: Environment,
        loop: asyncio.AbstractEventLoop,
        *,
        client_id: str,
        version: str,
        observer: Observer,
        metrics: Metrics,
        slow_submit: Callable[..., Any],
        serializers: RecordSerializers,
        hooks: RecordHooks,
        partitioner: Partitioner | None,
    ) -> None:
        self.config = config
        self.client_id = client_id
        self.loop = loop
        self.observer = observer
        self.failure: KafkaError | None = None
        self.on_failure: Callable[[KafkaError], None] | None = None
        self._started_at = loop.time()
        self.transactions: TransactionCalls | None = None
        self._driver: TransactionDriver | None = None
        self._cluster_id: str | None = None
        self._coordinators: Coordinators | None = None
        self._closing = False
        self._tasks: list[asyncio.Task[None]] = []
        self._retry = ExponentialBackoff(
            config.retry_backoff_ms / 1000, config.retry_backoff_max_ms / 1000
        )
        self._rng = environment.rng
        self._unix_ms = environment.unix_ms
        self._metrics = metrics
        self._telemetry: TelemetryPusher | None = None
        self._sticky = StickyLoad(config.partitioner_adaptive_partitioning_enable)
        topic_settings = TopicSettingsTable(config, configured_codec(config))
        compresses = topic_settings.compresses
        self._executor = LateExecutor(2, "aiokprod-codec") if compresses else None
        wakeup = WakeupEvent(loop, keep_timer=True)
        self.wake_sender = wakeup.set
        """Wake the sender, which runs in the next iteration of the event loop."""
        self.metadata = Metadata(config, environment.rng)
        self.client = NetworkClient(
            config,
            environment,
            loop,
            on_wakeup=self._on_network,
            on_disconnect=self._on_disconnect,
            on_throttle=observer.on_throttle,
            on_connection_opened=self._on_connected,
            on_connection_closed=self._on_connection_closed,
            on_callback_error=self.fail,
            client_id=client_id,
            software_version=version,
            nodes=metrics.nodes,
        )
        self.state = self._producer_state()
        engine = Engine(
            config,
            loop=loop,
            client=self.client,
            metadata=self.metadata,
            state=self.state,
            settings=topic_settings,
            wakeup=wakeup,
            wake=self.wake_sender,
            executor=self._executor,
            choose_partition=self._choose_sticky,
            backoff=self._backoff,
            observer=observer,
            loop_lag=metrics.histograms["loop_lag_s"],
        )
        self.memory = engine.memory
        self.flushes = engine.flushes
        self.quota = engine.quota
        self.accumulator = engine.accumulator
        self.sender = engine.sender
        self.sender.failure_log.client_id = client_id
        self.sender.waits_for = partial(reason_of, self)
        self.updater = self._metadata_updater()
        self.deadlines = Deadlines(loop, partial(check_timeout, "send", zero=False))
        self.yield_queue = YieldQueue(loop, environment.stopwatch, self.memory)
        self.appender = Appender(
            memory=self.memory,
            open_new_batch=self.accumulator.open_new_batch,
            slow_submit=slow_submit,
            unix_ms=environment.unix_ms,
            yield_queue=self.yield_queue,
            max_request_size=config.max_request_size,
            ignore_keys=config.partitioner_ignore_keys,
            serializers=serializers,
            hooks=hooks,
            partitioner=None if partitioner is None else calls_of(partitioner),
            check_partition=None if partitioner is None else partial(checked, partitioner),
        )
        hooks.loop = loop
        self.fast_path = FastPathSwitch(
            self.appender, transactional=config.transactional_id is not None
        )
        self.topic_slots = TopicSlots(
            self.appender.topics, self.accumulator, self.state.sequences, loop.time
        )
        self.warm_up = WarmUp(
            loop, self.metadata, self.client, self.sender.auth_failures, lambda: self.failure
        )
        self.watch = DeliveryWatch(self, shortest_stall(config))
        self.metadata.on_change(self._on_snapshot)
        self.metadata.queued = self._queued_topics

    def _producer_state(self) -> ProducerState:
        if self.config.transactional_id is not None:
            return self._transactional_state(self.config.transactional_id)
        if self.config.idempotent:
            return idempotent_state(self._backoff, self.wake_sender)
        in_flight = self.config.max_in_flight_requests_per_connection
        return non_idempotent_state(guarantee_order=in_flight == _NOT_IDEMPOTENT_ORDERED)

    def _transactional_state(self, transactional_id: str) -> ProducerState:
        # Import these modules only here: most producers have no transactions, and imports take
        # time.
        from aiokprod._engine.identity.coordinators import Coordinators
        from aiokprod._engine.identity.transaction_calls import TransactionCalls
        from aiokprod._engine.identity.transaction_driver import TransactionDriver
        from aiokprod._engine.identity.transaction_manager import (
            TransactionalIdentity,
            TransactionManager,
        )
        from aiokprod._engine.identity.transactional_sequences import TransactionalSequences

        manager = TransactionManager(transactional_id, loop=self.loop, control=self)
        self.transactions = TransactionCalls(manager, self.loop)
        self._coordinators = Coordinators(
            self.loop,
            self.client,
            self.metadata,
            request_timeout=self.config.request_timeout_ms / 1000,
            on_free=self.wake_sender,
            on_refused=self.transactions.refused,
        )
        self._driver = TransactionDriver(
            manager,
            self._coordinators,
            loop=self.loop,
            timeout_ms=self.config.transaction_timeout_ms,
            backoff=self._backoff,
        )
        source = TransactionalIdentity(manager, self._coordinators)
        return ProducerState(TransactionalSequences(manager), manager, source)

    # -- EngineControl: called by the transaction manager ----------------------------------------

    def set_transaction_open(self, is_open: bool) -> None:
        """Set whether records are accepted for the open transaction."""
        self.fast_path.set_transaction_open(is_open)
        if is_open:
            # A new transaction need not continue with the sticky partitions of the previous one.
            self.topic_slots.choose_sticky_anew()

    def set_completing(self, completing: bool) -> None:
        """Set whether the transaction is ending. Batches then do not wait for `linger_ms`."""
        self.accumulator.completing = completing

    def wake_driver(self) -> None:
        """Wake the transaction driver, which then determines its next step."""
        if self._driver is not None:
            self._driver.wake()

    def has_incomplete(self) -> bool:
        """Return True if any batch has no outcome."""
        return bool(self.accumulator.incomplete)

    def with_records(self) -> set[TopicPartition]:
        """Return the partitions that have records without an outcome, or an open batch."""
        return {
            batch.topic_partition
            for batch in list(self.accumulator.incomplete)
            if batch.core.record_count or batch.queue.core is batch.core
        }

    def fail_unsent(self, error: KafkaError, *, with_sequence: bool, in_doubt: bool) -> None:
        """See `Sender.fail_unsent`."""
        self.sender.fail_unsent(error, with_sequence=with_sequence, in_doubt=in_doubt)

    def transaction_version(self) -> int:
        """Return the finalized level of the cluster's transaction.version, or 0 if unknown."""
        return self.client.finalized_feature(_TRANSACTION_FEATURE)

    def _metadata_updater(self) -> MetadataUpdater:
        return MetadataUpdater(
            self.metadata,
            self.client,
            self.config,
            self.loop.time,
            on_request_sent=self.wake_sender,
        )

    def backoff(self, attempts: int) -> float:
        """Return the number of seconds to wait after `attempts` (≥ 1) attempts."""
        return self._backoff(attempts)

    def _backoff(self, attempts: int) -> float:
        return self._retry.after(attempts - 1, self._rng)

    # -- tasks ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the background tasks."""
        self._spawn(self.updater.run(), "aiokprod-metadata")
        self._spawn(self.sender.run(), "aiokprod-sender")
        if self._driver is not None:
            self._spawn(self._driver.run(), "aiokprod-transactions")

    def _spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        task = self.loop.create_task(coroutine, name=name)
        task.add_done_callback(self._on_task_done)
        self._tasks.append(task)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if self._closing:
            return
        cause: BaseException
        if task.cancelled():
            cause = asyncio.CancelledError(
                f"the task {task.get_name()} was cancelled, as asyncio.run does when the program "
                f"ends before close(); {self._unsettled()} records have no "
                "outcome: use `async with Producer(...)` or await close()"
            )
        else:
            cause = task.exception() or RuntimeError(f"the task {task.get_name()} returned")
        self.fail(cause)

    def fail(self, cause: BaseException) -> None:
        """Fail the producer. Every pending and later call raises ProducerFailed with this cause."""
        if self.failure is not None or self._closing:
            return
        logger.error(
            "the producer failed and must be replaced", exc_info=cause,
            extra=log_fields("producer_failed", error=cause, client_id=self.client_id),
        )  # fmt: skip
        failure = ProducerFailed(
            f"the producer failed and cannot be used any more ({type(cause).__name__}: {cause}); "
            "close it and create a new one"
        )
        failure.__cause__ = cause
        try:
            self._stop_with(failure)
        except BaseException:  # an exception raised by a signal handler interrupted the call
            self._stop_with(failure)
            raise
        if self.on_failure is not None:
            self.on_failure(failure)
        if self._telemetry is not None:
            self._telemetry.close()
        for task in self._tasks:
            task.cancel()

    def _unsettled(self) -> int:
        """Return the number of records without an outcome."""
        batches = self.accumulator.incomplete
        return sum(batch.core.record_count for batch in batches if not batch.core.settled)

    def _stop_with(self, error: KafkaError) -> None:
        self.failure = error
        self.watch.close()
        self.fast_path.stop()
        self.memory.close(error)
        self.quota.close(error)
        self.metadata.close(error)
        self.state.source.close(error)
        self.sender.fail_all(error)
        self.sender.failure_log.flush(self.loop.time(), at_once=True)
        self.warm_up.wake()

    # -- events of components -------------------------------------------------------------------

    def _on_network(self) -> None:
        self.wake_sender()
        if self.updater.awaits_network:
            self.updater.wake()
        if self.warm_up.waiting:
            self.warm_up.wake()
        if self._coordinators is not None:
            self._coordinators.on_network()
        if self._telemetry is not None and self._telemetry.waiting:
            self._telemetry.wake()

    def _new_telemetry(self) -> TelemetryPusher:
        name = self.config.transactional_id
        return TelemetryPusher(
            self.loop,
            self.client,
            Collection(self._metrics, self.gauges),
            nodes=lambda: self.metadata.snapshot.nodes,
            unix_ms=self._unix_ms,
            rng=self._rng,
            request_timeout=self.config.request_timeout_ms / 1000,
            resource={} if name is None else {"transactional_id": name},
        )

    def _on_disconnect(self, node_id: int, error: KafkaError) -> None:
        if self._coordinators is not None:
            self._coordinators.on_disconnect(node_id, error)
        self.updater.on_disconnect(node_id, error)
        self.watch.on_disconnect(node_id, error)
        self.sender.auth_failures.lost(node_id, error, self.loop.time())
        self.warm_up.wake()
        self.wake_sender()

    def shut_out(self) -> KafkaError | None:
        """Return the authentication error if all brokers reject the credentials, otherwise None.
        Callers must raise a copy."""
        return self.sender.auth_failures.final_of_all(self.loop.time())

    def on_unretrieved_bulk(self, records: int, error: KafkaError) -> None:
        """Log and report failed records of a bulk call whose result was not read.

        May be called from any thread.

        Args:
            records: number of failed records.
            error: the error of the first of them.
        """
        logger.error(
            "%d records of a bulk call failed and its result was not read, the first one: %s",
            records, error,
            extra=log_fields(
                "records_failed", error=error, records=records, client_id=self.client_id
            ),
        )  # fmt: skip
        partition = -1 if error.partition is None else error.partition
        topic_partition = TopicPartition(error.topic or "", partition)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(
                self.observer.on_unretrieved_failure, topic_partition, records, error
            )

    def _on_connected(self, node_id: int) -> None:
        self.sender.auth_failures.connected(node_id)
        self.watch.on_connected(node_id)
        offered = self.client.version_range(node_id, _GET_TELEMETRY_SUBSCRIPTIONS) is not None
        if offered and self._telemetry is None and self.config.enable_metrics_push:
            self._telemetry = self._new_telemetry()
        self.observer.on_connection_opened(node_id)

    def _on_connection_closed(self, node_id: int, error: KafkaError | None) -> None:
        self.sender.auth_failures.closed(node_id)
        self.observer.on_connection_closed(node_id, error)

    def _on_snapshot(self, snapshot: ClusterSnapshot) -> None:
        if self._cluster_id not in (None, snapshot.cluster_id):
            self.client.forget_features()
            self.sender.on_cluster_changed()
        self._cluster_id = snapshot.cluster_id
        self.topic_slots.on_snapshot(snapshot)
        self.appender.snapshot = snapshot
        self.accumulator.on_snapshot(snapshot, self.loop.time())
        self.quota.on_nodes_changed()
        self.sender.on_snapshot()
        self.watch.on_snapshot(snapshot)
        if self._coordinators is not None:
            self._coordinators.on_snapshot(snapshot)
        self.observer.on_metadata_updated(snapshot)  # last, because an observer may send records

    def _queued_topics(self) -> set[str]:
        return {batch.topic_partition.topic for batch in list(self.accumulator.incomplete)}

    def is_connected(self, node_id: int) -> bool:
        """Return True if a broker is connected, even if it is throttled or has the maximum number
        of requests in flight."""
        # The API versions are known from the ApiVersions response until the connection ends.
        return self.client.version_range(node_id, _PRODUCE) is not None

    def _choose_sticky(self, slot: TopicSlot) -> int:
        """Return the next partition for records without a key (KIP-794). If the topic has many
        partitions, choose from a sample, so that the cost per batch does not depend on their
        number."""
        snapshot = self.metadata.snapshot
        available: Sequence[int] = snapshot.available_partitions(slot.topic)
        usable: Sequence[int] = ()
        if len(available) > 2 * _STICKY_SAMPLE:
            usable = self.accumulator.usable(slot, self._rng.sample(available, _STICKY_SAMPLE))
        usable = usable or self.accumulator.usable(slot, available) or available
        return self._sticky.next_partition(
            usable, len(slot.slots), self.accumulator.loads(slot, usable), self._rng
        )

    def gauges(self) -> dict[str, float]:
        """Return the gauges of `metrics()`: current values by name. May be called in any thread."""
        return {
            "buffer_available_bytes": self.memory.limit - self.memory.used,
            "buffer_total_bytes": self.memory.limit,
            "batches_incomplete": len(self.accumulator.incomplete),
            "requests_in_flight": self.client.total_in_flight(),
            "waiting_sends": self.memory.waiting + self.quota.waiting,
            "metadata_age_s": self.loop.time() - self._metadata_time(),
        }

    def _metadata_time(self) -> float:
        updated_at = self.metadata.updated_at
        return self._started_at if updated_at is None else updated_at

    # -- closing --------------------------------------------------------------------------------

    def stop_accepting(self, error: KafkaError) -> None:
        """Accept no more records. Calls that wait to append a record raise `error`."""
        self.fast_path.stop()
        self.accumulator.closing = True
        self.memory.close(error)
        self.quota.close(error)
        self.metadata.fail_waits(error)
        self.wake_sender()

    async def drain(self, deadline: float) -> None:
        """Wait until every appended record has an outcome, or until `deadline`."""
        pending = list(self.accumulator.incomplete)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self.flushes.wait(pending, until_given_up=True)

    async def close(self, deadline: float) -> None:
        """Fail the remaining records, end the tasks, and close the connections.

        Cancellation ends the waits; tasks are already cancelled, and connections are closed.
        """
        self._closing = True
        error = self.failure or ProducerClosed(
            "the producer was closed before the record was acknowledged"
        )
        self._stop_with(error)
        self.deadlines.close()
        for task in self._tasks:
            task.cancel()
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
        last_push = None if self._telemetry is None else self._telemetry.terminate()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if last_push is not None:
                limit = min(deadline - self.loop.time(), _LAST_PUSH_S)
                await asyncio.wait([last_push], timeout=max(limit, 0))
        finally:
            await self.client.close(deadline, error)
