from collections.abc import Iterator
from typing import Any

from aiokprod._core.append import Appender
from aiokprod._core.batch import Delivery
from aiokprod._core.bulk_tracker import BulkTracker
from aiokprod._core.serialization import SerializedRecord
from aiokprod._core.slots import TopicSlot

class RecordSource:
    def __init__(self, iterator: Iterator[Any], kind: type) -> None: ...
    @property
    def iterator(self) -> Iterator[Any]: ...
    @property
    def has_record(self) -> bool: ...
    @property
    def ended(self) -> bool: ...
    @property
    def failure(self) -> Exception | None: ...
    def take(self) -> Any: ...

def append_column(
    appender: Appender,
    tracker: BulkTracker,
    topic: TopicSlot,
    values: list[Any],
    keys: list[Any] | None,
    timestamps: list[Any] | None,
    headers: list[Any] | None,
    partition: int,
    start: int,
) -> int: ...
def append_objects(
    appender: Appender,
    tracker: BulkTracker,
    topic: TopicSlot,
    values: list[Any],
    keys: list[Any] | None,
    timestamps: list[Any] | None,
    headers: list[Any] | None,
    partition: int | None,
    start: int,
) -> Delivery | SerializedRecord | None: ...
def append_records(
    appender: Appender, tracker: BulkTracker, source: RecordSource
) -> Delivery | SerializedRecord | None: ...
