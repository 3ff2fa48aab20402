"""One client under load in a separate process, controlled by lines on standard input.

The process prints "ready" after its first acknowledgments. `cancel` cancels every second waiting
send. `cancel-all` cancels every task of the loop except the worker's own. `stop` ends the load and
saves the ledger.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
import time
from typing import Any

import numpy as np

from tests.chaos.values import make
from tests.contrast.clients import ACKNOWLEDGED, CLIENTS, UNKNOWN, Client, Settings, Told

PARTITIONS = 3
STEP = 0.02


class Ledger:
    """The outcome and times of each record, by sequence number, and the number of errors by
    text."""

    def __init__(self) -> None:
        self.told: list[Told | None] = []
        self.cancelled: set[int] = set()
        self.handed: list[float] = []
        self.settled: list[float] = []
        self.twice = 0

    def open(self) -> int:
        self.told.append(None)
        self.handed.append(time.monotonic())
        self.settled.append(float("nan"))
        return len(self.told) - 1

    def note(self, sequence: int, told: Told) -> None:
        if self.told[sequence] is not None:
            self.twice += 1
            return
        self.told[sequence] = told
        self.settled[sequence] = time.monotonic()

    @property
    def pending(self) -> int:
        return sum(
            told is None and number not in self.cancelled for number, told in enumerate(self.told)
        )

    def save(self, path: str) -> None:
        def state(number: int, told: Told | None) -> int:
            if told is None:
                return UNKNOWN if number in self.cancelled else 0
            return UNKNOWN if told.state is None else told.state

        told = list(enumerate(self.told))
        np.savez(
            path,
            state=np.array([state(number, what) for number, what in told], np.uint8),
            partition=np.array([-1 if t is None else t.partition for t in self.told], np.int32),
            offset=np.array([-1 if t is None else t.offset for t in self.told], np.int64),
            handed=np.array(self.handed),
            settled=np.array(self.settled),
        )

    def statistics(self) -> dict[str, Any]:
        errors: dict[str, int] = {}
        for told in self.told:
            if told is not None and told.error:
                errors[told.error] = errors.get(told.error, 0) + 1
        kinds = [told.state for told in self.told if told is not None and told.error]
        return {
            "records": len(self.told),
            "failed": len(kinds),
            "outcome_told": sum(kind is not None for kind in kinds),
            "cancelled": len(self.cancelled),
            "hung": self.pending,
            "settled_twice": self.twice,
            "errors": dict(sorted(errors.items(), key=lambda entry: -entry[1])[:4]),
        }


class Load:
    def __init__(self, client: Client, orders: dict[str, Any]) -> None:
        self.ledger = Ledger()
        self._client = client
        self._topic: str = orders["settings"]["topic"]
        self._rate: int = orders["rate"]
        self._awaiting: bool = orders["awaiting"]
        self.tasks: dict[asyncio.Task[None], int] = {}

    async def one(self) -> None:
        sequence = self.ledger.open()
        partition = sequence % PARTITIONS
        value = make(self._topic, 0, sequence, np.array([partition], np.int16))[0]
        if self._awaiting:
            task = asyncio.create_task(self._await(sequence, partition, value))
            self.tasks[task] = sequence
            task.add_done_callback(lambda done: self.tasks.pop(done))
        else:
            await self._client.send(partition, value, lambda told: self.ledger.note(sequence, told))

    async def _await(self, sequence: int, partition: int, value: bytes) -> None:
        try:
            self.ledger.note(sequence, await self._client.deliver(partition, value))
        except asyncio.CancelledError:
            self.ledger.cancelled.add(sequence)
            raise

    async def run(self, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while not stop.is_set():
            for _ in range(max(1, round(self._rate * STEP))):
                if stop.is_set():
                    break
                await self.one()
            due += STEP
            await asyncio.sleep(max(0.001, due - loop.time()))

    async def settled(self, seconds: float) -> None:
        """Wait until every record has an outcome, at most `seconds`."""
        give_up = time.monotonic() + seconds
        while self.ledger.pending and time.monotonic() < give_up:  # noqa: ASYNC110 - rarely
            await asyncio.sleep(0.05)

    def cancel_half(self) -> None:
        for number, task in enumerate(list(self.tasks)):
            if number % 2:
                task.cancel()


async def work(orders: dict[str, Any]) -> None:
    settings = Settings(**orders["settings"])
    client = CLIENTS[orders["client"]](settings)
    await client.start()
    load, stop, loop = Load(client, orders), asyncio.Event(), asyncio.get_running_loop()
    for _ in range(PARTITIONS):
        await load.one()
    await load.settled(60.0)
    assert all(told and told.state == ACKNOWLEDGED for told in load.ledger.told), load.ledger.told
    print("ready", flush=True)
    running = asyncio.create_task(load.run(stop))
    keep = {running, asyncio.current_task()}

    def obey(line: str) -> None:
        if line == "cancel":
            load.cancel_half()
        elif line == "cancel-all":
            for task in asyncio.all_tasks() - keep - set(load.tasks):
                task.cancel()
        else:
            stop.set()

    def listen() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(obey, line.strip())
        loop.call_soon_threadsafe(stop.set)

    threading.Thread(target=listen, daemon=True).start()
    await stop.wait()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(running, orders["patience_s"])
    await load.settled(orders["patience_s"])
    load.ledger.save(orders["result"])
    print(json.dumps(load.ledger.statistics()), flush=True)
    with contextlib.suppress(Exception):
        await asyncio.wait_for(client.stop(), 8)
    os._exit(0)  # a client that hangs must not make the harness hang


if __name__ == "__main__":
    asyncio.run(work(json.loads(sys.argv[1])))
