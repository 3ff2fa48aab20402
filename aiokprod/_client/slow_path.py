"""The slow path of a record, for records that need Python code, a wait or an error message.

`RecordSubmitter` has already checked the arguments. The order is: interceptors, metadata,
serializers, plug-ins, size check. One final step, without suspension, checks the state of the
producer and the memory, calls the partitioner and appends the record. If metadata, memory or room
in the broker's share of the buffer is missing, the step is repeated after a wait. No memory is held
during the wait. The partitioner may therefore be called more than once for a record.

Source: Java `KafkaProducer.doSend`, which calls the partitioner before it checks the size.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from aiokprod._client.record_hooks import located
from aiokprod._core.memory import Reservation
from aiokprod._core.record_fields import DELIVERY_CHARGE, record_size_bound
from aiokprod._core.serialization import SerializedRecord
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
    from collections.abc import Callable, Iterator, Sequence

    from aiokprod._client.record_hooks import RecordHooks
    from aiokprod._client.record_serializers import RecordSerializers
    from aiokprod._client.runtime import Runtime
    from aiokprod._core.append import AppendResult
    from aiokprod._core.batch import Delivery
    from aiokprod._core.hooks import HookedRecord
    from aiokprod._engine.buffer.broker_memory_quota import QuotaWaiter
    from aiokprod.cluster import ClusterSnapshot
    from aiokprod.config import ProducerConfig
    from aiokprod.observer import WaitReason
    from aiokprod.partitioners import Partitioner
    from aiokprod.records import Header, ProducerRecord


_Payload = tuple["bytes | None", "bytes | None", "Sequence[Header]"]
"""Value, key and headers after serialization."""


class SlowPath:
    """Appends the records that the fast path does not accept.

    Args:
        started: returns the runtime of the started producer.
        partitioner: None for the built-in partitioner: by key, or sticky without a key.
        check: raises if the producer has failed or was closed.
    """

    def __init__(
        self,
        config: ProducerConfig,
        started: Callable[[], Runtime],
        serializers: RecordSerializers,
        partitioner: Partitioner | None,
        hooks: RecordHooks,
        check: Callable[[], None],
    ) -> None:
        self._max_request_size = config.max_request_size
        self._buffer_memory = config.buffer_memory
        self._started = started
        self._serializers = serializers
        self._partitioner = partitioner
        self._hooks = hooks
        self._check = check

    @property
    def plain(self) -> bool:
        """True if there are no serializers, so keys and values must be bytes."""
        return self._serializers.plain

    @property
    def serialized_parts(self) -> list[str]:
        """The parts ("key", "value") that a serializer converts."""
        serializers = {"key": self._serializers.key, "value": self._serializers.value}
        return [role for role, one in serializers.items() if not one.passthrough]

    async def append(
        self,
        record: ProducerRecord[Any, Any],
        deadline: float,
        reservation: Reservation | None = None,
        serialized: SerializedRecord | None = None,
        *,
        any_transaction: bool = False,
    ) -> Delivery:
        """Wait until the record is in a batch, and return its handle.

        If the call raises, the record is not sent, unless it was already in a batch and could not
        be withdrawn. In that case `reservation`, if given, holds its handle.

        Args:
            serialized: the results of the user code that the fast path has called, or None.
            any_transaction: the record may be appended to a transaction that begins during the
                wait.

        Raises:
            ConfigError, SerializationError, RecordTooLarge: the record cannot be sent at all.
            MetadataTimeout, BufferTimeout: `deadline` (loop time) passed.
            TransactionError: no transaction is open, or another transaction has begun.
            KafkaError: an error of the topic or of the producer.

        Cancellation: the record is not sent.
        """
        reservation = reservation or Reservation(self._started().memory)
        serialized = serialized or SerializedRecord()
        # Before user code is called, which may end the transaction.
        transaction = None if any_transaction else self._started().state.gate.transaction
        record = self._intercepted(record, serialized)
        try:
            return await self._watched(record, deadline, reservation, serialized, transaction)
        except BaseException as error:
            self._withdraw(record, serialized, reservation, error)
            raise

    def _intercepted(
        self, record: ProducerRecord[Any, Any], serialized: SerializedRecord
    ) -> ProducerRecord[Any, Any]:
        """Return the record as returned by the interceptors."""
        if serialized.hooked is None:
            serialized.hooked = self._hooks.start(record)
        hooked = serialized.hooked
        return record if hooked is None or hooked.record is None else hooked.record

    def _withdraw(
        self,
        record: ProducerRecord[Any, Any],
        serialized: SerializedRecord,
        reservation: Reservation,
        error: BaseException,
    ) -> None:
        """Undo a call that failed. If the record was appended before a signal handler raised, it is
        withdrawn. Otherwise it is reported as refused."""
        if reservation.delivery is not None:
            reservation.delivery.cancel()  # the hooks get the withdrawal or the batch's outcome
        else:
            self._hooks.refused(record.topic, record.partition, serialized, error)

    def report_refused(
        self,
        topic: str,
        partition: int | None,
        serialized: SerializedRecord,
        error: BaseException,
    ) -> None:
        """Report a record that failed after the fast path had called user code for it."""
        if serialized.hooked is not None:
            topic, partition = serialized.hooked.topic, serialized.hooked.partition
        self._hooks.refused(topic, partition, serialized, error)

    def refuse(
        self,
        record: ProducerRecord[Any, Any],
        error: KafkaError,
        serialized: SerializedRecord | None = None,
    ) -> None:
        """Report a record that failed before it was appended.

        Args:
            error: has the record's topic and partition; an instance that no other record shares.
            serialized: see `append`.
        """
        serialized = serialized or SerializedRecord()
        record = self._intercepted(record, serialized)
        self._hooks.refused(record.topic, record.partition, serialized, error)

    async def _watched(
        self,
        record: ProducerRecord[Any, Any],
        deadline: float,
        reservation: Reservation,
        serialized: SerializedRecord,
        transaction: object | None,
    ) -> Delivery:
        """Like `_serialize_and_append`, but also report an error to the transaction."""
        try:
            return await self._serialize_and_append(
                record, deadline, reservation, serialized, transaction
            )
        except KafkaError as error:
            refused = located(error, record.topic, record.partition)
        try:
            self._started().state.gate.on_refused(refused, transaction=transaction)
            raise refused
        finally:
            del refused  # avoid a reference cycle of error, traceback and frame

    async def _serialize_and_append(
        self,
        record: ProducerRecord[Any, Any],
        deadline: float,
        reservation: Reservation,
        serialized: SerializedRecord,
        transaction: object | None,
    ) -> Delivery:
        topic, partition = record.topic, record.partition
        await self._known(topic, partition, deadline)
        self._start_serializers(record, serialized)
        value, key = await self._serializers.finish(record, serialized, deadline)
        payload = self._payload(value, key, serialized)
        size = self._checked_size(topic, *payload)
        return await self._append_with_memory(
            record, payload, size, deadline, reservation, serialized.hooked, transaction
        )

    def _start_serializers(
        self, record: ProducerRecord[Any, Any], serialized: SerializedRecord
    ) -> None:
        if not serialized.is_started:
            self._serializers.start(record, serialized)
            if serialized.hooked is not None:
                serialized.hooked.headers = serialized.headers or ()

    @staticmethod
    def _payload(value: bytes | None, key: bytes | None, serialized: SerializedRecord) -> _Payload:
        """Return value, key and headers, with the headers that the plug-ins added."""
        headers = serialized.headers or ()
        if serialized.hooked is not None:
            headers = serialized.hooked.append_headers(value, key, headers) or ()
        return value, key, headers

    async def _append_with_memory(
        self,
        record: ProducerRecord[Any, Any],
        payload: _Payload,
        size: int,
        deadline: float,
        reservation: Reservation,
        hooked: HookedRecord | None,
        transaction: object | None,
    ) -> Delivery:
        """Append the record once there is room in the buffer and in the broker's share of it."""
        runtime = self._started()
        permit: QuotaWaiter | None = None
        try:
            while True:
                self._check()
                snapshot = runtime.metadata.lookup(record.topic, record.partition)
                over_quota = None
                runtime.state.gate.check_open()
                runtime.state.gate.check_same(transaction)
                if snapshot is not None and (reservation.size or runtime.memory.has_room(size)):
                    result = self._append(record, snapshot, payload, reservation, permit, hooked)
                    if result.delivery is not None:
                        return result.delivery
                    over_quota = result.over_quota
                runtime.memory.give_back(reservation)
                if snapshot is None:  # the topic was removed during an await
                    if permit is not None:
                        runtime.quota.release(permit)
                    await self._known(record.topic, record.partition, deadline)
                else:
                    with self._waiting(record.topic, "buffer"):
                        if over_quota is None:
                            await runtime.memory.reserve(size, reservation, deadline)
                        else:
                            permit = await runtime.quota.wait(over_quota, deadline, permit)
        finally:
            runtime.memory.give_back(reservation)
            if permit is not None:
                runtime.quota.release(permit)

    @contextlib.contextmanager
    def _waiting(self, topic: str, reason: WaitReason) -> Iterator[None]:
        """Report the duration of a wait to the observer, even if the wait fails."""
        runtime = self._started()
        start = runtime.loop.time()
        try:
            yield
        finally:
            runtime.observer.on_admission_wait(topic, reason, runtime.loop.time() - start)

    async def _known(self, topic: str, partition: int | None, deadline: float) -> None:
        """Wait until topic and partition are in the metadata."""
        metadata = self._started().metadata
        try:
            if metadata.lookup(topic, partition) is None:
                with self._waiting(topic, "metadata"):
                    await metadata.wait_for_topic(topic, partition, deadline=deadline)
            return
        except KafkaError as error:
            # The error concerns the topic and may have another outcome, but this record was not
            # sent.
            refused = error.with_(outcome=Outcome.NOT_SENT)
        try:
            raise refused
        finally:
            del refused  # avoid a reference cycle of error, traceback and frame

    def _append(
        self,
        record: ProducerRecord[Any, Any],
        snapshot: ClusterSnapshot,
        payload: _Payload,
        reservation: Reservation,
        permit: QuotaWaiter | None,
        hooked: HookedRecord | None,
    ) -> AppendResult:
        """Choose the partition and append the record, without suspending."""
        runtime = self._started()
        runtime.state.gate.check_open()
        value, key, headers = payload
        partition = record.partition
        if partition is None and self._partitioner is not None:
            partition = choose(
                self._partitioner, record.topic, record.key, key, record.value, value, snapshot
            )
        slot = runtime.topic_slots.slot_of(record.topic, snapshot)
        return runtime.appender.append(
            slot, partition, value, key, record.timestamp_ms, headers, reservation, permit, hooked
        )

    def try_append(
        self,
        record: ProducerRecord[Any, Any],
        serialized: SerializedRecord | None = None,
        on_delivery: Callable[..., object] | None = None,
    ) -> Delivery:
        """Like `append`, but do not wait.

        Raises:
            MetadataMissing: the topic's metadata is not known yet, and was requested.
            BufferFull: the buffer, or the broker's share of it, has no room.
            ConfigError: a serializer is asynchronous.
        """
        serialized = serialized or SerializedRecord()
        record = self._intercepted(record, serialized)
        reservation = Reservation(self._started().memory)
        reservation.on_delivery = on_delivery
        try:
            return self._try_watched(record, reservation, serialized)
        except BaseException as error:
            self._withdraw(record, serialized, reservation, error)
            raise

    def _try_watched(
        self,
        record: ProducerRecord[Any, Any],
        reservation: Reservation,
        serialized: SerializedRecord,
    ) -> Delivery:
        """Like `_watched`, but do not wait."""
        try:
            delivery = self._try_serialize_and_append(record, reservation, serialized)
            if delivery is None:
                raise BufferFull(
                    f"buffer_memory ({self._buffer_memory} bytes), or the part of it that one "
                    "broker may hold, is used up: wait, or shed load"
                )
            return delivery
        except KafkaError as error:
            refused = located(error, record.topic, record.partition)
        try:
            self._started().state.gate.on_refused(refused)
            raise refused
        finally:
            del refused  # avoid a reference cycle of error, traceback and frame

    def _try_serialize_and_append(
        self,
        record: ProducerRecord[Any, Any],
        reservation: Reservation,
        serialized: SerializedRecord,
    ) -> Delivery | None:
        runtime = self._started()
        snapshot = runtime.metadata.lookup(record.topic, record.partition)
        if snapshot is None:
            runtime.metadata.request_topic(record.topic, runtime.loop.time())
            missing = f"topic {record.topic}"
            if runtime.metadata.lookup(record.topic) is not None:
                missing = f"partition {record.partition} of {missing}"
            raise MetadataMissing(
                f"the metadata of {missing} is not known yet and is being fetched: try again "
                "later, or `await producer.warm([topic])` first"
            )
        self._start_serializers(record, serialized)
        value, key = self._serializers.finish_now(serialized)
        payload = self._payload(value, key, serialized)
        self._checked_size(record.topic, *payload)
        result = self._append(record, snapshot, payload, reservation, None, serialized.hooked)
        if result.delivery is None and result.over_quota is None:
            runtime.memory.on_refused()
        return result.delivery

    def _checked_size(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[Header] | None,
    ) -> int:
        try:
            size = record_size_bound(value, key, headers)
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
