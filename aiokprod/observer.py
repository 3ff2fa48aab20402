"""Hooks for metrics, traces and alerts.

`Observer` is the interface, `Metrics` the built-in observer behind `producer.metrics()`. Hooks are
called per batch, request or connection; per record only if the record is refused. They see topic
names and sizes, but no keys or values.
"""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, Literal, Protocol

from aiokprod._histogram import Histogram
from aiokprod._log_fields import log_fields
from aiokprod._metrics.counters import (
    NODE_COUNTERS,
    TOPIC_COUNTERS,
    NodeTable,
    TopicCounters,
    TopicTable,
)
from aiokprod._metrics.definitions import names
from aiokprod.cluster import ClusterSnapshot
from aiokprod.errors import ErrorCode, KafkaError
from aiokprod.records import TopicPartition

logger = logging.getLogger(__name__)


WaitReason = Literal["buffer", "metadata"]
TransactionCall = Literal["init", "begin", "send_offsets", "commit", "abort"]


class _Core(Protocol):
    @property
    def record_count(self) -> int: ...


class BatchView(Protocol):
    """The part of a batch that observers may read. Times are seconds of `loop.time()`."""

    @property
    def topic_partition(self) -> TopicPartition: ...
    @property
    def core(self) -> _Core:
        """`core.record_count` is the number of records."""

    @property
    def size(self) -> int:
        """Size of the batch in a request, including its header, in bytes."""

    @property
    def plain_size(self) -> int:
        """Size of the records before compression, in bytes; 0 until the batch is encoded."""

    @property
    def codec_id(self) -> int:
        """Id of the compression codec in Kafka's protocol; 0 without compression."""

    @property
    def compression_ratio(self) -> float:
        """Compressed size / plain size of the records; 1 without compression."""

    @property
    def attempts(self) -> int:
        """Number of requests that have contained the batch so far."""

    @property
    def wire_node(self) -> int:
        """Id of the broker to which the batch was last sent; -1 before the first attempt."""

    @property
    def created_at(self) -> float:
        """The time at which the first record was appended."""

    @property
    def sent_at(self) -> float:
        """The time just before the last attempt was written to a connection; 0 before the first
        attempt."""


class Observer:
    """Hooks that do nothing; override the ones you want.

    An observer does not have to be a subclass: any object with at least one of the hooks is
    accepted, and hooks that it lacks are not called. Hooks run on the event loop and must not
    block. Their exceptions are logged and otherwise ignored. An observer may also have
    `configure(config)`, called once by the producer's constructor, and `close()`, called once when
    the producer is closed.
    """

    def on_batches_sent(self, node_id: int, batches: Sequence[BatchView]) -> None:
        """A Produce request with these batches is about to be written to a connection."""

    def on_produce_done(self, node_id: int, latency: float) -> None:
        """A Produce request ended `latency` seconds after it was sent, perhaps without a
        response."""

    def on_batch_acknowledged(self, batch: BatchView, now: float) -> None:
        """All records of a batch were delivered."""

    def on_batch_retry(self, batch: BatchView, code: ErrorCode) -> None:
        """An attempt failed and the batch is queued again."""

    def on_batch_split(self, batch: BatchView) -> None:
        """A batch is too large for the broker and is split."""

    def on_batch_failed(self, batch: BatchView, error: KafkaError) -> None:
        """All records of a batch failed."""

    def on_unretrieved_failure(
        self, topic_partition: TopicPartition, records: int, error: KafkaError
    ) -> None:
        """Records failed and no task was awaiting them. Called once per batch, or per result of
        `send_many` or `send_table` that was dropped unread. For a dropped result, the partition is
        that of the first failed record (with an empty topic or -1 if unknown)."""

    def on_record_refused(self, error: KafkaError) -> None:
        """A record failed before it was in a batch (no metadata, no memory, too large, not
        serialized, or the call was cancelled), or the timeout of `send` withdrew it from its batch.
        `error.topic` and `error.partition` identify the record.

        Called once for each such record, except for invalid arguments and calls on a producer that
        is closed or has failed.
        """

    def on_admission_wait(self, topic: str, reason: WaitReason, seconds: float) -> None:
        """A call has waited before its record could be appended. Called once for each wait that
        has suspended the call, even if it ended with an error.

        Args:
            reason: "buffer" for a wait for memory, in the buffer or in the share of a broker;
                "metadata" for a wait until the topic or partition is known.
        """

    def on_transaction_call(
        self, call: TransactionCall, seconds: float, error: KafkaError | None
    ) -> None:
        """A transactional call of the producer has ended; `error` is None if it succeeded.

        Args:
            call: "init" (by `Producer.start`), "begin", "send_offsets", "commit" or "abort".
        """

    def on_throttle(self, node_id: int, seconds: float) -> None:
        """A broker throttles this client (throttle_time_ms)."""

    def on_connection_opened(self, node_id: int) -> None:
        """A connection is ready for requests.

        Args:
            node_id: id of the broker; negative for bootstrap addresses, and for addresses of
                coordinators that the metadata does not list.
        """

    def on_connection_closed(self, node_id: int, error: KafkaError | None) -> None:
        """A connection or connection attempt ended; `error` is None if the producer closed it."""

    def on_metadata_updated(self, snapshot: ClusterSnapshot) -> None:
        """The metadata was replaced by a newer snapshot."""


