"""`use_aiokprod`: a FastStream Kafka broker that publishes through aiokprod.

::

    from faststream.kafka import KafkaBroker
    from aiokprod.compat.faststream import use_aiokprod

    broker = use_aiokprod(KafkaBroker("localhost:9092"))

Subscribers keep aiokafka's consumer. Needs FastStream 0.7 or newer (extra `faststream`).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Coroutine, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from aiokprod._client.bulk_result import BulkProgress, BulkResult
from aiokprod._compat.aiokafka_batch import HEADER_SIZE, record_size, whole_ms
from aiokprod._compat.aiokafka_errors import as_theirs
from aiokprod._compat.per_record import encoded_headers, random_uuid, size_of_bytes
from aiokprod._log_fields import log_fields
from aiokprod.compat.aiokafka import (
    AIOKafkaProducer,
    RecordMetadata,
    TopicPartition,
    TransactionContext,
)
from aiokprod.errors import AbortableTransactionError, ConfigError, KafkaError
from aiokprod.producer import Producer

try:
    from faststream._internal.parser import BatchCodecProto, DefaultCodec
    from faststream.kafka import KafkaBroker
    from faststream.kafka.configs import KafkaBrokerConfig
    from faststream.kafka.exceptions import BatchBufferOverflowException
    from faststream.kafka.publisher.producer import AioKafkaFastProducerImpl
    from faststream.message import encode_message, gen_cor_id
    from faststream.response import Response
except ImportError as missing:  # pragma: no cover
    raise ImportError(
        "aiokprod.compat.faststream needs FastStream 0.7 or newer with its Kafka extra: "
        "pip install 'aiokprod[faststream]'"
    ) from missing

if TYPE_CHECKING:
    from faststream.kafka.response import KafkaPublishCommand

    from aiokprod._client.send_many import BulkSender

__all__ = ["BatchMetadata", "transaction", "use_aiokprod"]

logger = logging.getLogger("aiokprod.compat")

B = TypeVar("B", bound=KafkaBroker)
Headers: TypeAlias = list[tuple[str, bytes]]

_DEFAULTS: Final = {
    name: parameter.default
    for name, parameter in inspect.signature(KafkaBroker.__init__).parameters.items()
}
"""The values that FastStream passes to aiokafka for arguments that the application did not give."""

_PUBLISH: Final = KafkaBroker.publish
_PUBLISH_BATCH: Final = KafkaBroker.publish_batch
"""FastStream's original methods, to detect that tests mock or instrumentations wrap them."""


class BatchMetadata(RecordMetadata):
    """The result of `publish_batch`: partition and offset of the first record.

    Attributes:
        results: the outcome of every record by its position.
    """

    results: BulkResult


