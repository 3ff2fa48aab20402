"""Sends single records that the compiled fast path has not appended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiokprod._client.record_serializers import close_coroutines
from aiokprod._client.validation import check_on_delivery, checked_record
from aiokprod._client.waiting import reason_of_partition
from aiokprod._core.batch import report_withdrawals_with
from aiokprod._core.memory import Reservation
from aiokprod.errors import DeliveryTimeout, KafkaError, Outcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiokprod._client.lifecycle import Lifecycle
    from aiokprod._client.record_future import RecordFuture
    from aiokprod._client.runtime import Runtime
    from aiokprod._client.slow_path import SlowPath
    from aiokprod._core.batch import Delivery
    from aiokprod._core.serialization import SerializedRecord
    from aiokprod.records import RecordMetadata

    OnDelivery = Callable[[RecordMetadata | None, KafkaError | None], object]


def _withdrawn(message: str, topic: str, partition: int) -> KafkaError:
    return KafkaError(message, outcome=Outcome.NOT_SENT).with_(topic=topic, partition=partition)


report_withdrawals_with(_withdrawn)


def late_error(delivery: Delivery, timeout: float, reason: str) -> DeliveryTimeout:
    """Return the error of a call whose `timeout` (seconds) has passed and which has cancelled the
    record's handle.

    Args:
        reason: a description of the cause of the delay.
    """
    withdrawn = delivery.withdrawn
    return DeliveryTimeout(
        f"{delivery.topic}-{delivery.partition}: no acknowledgment within the timeout of "
        f"{timeout} s: {reason}; the record "
        + ("was withdrawn and is not in the log" if withdrawn else "may be in the log"),
        outcome=Outcome.NOT_SENT if withdrawn else Outcome.UNKNOWN,
    )


class RecordSubmitter:
    """Checks a record's arguments and sends the record by the slow path.

    `fields` are the positional arguments of `append`: those of `Producer.send` in its order (topic,
    value, key, partition, timestamp_ms, headers), then `serialized` and `on_delivery`.
    """

    def __init__(self, lifecycle: Lifecycle, slow_path: SlowPath, max_block: float) -> None:
        self._lifecycle = lifecycle
        self._slow_path = slow_path
        self._max_block = max_block

    def submit(self, *fields: Any) -> Awaitable[Delivery]:
        """The slow path of `Producer.submit`.

        Raises:
            WrongLoop: at the call, not at the await. A coroutine that was created in another thread
                might never run, and its record would be lost without an error.
        """
        self._lifecycle.check_loop_and_process(running=True)
        return self._append_and_yield(*fields)

    async def _append_and_yield(self, *fields: Any) -> Delivery:
        """Like `append`, but yield to the event loop at the end of a time slice: the caller may
        send many records without waiting."""
        delivery = await self.append(*fields)
        if self._lifecycle.started().yield_queue.slice_is_over():
            await asyncio.sleep(0)
        return delivery

    async def append(
        self,
        topic: Any,
        value: Any,
        key: Any,
        partition: Any,
        timestamp_ms: Any,
        headers: Any,
        serialized: SerializedRecord | None = None,
        on_delivery: OnDelivery | None = None,
        *,
        block: float | None = None,
        any_transaction: bool = False,
    ) -> Delivery:
        """Append a record to a batch. Wait at most `block` seconds, and at most max_block_ms,
        including the time of asynchronous serializers.

        Args:
            serialized: the results of the user code that the fast path has called, or None.
            any_transaction: see `SlowPath.append`.

        Cancellation: the record is not sent.
        """
        try:
            runtime = self._runtime_for_sending(topic, partition, serialized)
            record = checked_record(topic, value, key, partition, timestamp_ms, headers)
            check_on_delivery("submit", on_delivery)
            block = self._max_block if block is None else min(block, self._max_block)
            deadline = runtime.loop.time() + block
            reservation = Reservation(runtime.memory)
            reservation.on_delivery = on_delivery
            return await self._slow_path.append(
                record, deadline, reservation, serialized, any_transaction=any_transaction
            )
        finally:
            close_coroutines(serialized)

    def _runtime_for_sending(
        self, topic: Any, partition: Any, serialized: SerializedRecord | None
    ) -> Runtime:
        """Like `Lifecycle.runtime_for_sending`. If the fast path has called user code, which may
        have closed the producer, an error is also reported to the hooks."""
        try:
            return self._lifecycle.runtime_for_sending()
        except KafkaError as error:
            if serialized is not None:
                self._slow_path.report_refused(topic, partition, serialized, error)
            raise

    def try_append(
        self,
        topic: Any,
        value: Any,
        key: Any,
        partition: Any,
        timestamp_ms: Any,
        headers: Any,
        serialized: SerializedRecord | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """The slow path of `Producer.try_submit`; see `append`."""
        try:
            record = checked_record(topic, value, key, partition, timestamp_ms, headers)
            return self._slow_path.try_append(record, serialized, on_delivery)
        finally:
            close_coroutines(serialized)

    def timed_out(self, delivery: Delivery, timeout: float) -> DeliveryTimeout:
        """Return the error of `send` after its timeout, and report it."""
        runtime = self._lifecycle.started()
        queue = runtime.accumulator.known_queue(delivery.topic, delivery.partition)
        reason = (
            "the topic is no longer in use"
            if queue is None
            else reason_of_partition(runtime, queue, runtime.loop.time())
        )
        late = late_error(delivery, timeout, reason)
        runtime.state.gate.on_refused(late)
        if delivery.withdrawn:
            runtime.observer.on_record_refused(late)
        return late

    async def late(self, record: RecordFuture, timeout: float) -> DeliveryTimeout:
        """Like `timed_out`, for a record that another thread has sent and cancelled."""
        for _ in range(2):  # `cancel` may take two iterations if the record is being appended
            await asyncio.sleep(0)
        if record.delivery is not None:
            return self.timed_out(record.delivery, timeout)
        late = DeliveryTimeout(
            f"{record.topic}: the record still waited for metadata or memory after the timeout of "
            f"{timeout} s; it was withdrawn and is not in the log",
            outcome=Outcome.NOT_SENT,
        )
        self._lifecycle.started().state.gate.on_refused(late)
        return late
