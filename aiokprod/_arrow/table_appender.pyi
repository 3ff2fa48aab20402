from aiokprod._arrow.c_data import Chunk
from aiokprod._core.append import Appender
from aiokprod._core.batch import Delivery
from aiokprod._core.bulk_tracker import BulkTracker
from aiokprod._core.serialization import SerializedRecord
from aiokprod._core.slots import TopicSlot

class TableAppender:
    def __init__(self, appender: Appender, tracker: BulkTracker) -> None: ...
    def append(self, chunk: Chunk, topic: TopicSlot | None, start: int) -> int: ...
    def append_objects(
        self, chunk: Chunk, topic: str | None, start: int
    ) -> Delivery | SerializedRecord | None: ...
