"""Hooks for metrics, traces and alerts.

`Observer` is the interface, `Metrics` the built-in observer behind `producer.metrics()`. Hooks are
called per batch, request or connection, per record only for those that are refused. They see topic
names and sizes, no keys or values.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from aiokprod._histogram import Histogram
from aiokprod._log_fields import log_fields
from aiokprod.cluster import ClusterSnapshot
from aiokprod.errors import ErrorCode, KafkaError
from aiokprod.records import TopicPartition

logger = logging.getLogger(__name__)


class _Core(Protocol):
    @property
    def record_count(self) -> int: ...


class BatchView(Protocol):
    """The part of a batch that observers may read. Instants are seconds of `loop.time()`."""

    @property
    def topic_partition(self) -> TopicPartition: ...
    @property
    def core(self) -> _Core:
        """`core.record_count` is the number of records."""

    @property
    def size(self) -> int:
        """Bytes in a request, header included."""

    @property
    def attempts(self) -> int:
        """Number of requests that contained it so far."""

    @property
    def created_at(self) -> float:
        """When its first record was appended."""

    @property
    def sent_at(self) -> float:
        """When its last attempt was about to be written to a connection; 0 before that."""


class Observer:
    """Hooks that do nothing; override the ones you want.

    An observer need not be a subclass: any object with at least one of the hooks will do, and
    hooks that it lacks are not called. Hooks run on the event loop and must not block. What they
    raise is logged and otherwise ignored. An observer may also have `configure(config)`, called
    once by the producer's constructor, and `close()`, called once when the producer is closed.
    """

    def on_batches_sent(self, node_id: int, batches: Sequence[BatchView]) -> None:
        """A Produce request is about to be written to a connection."""

    def on_produce_done(self, node_id: int, latency: float) -> None:
        """A Produce request ended `latency` seconds after it was sent, maybe without a response."""

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
        `send_many` or `send_table` that was dropped unread: then with the partition of the first
        failed record (empty topic or -1 if it had none)."""

    def on_record_refused(self, error: KafkaError) -> None:
        """A record failed before it was in a batch: no metadata, no memory, too large, not
        serialized, or the call was cancelled. `error.topic` and `error.partition` identify it.

        Called once for each such record, except for invalid arguments and calls on a producer that
        is closed or has failed.
        """

    def on_throttle(self, node_id: int, seconds: float) -> None:
        """A broker asked this client to pause (throttle_time_ms)."""

    def on_connection_opened(self, node_id: int) -> None:
        """A connection is ready for requests.

        Args:
            node_id: of the broker; negative for bootstrap addresses, and for addresses of
                coordinators that the metadata do not list.
        """

    def on_connection_closed(self, node_id: int, error: KafkaError | None) -> None:
        """A connection or connection attempt ended; `error` is None if the producer closed it."""

    def on_metadata_updated(self, snapshot: ClusterSnapshot) -> None:
        """The metadata was replaced by a newer snapshot."""


HOOKS: Final = tuple(name for name in vars(Observer) if name.startswith("on_"))
"""Names of the hooks of `Observer`."""

_COUNTERS: Final = (
    "batches_acknowledged",
    "batches_failed",
    "batches_retried",
    "batches_sent",
    "batches_split",
    "bytes_sent",
    "connections_closed",
    "connections_opened",
    "metadata_updates",
    "produce_requests",
    "records_acknowledged",
    "records_failed",
    "records_refused",
    "records_retried",
    "records_unretrieved",
    "throttles",
)

_HISTOGRAMS: Final = (
    "batch_size_bytes",
    "delivery_time_s",
    "queue_time_s",
    "records_per_batch",
    "records_per_request",
    "request_latency_s",
    "throttle_time_s",
)


