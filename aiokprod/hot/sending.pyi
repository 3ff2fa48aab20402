from collections.abc import Callable, Coroutine
from typing import Any

from aiokprod.hot.append import Appender
from aiokprod.records import RecordMetadata

class Sends:
    def __init__(
        self, appender: Appender, slow_send: Callable[..., Coroutine[Any, Any, RecordMetadata]]
    ) -> None: ...
    def send(
        self,
        topic: object,
        value: object = None,
        *,
        key: object = None,
        partition: object = None,
        timestamp_ms: object = None,
        headers: object = None,
        timeout: object = None,
    ) -> Coroutine[Any, Any, RecordMetadata]: ...
