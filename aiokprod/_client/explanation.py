"""Builds the text of `Producer.explain`: first the current state, then the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiokprod._client.status import health, last_error
from aiokprod._client.waiting import waiting
from aiokprod.config import ProducerConfig

if TYPE_CHECKING:
    from aiokprod._client.runtime import Runtime
    from aiokprod.cluster import Node

_SHOWN = 20
"""Maximum number of waiting partitions in the text."""


def explain(
    config: ProducerConfig, runtime: Runtime | None, client_id: str, *, closed: bool
) -> str:
    """Return the text: health, waiting records and their causes, brokers, settings that differ from
    the defaults, and risky settings."""
    shown = health(runtime, closed=closed)
    lines = [f"producer {client_id}: {shown.state}, {'ok' if shown.ok else 'not ok'}"]
    if shown.cause is not None:
        lines.append(f"  cause: {shown.cause}")
    if runtime is not None and not closed:
        lines += _situation(runtime)
    defaults = ProducerConfig(bootstrap_servers=config.bootstrap_servers).effective()
    effective = sorted(config.effective().items())
    changed = [f"  {name} = {value!r}" for name, value in effective if value != defaults[name]]
    lines.append(f"servers: {', '.join(config.bootstrap_servers)}")
    lines.append("settings that differ from the defaults:" if changed else "settings: the defaults")
    lines += changed
    risks = _risks(config)
    lines.append("configuration risks:" if risks else "configuration risks: none known")
    lines += [f"  {risk}" for risk in risks]
    return "\n".join(lines)


def _situation(runtime: Runtime) -> list[str]:
    now = runtime.loop.time()
    found = waiting(runtime, now)
    acknowledged_at = runtime.sender.acknowledged_at
    last = "none" if acknowledged_at is None else f"{now - acknowledged_at:.1f} s ago"
    lines = [f"  last acknowledgment: {last}", f"  last error: {last_error(runtime) or 'none'}"]
    lines.append("brokers:")
    lines += [f"  {node}: {_broker(runtime, node.id, now)}" for node in _nodes(runtime)]
    records = sum(each.records for each in found.partitions)
    lines.append(f"waiting records: {records} of {len(found.partitions)} partitions")
    by_age = sorted(found.partitions, key=lambda each: each.age_s, reverse=True)
    for each in by_age[:_SHOWN]:
        leader = "no leader" if each.leader is None else f"leader {each.leader}"
        code = f", last {each.last_code}" if each.last_code else ""
        stalled = f"; stalled for {each.silent_s:.1f} s" if each.stalled else ""
        lines.append(
            f"  {each.topic_partition}: {leader}, {each.records} records, oldest "
            f"{each.age_s:.1f} s, attempt {each.attempts}{code}{stalled}; {each.reason}"
        )
    if len(by_age) > _SHOWN:
        lines.append(f"  and {len(by_age) - _SHOWN} more partitions")
    lines += [
        f"  topic {each.topic}: {each.calls} calls have waited for metadata for "
        f"{each.silent_s:.1f} s; {each.reason}"
        for each in found.topics
    ]
    return lines


def _nodes(runtime: Runtime) -> list[Node]:
    return sorted(runtime.metadata.snapshot.nodes.values(), key=lambda node: abs(node.id))


def _broker(runtime: Runtime, node_id: int, now: float) -> str:
    produce = runtime.client.version_range(node_id, 0)
    error = runtime.watch.connection_errors.get(node_id)
    if produce is None:
        return "not connected" if error is None else f"not connected: {error.message}"
    text = f"connected, Produce v{produce[0]} to v{produce[1]}"
    in_flight = runtime.client.in_flight_count(node_id)
    if in_flight:
        text += f", {in_flight} requests in flight"
        since = runtime.sender.silent_since(node_id)
        if since is not None and since < now:
            text += f", no response for {now - since:.1f} s"
    return text


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
