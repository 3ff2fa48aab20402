"""Detects records that wait without acknowledgments, and logs outages.

A timer runs only while records wait for acknowledgments, or calls for metadata. Each outage is
logged with one WARNING, another WARNING if further brokers are affected, and one INFO when it ends.
The INFO also summarises retries and leader changes. Without an outage, these are logged in a
separate INFO.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final

from aiokprod._client.waiting import waiting
from aiokprod._engine.buffer.queues import OUTAGE_KEPT_S
from aiokprod._log_fields import log_fields

if TYPE_CHECKING:
    import asyncio

    from aiokprod._client.runtime import Runtime
    from aiokprod._client.waiting import Waiting
    from aiokprod._engine.buffer.queues import PartitionQueue
    from aiokprod.cluster import ClusterSnapshot
    from aiokprod.errors import KafkaError

logger = logging.getLogger(__name__)

_CHECK_EVERY: Final = 0.5
"""Seconds between two checks while records or calls wait. The first check is made earlier if the
oldest record may be stalled earlier."""
_LINE_EVERY: Final = 10.0
"""Minimum time in seconds between two log messages about an outage, and between two about
retries."""


class _Outage:
    """An outage.

    Attributes:
        since: loop time of its start.
        waits: the partitions and topics that have not recovered, each with the time of the last
            check at which it was stalled.
        nodes: ids of the brokers that were already logged.
        cause: text of the last known cause.
        logged: True once the outage was logged.
        acknowledged: True once a partition or topic has recovered.
    """

    def __init__(self, since: float) -> None:
        self.since = since
        self.cause = ""
        self.waits: dict[PartitionQueue | str, float] = {}
        self.nodes: set[int] = set()
        self.logged = False
        self.acknowledged = False


class DeliveryWatch:
    """Watches the records of one producer.

    Attributes:
        connection_errors: the error that ended the last connection or connection attempt, by broker
            id. Connected brokers and brokers that are not in the metadata are absent.
        last_error: text and time of the last connection error of any node, or None.

    Args:
        stall: minimum number of seconds after which a record without an acknowledgment is stalled.
    """

    def __init__(self, runtime: Runtime, stall: float) -> None:
        self.connection_errors: dict[int, KafkaError] = {}
        self.last_error: tuple[str, float] | None = None
        self._runtime = runtime
        self._loop = runtime.loop
        self._stall = stall
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._outage: _Outage | None = None
        self._leaders: dict[str, tuple[int | None, ...]] = {}
        self._snapshot = runtime.metadata.snapshot
        self._moved = 0  # leader changes that are not logged yet
        self._untold_since = math.inf  # time since which retries or leader changes are unlogged
        self._summed_at = -math.inf
        self._set_idle()

    # -- events ---------------------------------------------------------------------------------

    def on_disconnect(self, node_id: int, error: KafkaError) -> None:
        """Record the error of a failed connection or connection attempt."""
        if node_id in self._snapshot.nodes:
            self.connection_errors[node_id] = error
        self.last_error = error.message, self._loop.time()

    def on_connected(self, node_id: int) -> None:
        """Forget the error of a broker, because its connection accepts requests."""
        self.connection_errors.pop(node_id, None)

    def on_snapshot(self, snapshot: ClusterSnapshot) -> None:
        """Count the partitions whose leader differs from the last known leader."""
        before, self._snapshot = self._snapshot.topics, snapshot
        # After a rebootstrap, keep the errors: the same brokers may be listed again.
        if not self._runtime.metadata.only_bootstrap_nodes:
            for node_id in self.connection_errors.keys() - snapshot.nodes.keys():
                del self.connection_errors[node_id]
        for name, info in snapshot.topics.items():
            if before.get(name) is info:
                continue
            last = self._leaders.get(name, ())
            leaders = [p.leader for p in info.partitions]
            for index, leader in enumerate(last[: len(leaders)]):
                if leaders[index] is None:
                    leaders[index] = leader  # a missing leader is not a changed leader
                elif leader is not None and leader != leaders[index]:
                    self._moved += 1
            self._leaders[name] = tuple(leaders)
        for name in before.keys() - snapshot.topics.keys():
            self._leaders.pop(name, None)
        if self._moved and self._timer is None:
            self._begin()

    def close(self) -> None:
        """Stop the watch and its timer."""
        self._closed = True
        self._runtime.sender.on_waiting = self._runtime.metadata.on_waiting = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def outage(self, now: float) -> str | None:
        """Return a description of the current outage, or None. Its records may have expired
        already.

        A partition recovers with an acknowledgment, a topic with its metadata. Otherwise its outage
        ends `OUTAGE_KEPT_S` seconds after the last check at which it was stalled.
        """
        outage = self._outage
        if outage is None:
            return None
        for key, seen_at in outage.waits.items():
            if isinstance(key, str):
                recovered = key in self._runtime.metadata.snapshot.topics
            else:
                recovered = key.acknowledged_at >= seen_at
            if not recovered and now - seen_at <= OUTAGE_KEPT_S:
                return f"no acknowledgment for {now - outage.since:.1f} s: {outage.cause}"
        return None

    # -- the timer ------------------------------------------------------------------------------

    def _set_idle(self) -> None:
        """Let the next record or call that waits start the timer."""
        self._timer = None
        self._runtime.sender.on_waiting = self._runtime.metadata.on_waiting = self._begin

    def _begin(self) -> None:
        self._runtime.sender.on_waiting = self._runtime.metadata.on_waiting = None
        if self._closed:
            return
        at = now = self._loop.time()
        oldest = next(iter(self._runtime.accumulator.incomplete), None)
        if oldest is not None:
            at = oldest.created_at + self._stall
        at = min(at, now + _CHECK_EVERY) if at > now else now + _CHECK_EVERY
        self._timer = self._loop.call_at(at, self._check)

    def _check(self) -> None:
        runtime, now = self._runtime, self._loop.time()
        if self._outage is not None or self._may_be_stalled(now):
            self._look(waiting(runtime, now), now)
        summary_due = self._sum_up(now)
        runtime.sender.failure_log.flush(now)
        pending = summary_due or self._outage is not None or runtime.sender.failure_log.pending
        if pending or runtime.accumulator.incomplete or runtime.metadata.waits:
            self._begin()
        else:
            self._set_idle()

    def _may_be_stalled(self, now: float) -> bool:
        """Return False if all waiting records and calls are too recent to be stalled."""
        oldest = next(iter(self._runtime.accumulator.incomplete), None)
        if oldest is not None and now - oldest.created_at >= self._stall:
            return True
        waits = self._runtime.metadata.waits.values()
        return any(now - wait.since >= self._stall for wait in waits)

    # -- outages --------------------------------------------------------------------------------

    def _look(self, found: Waiting, now: float) -> None:
        outage, stalled, topics = self._outage, found.stalled, found.stalled_topics
        if outage is None:
            if not stalled and not topics:
                return
            outage = self._outage = _Outage(now - found.silent_s())
        outage.waits.update(dict.fromkeys((each.queue for each in stalled), now))
        outage.waits.update(dict.fromkeys((each.topic for each in topics), now))
        self._drop_recovered(outage, now)
        if not outage.waits:
            self._end(outage, now)
        elif stalled or topics:
            outage.cause = found.cause() or ""
            self._warn(outage, found, now)

    def _drop_recovered(self, outage: _Outage, now: float) -> None:
        for key, seen_at in list(outage.waits.items()):
            if isinstance(key, str):
                recovered = key in self._runtime.metadata.snapshot.topics
            else:
                recovered = key.acknowledged_at > outage.since and seen_at < now
            outage.acknowledged = outage.acknowledged or recovered
            if recovered or now - seen_at > OUTAGE_KEPT_S:
                del outage.waits[key]

    def _warn(self, outage: _Outage, found: Waiting, now: float) -> None:
        stalled = found.stalled
        nodes = {each.leader for each in stalled if each.leader is not None}
        log = self._runtime.client.log
        news = not outage.logged or not nodes <= outage.nodes
        if not news or now < log.warned_at + _LINE_EVERY:
            return
        outage.logged = True
        outage.nodes |= nodes
        log.warned_at = now
        records = sum(each.records for each in stalled)
        logger.warning(
            "no acknowledgment for %.1f s: %s", found.silent_s(), found.cause(),
            extra=log_fields(
                "delivery_stalled", client_id=self._runtime.client_id,
                seconds=round(found.silent_s(), 3), records=records, partitions=len(stalled),
                calls=sum(each.calls for each in found.stalled_topics),
                node_ids=sorted(nodes),
            ),
        )  # fmt: skip

    def _end(self, outage: _Outage, now: float) -> None:
        self._outage = None
        if not outage.logged:
            return
        what = "acknowledged again" if outage.acknowledged else "no record waits any more"
        batches, topics, moved = self._take()
        logger.info(
            "%s after %.1f s%s", what, now - outage.since, _summary("; ", batches, topics, moved),
            extra=log_fields(
                "delivery_resumed", client_id=self._runtime.client_id,
                seconds=round(now - outage.since, 3), acknowledged=outage.acknowledged,
                retries=batches, leaders_changed=moved,
            ),
        )  # fmt: skip

    # -- retries and leaders --------------------------------------------------------------------

    def _take(self) -> tuple[dict[str, int], list[str], int]:
        batches, topics = self._runtime.sender.retry_log.take()
        moved, self._moved = self._moved, 0
        self._untold_since, self._summed_at = math.inf, self._loop.time()
        return batches, topics, moved

    def _sum_up(self, now: float) -> bool:
        """Log retries and leader changes once no batch is being retried, or after `_LINE_EVERY`
        seconds. Return True if they still have to be logged."""
        if self._outage is not None or not (self._moved or self._runtime.sender.retry_log.batches):
            return False
        self._untold_since = min(self._untold_since, now)
        batches = list(self._runtime.accumulator.incomplete)
        over = not any(batch.last_failure[0] for batch in batches)
        if now < self._summed_at + _LINE_EVERY or not (
            over or now >= self._untold_since + _LINE_EVERY
        ):
            return True
        retries, topics, moved = self._take()
        logger.info(
            "%s", _summary("", retries, topics, moved),
            extra=log_fields(
                "batches_retried", client_id=self._runtime.client_id, retries=retries,
                leaders_changed=moved,
            ),
        )  # fmt: skip
        return False


def _summary(prefix: str, batches: dict[str, int], topics: list[str], moved: int) -> str:
    parts = []
    if batches:
        codes = ", ".join(f"{code} {count}" for code, count in batches.items())
        named = ", ".join(topics[:3]) + (f" and {len(topics) - 3} more" if topics[3:] else "")
        parts.append(f"{sum(batches.values())} retries of batches ({codes}) of topics {named}")
    if moved:
        parts.append(f"{moved} partitions have another leader")
    return prefix + "; ".join(parts) if parts else ""
