"""The table of all metrics: name, kind, unit, meaning and the Java metric with the same content.

`producer.metrics()`, the exporters and docs/monitoring.md use the names and meanings of this table.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]


class Metric(NamedTuple):
    """One metric.

    Attributes:
        name: the name in `producer.metrics()`.
        kind: the kind of metric. Counters count from the start of the producer.
        unit: the unit of the values; "" if they have none.
        meaning: one sentence without a full stop.
        java: name of the Java metric with the same content; "" if there is none.
        topic, node: True if there is also a value for each topic, or for each broker.
        label: the name of the label by which a counter is divided, or "". The value of such a
            counter is a dict.
    """

    name: str
    kind: Kind
    unit: str
    meaning: str
    java: str = ""
    topic: bool = False
    node: bool = False
    label: str = ""


METRICS: Final = (
    # -- records ----------------------------------------------------------------------------------
    Metric(
        "records_acknowledged", "counter", "records",
        "records that were delivered",
        "record-send-total, which counts them when they are sent", topic=True,
    ),
    Metric(
        "records_failed", "counter", "records",
        "records that failed after they were in a batch",
        "record-error-total, which also counts some that were refused", topic=True,
    ),
    Metric(
        "records_refused", "counter", "records",
        "records that failed before they were in a batch",
        "record-error-total, buffer-exhausted-total", topic=True,
    ),
    Metric(
        "records_retried", "counter", "records",
        "records in attempts that failed and were repeated",
        "record-retry-total", topic=True,
    ),
    Metric(
        "records_unretrieved", "counter", "records",
        "records that failed without any task awaiting them",
    ),
    Metric(
        "errors", "counter", "records",
        "`records_failed` by error code, or by class of the exception if there is no code",
        label="error",
    ),
    Metric(
        "refusals", "counter", "records",
        "`records_refused` by error code or class of the exception",
        label="error",
    ),
    # -- batches ----------------------------------------------------------------------------------
    Metric("batches_sent", "counter", "batches", "batches in Produce requests, retries included"),
    Metric("batches_acknowledged", "counter", "batches", "batches that were delivered"),
    Metric("batches_failed", "counter", "batches", "batches that failed"),
    Metric("batches_retried", "counter", "batches", "attempts of batches that were repeated"),
    Metric(
        "batches_split", "counter", "batches",
        "batches that were too large for the broker and were split", "batch-split-total",
    ),
    Metric(
        "bytes_sent", "counter", "bytes",
        "bytes of batches as they are sent, headers and retries included",
        "byte-total (by topic)", topic=True,
    ),
    Metric(
        "plain_bytes_sent", "counter", "bytes",
        "bytes of batches before compression, without batch headers, retries included", topic=True,
    ),
    Metric(
        "batch_size_bytes", "histogram", "bytes", "size of batches when they are first sent",
        "batch-size-avg, batch-size-max",
    ),
    Metric("records_per_batch", "histogram", "records", "records of batches when first sent"),
    Metric(
        "compression_ratio", "histogram", "",
        "compressed size / plain size of the records of batches that have a codec",
        "compression-rate-avg",
    ),
    Metric(
        "queue_time_s", "histogram", "s",
        "time from the first append to a batch until it is first sent",
        "record-queue-time-avg, record-queue-time-max",
    ),
    Metric(
        "delivery_time_s", "histogram", "s",
        "time from the first append to a batch until it is acknowledged",
    ),
    Metric("batches_incomplete", "gauge", "batches", "batches without an outcome"),
    # -- admission --------------------------------------------------------------------------------
    Metric(
        "buffer_available_bytes", "gauge", "bytes", "unused part of `buffer_memory`",
        "buffer-available-bytes",
    ),
    Metric("buffer_total_bytes", "gauge", "bytes", "`buffer_memory`", "buffer-total-bytes"),
    Metric(
        "waiting_sends", "gauge", "calls",
        "calls that wait for memory in the buffer or in the share of a broker", "waiting-threads",
    ),
    Metric(
        "buffer_wait_time_s", "histogram", "s",
        "time for which calls have waited for memory; calls that did not wait are not counted",
        "bufferpool-wait-time-ns-total",
    ),
    Metric(
        "metadata_wait_time_s", "histogram", "s",
        "time for which calls have waited for the metadata of a topic or partition",
        "metadata-wait-time-ns-total",
    ),
    Metric("flush_time_s", "histogram", "s", "duration of `flush` calls", "flush-time-ns-total"),
    # -- requests and connections -----------------------------------------------------------------
    Metric(
        "produce_requests", "counter", "requests",
        "Produce requests that were sent", node=True,
    ),
    Metric(
        "records_per_request", "histogram", "records", "records of Produce requests",
        "records-per-request-avg",
    ),
    Metric(
        "request_latency_s", "histogram", "s",
        "time from a Produce request to its response, or to its failure",
        "request-latency-avg, request-latency-max, which include other requests", node=True,
    ),
    Metric(
        "requests_in_flight", "gauge", "requests", "requests of any kind that have not ended",
        "requests-in-flight", node=True,
    ),
    Metric(
        "requests_sent", "counter", "requests",
        "requests of any kind, those of connection setup included", "request-total", node=True,
    ),
    Metric("responses_received", "counter", "responses", "responses received", "response-total",
           node=True),
    Metric(
        "network_bytes_out", "counter", "bytes",
        "bytes written to connections, before TLS", "outgoing-byte-total", node=True,
    ),
    Metric(
        "network_bytes_in", "counter", "bytes",
        "bytes read from connections, after TLS", "incoming-byte-total", node=True,
    ),
    Metric("connections", "gauge", "connections", "connections that are ready for requests",
           "connection-count", node=True),
    Metric(
        "connections_opened", "counter", "connections", "connections that became ready",
        "connection-creation-total, which counts them before authentication", node=True,
    ),
    Metric(
        "connections_closed", "counter", "connections",
        "connections and attempts that ended, by either side", "connection-close-total", node=True,
    ),
    Metric(
        "connection_failures", "counter", "connections",
        "connections that failed before they were ready; included in `connections_closed`",
        node=True,
    ),
    Metric("authentications", "counter", "connections", "connections that SASL has authenticated",
           "successful-authentication-total", node=True),
    Metric(
        "authentication_failures", "counter", "connections",
        "connections that ended because TLS or SASL authentication failed",
        "failed-authentication-total, failed-reauthentication-total", node=True,
    ),
    Metric("reauthentications", "counter", "connections",
           "re-authentications of open connections (KIP-368)",
           "successful-reauthentication-total", node=True),
    Metric(
        "throttles", "counter", "responses",
        "responses with a throttle time", node=True,
    ),
    Metric(
        "throttle_time_s", "histogram", "s",
        "throttle times in responses; responses without a throttle time are not counted",
        "produce-throttle-time-avg, produce-throttle-time-max", node=True,
    ),
    # -- metadata and loop ------------------------------------------------------------------------
    Metric("metadata_updates", "counter", "", "changes of the metadata"),
    Metric(
        "metadata_age_s", "gauge", "s",
        "time since the last response with metadata; before the first one, since the start",
        "metadata-age",
    ),
    Metric(
        "loop_lag_s", "histogram", "s",
        "time from an event or deadline for which the sender waits until the event loop runs it",
    ),
    # -- transactions -----------------------------------------------------------------------------
    Metric("txn_init_time_s", "histogram", "s", "duration of the initialisation by `start`",
           "txn-init-time-ns-total"),
    Metric("txn_begin_time_s", "histogram", "s", "duration of `begin_transaction`",
           "txn-begin-time-ns-total"),
    Metric("txn_send_offsets_time_s", "histogram", "s",
           "duration of `send_offsets_to_transaction`", "txn-send-offsets-time-ns-total"),
    Metric("txn_commit_time_s", "histogram", "s", "duration of `commit_transaction`",
           "txn-commit-time-ns-total"),
    Metric("txn_abort_time_s", "histogram", "s", "duration of `abort_transaction`",
           "txn-abort-time-ns-total"),
    Metric(
        "transaction_errors", "counter", "calls",
        "transactional calls that raised, by error code or class of the exception", label="error",
    ),
    # -- user code --------------------------------------------------------------------------------
    Metric(
        "plugin_errors", "counter", "calls",
        "exceptions of plug-ins and observers, by class and method", label="method",
    ),
)  # fmt: skip
"""All metrics, in the order of the documentation."""

BY_NAME: Final = {metric.name: metric for metric in METRICS}


def names(kind: Kind, *, labelled: bool = False) -> tuple[str, ...]:
    """Return the names of the metrics of a kind: those without a label or, if `labelled`, those
    with a label."""
    return tuple(
        metric.name for metric in METRICS if metric.kind == kind and bool(metric.label) == labelled
    )


def rows() -> list[str]:
    """Return the rows of the table in docs/monitoring.md."""
    made = []
    for metric in METRICS:
        by = [name for name in ("topic", "node") if getattr(metric, name)]
        by += [metric.label] if metric.label else []
        cells = (
            f"`{metric.name}`", metric.kind, metric.unit, ", ".join(by), metric.meaning, metric.java
        )  # fmt: skip
        made.append("| " + " | ".join(cells) + " |")
    return made