HOOKS: Final = tuple(name for name in vars(Observer) if name.startswith("on_"))
"""Names of the hooks of `Observer`."""

LABELLED: Final = names("counter", labelled=True)
"""Names of metrics whose values are dicts: counters by error or method."""

_COUNTERS: Final = tuple(
    name for name in names("counter") if name not in (*NODE_COUNTERS, *TOPIC_COUNTERS)
)
_HISTOGRAMS: Final = names("histogram")


class Metrics(Observer):
    """Counters and histograms of one producer since its start: the content of `producer.metrics()`.

    docs/monitoring.md has a table of the names and meanings.

    Attributes:
        histograms: the histograms by name.
        errors, refusals, transaction_errors: number of errors by name of the error code or class.
        plugin_errors: number of errors by class and method of the plug-in or observer.
        topics, nodes: counters by topic and broker, at most 1000 each; further ones are counted
            together, as topic "(other)" and as node -1.
    """

    def __init__(self) -> None:
        self._counters = dict.fromkeys(_COUNTERS, 0)
        self.histograms = {name: Histogram() for name in _HISTOGRAMS}
        # Look these methods up once, because they are called for every batch or request.
        self._batch_size = self.histograms["batch_size_bytes"].add
        self._batch_records = self.histograms["records_per_batch"].add
        self._queue_time = self.histograms["queue_time_s"].add
        self._request_records = self.histograms["records_per_request"].add
        self._request_latency = self.histograms["request_latency_s"].add
        self._delivery_time = self.histograms["delivery_time_s"].add
        self.errors: dict[str, int] = {}
        self.refusals: dict[str, int] = {}
        self.transaction_errors: dict[str, int] = {}
        self.plugin_errors: dict[str, int] = {}
        self.topics = TopicTable()
        self.nodes = NodeTable()

    def snapshot(self) -> dict[str, Any]:
        """Return all metrics as plain values, independent of later changes. May be called in any
        thread."""
        values: dict[str, Any] = dict(self.counters())
        values.update((name, h.snapshot()) for name, h in self.histograms.items())
        for name in LABELLED:
            values[name] = dict(getattr(self, name))
        return values

    def counters(self) -> dict[str, int]:
        """Return the counters without labels: those of the producer, and the sums over topics and
        brokers."""
        return self._counters | self.topics.sums() | self.nodes.sums()

    def by_topic(self) -> dict[str, dict[str, int]]:
        """Return the metrics of each topic."""
        return {name: counts.snapshot() for name, counts in list(self.topics.counters.items())}

    def by_node(self) -> dict[int, dict[str, Any]]:
        """Return the metrics of each broker, by node id."""
        return {node: counts.snapshot() for node, counts in list(self.nodes.counters.items())}

    def on_batches_sent(self, node_id: int, batches: Sequence[BatchView]) -> None:
        topics = self.topics.counters
        node = self.nodes.counters.get(node_id) or self.nodes.of(node_id)
        node.produce_requests += 1
        self._counters["batches_sent"] += len(batches)
        records = 0
        for batch in batches:
            size, count = batch.size, batch.core.record_count
            records += count
            name = batch.topic_partition.topic
            topic = topics.get(name) or self.topics.add(name)
            topic.bytes_sent += size
            topic.plain_bytes_sent += batch.plain_size
            if batch.attempts <= 1:
                self._batch_size(size)
                self._batch_records(count)
                self._queue_time(batch.sent_at - batch.created_at)
                if batch.codec_id:
                    self.histograms["compression_ratio"].add(batch.compression_ratio)
        self._request_records(records)

    def on_produce_done(self, node_id: int, latency: float) -> None:
        self._request_latency(latency)
        node = self.nodes.counters.get(node_id) or self.nodes.of(node_id)
        node.request_latency_s.add(latency)

    def on_batch_acknowledged(self, batch: BatchView, now: float) -> None:
        name = batch.topic_partition.topic
        self._counters["batches_acknowledged"] += 1
        topic = self.topics.counters.get(name) or self.topics.add(name)
        topic.records_acknowledged += batch.core.record_count
        self._delivery_time(now - batch.created_at)

    def on_batch_retry(self, batch: BatchView, code: ErrorCode) -> None:
        records = batch.core.record_count
        self._counters["batches_retried"] += 1
        self._topic(batch.topic_partition.topic).records_retried += records

    def on_batch_split(self, batch: BatchView) -> None:
        self._counters["batches_split"] += 1

    def on_batch_failed(self, batch: BatchView, error: KafkaError) -> None:
        records = batch.core.record_count
        self._counters["batches_failed"] += 1
        self._topic(batch.topic_partition.topic).records_failed += records
        _count(self.errors, error, records)

    def on_unretrieved_failure(
        self, topic_partition: TopicPartition, records: int, error: KafkaError
    ) -> None:
        self._counters["records_unretrieved"] += records

    def on_record_refused(self, error: KafkaError) -> None:
        self._topic(error.topic or "").records_refused += 1
        _count(self.refusals, error, 1)

    def on_admission_wait(self, topic: str, reason: WaitReason, seconds: float) -> None:
        self.histograms[f"{reason}_wait_time_s"].add(seconds)

    def on_transaction_call(
        self, call: TransactionCall, seconds: float, error: KafkaError | None
    ) -> None:
        self.histograms[f"txn_{call}_time_s"].add(seconds)
        if error is not None:
            _count(self.transaction_errors, error, 1)

    def on_throttle(self, node_id: int, seconds: float) -> None:
        node = self.nodes.of(node_id)
        node.throttles += 1
        node.throttle_time_s.add(seconds)
        self.histograms["throttle_time_s"].add(seconds)

    def on_connection_opened(self, node_id: int) -> None:
        self.nodes.of(node_id).connections_opened += 1

    def on_connection_closed(self, node_id: int, error: KafkaError | None) -> None:
        self.nodes.of(node_id).connections_closed += 1

    def on_metadata_updated(self, snapshot: ClusterSnapshot) -> None:
        self._counters["metadata_updates"] += 1

    def plugin_failed(self, plugin: object, method: str) -> None:
        """Count an exception raised by a plug-in or observer."""
        name = f"{type(plugin).__name__}.{method}"
        self.plugin_errors[name] = self.plugin_errors.get(name, 0) + 1

    def _topic(self, name: str) -> TopicCounters:
        return self.topics.counters.get(name) or self.topics.add(name)


