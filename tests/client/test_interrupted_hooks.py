"""Exceptions of signal handlers, and MemoryError, between an append and the steps that complete it,
and before the wait for a serializer."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable
from typing import Any

import pytest

from aiokprod import BulkProgress, ProducerRecord
from aiokprod._client.send_many import BulkSender
from aiokprod._core.batch import Delivery
from aiokprod._core.bulk_append import RecordSource, append_records
from aiokprod._core.serialization import SerializedRecord
from aiokprod.errors import KafkaError, Outcome, SerializationError
from aiokprod.serializers import adapt
from aiokprod.testing.virtual import run
from tests.client.test_misbehaving_hooks import Interceptor, producing
from tests.scenarios.scenario_helpers import runtime_of
from tests.simulation.call_interrupts import Injector, Interrupt, TimeUp, stepped

pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")

MOST = 4_000
"""An upper bound of the bytecodes in a call."""
STRIDE = 5
"""Bytecodes between two exceptions. The code between two appends takes more bytecodes than this."""


def striking(step: int, error: type[BaseException]) -> Injector:
    """Return an injector that raises `error` at bytecode number `step`."""

    def strike() -> None:
        raise error

    return Injector(step, strike)


async def submitted_at(step: int, call: str) -> bool:
    """Interrupt a call with `on_delivery`. Return False if the call took fewer bytecodes."""
    cluster, producer = await producing(fast=False)
    seen: list[Any] = []
    options: dict[str, Any] = {
        "on_delivery": lambda metadata, error: seen.append((metadata, error))
    }
    injector = striking(step, TimeUp)

    async def send() -> None:
        with contextlib.suppress(TimeUp, KafkaError):
            if call == "try_submit":
                with injector.armed():
                    producer.try_submit("t", b"v", **options)
            else:
                await stepped(producer.submit("t", b"v", **options), injector)

    await asyncio.create_task(send())
    await producer.close()
    await asyncio.sleep(0)
    if cluster.values("t", 0):
        [(metadata, error)] = seen
        assert (metadata.offset, error) == (0, None)
    else:
        assert [error.outcome for _, error in seen] in ([], [Outcome.NOT_SENT])
    return injector.has_struck


@pytest.mark.parametrize("call", ["try_submit", "submit"])
def test_on_delivery_is_called_for_each_record_in_a_batch(call: str) -> None:
    async def main() -> None:
        for step in range(1, MOST, STRIDE):
            if not await submitted_at(step, call):
                assert step > 100, "the tracer saw the call"
                return
        raise AssertionError("the call never ends")

    run(main, debug=False)


async def bulk_at(step: int) -> bool:
    """Interrupt a `send_many`. Return False if the call took fewer bytecodes."""
    cluster, producer = await producing(fast=False)
    progress = BulkProgress()
    injector = striking(step, Interrupt)

    async def send() -> None:
        with contextlib.suppress(Interrupt):
            sending = producer.send_many("t", [b"0", b"1"], progress=progress)
            await stepped(sending, injector)

    await asyncio.create_task(send())
    if progress._call is not None and not progress._call.is_running:
        result = await progress.result()
        good = [offset for offset in result.offsets if offset is not None]
        assert len(good) == len(cluster.values("t", 0)), step
        assert result.interrupted is not None or len(result) == 2
    await producer.close()
    return injector.has_struck


def test_progress_has_each_record_that_is_in_a_batch() -> None:
    async def main() -> None:
        for step in range(1, MOST, STRIDE):
            if not await bulk_at(step):
                assert step > 100, "the tracer saw the call"
                return
        raise AssertionError("the call never ends")

    run(main, debug=False)


class Asynchronous:
    """A serializer whose result and whose preparation must be awaited."""

    async def serialize(self, topic: str, headers: Any, data: str) -> bytes:
        await asyncio.sleep(0)
        return data.encode()

    async def warm(self, topic: str) -> None:
        await asyncio.sleep(0)


async def awaited_at(step: int, call: str) -> tuple[type[Exception] | None, bool]:
    """Interrupt a call that waits for a serializer. Return how the call ended, and whether it took
    this many bytecodes."""
    bound = adapt(Asynchronous(), "value")
    waiting: Awaitable[object]
    if call == "warm":
        waiting = bound.warm("t", math.inf)
    else:
        pending = bound("t", (), "v")
        assert isinstance(pending, Awaitable)
        waiting = bound.finish("t", "v", pending, math.inf)
    injector = striking(step, TimeUp)
    try:
        assert await stepped(waiting, injector) == (b"v" if call == "finish" else None)
    except TimeUp:
        return TimeUp, injector.has_struck
    except SerializationError as error:
        is_chained = isinstance(error.__cause__, TimeUp)
        return SerializationError if is_chained else KafkaError, injector.has_struck
    return None, injector.has_struck


@pytest.mark.parametrize("call", ["finish", "warm"])
def test_exception_of_a_signal_handler_before_the_wait_for_a_serializer_is_raised_as_it_is(
    call: str,
) -> None:
    async def main() -> None:
        ends: list[type[Exception] | None] = []
        for step in range(1, MOST):
            end, has_struck = await awaited_at(step, call)
            if not has_struck:
                assert end is None
                break
            ends.append(end)
        # From here on, the call is interrupted within the wait.
        before = ends.index(SerializationError)
        assert ends[:before] == [TimeUp] * before
        assert set(ends[before:]) == {SerializationError}
        assert before > 5, "the tracer saw the call"

    run(main, debug=False)


def test_record_that_hooks_have_seen_is_not_sent_again_if_it_cannot_be_tracked() -> None:
    """The allocation that tracks the record failed after the append."""
    testcapi = pytest.importorskip("_testcapi")

    async def main() -> None:
        for start in range(1_000):
            interceptor = Interceptor()
            cluster, producer = await producing(fast=True, interceptors=[interceptor])
            await producer.send("t", b"first")
            runtime = runtime_of(producer)
            sender = BulkSender(runtime, producer._slow_path, lambda: None, 0.1)
            source = RecordSource(iter([ProducerRecord("t", b"v")]), ProducerRecord)
            found: Any = None
            testcapi.set_nomemory(start, start + 1)
            try:
                found = append_records(runtime.appender, sender.tracker, source)
            except MemoryError:
                pass
            finally:
                testcapi.remove_mem_hooks()
            with sender.awaiting():
                if source.has_record:
                    await sender._record(0, source.take(), found)
                elif not source.ended:
                    await sender._advance_records(source)
                result = await sender._finish()
            await producer.close()
            if source.failure is None:  # the record was read
                assert len(interceptor.sent) <= len(interceptor.ended) == 2
                assert len(cluster.values("t", 0)) == 2
                assert result.ok
            if isinstance(found, Delivery):  # this was the last allocation of the call
                return
        raise AssertionError("no allocation after the append failed")

    run(main, debug=False)


def test_row_that_cannot_be_read_again_is_reported_to_the_hooks_that_have_seen_it() -> None:
    class Chunk:
        """A chunk whose row cannot be read for lack of memory."""

        def row(self, index: int) -> Any:
            raise MemoryError

    async def main() -> None:
        interceptor = Interceptor()
        _, producer = await producing(fast=True, interceptors=[interceptor])
        async with producer:
            serialized = SerializedRecord()
            serialized.hooked = producer._hooks.start(ProducerRecord("t", b"v"))
            sender: Any = producer.table_sender()
            await sender._row(Chunk(), "t", 0, serialized)
            [(_, error, _)] = interceptor.ended
            assert error.outcome is sender.refused[0].outcome is Outcome.NOT_SENT
            assert error.topic == "t"

    run(main)
