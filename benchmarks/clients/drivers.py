"""The loops around an asyncio client, the same for every one of them.

Only what the client needs is inside: no counting and no clock per record where it would be a good
part of what is measured.
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

from benchmarks.case import Case
from benchmarks.payloads import CHUNK, Header, Payloads

Call = Callable[..., Awaitable[Any]]

TIMER_GRAIN: Final = 0.002
"""Seconds by which a loop's timers are late by themselves: milliseconds are their unit."""


@dataclass
class Limit:
    """Stops a run after a number of records or seconds, whichever is first. Starts the clocks.

    Attributes:
        started: reading of the wall clock, s.
        used: processor time of this process by then, s.
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
    """`call` for one topic as (value) or (value, key), with headers if there are any."""
    if headers is not None:
        return lambda value, key=None: call(topic, value, key=key, headers=headers)
    return lambda value, key=None: call(topic, value, key=key)


async def fire(submit: Call, topic: str, case: Case, payloads: Payloads, limit: Limit) -> int:
    """Every task submits its share without waiting for acknowledgments, then awaits them."""
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
    tasks = [asyncio.create_task(task(share)) for share in shares]  # they run once we wait
    limit.restart()
    return sum(await asyncio.gather(*tasks))


async def _settle(chunks: deque[list[Any]]) -> None:
    """Await every handle. Awaiting a finished handle does not suspend the task, and freeing
    millions of them blocks the loop, so let the loop run in between."""
    while chunks:
        for handle in chunks.popleft():
            await handle
        await asyncio.sleep(0)


async def request(
    send: Call, topic: str, case: Case, payloads: Payloads, limit: Limit, latencies: array[float]
) -> int:
    """Every task has one record in flight at a time."""
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
    """Arrivals at a fixed rate, each served by a separate task.

    A latency counts from when the record was due, so a client that falls behind cannot hide it,
    unless it came no later than timers do by themselves.
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