def error_name(error: KafkaError) -> str:
    """Return the name of an error in metrics: the name of its code, or of its class without one."""
    return error.code.name if error.code is not None else type(error).__name__


def _count(errors: dict[str, int], error: KafkaError, records: int) -> None:
    name = error_name(error)
    errors[name] = errors.get(name, 0) + records


class ObserverChain(Observer):
    """Combines several observers, each of which may lack hooks. Exceptions raised by a hook are
    logged, the first one with its traceback, and affect neither the producer nor the other
    observers.

    Args:
        on_failure: called with the observer and the name of the hook for each exception.
    """

    def __init__(
        self,
        observers: Iterable[object],
        on_failure: Callable[[object, str], None] | None = None,
    ) -> None:
        self._observers = tuple(observers)
        self._on_failure = on_failure
        self._failed: set[tuple[int, str]] = set()
        for hook in HOOKS:
            setattr(self, hook, partial(self._each, hook))

    def _each(self, hook: str, *arguments: Any) -> None:
        for observer in self._observers:
            try:
                method = getattr(observer, hook, None)
                if method is not None:
                    method(*arguments)
            # Hooks are synchronous, so a CancelledError does not mean that the running task was
            # cancelled. It comes from the result of a cancelled future.
            except (Exception, CancelledError) as error:
                self._log(observer, hook, error)

    def _log(self, observer: object, hook: str, error: BaseException) -> None:
        if self._on_failure is not None:
            self._on_failure(observer, hook)
        key = (id(observer), hook)
        if key in self._failed:
            logger.debug(
                "observer %s failed in %s again", type(observer).__name__, hook,
                extra=log_fields("user_code_failed", error=error, hook=hook),
            )  # fmt: skip
            return
        self._failed.add(key)
        logger.warning(
            "observer %s failed in %s; further failures of it are logged at DEBUG only",
            type(observer).__name__,
            hook,
            exc_info=error,
            extra=log_fields("user_code_failed", error=error, hook=hook),
        )
