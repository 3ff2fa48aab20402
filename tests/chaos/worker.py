"""One producer under steady load, in a separate process.

It reads its orders (JSON) from the command line, prints "ready" after its first acknowledgments and
sends until a line arrives. Then it drains, saves the reported outcomes (.npz) and prints statistics
(JSON). All instants are `time.monotonic()`, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
import time
from array import array
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np
import uvloop

from aiokprod import (
    AbortableTransactionError,
    Delivery,
    Environment,
    KafkaError,
    KafkaTimeout,
    Outcome,
    Producer,
)
from aiokprod._net.dialer import TcpDialer
from tests.chaos.values import NOT_ASKED, make
from tests.integration.spy import METADATA, SpyDialer, busiest_second

OPEN, ACKNOWLEDGED, ABSENT, UNKNOWN, ABORTED = 0, 1, 2, 3, 4
"""States of a record. With transactions, ACKNOWLEDGED means committed, ABSENT aborted because of an
error, UNKNOWN that no commit or abort had a definite result, ABORTED aborted on purpose."""
NO_TRANSACTION = -1
ABORT_EVERY = 10
"""One in this number of transactions is aborted on purpose."""
STEP = 0.02
CATCH_UP = 1.0
"""Maximum seconds of load that a stalled worker catches up on."""
CHUNK = 1_000
KEEP_EVERY = 100
"""The handle of one in this number of records is kept until the end."""
KEYS = [b"key-%d" % number for number in range(997)]
STAMPS = 100_000
"""This number of consecutive records have different timestamps."""
DRAIN = 60.0
CLOSE = 20.0


def headers_of(sequence: int) -> tuple[tuple[str, bytes], ...]:
    """Return the headers of a record; every fifth record has one."""
    return () if sequence % 5 else (("number", b"%d" % sequence),)


def timestamp_of(sequence: int) -> int:
    """Return the requested timestamp in ms. Its last digits are those of the sequence, so that a
    reader can check it. The other digits are today's, because brokers refuse timestamps far in the
    future and delete old records."""
    return time.time_ns() // 1_000_000 // STAMPS * STAMPS + sequence % STAMPS


@dataclass
class Orders:
    """The parameters of a worker.

    Attributes:
        number: distinguishes the records of this producer from those of others.
        rate: records per second, submitted in steps of 20 ms, or by transactions.
        transaction: records per transaction, or 0 for none. Requires a `transactional_id` in
            `settings`.
        partitions: every other record requests one of these, in turn; the other records have keys.
        settings: settings of the `Producer`.
        result: path of the .npz file.
    """

    bootstrap: str
    topic: str
    number: int
    rate: int
    partitions: int
    result: str
    transaction: int = 0
    settings: dict[str, Any] = field(default_factory=dict)


class Ledger:
    """The submitted records and their reported outcomes, by sequence.

    With transactions the promise is the commit: acknowledged records stay OPEN until
    `end_transaction`.

    Attributes:
        transactions: number of the transaction of each record, or NO_TRANSACTION.
        commits: instants at which a commit returned.
        transaction: number of the open transaction, or NO_TRANSACTION.
    """

    def __init__(self) -> None:
        self.states = bytearray()
        self.partitions = array("i")
        self.offsets = array("q")
        self.handed = array("d")
        self.settled = array("d")
        self.kept: list[tuple[int, Delivery]] = []
        self.errors: dict[str, int] = {}
        self.transactions = array("i")
        self.commits = array("d")
        self.transaction = NO_TRANSACTION

    def open(self) -> int:
        sequence = len(self.states)
        self.states.append(OPEN)
        self.partitions.append(-1)
        self.offsets.append(-1)
        self.handed.append(time.monotonic())
        self.settled.append(float("nan"))
        self.transactions.append(self.transaction)
        return sequence

    def done(self, sequence: int, delivery: Delivery) -> None:
        error = delivery.exception()
        if error is not None:
            self.failed(sequence, error)
            return
        metadata = delivery.result()
        if self.transactions[sequence] == NO_TRANSACTION:
            self.states[sequence] = ACKNOWLEDGED
        self.partitions[sequence] = metadata.partition
        self.offsets[sequence] = -1 if metadata.offset is None else metadata.offset
        self.settled[sequence] = time.monotonic()

    def failed(self, sequence: int, error: KafkaError) -> None:
        self.states[sequence] = UNKNOWN if error.outcome is Outcome.UNKNOWN else ABSENT
        self.settled[sequence] = time.monotonic()
        self.note(error)

    def end_transaction(self, first: int, state: int) -> None:
        """Store the end of the open transaction, whose first record is `first`, with this state.

        A commit promises the acknowledged records; other records stay OPEN or failed, which the
        audit counts as a violation. An abort promises the absence of all records.
        """
        if state == ACKNOWLEDGED:
            self.commits.append(time.monotonic())
        for sequence in range(first, len(self.states)):
            if state != ACKNOWLEDGED or self.partitions[sequence] >= 0:
                self.states[sequence] = state
        self.transaction = NO_TRANSACTION

    def note(self, error: KafkaError) -> None:
        """Count an error by its text."""
        text = f"{type(error).__name__} [{error.outcome.name}]: {error}"[:300]
        if text in self.errors or len(self.errors) < 20:
            self.errors[text] = self.errors.get(text, 0) + 1

    def changed(self) -> int:
        """Count the records whose handle now reports another result than when it settled."""
        wrong = 0
        for sequence, delivery in self.kept:
            # The partition of a record that settled without an error is stored here, committed or
            # not.
            if not delivery.done() or delivery.exception() is not None:
                wrong += self.partitions[sequence] >= 0
                continue
            told = delivery.result()
            now = told.partition, -1 if told.offset is None else told.offset
            before = self.partitions[sequence], self.offsets[sequence]
            wrong += now != before
        return wrong

    def save(self, path: str, metadata: list[float]) -> None:
        np.savez(
            path,
            metadata=np.array(metadata),
            commits=np.frombuffer(self.commits),
            transaction=np.frombuffer(self.transactions, np.int32),
            state=np.frombuffer(bytes(self.states), np.uint8),
            partition=np.frombuffer(self.partitions, np.int32),
            offset=np.frombuffer(self.offsets, np.int64),
            handed=np.frombuffer(self.handed),
            settled=np.frombuffer(self.settled),
        )


async def work(orders: Orders) -> dict[str, Any]:
    ledger, spy = Ledger(), SpyDialer(TcpDialer())
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    unhandled: list[str] = []
    loop.set_exception_handler(
        lambda loop, context: unhandled.append(f"{context['message']}: {context.get('exception')}")
    )
    thread = threading.Thread(
        target=lambda: (sys.stdin.readline(), loop.call_soon_threadsafe(stop.set)), daemon=True
    )
    producer: Producer[bytes, bytes] = Producer(
        bootstrap_servers=orders.bootstrap,
        environment=Environment(spy),
        client_id=f"chaos-{orders.number}",
        **orders.settings,
    )
    load = (_TransactionalLoad if orders.transaction else _Load)(orders, ledger, producer)
    await load.prove()
    print("ready", flush=True)
    thread.start()
    await load.run(stop)
    with contextlib.suppress(KafkaError):
        await producer.flush(DRAIN)
    await asyncio.sleep(0)
    metrics = producer.metrics()
    metadata = [at for at, key in spy.requests if key == METADATA]
    ledger.save(orders.result, metadata)
    hung = await _close(producer)
    return {
        "records": len(ledger.states),
        "errors": ledger.errors,
        "dials_most_per_second": busiest_second(spy.dials),
        "batches_retried": metrics["batches_retried"],
        "connections_closed": metrics["connections_closed"],
        "loop_lag_max_s": round(load.lag, 4),
        "loop_lag_own_max_s": round(load.own_lag, 4),
        "close_hung": hung,
        "changed_its_mind": ledger.changed(),
        "unhandled": unhandled[:5],
    }


async def _close(producer: Producer[bytes, bytes]) -> bool:
    """Close the producer. If that hangs, print diagnostics to standard error and return True."""
    closing = asyncio.ensure_future(producer.close())
    await asyncio.wait([closing], timeout=CLOSE)
    if closing.done():
        closing.result()
        return False
    client = producer._lifecycle.runtime.client if producer._lifecycle.runtime is not None else None
    print(f"close does not end: {client!r}, gauges {producer.metrics()}", file=sys.stderr)
    for connection in getattr(client, "_connections", ()):
        state = {name: getattr(connection, name, None) for name in type(connection).__slots__}
        print(f"  {connection!r}: {state}", file=sys.stderr)
    for task in asyncio.all_tasks():
        task.print_stack(file=sys.stderr)
    return True


class _Load:
    def __init__(self, orders: Orders, ledger: Ledger, producer: Producer[bytes, bytes]) -> None:
        self._orders = orders
        self._ledger = ledger
        self._producer = producer
        self._values: list[bytes] = []
        self._asked: list[int] = []
        self._first = 0
        self.lag = 0.0
        self.own_lag = 0.0

    async def prove(self) -> None:
        """Deliver records to every partition, so that all connections are open before the load
        begins."""
        for _ in range(2 * self._orders.partitions):
            await self._hand_over()
        await self._producer.flush(60)

    async def run(self, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        per_step = max(1, round(self._orders.rate * STEP))
        due = loop.time()
        while not stop.is_set():
            for _ in range(per_step):
                if stop.is_set():  # one submission may wait a minute for memory
                    break
                await self._hand_over()
            due = max(due + STEP, loop.time() - CATCH_UP)
            await self._sleep(max(0.0, due - loop.time()))

    async def _sleep(self, pause: float) -> None:
        loop = asyncio.get_running_loop()
        before, worked = loop.time(), time.thread_time()
        await asyncio.sleep(pause)
        self.lag = max(self.lag, loop.time() - before - pause)
        # Measure only this thread: other processes use none of its CPU time.
        self.own_lag = max(self.own_lag, time.thread_time() - worked - pause)

    async def _hand_over(self) -> None:
        sequence = self._ledger.open()
        at = sequence - self._first
        if at == len(self._values):
            self._refill(sequence)
            at = 0
        asked = self._asked[at]
        try:
            delivery = await self._producer.submit(
                self._orders.topic,
                self._values[at],
                key=KEYS[sequence % 997] if asked < 0 else None,
                partition=None if asked < 0 else asked,
                timestamp_ms=timestamp_of(sequence),
                headers=headers_of(sequence),
            )
        except KafkaError as error:
            self._ledger.failed(sequence, error)
        else:
            delivery.add_done_callback(partial(self._ledger.done, sequence))
            if not sequence % KEEP_EVERY:
                self._ledger.kept.append((sequence, delivery))

    def _refill(self, first: int) -> None:
        numbers = np.arange(first, first + CHUNK)
        turn: Any = numbers // 2 % self._orders.partitions
        asked = np.where(numbers % 2, turn, NOT_ASKED).astype(np.int16)
        self._values = make(self._orders.topic, self._orders.number, first, asked)
        self._asked = asked.tolist()
        self._first = first


class _TransactionalLoad(_Load):
    """The same records in consecutive transactions. Every tenth is aborted on purpose."""

    _begun = 0

    async def prove(self) -> None:
        await self._producer.start()
        await self._transaction(abort=False)

    async def run(self, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        lasts = self._orders.transaction / self._orders.rate
        due = loop.time()
        while not stop.is_set():
            await self._transaction(abort=self._begun % ABORT_EVERY == 0)
            due = max(due + lasts, loop.time() - CATCH_UP)
            await self._sleep(max(0.0, due - loop.time()))

    async def _transaction(self, *, abort: bool) -> None:
        """Run one transaction and store its end in the ledger. As in the README, an abort follows
        an abortable error, and another commit follows a timeout of the commit."""
        self._begun += 1
        ledger, producer = self._ledger, self._producer
        await self._until_answered(producer.begin_transaction)
        first, ledger.transaction = len(ledger.states), self._begun
        state = UNKNOWN
        try:
            for _ in range(self._orders.transaction):
                await self._hand_over()
            if abort:
                await self._until_answered(producer.abort_transaction)
                state = ABORTED
            else:
                await self._until_answered(producer.commit_transaction)
                state = ACKNOWLEDGED
            await asyncio.sleep(0)  # for the callbacks of the last acknowledgments
        except AbortableTransactionError as error:
            ledger.note(error)
            await self._until_answered(producer.abort_transaction)
            state = ABSENT
        finally:
            ledger.end_transaction(first, state)

    async def _until_answered(self, call: Callable[[], Awaitable[None]]) -> None:
        ends = time.monotonic() + DRAIN
        while True:
            try:
                return await call()
            except KafkaTimeout as error:
                self._ledger.note(error)
                if time.monotonic() > ends:
                    print(f"{error}: {self._producer.health()}", file=sys.stderr)
                    raise


def main() -> None:
    orders = Orders(**json.loads(sys.argv[1]))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        statistics = runner.run(work(orders))
        print(json.dumps(statistics), flush=True)
        if statistics["close_hung"]:
            os._exit(0)  # a normal exit would hang too


__all__ = ["Orders", "asdict"]

if __name__ == "__main__":
    main()
