"""The loops that drive an asyncio client. They are the same for every client.

The loops avoid overhead: they do not count records or read a clock per record where that would be a
large part of the measured time.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from array import array
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.case import BY_FUNCTION, Case
from benchmarks.payloads import CHUNK, Header, Payloads

Call = Callable[..., Awaitable[Any]]

TIMER_GRAIN: Final = 0.002
"""Seconds by which timers of a loop are always late, because their resolution is a millisecond."""


@dataclass
class Limit:
    """Stops a run after a number of records or seconds, whichever comes first.

    Attributes:
        started: wall-clock time at the start, s.
        used: CPU time of this process at the start, s.
    """

    records: int
    seconds: float
    started: float = field(default_factory=time.perf_counter)
    used: float = field(default_factory=time.process_time)

    def restart(self) -> None:
        """Restart the clocks after the warm-up."""
        self.started, self.used = time.perf_counter(), time.process_time()

    @property
    def reached(self) -> bool:
        return time.perf_counter() >= self.started + self.seconds


def bind(call: Call, topic: str, headers: list[Header] | None) -> Callable[..., Awaitable[Any]]:
    """Return a function of (value) or (value, key) that calls `call` with the topic and headers."""
    if headers is not None:
        return lambda value, key=None: call(topic, value, key=key, headers=headers)
    return lambda value, key=None: call(topic, value, key=key)


async def fire(submit: Call, topic: str, case: Case, payloads: Payloads, limit: Limit) -> int:
    """Run tasks that submit their shares without waiting for acknowledgments, then await them.
    Return the number of records."""
    if case.settle in BY_FUNCTION:
        return await _fire_with_callbacks(submit, topic, case, payloads, limit)
    share, more = divmod(limit.records, case.tasks)
    shares = [share + (number < more) for number in range(case.tasks)]
    chunk, headers = payloads.chunk(), payloads.headers

    async def task(share: int) -> int:
        chunks: deque[list[Any]] = deque()
        sent = 0
        keys = payloads.endless_keys()
        while sent < share and not limit.reached:
            size = min(CHUNK, share - sent)
            sent += size
            values = chunk if size == CHUNK else chunk[:size]
            records = zip(values, keys, strict=False)
            if headers is not None:
                chunks.append([await submit(topic, v, key=k, headers=headers) for v, k in records])
            elif payloads.keys is not None:
                chunks.append([await submit(topic, v, key=k) for v, k in records])
            else:
                chunks.append([await submit(topic, value) for value in values])
        if case.settle == "gather":
            await asyncio.gather(*itertools.chain(*chunks))
        elif case.settle == "each":
            await _settle(chunks)
        return sent

    if case.tasks == 1:
        return await task(shares[0])
    tasks = [asyncio.create_task(task(share)) for share in shares]  # they start at the `await`
    limit.restart()
    return sum(await asyncio.gather(*tasks))


async def _fire_with_callbacks(
    submit: Call, topic: str, case: Case, payloads: Payloads, limit: Limit
) -> int:
    """Submit from one task, and count outcomes in a callback. The last outcome ends the run."""
    sent = settled = 0
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_done(handle: Any) -> None:
        on_delivery(None, handle.exception())

    def on_delivery(metadata: Any, error: BaseException | None) -> None:
        nonlocal settled
        settled += 1
        if error is not None and not ended.done():
            ended.set_exception(error)
        if settled == sent and is_complete and not ended.done():
            ended.set_result(None)

    is_complete = False
    chunk = payloads.chunk()
    while sent < limit.records and not limit.reached:
        size = min(CHUNK, limit.records - sent)
        if case.settle == "on_delivery":
            for value in chunk[:size]:
                await submit(topic, value, on_delivery=on_delivery)
        else:
            for value in chunk[:size]:
                (await submit(topic, value)).add_done_callback(on_done)
        sent += size
    is_complete = True
    if settled == sent and not ended.done():
        ended.set_result(None)
    await ended
    return sent


async def _settle(chunks: deque[list[Any]]) -> None:
    """Await every handle. An await of a finished handle does not suspend the task, and freeing
    millions of handles blocks the loop, so the loop runs after each chunk."""
    while chunks:
        for handle in chunks.popleft():
            await handle
        await asyncio.sleep(0)


async def request(
    send: Call, topic: str, case: Case, payloads: Payloads, limit: Limit, latencies: array[float]
) -> int:
    """Run tasks that have one record in flight at a time. Return the number of records."""
    call = bind(send, topic, payloads.headers)
    clock = time.perf_counter
    stop = limit.started + limit.seconds
    values = payloads.endless()
    records = itertools.islice(zip(values, payloads.endless_keys(), strict=False), limit.records)

    async def task() -> None:
        started = clock()
        for value, key in records:
            await call(value, key)
            done = clock()
            latencies.append(done - started)
            if done >= stop:
                return
            started = done

    await asyncio.gather(*(task() for _ in range(case.tasks)))
    return len(latencies)


async def paced(
    send: Call, topic: str, case: Case, payloads: Payloads, limit: Limit, latencies: array[float]
) -> int:
    """Send records at a fixed rate, each from a separate task. Return the number of records.

    A latency is measured from the time at which the record was due, so that it includes the delay
    of a client that falls behind. Delays within the resolution of timers are ignored.
    """
    call = bind(send, topic, payloads.headers)
    clock = time.perf_counter
    total = min(limit.records, max(1, int(case.rate * limit.seconds)))
    values = itertools.islice(payloads.endless(), total)
    keys = payloads.endless_keys()

    async def serve(value: bytes, key: bytes | None, due: float) -> None:
        await call(value, key)
        latencies.append(clock() - due)

    arrived = 0
    async with asyncio.TaskGroup() as group:
        for value, key in zip(values, keys, strict=False):
            due = limit.started + arrived / case.rate
            if (ahead := due - clock()) > 0:
                await asyncio.sleep(ahead)
            now = clock()
            group.create_task(serve(value, key, due if now - due > TIMER_GRAIN else now))
            arrived += 1
            if not arrived & 63:
                await asyncio.sleep(0)
    return arrived
