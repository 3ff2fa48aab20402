"""The health of a producer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiokprod._client.waiting import waiting

if TYPE_CHECKING:
    from aiokprod._client.runtime import Runtime
    from aiokprod._client.waiting import Waiting


@dataclass(frozen=True, slots=True)
class Health:
    """A snapshot for liveness and readiness checks.

    Attributes:
        state: "new", "running", "failed" or "closed".
        ok: True if the producer is running and has metadata, nothing is stalled, and no record is
            older than its linger + `request_timeout_ms`. The records of a partition are stalled
            after 5 s without an acknowledgment from it, not counting their linger; after half of
            the rest of `delivery_timeout_ms` if that is less. Calls are stalled after 5 s without
            metadata. If stalled records expire or are withdrawn, `ok` remains False until the
            partition acknowledges a record, or until no record has waited for it for 10 s.
        cause: the reason why `ok` is False; None if `ok` is True.
        error: the error that ended the producer, if `state` is "failed".
        brokers_known: number of brokers in the metadata; 0 until the first response.
        brokers_connected: number of these brokers that are connected.
        partitions_without_leader: number of partitions without a leader, in the topics in use.
        partitions_stalled: number of partitions whose records are stalled.
        oldest_record_age_s: age of the oldest record without an outcome, in seconds.
        last_ack_age_s: seconds since the last acknowledgment, or None if there was none.
        last_error: the last failure of a connection or delivery attempt, which may have been
            resolved since; None if there was none.
        pressure: used fraction of buffer_memory, or of the fullest broker's share of it if that is
            higher, 0 to 1. Shed load when it approaches 1.
        waiting_sends: number of callers that wait for room in the buffer or in a broker's share.
    """

    state: str
    ok: bool = False
    cause: str | None = None
    error: str | None = None
    brokers_known: int = 0
    brokers_connected: int = 0
    partitions_without_leader: int = 0
    partitions_stalled: int = 0
    oldest_record_age_s: float = 0.0
    last_ack_age_s: float | None = None
    last_error: str | None = None
    pressure: float = 0.0
    waiting_sends: int = 0


def health(runtime: Runtime | None, *, closed: bool) -> Health:
    """Return the health of a producer; see `Health`."""
    if runtime is None or closed:
        state = "closed" if closed else "new"
        return Health(state, cause=f"the producer is {state}")
    failure = runtime.failure or runtime.state.source.fatal_error
    now = runtime.loop.time()
    snapshot, found = runtime.metadata.snapshot, waiting(runtime, now)
    known = () if runtime.metadata.only_bootstrap_nodes else tuple(snapshot.nodes)
    oldest = next(iter(runtime.accumulator.incomplete), None)
    acknowledged_at = runtime.sender.acknowledged_at
    cause = _cause(runtime, found, now) if failure is None else str(failure)
    return Health(
        state="running" if failure is None else "failed",
        ok=cause is None,
        cause=cause,
        error=None if failure is None else str(failure),
        brokers_known=len(known),
        brokers_connected=sum(map(runtime.is_connected, known)),
        partitions_without_leader=sum(
            len(topic.partitions) - len(topic.available) for topic in snapshot.topics.values()
        ),
        partitions_stalled=len(found.stalled),
        oldest_record_age_s=0.0 if oldest is None else now - oldest.created_at,
        last_ack_age_s=None if acknowledged_at is None else now - acknowledged_at,
        last_error=last_error(runtime),
        pressure=min(1.0, max(runtime.memory.used / runtime.memory.limit, runtime.quota.pressure)),
        waiting_sends=runtime.memory.waiting + runtime.quota.waiting,
    )


def _cause(runtime: Runtime, found: Waiting, now: float) -> str | None:
    stalled = found.cause()
    if stalled is not None:
        return f"no acknowledgment for {found.silent_s():.1f} s: {stalled}"
    if runtime.metadata.only_bootstrap_nodes:
        never = runtime.metadata.updated_at is None
        what = "no bootstrap server has responded" if never else "no broker can be reached"
        return what + runtime.metadata.network_text()
    outage = runtime.watch.outage(now)
    if outage is not None:
        return outage
    patience = runtime.config.request_timeout_ms / 1000
    for partition in found.partitions:
        if partition.age_s - partition.queue.settings.linger > patience:
            return (
                f"{partition.topic_partition}: a record has no outcome after "
                f"{partition.age_s:.1f} s: {partition.reason}"
            )
    return None


def last_error(runtime: Runtime) -> str | None:
    """Return the text of the last failure of a connection or delivery attempt, otherwise of the
    last metadata error, or None."""
    errors = [runtime.watch.last_error, runtime.sender.retry_log.last]
    found = [error for error in errors if error is not None]
    if found:
        return max(found, key=lambda error: error[1])[0]
    error = runtime.metadata.last_error
    return None if error is None else error.message
