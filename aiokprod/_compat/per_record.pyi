import asyncio
from collections.abc import Callable, Iterable
from typing import Any, final

from aiokprod._core.batch import RecordMetadata
from aiokprod.errors import KafkaError

class FutureResults:
    def __new__(
        cls,
        metadata_type: type[tuple[Any, ...]],
        partition_type: type[tuple[Any, ...]],
        convert: Callable[[KafkaError], BaseException],
        no_result: bool,
    ) -> FutureResults: ...
    def of(
        self, future: asyncio.Future[Any]
    ) -> Callable[[RecordMetadata | None, KafkaError | None], None]: ...
    def settle(
        self,
        future: asyncio.Future[Any],
        metadata: RecordMetadata | None,
        error: KafkaError | None,
    ) -> None: ...

@final
class FutureResult:
    def deliver(self, metadata: RecordMetadata | None, error: KafkaError | None) -> None: ...

def encoded_headers(
    content_type: str | None, headers: dict[str, Any]
) -> list[tuple[str, bytes]]: ...
def size_of_bytes(bodies: Iterable[object]) -> int: ...
def random_uuid() -> str: ...
