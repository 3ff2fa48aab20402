"""The status of a producer: health, explanation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiokprod._client.runtime import Runtime
    from aiokprod.config import ProducerConfig


@dataclass(frozen=True, slots=True)
class Health:
    """A snapshot for liveness and readiness checks.

    Attributes:
        state: "new", "running", "failed" or "closed".
        error: the error that ended the producer, if `state` is "failed".
        brokers_known: number of brokers in the metadata; 0 until the first response.
        partitions_without_leader: number of them, in the topics in use.
        oldest_record_age_s: age of the oldest record without an outcome, s.
        pressure: part of buffer_memory in use, or of the share that one broker may hold, 0 to 1;
            shed load when it approaches 1.
        waiting_sends: callers that wait for memory in the buffer or in the share of a broker.
        ok: running, metadata known, and no record older than its linger + `request_timeout_ms`.
    """

    state: str
    error: str | None
    brokers_known: int
    partitions_without_leader: int
    oldest_record_age_s: float
    pressure: float
    waiting_sends: int
    ok: bool


def health(runtime: Runtime | None, *, closed: bool) -> Health:
    """The health of a producer; see `Health`."""
    if runtime is None or closed:
        return Health("closed" if closed else "new", None, 0, 0, 0.0, 0.0, 0, ok=False)
    failure = runtime.failure or runtime.state.source.fatal_error
    snapshot = runtime.metadata.snapshot
    known = 0 if runtime.metadata.bootstrapped else len(snapshot.nodes)
    oldest = next(iter(runtime.accumulator.incomplete), None)
    now = runtime.loop.time()
    age = 0.0 if oldest is None else now - oldest.created_at
    late_since = now - runtime.config.request_timeout_ms / 1000
    late = any(
        batch.created_at + batch.queue.settings.linger < late_since
        for batch in list(runtime.accumulator.incomplete)
    )
    leaderless = sum(
        len(topic.partitions) - len(topic.available) for topic in snapshot.topics.values()
    )
    return Health(
        state="running" if failure is None else "failed",
        error=None if failure is None else str(failure),
        brokers_known=known,
        partitions_without_leader=leaderless,
        oldest_record_age_s=age,
        pressure=min(1.0, max(runtime.memory.used / runtime.memory.limit, runtime.quota.pressure)),
        waiting_sends=runtime.memory.waiting + runtime.quota.waiting,
        ok=failure is None and known > 0 and not late,
    )


def explain(config: ProducerConfig, runtime: Runtime | None) -> str:
    """Effective settings, negotiated versions and risky combinations as text."""
    lines = ["settings:"]
    lines += [f"  {name} = {value!r}" for name, value in sorted(config.effective().items())]
    if runtime is not None:
        lines.append("brokers:")
        for node in runtime.metadata.snapshot.nodes.values():
            produce = runtime.client.version_range(node.id, 0)
            shown = (
                "not connected" if produce is None else f"Produce v{produce[0]} to v{produce[1]}"
            )
            lines.append(f"  {node}: {shown}")
    risks = _risks(config)
    lines.append("risks:" if risks else "risks: none known")
    lines += [f"  {risk}" for risk in risks]
    return "\n".join(lines)


def _risks(config: ProducerConfig) -> list[str]:
    risks = []
    if config.required_acks == 0:
        risks.append("acks=0: records are lost without notice when a broker or connection fails")
    elif config.required_acks == 1:
        risks.append(
            "acks=1: acknowledged records are lost if the leader dies before it replicates"
        )
    if not config.idempotent:
        risks.append("without idempotence a retry may duplicate records")
        if config.max_in_flight_requests_per_connection > 1:
            risks.append(
                "without idempotence and with more than one request in flight a retry may reorder"
            )
    if config.retries == 0:
        risks.append("retries=0: every leader change fails records")
    return risks
