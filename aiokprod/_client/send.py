"""The calls that send one record, where the compiled fast path has not taken it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiokprod._client.validation import check_timeout, checked_record
from aiokprod.errors import DeliveryTimeout, Outcome

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from aiokprod._client.lifecycle import Lifecycle
    from aiokprod._client.slow_path import SlowPath
    from aiokprod._core.batch import Delivery
    from aiokprod.records import RecordMetadata


class RecordSender:
    """Checks a record's arguments and sends it by the slow path.

    Arguments named `fields` are those of `Producer.send` in its order: topic, value, key,
    partition, timestamp_ms, headers.
    """

    def __init__(self, lifecycle: Lifecycle, slow_path: SlowPath, max_block: float) -> None:
        self._lifecycle = lifecycle
        self._slow_path = slow_path
        self._max_block = max_block

    def submit(self, *fields: Any) -> Awaitable[Delivery]:
        """The slow path of `Producer.submit`.

        Raises WrongLoop at the call: a coroutine that was created in another thread would never
        run, and the record would be lost without an error.
        """
        self._lifecycle.check_place(running=True)
        return self.admit(*fields)

    async def admit(
        self,
        topic: Any,
        value: Any,
        key: Any,
        partition: Any,
        timestamp_ms: Any,
        headers: Any,
        *,
        block: float | None = None,
    ) -> Delivery:
        """Wait at most `block` seconds, and at most max_block_ms, until the record is in a
        batch."""
        runtime = self._lifecycle.accepting()
        record = checked_record(topic, value, key, partition, timestamp_ms, headers)
        block = self._max_block if block is None else min(block, self._max_block)
        delivery = await self._slow_path.admit(record, runtime.loop.time() + block)
        if runtime.yield_queue.slice_is_over():
            await asyncio.sleep(0)
        return delivery

    def try_admit(self, *fields: Any) -> Delivery:
        """The slow path of `Producer.try_submit`."""
        return self._slow_path.try_admit(checked_record(*fields))

    async def send_within(self, timeout: float, *fields: Any) -> RecordMetadata:
        """See `Producer.send` with a timeout. Never uses the fast path."""
        check_timeout("send", timeout, zero=False)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        delivery = await self.admit(*fields, block=timeout)
        expired = False
        task = asyncio.current_task()
        cancelling = 0 if task is None else task.cancelling()

        def give_up() -> None:
            nonlocal expired
            expired = delivery.cancel()

        timer = loop.call_at(deadline, give_up)
        try:
            metadata: RecordMetadata = await delivery
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not expired or (task is not None and task.cancelling() > cancelling):
                raise
            withdrawn = delivery.withdrawn
            late = DeliveryTimeout(
                f"{delivery.topic}-{delivery.partition}: no acknowledgment within the timeout of "
                f"{timeout} s; the record "
                + ("was withdrawn and is not in the log" if withdrawn else "may be in the log"),
                outcome=Outcome.NOT_SENT if withdrawn else Outcome.UNKNOWN,
            )
            self._lifecycle.started().state.gate.on_refused(late)
            raise late from None
        finally:
            timer.cancel()
        return metadata
