from aiokprod._arrow.c_data import Chunk
from aiokprod._core.append import Appender, TopicSlot
from aiokprod._core.bulk_tracker import BulkTracker

class TableAppender:
    def __init__(self, appender: Appender, tracker: BulkTracker) -> None: ...
    def append(self, chunk: Chunk, topic: TopicSlot | None, start: int) -> int: ...
