"""Counts retries, so that they are logged once per outage instead of once per batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiokprod._engine.buffer.producer_batch import ProducerBatch
    from aiokprod.errors import ErrorCode


class RetryLog:
    """The retries since the last call of `take`.

    Attributes:
        batches: number of retries by name of the error code.
        topics: names of the topics of these batches; an ordered set.
        last: a description of the last failed attempt and its time (loop time), or None if there
            was none. It is kept when the counts are reset.
    """

    __slots__ = ("batches", "last", "topics")

    def __init__(self) -> None:
        self.batches: dict[str, int] = {}
        self.topics: dict[str, None] = {}
        self.last: tuple[str, float] | None = None

    def note(self, batch: ProducerBatch, code: ErrorCode, node_id: int, now: float) -> None:
        """Record that an attempt to send a batch failed and that the batch will be sent again."""
        self.batches[code.name] = self.batches.get(code.name, 0) + 1
        self.topics[batch.queue.topic] = None
        self.last = (f"{batch.topic_partition}: {code.name} from broker {node_id}", now)

    def take(self) -> tuple[dict[str, int], list[str]]:
        """Return the counts by code and the topics, and reset both."""
        taken = self.batches, list(self.topics)
        self.batches, self.topics = {}, {}
        return taken
