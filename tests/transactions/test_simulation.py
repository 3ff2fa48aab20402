"""Seeded random faults against transactions in virtual time: P7 for every seed.

AIOKPROD_TXN_SEEDS says how many; a failing seed is its own reproduction.
"""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import pytest

from aiokprod import FatalTransactionError, KafkaError, Producer, TransactionError
from aiokprod.error_codes import Code
from aiokprod.testing.fake_cluster import (
    FakeCluster,
    Reaction,
    answer_late,
    close,
    cut,
    delay,
    lose_answer,
    lose_request,
    refuse,
)
from aiokprod.testing.memory import MemoryNetwork
from aiokprod.testing.virtual import run
from tests.faults.kit import make_producer
from tests.transactions.kit import (
    ADD_PARTITIONS,
    COMMIT_OFFSETS,
    END,
    FIND,
    ID,
    INIT,
    PRODUCE,
    Machine,
)

SEEDS = int(os.environ.get("AIOKPROD_TXN_SEEDS", "60"))
TRANSACTIONS = 12

CRASHES = 0.15
"""Share of the transactions during which the process dies."""

COMMITTED, ABORTED, UNKNOWN = "committed", "aborted", "unknown"


class World:
    """A cluster that fails at random, an application that goes on whatever happens."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.cluster = FakeCluster(
            network=MemoryNetwork(),
            transaction_version=self.dice.choice([1, 2]),
            marker_s=self.dice.choice([0.0, 0.02, 0.5]),
        )
        self.cluster.create_topic("t", 3)
        self.fates: dict[int, str] = {}
        self.sent: dict[int, set[tuple[int, bytes]]] = {}
        self.producers = 0
        self.crashes = 0

    def make(self) -> Producer[Any, Any]:
        self.producers += 1
        self.machine = Machine(self.cluster.network)
        return make_producer(
            self.cluster, dialer=self.machine, transactional_id=ID, seed=self.producers,
            request_timeout_ms=2_000,
            max_block_ms=self.dice.choice([500, 8_000]),
            delivery_timeout_ms=self.dice.choice([4_000, 10_000]),
            transaction_timeout_ms=600_000,
        )  # fmt: skip

    def reaction(self, api: int) -> Reaction | None:
        if self.dice.random() > 0.2:
            return None
        late = self.dice.uniform(0, 8)
        chosen = [
            lose_request(),
            lose_answer(),
            close(),
            close(process=True),
            cut(6),
            delay(0.3),
            delay(late),
            answer_late(1.0),
            refuse(14),
            refuse(16),
            refuse(51),
            refuse(7),
        ]
        if api == END:
            chosen += [refuse(Code.UNKNOWN_SERVER_ERROR), delay(late)]
        if api == PRODUCE and self.dice.random() < 0.1:
            chosen = [refuse(Code.INVALID_RECORD)]
        return self.dice.choice(chosen)  # fmt: skip

    async def break_things(self) -> None:
        while True:
            await asyncio.sleep(self.dice.uniform(0.5, 4.0))
            node = self.dice.choice([1, 2, 3])
            if len(self.cluster.living()) < 3:
                continue
            which = self.dice.random()
            if which < 0.3:
                self.cluster.kill(node)
                await asyncio.sleep(self.dice.uniform(0.5, 3.0))
                self.cluster.start(node)
            elif which < 0.45:
                loud = self.cluster.control(PRODUCE, lose_request())
                await asyncio.sleep(self.dice.uniform(1.0, 12.0))
                loud()
            else:
                self.cluster.move_leader("t", self.dice.randrange(3))

    def visible(self, number: int) -> set[tuple[int, bytes]]:
        """What readers see now of a transaction."""
        found = ((p, value) for p in range(3) for value in self.cluster.committed_values("t", p))
        return {(p, value) for p, value in found if value and value.startswith(b"%d-" % number)}

    async def transaction(self, producer: Producer[Any, Any], number: int) -> None:
        """One transaction; notes what the application was told."""
        self.fates[number] = ABORTED
        sent = self.sent[number] = set()
        await producer.begin_transaction(timeout=100)
        for part in range(self.dice.randrange(1, 8)):
            partition, value = self.dice.randrange(3), b"%d-%d" % (number, part)
            await producer.submit("t", value, partition=partition)
            sent.add((partition, value))
            if self.dice.random() < 0.2:
                await asyncio.sleep(self.dice.uniform(0, 1))
        if self.dice.random() < 0.3:
            await producer.send_offsets_to_transaction({("in", 0): number}, "g", timeout=100)
        assert not self.visible(number), f"{number} is visible before its commit"
        if self.dice.random() < 0.2:
            raise KafkaError("the application does not like it")
        self.fates[number] = UNKNOWN
        try:
            await producer.commit_transaction()
        except TransactionError as error:
            if error.outcome.value != "unknown":
                self.fates[number] = ABORTED
            raise
        self.fates[number] = COMMITTED

    async def until_crash(self, producer: Producer[Any, Any], number: int) -> bool:
        """A transaction that the process may not survive; True if it did."""
        work = asyncio.ensure_future(self.transaction(producer, number))
        if self.dice.random() < CRASHES:
            await asyncio.wait({work}, timeout=self.dice.uniform(0, self.dice.choice([0.02, 1, 9])))
            if not work.done():
                self.crashes += 1
                self.machine.die()
                work.cancel()
                await asyncio.wait({work})
                await producer.close(0)
                return False
        await work
        return True

    async def after_failure(
        self, producer: Producer[Any, Any], number: int, error: KafkaError
    ) -> Producer[Any, Any]:
        """Resume, abort, or begin again with a new instance."""
        if self.fates[number] == UNKNOWN and self.dice.random() < 0.5:
            try:
                await producer.commit_transaction(timeout=100)
                self.fates[number] = COMMITTED
                return producer
            except KafkaError as again:
                error = again
        if not isinstance(error, FatalTransactionError) and self.fates[number] == ABORTED:
            try:
                await producer.abort_transaction(timeout=100)
                return producer
            except KafkaError:
                pass
        if self.fates[number] == UNKNOWN and not isinstance(error, FatalTransactionError):
            return producer  # the next begin waits
        await producer.close(0)
        return self.make()

    async def main(self) -> None:
        cluster = self.cluster
        for api in (PRODUCE, FIND, INIT, ADD_PARTITIONS, COMMIT_OFFSETS, END):
            cluster.control(api, lambda request: self.reaction(request.api_key))
        breaking = asyncio.ensure_future(self.break_things())
        producer = self.make()
        try:
            for number in range(TRANSACTIONS):
                if self.dice.random() < 0.1:  # closed without waiting
                    await producer.close(0)
                    producer = self.make()
                try:
                    if not await self.until_crash(producer, number):
                        producer = self.make()
                except KafkaError as error:
                    producer = await self.after_failure(producer, number, error)
        finally:
            breaking.cancel()
            cluster.script.clear()
            for broker in cluster.brokers.values():
                if not broker.is_up:
                    cluster.start(broker.broker_id)
            await producer.close(30)
        final = make_producer(cluster, transactional_id=ID)
        await final.start()
        await final.close()
        await asyncio.sleep(1)
        self.judge()

    def judge(self) -> None:
        """P7: all or none of each, what was told is true, order within partitions."""
        cluster = self.cluster
        seen = [(p, value) for p in range(3) for value in cluster.committed_values("t", p) if value]
        assert len(seen) == len(set(seen)), "doubled"
        visible: dict[int, set[tuple[int, bytes]]] = {}
        for partition, value in seen:
            visible.setdefault(int(value.split(b"-")[0]), set()).add((partition, value))
        for number, fate in self.fates.items():
            found = visible.get(number, set())
            if fate == COMMITTED:
                assert found == self.sent[number], f"{number} committed, yet {found}"
            elif fate == ABORTED:
                assert not found, f"{number} aborted, yet {found}"
            else:
                assert found in (set(), self.sent[number]), f"{number} is torn: {found}"
        for partition in range(3):
            values = [v for v in cluster.committed_values("t", partition) if v]
            order = [tuple(map(int, value.split(b"-"))) for value in values]
            assert order == sorted(order), "out of order"
            log = cluster.topics["t"].partitions[partition].log
            assert log.last_stable_offset == log.end_offset, "readers hang"
        assert cluster.violations == []


def play(seed: int) -> None:
    async def main() -> None:
        await World(seed).main()

    run(main, limit_s=20_000.0, debug=False, collect_garbage=False)


@pytest.mark.parametrize("block", range(6))
def test_simulation_random_faults_promises_hold(block: int) -> None:
    for seed in range(block, SEEDS, 6):
        try:
            play(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
