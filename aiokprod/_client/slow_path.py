"""The slow path of a record: everything that needs Python code, a wait or an error message.

`RecordSender` has checked the arguments. Order: interceptors, metadata, serializers, size; then, in
one step without suspension, the state of the producer, memory, partitioner and append. If that step
lacks metadata, memory or room in the broker's share of the buffer, it is repeated after a wait,
during which no memory is held: a partitioner may be called more than once for a record.

Source: Java `KafkaProducer.doSend`, which calls the partitioner before it checks the size.
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

from aiokprod._core.append import DELIVERY_CHARGE, record_size_bound
from aiokprod._core.batch import Reservation
from aiokprod._wire.record_batch import HEADER_SIZE
from aiokprod.errors import (
    BufferFull,
    ConfigError,
    KafkaError,
    MetadataMissing,
    Outcome,
    RecordTooLarge,
)
from aiokprod.partitioners import choose

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiokprod._client.runtime import Runtime
    from aiokprod._client.serialization import RecordSerializers
    from aiokprod._core.append import AppendResult
    from aiokprod._core.batch import Delivery, RecordMetadata
    from aiokprod._engine.buffer.broker_memory_quota import QuotaWaiter
    from aiokprod.cluster import ClusterSnapshot
    from aiokprod.config import ProducerConfig
    from aiokprod.interceptors import InterceptorChain
    from aiokprod.partitioners import Partitioner
    from aiokprod.records import Header, ProducerRecord


_Payload = tuple["bytes | None", "bytes | None", "Sequence[Header]"]
"""Key, value and headers after serialization."""


class SlowPath:
    """Appends the records that the fast path does not accept.

    Args:
        started: returns the runtime of the started producer.
        partitioner: None for the built-in partitioner: by key, else sticky.
        check: raises if the producer has failed or was closed.
    """

    def __init__(
        self,
        config: ProducerConfig,
        started: Callable[[], Runtime],
        serializers: RecordSerializers,
        partitioner: Partitioner | None,
        interceptors: InterceptorChain | None,
        check: Callable[[], None],
    ) -> None:
        self._max_request_size = config.max_request_size
        self._buffer_memory = config.buffer_memory
        self._started = started
        self._serializers = serializers
        self._partitioner = partitioner
        self._interceptors = interceptors
        self._check = check

    @property
    def plain(self) -> bool:
        """True if there are no serializers: keys and values are bytes."""
        return self._serializers.plain

    async def admit(
        self,
        record: ProducerRecord[Any, Any],
        deadline: float,
        reservation: Reservation | None = None,
    ) -> Delivery:
        """Wait until the record is in a batch; returns its handle.

        If this raises, the record is not sent, with one exception: a record that was already in a
        batch and could not be withdrawn. Then `reservation`, if given, has its handle.

        Raises:
            ConfigError, SerializationError, RecordTooLarge: the record cannot be sent at all.
            MetadataTimeout, BufferTimeout: `deadline` (loop time) passed.
            KafkaError: of the topic or the producer.

        Cancellation: the record is not sent.
        """
        reservation = reservation or Reservation(self._started().memory)
        interceptors = self._interceptors
        if interceptors is not None:
            record = interceptors.on_send(record)
        try:
            delivery = await self._watched(record, deadline, reservation)
            if interceptors is not None:
                self._await_end(delivery)
            return delivery
        except BaseException as error:
            self._withdraw(record, reservation, error)
            raise

    def _withdraw(
        self, record: ProducerRecord[Any, Any], reservation: Reservation, error: BaseException
    ) -> None:
        """The call raises, possibly because of a signal handler after the append."""
        delivery = reservation.delivery
        if delivery is not None:
            delivery.cancel()  # interceptors with a hook are called by this
        if self._interceptors is not None and (delivery is None or not delivery.has_hook):
            self._tell_refused(record, error)

    def refuse(self, record: ProducerRecord[Any, Any], error: KafkaError) -> None:
        """Report a record to the interceptors that failed before it was appended.

        Args:
            error: has the record's topic and partition; an instance that no other record shares.
        """
        if self._interceptors is not None:
            self._tell_refused(self._interceptors.on_send(record), error)

    async def _watched(
        self, record: ProducerRecord[Any, Any], deadline: float, reservation: Reservation
    ) -> Delivery:
        """As `_admit`; if it fails, an open transaction can only be aborted."""
        try:
            return await self._admit(record, deadline, reservation)
        except KafkaError as error:
            refused = _located(error, record.topic, record.partition)
        try:
            self._started().state.gate.on_refused(refused)
            raise refused
        finally:
            del refused  # no cycle of error, traceback and frame

    def _tell_refused(self, record: ProducerRecord[Any, Any], error: BaseException) -> None:
        self._tell(record.topic, record.partition, None, error)

    def _await_end(self, delivery: Delivery) -> None:
        """Report the record's outcome to the interceptors. Keeps no reference to the record, since
        its memory is no longer accounted for."""
        delivery.set_hook(functools.partial(self._tell, delivery.topic, delivery.partition))

    def _tell(
        self,
        topic: str,
        partition: int | None,
        metadata: RecordMetadata | None,
        error: BaseException | None,
    ) -> None:
        assert self._interceptors is not None, "only called with interceptors"
        told = None
        if error is not None:
            told = _located(_as_kafka_error(error), topic, partition)
        self._interceptors.on_acknowledgement(metadata, told)

    async def _admit(
        self, record: ProducerRecord[Any, Any], deadline: float, reservation: Reservation
    ) -> Delivery:
        topic, partition = record.topic, record.partition
        await self._known(topic, partition, deadline)
        headers = list(record.headers or ())
        key, value = await self._serializers.serialize(record, headers)
        size = self._checked_size(topic, key, value, headers)
        return await self._place(record, (key, value, headers), size, deadline, reservation)

    async def _place(
        self,
        record: ProducerRecord[Any, Any],
        payload: _Payload,
        size: int,
        deadline: float,
        reservation: Reservation,
    ) -> Delivery:
        """Append the record once there is memory in the buffer and in the share of the partition's
        broker."""
        runtime = self._started()
        permit: QuotaWaiter | None = None
        try:
            while True:
                self._check()
                snapshot = runtime.metadata.lookup(record.topic, record.partition)
                over_quota = None
                runtime.state.gate.check_open()
                if snapshot is not None and (reservation.size or runtime.memory.has_room(size)):
                    result = self._append(record, snapshot, payload, reservation, permit)
                    if result.delivery is not None:
                        return result.delivery
                    over_quota = result.over_quota
                runtime.memory.give_back(reservation)
                if snapshot is None:  # the topic was removed during an await
                    if permit is not None:
                        runtime.quota.release(permit)
                    await self._known(record.topic, record.partition, deadline)
                elif over_quota is None:
                    await runtime.memory.reserve(size, reservation, deadline)
                else:
                    permit = await runtime.quota.wait(over_quota, deadline, permit)
        finally:
            runtime.memory.give_back(reservation)
            if permit is not None:
                runtime.quota.release(permit)

    async def _known(self, topic: str, partition: int | None, deadline: float) -> None:
        """Wait until topic and partition are in the metadata."""
        metadata = self._started().metadata
        try:
            if metadata.lookup(topic, partition) is None:
                await metadata.wait_for_topic(topic, partition, deadline=deadline)
            return
        except KafkaError as error:
            # The error concerns the topic; this record was not sent.
            refused = error.with_(outcome=Outcome.NOT_SENT)
        try:
            raise refused
        finally:
            del refused  # no cycle of error, traceback and frame

    def _append(
        self,
        record: ProducerRecord[Any, Any],
        snapshot: ClusterSnapshot,
        payload: _Payload,
        reservation: Reservation,
        permit: QuotaWaiter | None,
    ) -> AppendResult:
        """Choose the partition and append the record, without suspending."""
        runtime = self._started()
        runtime.state.gate.check_open()
        key, value, headers = payload
        partition = record.partition
        if partition is None and self._partitioner is not None:
            partition = choose(
                self._partitioner, record.topic, record.key, key, record.value, value, snapshot
            )
        slot = runtime.topic_slots.slot_of(record.topic, snapshot)
        return runtime.appender.append(
            slot, partition, value, key, record.timestamp_ms, headers, reservation, permit
        )

    def try_admit(self, record: ProducerRecord[Any, Any]) -> Delivery:
        """As `admit` but without waiting.

        Raises:
            MetadataMissing: the topic's metadata is not known yet; it was requested.
            BufferFull: there is not enough memory.
            ConfigError: a serializer is asynchronous.
        """
        if self._interceptors is not None:
            record = self._interceptors.on_send(record)
        reservation = Reservation(self._started().memory)
        try:
            delivery = self._try_admit(record, reservation)
            if delivery is None:
                raise BufferFull(
                    f"buffer_memory ({self._buffer_memory} bytes), or the part of it that one "
                    "broker may hold, is used up: wait, or shed load"
                )
            if self._interceptors is not None:
                self._await_end(delivery)
            return delivery
        except KafkaError as error:
            refused = _located(error, record.topic, record.partition)
        except BaseException as error:
            self._withdraw(record, reservation, error)
            raise
        try:
            self._withdraw(record, reservation, refused)
            self._started().state.gate.on_refused(refused)
            raise refused
        finally:
            del refused  # no cycle of error, traceback and frame

    def _try_admit(
        self, record: ProducerRecord[Any, Any], reservation: Reservation
    ) -> Delivery | None:
        runtime = self._started()
        snapshot = runtime.metadata.lookup(record.topic, record.partition)
        if snapshot is None:
            runtime.metadata.request_topic(record.topic, runtime.loop.time())
            raise MetadataMissing(
                f"the metadata of topic {record.topic} are not known yet; they are being fetched: "
                "try again later, or `await producer.warm([topic])` first"
            )
        headers = list(record.headers or ())
        key, value = self._serializers.serialize_now(record, headers)
        self._checked_size(record.topic, key, value, headers)
        return self._append(record, snapshot, (key, value, headers), reservation, None).delivery

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


def _located(error: KafkaError, topic: str, partition: int | None) -> KafkaError:
    """The error with topic and partition of its record, unless it has them already."""
    return error if error.topic is not None else error.with_(topic=topic, partition=partition)


def _as_kafka_error(error: BaseException) -> KafkaError:
    """The error for interceptors; an exception other than `KafkaError` becomes one, NOT_SENT."""
    if isinstance(error, KafkaError):
        return error
    what = (
        "the send was cancelled before the record left"
        if isinstance(error, asyncio.CancelledError)
        else f"{type(error).__name__} while the record was being prepared"
    )
    own = KafkaError(what, outcome=Outcome.NOT_SENT)
    own.__cause__ = error
    return own