class _Appending(BulkProgress):
    """Waits until every message of a `send_many` call is in a batch or was refused."""

    __slots__ = ("_read",)

    def __init__(self) -> None:
        super().__init__()
        self._read = asyncio.Event()

    def begin(self, call: BulkSender) -> None:
        super().begin(call)
        call.on_read = self._read.set

    async def wait(self, sending: asyncio.Task[Any]) -> None:
        """Wait for the messages of the `send_many` call that the task `sending` runs.

        Raises: the error of the call, if it has sent nothing.

        Cancellation: no further messages are appended.
        """
        reading = asyncio.ensure_future(self._read.wait())
        try:
            await asyncio.wait((reading, sending), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            sending.cancel()
            raise
        finally:
            reading.cancel()
        call = self._call
        if call is None or not call.tracker.count:
            await sending


class AiokprodFastProducer(AioKafkaFastProducerImpl):
    """FastStream's producer, based on `AIOKafkaProducer` of aiokprod.

    Attributes:
        arguments: the arguments of `AIOKafkaProducer`, set before `connect`.
        limit: an explicit `max_batch_size` of the FastStream broker in bytes, or None.
    """

    arguments: Mapping[str, Any] = MappingProxyType({})
    limit: int | None = None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._unconfirmed: set[asyncio.Task[BatchMetadata]] = set()  # strong references

    async def connect(self, producer: Any, *args: Any, **kwargs: Any) -> None:
        """Start a producer of aiokprod instead of `producer`, which has not been started."""
        await producer.stop()
        self.limit = self.arguments.get("max_batch_size")
        await super().connect(AIOKafkaProducer(**self.arguments), *args, **kwargs)

    async def disconnect(self) -> None:
        """Send the pending messages and close all connections."""
        await super().disconnect()
        if self._unconfirmed:
            await asyncio.wait(self._unconfirmed)

    async def publish(self, cmd: KafkaPublishCommand) -> Any:
        """Send one message like FastStream, but with fewer coroutines.

        Returns:
            `RecordMetadata`, or a future of it if `no_confirm` is set.

        Raises: see `AIOKafkaProducer.send`.

        Cancellation: a record that is not in a batch yet is not sent. Otherwise only the wait ends.
        """
        future = await (
            self.send(
                cmd.body,
                cmd.destination,
                cmd.key,
                cmd.partition,
                cmd.timestamp_ms,
                cmd.headers_to_publish(),
            )
            if type(self.codec) is DefaultCodec
            else self._encode_and_send(cmd)
        )
        return future if cmd.no_confirm else await future

    async def _encode_and_send(self, cmd: KafkaPublishCommand) -> asyncio.Future[RecordMetadata]:
        """Send one message that the application's codec encodes."""
        message, content_type = (
            (None, None)  # a tombstone
            if cmd.body is None and cmd.key is not None
            else await self.codec.encode(cmd.body, self.serializer)
        )
        producer: AIOKafkaProducer = self._producer.producer
        return await producer.send(
            topic=cmd.destination,
            value=message,
            key=cmd.key,
            partition=cmd.partition,
            timestamp_ms=cmd.timestamp_ms,
            headers=encoded_headers(content_type, cmd.headers_to_publish()),
        )

    def send(
        self,
        body: Any,
        topic: str,
        key: Any,
        partition: int | None,
        timestamp_ms: int | None,
        headers: dict[str, str],
    ) -> Coroutine[Any, Any, asyncio.Future[RecordMetadata]]:
        """Encode one message like FastStream's default codec, and call `AIOKafkaProducer.send`."""
        message: bytes | None
        content_type: str | None
        if type(body) is bytes or (body is None and key is not None):  # None: a tombstone
            message, content_type = body, None
        else:
            message, content_type = encode_message(body, self.serializer)
        producer: AIOKafkaProducer = self._producer.producer
        # Pass keyword arguments like FastStream, because tests mock `send` and check them.
        return producer.send(
            topic=topic,
            value=message,
            key=key,
            partition=partition,
            timestamp_ms=timestamp_ms,
            headers=encoded_headers(content_type, headers),
        )

    async def publish_batch(self, cmd: KafkaPublishCommand) -> Any:
        """Send any number of messages, each to the partition of its key.

        Returns:
            `BatchMetadata`, or a future of it if `no_confirm` is set, once the messages are in
            batches. Without messages, None or a future of None.

        Raises:
            KafkaError: a message failed. `results` of the error contains the outcome of every
                message.
            BatchBufferOverflowException: the broker has an explicit `max_batch_size`, and the
                messages exceed it; nothing was sent.
        """
        values, content_types, size = await self._encoded(cmd.batch_bodies)
        return await self.send_batch(
            values,
            content_types,
            size,
            _keys(cmd, len(values)),
            cmd.destination,
            cmd.partition,
            cmd.timestamp_ms,
            cmd.headers_to_publish(),
            cmd.no_confirm,
        )

    async def send_batch(
        self,
        values: list[bytes],
        content_types: list[str | None] | None,
        size: int,
        keys: list[bytes | None] | None,
        topic: str,
        partition: int | None,
        timestamp_ms: int | None,
        headers: dict[str, str],
        no_confirm: bool,
    ) -> Any:
        """Send encoded messages; see `publish_batch`.

        Args:
            content_types: content type of each message; None if no message has a content type.
            size: total length of `values` in bytes.
            keys: key of each message; None if no message has a key.
            headers: the headers of every message.
        """
        producer: AIOKafkaProducer = self._producer.producer
        if not values:
            nothing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            nothing.set_result(None)
            return nothing if no_confirm else None
        typed = _headers_by_content_type(headers, set(content_types or ()))
        all_headers = (
            [typed[None]] * len(values)
            if content_types is None
            else [typed[content_type] for content_type in content_types]
        )
        if self.limit is not None:
            _check_size(self.limit, size, keys, values, all_headers, typed)
        progress = _Appending() if no_confirm else None
        sending = _send(
            producer.producer,
            topic,
            values,
            keys=keys,
            headers=all_headers,
            partition=partition,
            timestamps_ms=(
                None if timestamp_ms is None else [whole_ms(timestamp_ms)] * len(values)
            ),
            progress=progress,
        )
        if progress is None:
            return await sending
        task = asyncio.ensure_future(sending)
        self._unconfirmed.add(task)
        task.add_done_callback(self._unconfirmed.discard)
        await progress.wait(task)
        return task

    async def _encoded(
        self, bodies: Sequence[Any]
    ) -> tuple[list[bytes], list[str | None] | None, int]:
        """Return the bytes of each body, the content types (None if no body has a content type),
        and the total length in bytes."""
        codec, serializer = self.codec, self.serializer
        if type(codec) is DefaultCodec:  # encoding here avoids a coroutine for each body
            size = size_of_bytes(bodies)
            if size >= 0:
                return list(bodies), None, size
            encoded = [encode_message(body, serializer) for body in bodies]
        elif isinstance(codec, BatchCodecProto):
            encoded = await codec.encode_batch(bodies, serializer)
        else:
            encoded = [await codec.encode(body, serializer) for body in bodies]
        values = [message for message, _ in encoded]
        return values, [content_type for _, content_type in encoded], sum(map(len, values))


def _keys(cmd: KafkaPublishCommand, count: int) -> list[bytes | None] | None:
    """Return the key of each message, or None if no message has a key. See
    `KafkaPublishCommand.key_for`."""
    if not getattr(cmd, "_per_message_keys", True):
        return None if cmd.key is None else [cmd.key] * count  # all messages have the same key
    return [cmd.key_for(position) for position in range(count)]


def _headers_by_content_type(
    headers: dict[str, str], content_types: set[str | None]
) -> dict[str | None, Headers]:
    shared = [(name, value.encode()) for name, value in headers.items()]
    typed: dict[str | None, Headers] = {"": shared, None: shared}
    for content_type in content_types - typed.keys():
        assert content_type is not None  # `typed` already contains None
        own = [] if "content-type" in headers else [("content-type", content_type.encode())]
        typed[content_type] = own + shared
    return typed


def _check_size(
    limit: int,
    values_size: int,
    keys: list[bytes | None] | None,
    values: list[bytes],
    headers: list[Headers],
    typed: Mapping[str | None, Headers],
) -> None:
    """Raise BatchBufferOverflowException if aiokafka's batch could not hold the records.

    Args:
        values_size: total length of `values` in bytes.
        typed: contains every list of `headers`.
    """
    # First compute an upper bound, which is fast: most batches are far below the limit.
    fixed = max(record_size(None, None, one) for one in typed.values())
    size = HEADER_SIZE + fixed * len(values) + values_size
    if size + sum(map(len, filter(None, keys or ()))) <= limit:
        return
    if keys is None:
        keys = [None] * len(values)
    size = HEADER_SIZE
    for position, (key, value, pairs) in enumerate(zip(keys, values, headers, strict=True)):
        size += record_size(key, value, pairs)
        if position and size > limit:  # aiokafka accepts any first record
            raise BatchBufferOverflowException(message_position=position)


async def _send(
    producer: Producer[bytes, bytes], topic: str, values: list[bytes], **columns: Any
) -> BatchMetadata:
    try:
        results = await producer.send_many(topic, values, **columns)
    except KafkaError as error:
        raise as_theirs(error) from error.__cause__
    for first in results.errors.values():
        failed = as_theirs(first)
        failed.results = results  # type: ignore[attr-defined]
        raise failed from first.__cause__
    partition, offset = results.partition_and_offset(0)
    assert partition is not None  # every delivered record has a partition
    times = columns["timestamps_ms"]
    metadata = BatchMetadata(
        topic,
        partition,
        TopicPartition(topic, partition),
        offset,
        times[0] if times else None,
        0,
        None,
    )
    metadata.results = results
    return metadata


class AiokprodBrokerConfig(KafkaBrokerConfig):
    """FastStream's configuration of a broker, which creates the producer on connect."""

    aiokprod_settings: dict[str, Any]

    async def connect(self, **connection_kwargs: Any) -> None:
        """Connect like FastStream, but with aiokprod's producer."""
        given = {
            name: value
            for name, value in connection_kwargs.items()
            if name not in _DEFAULTS or value is not _DEFAULTS[name]
        }
        given.pop("loop", None)
        producer = self.producer
        assert isinstance(producer, AiokprodFastProducer)
        producer.arguments = {**given, **self.aiokprod_settings}
        try:
            await super().connect(**connection_kwargs)
        except BaseException:
            if producer:
                await producer.disconnect()
            raise


class AiokprodKafkaBroker(KafkaBroker):
    """FastStream's broker without a `KafkaPublishCommand` for each message, which only middlewares
    and codecs of the application use."""

    async def publish(  # type: ignore[override]  # FastStream's overloads
        self,
        message: Any,
        topic: str = "",
        *,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        no_confirm: bool = False,
    ) -> asyncio.Future[RecordMetadata] | RecordMetadata:
        """Send one message; see `KafkaBroker.publish`."""
        producer = self._direct_producer()
        if (
            producer is None
            or isinstance(message, Response)  # a Response may have a key
            or KafkaBroker.publish is not _PUBLISH
        ):
            return await super().publish(
                message,
                topic,
                key=key,
                partition=partition,
                timestamp_ms=timestamp_ms,
                headers=headers,
                correlation_id=correlation_id,
                reply_to=reply_to,
                no_confirm=no_confirm,
            )
        all_headers = self._headers(correlation_id, reply_to, headers)
        future = await producer.send(message, topic, key, partition, timestamp_ms, all_headers)
        return future if no_confirm else await future

    async def publish_batch(  # type: ignore[override]  # FastStream's overloads
        self,
        *messages: Any,
        topic: str = "",
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: dict[str, str] | None = None,
        reply_to: str = "",
        correlation_id: str | None = None,
        no_confirm: bool = False,
    ) -> Any:
        """Send any number of messages; see `AiokprodFastProducer.publish_batch`."""
        producer = self._direct_producer()
        size = -1 if producer is None else size_of_bytes(messages)
        if producer is None or size < 0 or KafkaBroker.publish_batch is not _PUBLISH_BATCH:
            return await super().publish_batch(
                *messages,
                topic=topic,
                partition=partition,
                timestamp_ms=timestamp_ms,
                headers=headers,
                reply_to=reply_to,
                correlation_id=correlation_id,
                no_confirm=no_confirm,
            )
        all_headers = self._headers(correlation_id, reply_to, headers)
        return await producer.send_batch(
            list(messages),
            None,
            size,
            None,
            topic,
            partition,
            timestamp_ms,
            all_headers,
            no_confirm,
        )

    def _direct_producer(self) -> AiokprodFastProducer | None:
        """Return the producer, or None if messages need a `KafkaPublishCommand`."""
        config = self.config
        producer = config.producer
        if (
            type(producer) is not AiokprodFastProducer  # FastStream's test broker replaces it
            or type(producer.codec) is not DefaultCodec
            or config.broker_middlewares
        ):
            return None
        return producer

    def _headers(
        self, correlation_id: str | None, reply_to: str, headers: dict[str, str] | None
    ) -> dict[str, str]:
        """Return the headers like `KafkaPublishCommand.headers_to_publish`, in the same order."""
        correlation_id = correlation_id or self.config.id_generator()
        merged = {"correlation_id": correlation_id} if correlation_id else {}
        if reply_to:
            merged["reply_to"] = reply_to
        return merged | headers if headers else merged


def use_aiokprod(broker: B, **settings: Any) -> B:
    """Make `broker` publish through aiokprod. Call this function before the broker is started.

    Args:
        broker: a `faststream.kafka.KafkaBroker`.
        settings: arguments of `aiokprod.compat.aiokafka.AIOKafkaProducer`; they take precedence
            over the arguments of the broker. FastStream's defaults are ignored.

    Returns:
        The same broker.

    `publish` works as before. `publish_batch` sends any number of messages, each to the partition
    of its key. It raises BatchBufferOverflowException only if `max_batch_size` is given.

    Raises:
        ConfigError: `broker` is not a KafkaBroker, or is already connected.
    """
    if not isinstance(broker, KafkaBroker):
        raise ConfigError(
            f"use_aiokprod: pass a faststream.kafka.KafkaBroker, not {type(broker).__name__}"
        )
    config = broker.config.broker_config
    if config.producer:
        raise ConfigError("use_aiokprod: the broker is connected; call it before broker.start()")
    producer = AiokprodFastProducer(config.broker_parser, config.broker_decoder)
    config.producer = producer
    config.__class__ = AiokprodBrokerConfig
    if type(broker) is KafkaBroker:  # a derived class may override `publish`
        broker.__class__ = AiokprodKafkaBroker  # type: ignore[assignment]  # a KafkaBroker
    if config.id_generator is gen_cor_id:
        config.id_generator = random_uuid
    assert isinstance(config, AiokprodBrokerConfig)
    config.aiokprod_settings = settings
    return broker


class _BrokerTransaction(TransactionContext):
    """Aborts a transaction that cannot be committed, because a broker has no method for that."""

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await super().__aexit__(exc_type, exc, traceback)
        except AbortableTransactionError as error:
            try:
                await self._producer.abort_transaction()
            except KafkaError as failed:
                logger.warning(
                    "aborting after %r failed: %s",
                    error,
                    failed,
                    extra=log_fields("abort_failed", error=failed),
                )
            raise


def transaction(broker: KafkaBroker) -> TransactionContext:
    """Return a context manager for a transaction: ``async with transaction(broker)``. It commits
    the published messages at the end of the block, or aborts on an exception. If a message failed,
    the transaction is aborted and the error is raised.

    Args:
        broker: a connected broker with a `transactional_id`. Only one task may have a transaction
            open.

    Raises:
        ConfigError: the broker does not publish through aiokprod, or is not connected.
        IllegalOperation: on entry: the broker has no transactional_id, or a transaction is open.
    """
    producer = broker.config.broker_config.producer
    if not isinstance(producer, AiokprodFastProducer) or not producer:
        raise ConfigError(
            "transaction: pass a broker of use_aiokprod(KafkaBroker(..., transactional_id=...)) "
            "after broker.start()"
        )
    inner: AIOKafkaProducer = producer._producer.producer
    return _BrokerTransaction(inner)
