"""Describes the records that wait for an outcome and the calls that wait for metadata, with the
duration and the reason of each wait."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from aiokprod._config.profiles import NO_PROFILE, EffectiveSettings, profiles_of
from aiokprod._engine.sender.unresponsive_brokers import OVERDUE_AFTER_S
from aiokprod.errors import error_code

if TYPE_CHECKING:
    from aiokprod._client.runtime import Runtime
    from aiokprod._engine.buffer.producer_batch import ProducerBatch
    from aiokprod._engine.buffer.queues import PartitionQueue
    from aiokprod.config import ProducerConfig
    from aiokprod.records import TopicPartition

STALL_S: Final = 5.0
"""Seconds without an acknowledgment or metadata after which records or calls are stalled."""

_NEARLY: Final = 0.8
"""Fraction of `STALL_S` after which a partition counts as stalled if another one is stalled."""

_NAMED: Final = 3
"""Maximum number of causes in a description, and of partitions for each cause."""


def stall_after(lifetime: float) -> float:
    """Return the seconds without an acknowledgment after which records are stalled: `STALL_S`, or
    half of `lifetime` if that is less.

    Args:
        lifetime: seconds from the end of their linger to their delivery timeout.
    """
    return min(STALL_S, lifetime / 2)


def shortest_stall(config: ProducerConfig) -> float:
    """Return the shortest `stall_after` of all topics."""
    found = STALL_S
    for profile in (NO_PROFILE, *(profile for _, profile in profiles_of(config))):
        topic = EffectiveSettings.of(config, profile)
        found = min(found, stall_after((topic.delivery_timeout_ms - topic.linger_ms) / 1000))
    return found


@dataclass(frozen=True, slots=True)
class WaitingPartition:
    """The records of a partition that have no outcome.

    Attributes:
        leader: id of the broker of the oldest batch: the broker of its request in flight, otherwise
            the leader in the metadata; None if there is none.
        age_s: seconds since the oldest batch was created.
        silent_s: seconds since the end of its linger or, if that is later, since the last
            acknowledgment of this partition; see `PartitionQueue.waits_since`.
        stalled: True if `silent_s` is at least `stall_after`. If another partition is stalled,
            `_NEARLY` times `STALL_S` is enough.
        attempts, last_code: number of attempts to send the oldest batch, and the error code of the
            last failed attempt.
        reason: a description of the event for which the records wait.
    """

    queue: PartitionQueue
    leader: int | None
    records: int
    age_s: float
    silent_s: float
    stalled: bool
    attempts: int
    last_code: str
    reason: str

    @property
    def topic_partition(self) -> TopicPartition:
        return self.queue.topic_partition


@dataclass(frozen=True, slots=True)
class WaitingTopic:
    """The calls that wait for the metadata of a topic. `silent_s` is the duration of the wait in
    seconds, and `reason` a description of its cause."""

    topic: str
    calls: int
    silent_s: float
    stalled: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """All waiting records and calls at one time."""

    partitions: list[WaitingPartition]
    topics: list[WaitingTopic]

    @property
    def stalled(self) -> list[WaitingPartition]:
        """The partitions that have had no acknowledgment for too long."""
        return [partition for partition in self.partitions if partition.stalled]

    @property
    def stalled_topics(self) -> list[WaitingTopic]:
        """The topics whose metadata has been missing for too long."""
        return [topic for topic in self.topics if topic.stalled]

    def silent_s(self) -> float:
        """Return the longest wait of a stalled partition or topic in seconds; 0 if none is
        stalled."""
        waits = [each.silent_s for each in self.stalled]
        waits += [each.silent_s for each in self.stalled_topics]
        return max(waits, default=0.0)

    def cause(self) -> str | None:
        """Return a description of the causes of stalled records and calls, or None if nothing is
        stalled."""
        by_reason: dict[str, list[str]] = {}
        records: dict[str, int] = {}
        for partition in self.stalled:
            by_reason.setdefault(partition.reason, []).append(str(partition.topic_partition))
            records[partition.reason] = records.get(partition.reason, 0) + partition.records
        texts = [
            f"{reason} ({records[reason]} records of {_listed(names)})"
            for reason, names in by_reason.items()
        ]
        texts += [f"{t.reason} ({t.calls} calls for topic {t.topic})" for t in self.stalled_topics]
        if not texts:
            return None
        more = f"; and {len(texts) - _NAMED} more causes" if len(texts) > _NAMED else ""
        return "; ".join(texts[:_NAMED]) + more


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def waiting(runtime: Runtime, now: float) -> Waiting:
    """Return all waiting records and calls. O(batches without an outcome)."""
    oldest: dict[PartitionQueue, ProducerBatch] = {}
    records: dict[PartitionQueue, int] = {}
    for batch in list(runtime.accumulator.incomplete):
        if batch.core.settled:
            continue
        queue = batch.queue
        records[queue] = records.get(queue, 0) + batch.core.record_count
        known = oldest.get(queue)
        if known is None or batch.created_at < known.created_at:
            oldest[queue] = batch
    partitions = [
        _partition(runtime, batch, records[queue], now) for queue, batch in oldest.items()
    ]
    if any(partition.stalled for partition in partitions):
        # In an outage, the partitions become stalled one after another. Report them together.
        partitions = [
            partition
            if partition.silent_s < _NEARLY * STALL_S
            else replace(partition, stalled=True)
            for partition in partitions
        ]
    topics = [
        WaitingTopic(
            topic, wait.calls, now - wait.since, now - wait.since >= STALL_S,
            _topic_reason(runtime, topic),
        )
        for topic, wait in runtime.metadata.waits.items()
    ]  # fmt: skip
    return Waiting(partitions, topics)


def _partition(
    runtime: Runtime, batch: ProducerBatch, records: int, now: float
) -> WaitingPartition:
    queue = batch.queue
    due_at = batch.created_at + queue.settings.linger
    silent = now - queue.waits_since(batch)
    leader = _leader(batch)
    return WaitingPartition(
        queue=queue,
        leader=leader,
        records=records,
        age_s=now - batch.created_at,
        silent_s=silent,
        stalled=silent >= stall_after(batch.deadline - due_at),
        attempts=batch.attempts,
        last_code=batch.last_failure[0],
        reason=reason_of(runtime, batch, now),
    )


def _leader(batch: ProducerBatch) -> int | None:
    return batch.wire_node if batch.in_flight else batch.queue.node


def reason_of(runtime: Runtime, batch: ProducerBatch, now: float) -> str:
    """Return a description of the event for which a batch waits."""
    return _reason(
        runtime, batch.queue, _leader(batch), batch.last_failure[0], batch.attempts > 0, now
    )


def reason_of_partition(runtime: Runtime, queue: PartitionQueue, now: float) -> str:
    """Return a description of the event for which the oldest records of a partition wait."""
    if queue.batches:
        return reason_of(runtime, queue.batches[0], now)
    leader = queue.wire_node if queue.in_flight else queue.node
    return _reason(runtime, queue, leader, "", queue.in_flight > 0, now)


def _reason(
    runtime: Runtime, queue: PartitionQueue, leader: int | None, failed: str, sent: bool, now: float
) -> str:
    metadata = runtime.metadata
    if leader is None:
        if metadata.only_bootstrap_nodes:
            return "no broker can be reached" + metadata.network_text()
        code = metadata.topic_error(queue.topic)
        return f"no leader is known ({error_code(code).name})" if code else "no leader is known"
    broker = broker_name(runtime, leader)
    if not runtime.is_connected(leader):
        error = runtime.watch.connection_errors.get(leader)
        return f"{broker} is not connected" if error is None else error.message
    retry_at = runtime.client.retry_at(leader, now)
    if now < retry_at and retry_at - now < float("inf"):
        return f"{broker} throttles this client for another {retry_at - now:.1f} s"
    silent_since = runtime.sender.silent_since(leader)
    if silent_since is not None and now - silent_since >= OVERDUE_AFTER_S:
        # Leave out the seconds, so that the text stays the same while the broker does not respond.
        return f"{broker} does not respond"
    if failed:
        return f"{broker} responds with {failed}"
    return f"no response from {broker} yet" if sent else "not sent yet"


def _topic_reason(runtime: Runtime, topic: str) -> str:
    code = runtime.metadata.topic_error(topic)
    if code:
        row = error_code(code)
        return f"{row.name}: {row.text}"
    return "no metadata" + (
        runtime.metadata.network_text() or "; no bootstrap server has responded"
    )


def broker_name(runtime: Runtime, node_id: int) -> str:
    """Return the name of a broker for log messages: its id and, if known, its address."""
    node = runtime.metadata.snapshot.nodes.get(node_id)
    return f"broker {node_id}" if node is None else f"broker {node}"