class Metrics(Observer):
    """Counters since the start, and histograms.

    The names differ from Java's metrics, which are rates and averages. `delivery_time_s` is the
    time from the first append of a batch to its acknowledgment, `queue_time_s` the time from the
    first append until it is first sent.
    """

    def __init__(self) -> None:
        self.counters = dict.fromkeys(_COUNTERS, 0)
        self.histograms = {name: Histogram() for name in _HISTOGRAMS}
        # Records by name of the error code or class.
        self.errors: dict[str, int] = {}
        self.refusals: dict[str, int] = {}

    def snapshot(self) -> dict[str, Any]:
        """All metrics as plain values, independent of later changes."""
        values: dict[str, Any] = dict(self.counters)
        values.update((name, h.snapshot()) for name, h in self.histograms.items())
        values["errors"] = dict(self.errors)
        values["refusals"] = dict(self.refusals)
        return values

    def on_batches_sent(self, node_id: int, batches: Sequence[BatchView]) -> None:
        counters, histograms = self.counters, self.histograms
        counters["produce_requests"] += 1
        counters["batches_sent"] += len(batches)
        records = 0
        for batch in batches:
            size, count = batch.size, batch.core.record_count
            records += count
            counters["bytes_sent"] += size
            if batch.attempts <= 1:
                histograms["batch_size_bytes"].add(size)
                histograms["records_per_batch"].add(count)
                histograms["queue_time_s"].add(batch.sent_at - batch.created_at)
        histograms["records_per_request"].add(records)

    def on_produce_done(self, node_id: int, latency: float) -> None:
        self.histograms["request_latency_s"].add(latency)

    def on_batch_acknowledged(self, batch: BatchView, now: float) -> None:
        self.counters["batches_acknowledged"] += 1
        self.counters["records_acknowledged"] += batch.core.record_count
        self.histograms["delivery_time_s"].add(now - batch.created_at)

    def on_batch_retry(self, batch: BatchView, code: ErrorCode) -> None:
        self.counters["batches_retried"] += 1
        self.counters["records_retried"] += batch.core.record_count

    def on_batch_split(self, batch: BatchView) -> None:
        self.counters["batches_split"] += 1

    def on_batch_failed(self, batch: BatchView, error: KafkaError) -> None:
        records = batch.core.record_count
        self.counters["batches_failed"] += 1
        self.counters["records_failed"] += records
        name = error.code.name if error.code is not None else type(error).__name__
        self.errors[name] = self.errors.get(name, 0) + records

    def on_unretrieved_failure(
        self, topic_partition: TopicPartition, records: int, error: KafkaError
    ) -> None:
        self.counters["records_unretrieved"] += records

    def on_record_refused(self, error: KafkaError) -> None:
        self.counters["records_refused"] += 1
        name = error.code.name if error.code is not None else type(error).__name__
        self.refusals[name] = self.refusals.get(name, 0) + 1

    def on_throttle(self, node_id: int, seconds: float) -> None:
        self.counters["throttles"] += 1
        self.histograms["throttle_time_s"].add(seconds)

    def on_connection_opened(self, node_id: int) -> None:
        self.counters["connections_opened"] += 1

    def on_connection_closed(self, node_id: int, error: KafkaError | None) -> None:
        self.counters["connections_closed"] += 1

    def on_metadata_updated(self, snapshot: ClusterSnapshot) -> None:
        self.counters["metadata_updates"] += 1


class ObserverChain(Observer):
    """Several observers as one; each may lack hooks. What a hook raises is logged, the first time
    with its traceback, and affects neither the producer nor the other observers."""

    def __init__(self, observers: Iterable[object]) -> None:
        self._observers = tuple(observers)
        self._failed: set[tuple[int, str]] = set()
        for hook in HOOKS:
            setattr(self, hook, partial(self._each, hook))

    def _each(self, hook: str, *arguments: Any) -> None:
        for observer in self._observers:
            method = getattr(observer, hook, None)
            if method is None:
                continue
            try:
                method(*arguments)
            except Exception as error:
                self._log(observer, hook, error)

    def _log(self, observer: object, hook: str, error: Exception) -> None:
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
