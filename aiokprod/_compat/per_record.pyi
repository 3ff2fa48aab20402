import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, final

from aiokprod._core.batch import Delivery, RecordMetadata
from aiokprod._core.callbacks import OutcomeReceiver
from aiokprod.errors import KafkaError
from aiokprod.producer import Producer
from aiokprod.records import Header

class FutureResults:
    def __new__(
        cls,
        metadata_type: type[tuple[Any, ...]],
        partition_type: type[tuple[Any, ...]],
        convert: Callable[[KafkaError], BaseException],
        no_result: bool,
    ) -> FutureResults: ...
    def submit(
        self,
        future: asyncio.Future[Any],
        producer: Producer[bytes, bytes],
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Sequence[Header] | None,
    ) -> Awaitable[Delivery]: ...
    def settle(
        self,
        future: asyncio.Future[Any],
        metadata: RecordMetadata | None,
        error: KafkaError | None,
    ) -> None: ...

@final
class FutureResult(OutcomeReceiver): ...

def encoded_headers(
    content_type: str | None, headers: Mapping[str, Any]
) -> list[tuple[str, bytes]]: ...
def size_of_bytes(bodies: Iterable[object]) -> int: ...
def random_uuid() -> str: ...
