"""The slow path of a record: everything that may need a decision, a wait or an error text.

Order as in Java `KafkaProducer.doSend`: interceptors, checks, metadata, serializers, partitioner,
size, memory, append. No memory is held while something else is awaited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiokprod.errors import ConfigError, KafkaError, MetadataMissing, Outcome, RecordTooLarge
from aiokprod.hot.append import DELIVERY_CHARGE, record_size_bound
from aiokprod.partitioners import choose
from aiokprod.records import (
    ProducerRecord,
    validate_partition,
    validate_timestamp_ms,
    validate_topic,
)
from aiokprod.wire.record_batch import HEADER_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiokprod.cluster import ClusterSnapshot
    from aiokprod.config import ProducerConfig
    from aiokprod.hot.core import Delivery, RecordMetadata
    from aiokprod.interceptors import InterceptorChain
    from aiokprod.partitioners import Partitioner
    from aiokprod.records import Header
    from aiokprod.runtime import Runtime
    from aiokprod.serialization import RecordSerializers


class Admission:
    """Admits records that the fast path does not take.

    `partitioner` None is the built-in logic: by key, else sticky.
    """

    def __init__(
        self,
        config: ProducerConfig,
        runtime: Runtime,
        serializers: RecordSerializers,
        partitioner: Partitioner | None,
        interceptors: InterceptorChain | None,
        check: Callable[[], None],
    ) -> None:
        self._max_request_size = config.max_request_size
        self._buffer_memory = config.buffer_memory
        self._runtime = runtime
        self._serializers = serializers
        self._partitioner = partitioner
        self._interceptors = interceptors
        self._check = check

    async def admit(self, record: ProducerRecord[Any, Any], deadline: float) -> Delivery:
        """The record's handle once it is in a batch.

        Raises:
            ConfigError, SerializationError, RecordTooLarge: the record cannot be sent at all.
            MetadataTimeout, BufferTimeout: `deadline` (loop time) passed.
            KafkaError: of the topic or the producer.

        Cancellation: the record does not exist.
        """
        if self._interceptors is None:
            return await self._admit(record, deadline)
        record = self._interceptors.on_send(record)
        try:
            delivery = await self._admit(record, deadline)
        except BaseException as error:
            self._tell_refused(error)
            raise
        delivery.set_hook(self._on_settled)
        return delivery

    def _tell_refused(self, error: BaseException) -> None:
        assert self._interceptors is not None, "only called with interceptors"
        self._interceptors.on_acknowledgement(None, _as_kafka_error(error))

    def _on_settled(self, metadata: RecordMetadata | None, error: BaseException | None) -> None:
        assert self._interceptors is not None, "only set as a hook with interceptors"
        self._interceptors.on_acknowledgement(
            metadata, None if error is None else _as_kafka_error(error)
        )

    async def _admit(self, record: ProducerRecord[Any, Any], deadline: float) -> Delivery:
        runtime = self._runtime
        topic, partition = record.topic, record.partition
        await self._known(topic, partition, deadline)
        headers = list(record.headers)
        key, value = await self._serializers.serialize(record, headers)
        size = self._checked_size(topic, key, value, headers)
        reserved = 0
        while True:
            self._check()
            snapshot = runtime.metadata.lookup(topic, partition)
            if snapshot is not None:
                try:
                    delivery = self._append(record, snapshot, key, value, headers, reserved)
                except BaseException:
                    self._give_back(reserved)
                    raise
                if delivery is not None:
                    return delivery
                await runtime.memory.reserve(size, deadline)
                reserved = size
            else:  # the topic vanished while something was awaited
                self._give_back(reserved)
                reserved = 0
                await self._known(topic, partition, deadline)

    async def _known(self, topic: str, partition: int | None, deadline: float) -> None:
        """Wait until the metadata have the topic and partition."""
        metadata = self._runtime.metadata
        try:
            if metadata.lookup(topic, partition) is None:
                await metadata.wait_for_topic(topic, partition, deadline=deadline)
        except KafkaError as error:
            error.outcome = Outcome.NOT_SENT  # whatever was refused, it was not this record
            raise

    def _give_back(self, reserved: int) -> None:
        if reserved:
            self._runtime.memory.release(reserved)

    def _append(
        self,
        record: ProducerRecord[Any, Any],
        snapshot: ClusterSnapshot,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header] | None,
        reserved: int,
    ) -> Delivery | None:
        """Partition choice and append, without suspension."""
        partition = record.partition
        if partition is None and self._partitioner is not None:
            partition = choose(
                self._partitioner, record.topic, record.key, key, record.value, value, snapshot
            )
        slot = self._runtime.topic_slot(record.topic, snapshot)
        return self._runtime.appender.append(
            slot, partition, value, key, record.timestamp_ms, headers, reserved
        )

    def try_admit(self, record: ProducerRecord[Any, Any]) -> Delivery | None:
        """As `admit` but without waiting; None if memory is short.

        Raises:
            MetadataMissing: the topic is not known yet; it is being asked for.
            ConfigError: a serializer is asynchronous.
        """
        if self._interceptors is not None:
            record = self._interceptors.on_send(record)
        try:
            delivery = self._try_admit(record)
        except Exception as error:
            if self._interceptors is not None:
                self._tell_refused(error)
            raise
        if delivery is not None and self._interceptors is not None:
            delivery.set_hook(self._on_settled)
        return delivery

    def _try_admit(self, record: ProducerRecord[Any, Any]) -> Delivery | None:
        runtime = self._runtime
        snapshot = runtime.metadata.lookup(record.topic, record.partition)
        if snapshot is None:
            runtime.metadata.touch(record.topic, runtime.loop.time())
            runtime.metadata.request_update()
            raise MetadataMissing(
                f"the metadata of topic {record.topic} are not known yet; they are being fetched: "
                "try again later, or `await producer.warm([topic])` first"
            )
        headers = list(record.headers)
        key, value = self._serializers.serialize_now(record, headers)
        self._checked_size(record.topic, key, value, headers)
        return self._append(record, snapshot, key, value, headers, 0)

    def _checked_size(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header] | None,
    ) -> int:
        try:
            size = record_size_bound(key, value, headers)
        except ValueError as error:
            raise ConfigError(
                f"headers of a record to {topic} must be (str, bytes or None) pairs whose names "
                "can be encoded as UTF-8 (no lone surrogates)"
            ) from error
        if size + HEADER_SIZE > self._max_request_size:
            raise RecordTooLarge(
                f"a record to {topic} takes up to {size + HEADER_SIZE} bytes with its batch "
                f"header, more than max_request_size ({self._max_request_size}); make it smaller, "
                "or raise max_request_size and the topic's max.message.bytes"
            )
        if size + DELIVERY_CHARGE > self._buffer_memory:
            raise RecordTooLarge(
                f"a record to {topic} takes {size + DELIVERY_CHARGE} bytes, more than the whole "
                f"buffer_memory ({self._buffer_memory}); make it smaller or raise buffer_memory"
            )
        return size + DELIVERY_CHARGE


def _as_kafka_error(error: BaseException) -> KafkaError:
    """What interceptors are told: a cancelled send is a record that was not sent."""
    if isinstance(error, KafkaError):
        return error
    withdrawn = KafkaError(
        "the send was cancelled before the record left", outcome=Outcome.NOT_SENT
    )
    withdrawn.__cause__ = error
    return withdrawn


def checked_record(
    topic: Any,
    value: Any,
    key: Any,
    partition: Any,
    timestamp_ms: Any,
    headers: Any,
) -> ProducerRecord[Any, Any]:
    """The arguments of a call as a record.

    Raises:
        ConfigError: names the argument, its value and the mend.
    """
    validate_topic(topic)
    if partition is not None:
        validate_partition(partition)
    if timestamp_ms is not None:
        validate_timestamp_ms(timestamp_ms)
    return ProducerRecord(topic, value, key, partition, timestamp_ms, checked_headers(headers))


def checked_headers(headers: Any) -> Sequence[Header]:
    """Headers as (str, bytes | None) tuples; None is no headers; a dict's items are taken.

    Raises:
        ConfigError: names the header and the mend. Values are never shown.
    """
    if headers is None:
        return ()
    if isinstance(headers, dict):
        headers = headers.items()
    checked: list[Header] = []
    try:
        pairs = [tuple(pair) for pair in headers]
    except TypeError:
        pairs = None
    if pairs is None or isinstance(headers, (str, bytes)):
        raise ConfigError(
            f"headers must be a list of (str, bytes) pairs, not {type(headers).__name__}"
        )
    for number, pair in enumerate(pairs):
        if len(pair) != 2 or not isinstance(pair[0], str):
            raise ConfigError(f"headers[{number}] must be a pair of str and bytes (or None)")
        name, value = pair
        if isinstance(value, (bytearray, memoryview)):
            value = bytes(value)
        if value is not None and not isinstance(value, bytes):
            raise ConfigError(
                f"headers[{number}] ({name!r}) has a value of type {type(value).__name__}; "
                "encode it to bytes"
            )
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"headers[{number}]: the name cannot be encoded as UTF-8 (lone surrogate at "
                f"{error.start}); remove it"
            ) from error
        checked.append((str(name), value))
    return checked
