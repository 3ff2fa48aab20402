"""Checks after each run of a sender that an event or a deadline will process every queued batch.

Every wait needs an event or a deadline that ends it. `watch_passes` wraps `Sender.run_once` for the
whole process; the tests' harnesses call it. A run that leaves a batch without such an event or
deadline raises, which ends the producer. It is also recorded for `check_passes`, because some tests
expect a producer to fail.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

from aiokprod._engine.buffer.batch_states import BatchState
from aiokprod._engine.identity.producer_id_requests import ProducerIdRequests
from aiokprod._engine.sender.sender import Sender

if TYPE_CHECKING:
    from aiokprod._engine.buffer.producer_batch import ProducerBatch

LONGEST_S = 1.0
"""Seconds until the sender checks a broker that accepts no request
(`sender.unresponsive_brokers`)."""

_found: list[str] = []


def watch_passes() -> None:
    """Check every run of every sender from now on. Idempotent."""
    original = Sender.run_once
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def run_once(self: Sender, now: float) -> float:
        deadline = original(self, now)
        overlooked = overlooked_by(self, now, deadline)
        if overlooked:
            _found.append(overlooked)
            raise AssertionError(f"overlooked by the sender: {overlooked}")
        return deadline

    Sender.run_once = run_once  # type: ignore[method-assign]


def check_passes() -> None:
    """Raise AssertionError if a run since the last call left a batch behind."""
    found, _found[:] = _found[:], []
    assert not found, f"overlooked by a sender: {found[0]}"


def overlooked_by(sender: Sender, now: float, deadline: float) -> str | None:
    """Return a description of a queued batch that nothing will process after a run that returned
    `deadline`, or None."""
    if deadline <= now or sender._accumulator._changed:
        return None  # another run follows: a call within this one has woken the sender
    seen = set()
    for batch in list(sender._accumulator.incomplete):
        if deadline > batch.deadline:
            return f"{batch}: its delivery deadline passes unnoticed"
        queue = batch.queue
        if queue.batches and queue not in seen:
            seen.add(queue)
            missing = _lacks(sender, queue.batches[0], now, deadline)
            if missing:
                return f"{queue.batches[0]} of {queue}: {missing}"
    return None


def _lacks(sender: Sender, head: ProducerBatch, now: float, deadline: float) -> str | None:
    """Return why nothing ends the wait of the first batch of a queue, or None if something does."""
    accumulator, metadata = sender._accumulator, sender._metadata
    queue = head.queue
    if head.state is BatchState.COMPRESSING:
        return None  # a worker thread will report the end
    if head.not_before > now:
        return None if deadline <= head.not_before else "its backoff ends unnoticed"
    node = accumulator._nodes.get(queue.node)
    if node is None or not any(queue in each for each in (node.ready, node.lingering, node.held)):
        return "in no set"
    schedule = metadata._schedule
    asked = metadata._asked is not None or schedule.need_full or bool(metadata._topics.fast_retry)
    if queue.node is None:
        return None if asked else "no leader, and no metadata are fetched"
    at_once = accumulator.flush_pending or (
        queue in node.lingering
        and accumulator._adaptive
        and queue.node not in sender._unresponsive.in_flight
    )
    if queue not in node.ready:
        if deadline <= head.created_at + queue.settings.linger:
            return None
        if not at_once:
            return "its linger ends unnoticed"
    if sender._source.transactional_id is not None:
        return None  # the transaction's own tasks and timers end the wait
    if not sender._sequences.may_drain(queue, head):
        return _muted(sender, head, deadline)
    client, node_id = sender._client, queue.node
    if client.can_send(node_id, now):
        claimed = node_id in metadata.claimed
        if metadata.update_due(now) or claimed or node_id in sender._unresponsive.in_flight:
            return None  # the fetch, or a response, wakes the sender
        return "left behind though its broker takes requests"
    retry_at = client.retry_at(node_id, now)
    if retry_at < math.inf and deadline <= retry_at:
        return None
    ends = deadline <= now + LONGEST_S or client.in_flight_count(node_id) or asked
    return None if ends else "its broker takes nothing, and nobody looks at it"


def _muted(sender: Sender, head: ProducerBatch, deadline: float) -> str | None:
    """Return why nothing ends the wait of a batch that must not be sent, or None."""
    source = sender._source
    if head.queue.in_flight:
        return None  # the response ends the wait
    if isinstance(source, ProducerIdRequests) and source._tracker.producer_id < 0:
        client, now = sender._client, sender._loop.time()
        node_id = client.least_loaded(now)
        able = node_id is not None and client.can_send(node_id, now)
        coming = source._requesting or source.fatal_error is not None or not able
        return None if coming or deadline <= source._request_at else "no producer id is asked for"
    return "muted, and nothing of its partition is on the wire"
