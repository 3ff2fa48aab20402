"""Runs only the compiled append path. Batches are opened and dropped, and nothing is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from aiokprod._core.append import Appender
from aiokprod._core.batch import BatchCore, Delivery
from aiokprod._core.bulk_append import RecordSource, append_column, append_objects, append_records
from aiokprod._core.bulk_tracker import BulkTracker
from aiokprod._core.hooks import HookCalls
from aiokprod._core.memory import MemoryBudget
from aiokprod._core.serialization import SerializerPair
from aiokprod._core.slots import PartitionSlot, TopicSlot
from aiokprod._core.yielding import YieldQueue
from aiokprod.records import ProducerRecord

TOPIC = "t"
NOW_MS = 1_700_000_000_000
BATCH_BYTES = 131_072
UNLIMITED = 1 << 60


class StillLoop:
    """The part of an event loop that the append path uses."""

    time = asyncio.BaseEventLoop.time

    def is_running(self) -> bool:
        return True

    def call_soon(
        self, callback: Callable[..., object], *args: object, context: Any = None
    ) -> None:
        """Do nothing, because callbacks are never run."""


class AppendHarness:
    """One topic with an append path.

    Attributes:
        batches: number of opened batches.
        keep: keep all batches alive. Otherwise a batch lives only as long as its handles.
    """

    def __init__(
        self,
        partitions: int = 1,
        *,
        keep: bool = False,
        serializers: SerializerPair | None = None,
        hooks: HookCalls | None = None,
        partitioner: Callable[..., int] | None = None,
    ) -> None:
        # The append path uses only the methods of a loop that StillLoop has.
        self.loop = cast(asyncio.AbstractEventLoop, StillLoop())
        self.batches = 0
        self.kept: list[BatchCore] = []
        self._keep = keep
        self._next = 0
        self.appender = Appender(
            memory=MemoryBudget(UNLIMITED),
            open_new_batch=self._open_new_batch,
            slow_submit=self._never,
            unix_ms=lambda: NOW_MS,
            yield_queue=YieldQueue(
                self.loop, self.loop.time, MemoryBudget(UNLIMITED), slice_length=1e9
            ),
            max_request_size=1 << 30,
            serializers=serializers,
            hooks=hooks,
            partitioner=partitioner,
        )
        self.appender.enabled = True
        self.topic = self.appender.topics[TOPIC] = TopicSlot(TOPIC, BATCH_BYTES)
        self.topic.slots.extend(PartitionSlot(TOPIC, number) for number in range(partitions))

    def _open_new_batch(
        self, topic: TopicSlot, partition: int, size: int, permit: object
    ) -> PartitionSlot:
        if partition < 0:
            self._next = partition = topic.sticky = (self._next + 1) % len(topic.slots)
            topic.sticky_bytes = 0
        slot: PartitionSlot = topic.slots[partition]
        slot.core = BatchCore(TOPIC, partition, self.loop, BATCH_BYTES)
        self.batches += 1
        if self._keep:
            self.kept.append(slot.core)
        return slot

    def _never(self, *fields: object) -> Awaitable[Delivery]:
        raise AssertionError("the compiled path refused a plain record")

    def append_column(self, values: list[Any], keys: list[bytes] | None = None) -> None:
        """Append a whole column, as `send_many` does."""
        tracker = BulkTracker()
        while tracker.count < len(values):
            append_column(
                self.appender, tracker, self.topic, values, keys, None, None, -1, tracker.count
            )

    def append_objects(self, values: list[Any]) -> None:
        """Append a whole column whose values are serialized, as `send_many` does."""
        tracker = BulkTracker()
        while tracker.count < len(values):
            refused = append_objects(
                self.appender, tracker, self.topic, values, None, None, None, None, tracker.count
            )
            assert refused is None

    def append_records(self, records: list[ProducerRecord[Any, Any]]) -> None:
        """Append records of any topics, as `send_many` does."""
        tracker = BulkTracker()
        source = RecordSource(iter(records), ProducerRecord)
        while not source.ended:
            append_records(self.appender, tracker, source)
        assert tracker.count == len(records)
