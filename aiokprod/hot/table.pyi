from aiokprod.hot.append import Appender, TopicSlot
from aiokprod.hot.arrow import Chunk
from aiokprod.hot.bulk import BulkTracker

class TableAppender:
    def __init__(self, appender: Appender, tracker: BulkTracker) -> None: ...
    def append(self, chunk: Chunk, topic: TopicSlot | None, start: int) -> int: ...
