"""Transactions with seeded random faults in virtual time: P7 holds for every seed.

AIOKPROD_TXN_SEEDS sets the number of seeds. A failing seed reproduces its failure.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import random
from typing import Any

import pytest

from aiokprod import FatalTransactionError, KafkaError, Producer, TransactionError
from aiokprod._errors import Code
from aiokprod.testing.fake_cluster import (
    FakeCluster,
    Reaction,
    Request,
    answer_late,
    close,
    cut,
    delay,
    lose_answer,
    lose_request,
    refuse,
)
from aiokprod.testing.fake_cluster.apis.find_coordinator import BATCHED_FROM, coordinator_of
from aiokprod.testing.fake_cluster.profiles import NEWEST
from aiokprod.testing.fake_cluster.transactions import Phase
from aiokprod.testing.memory import MemoryNetwork
from aiokprod.testing.virtual import run
from tests.scenarios.scenario_helpers import make_producer, now
from tests.simulation.oracle import check_haste
from tests.simulation.wire_log import Wire
from tests.transactions.transaction_helpers import (
    ADD_PARTITIONS,
    COMMIT_OFFSETS,
    END,
    FIND,
    ID,
    INIT,
    PRODUCE,
    Machine,
)

pytestmark = pytest.mark.matrix

SEEDS = int(os.environ.get("AIOKPROD_TXN_SEEDS", "60"))
TRANSACTIONS = 12

CRASHES = 0.15
"""Share of the transactions during which the process dies."""

LAST_S = 20.0
"""Limit of a transaction after the end of all faults, in seconds. It may have to fence an earlier
instance, and each request may be throttled or sent to a broker that was down."""

COMMITTED, ABORTED, UNKNOWN = "committed", "aborted", "unknown"


TEMPERAMENTS = (
    "coordinators_elsewhere", "null_in_errors", "throttling", "carried_out_and_refused",
    "unknown_codes", "old_versions", "renumbering",
)  # fmt: skip
"""Names of methods of `TransactionHarness`. Two thirds of the seeds use one or two of them."""


class TransactionHarness:
    """A cluster with random faults, and an application that always continues.

    Attributes:
        temperaments: permanent properties of the brokers. Each name is a method whose docstring
            gives the reason for the property.
    """

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        # A separate generator, so that these choices do not change the rest of a seed.
        self.nature = random.Random(seed * 31 + 17)
        self.temperaments = self.nature.sample(TEMPERAMENTS, self.nature.choice((0, 1, 2)))
        version = self.dice.choice([1, 2])
        profile = NEWEST
        if "old_versions" in self.temperaments:
            version, profile = 0, self.nature.choice(("0.11", "2.1", "2.4", "2.8", "3.9"))
        self.cluster = FakeCluster(
            brokers=4 if "coordinators_elsewhere" in self.temperaments else 3,
            network=MemoryNetwork(),
            version_profile=profile,
            transaction_version=version,
            marker_s=self.dice.choice([0.0, 0.02, 0.5]),
        )
        self.processed_errors: dict[int, list[int]] = {}
        for name in self.temperaments:
            getattr(self, name)()
        self.cluster.create_topic("t", 3)
        self.wire = Wire()
        self.cluster.network.on_link = self.wire.follow
        self.fates: dict[int, str] = {}
        self.sent: dict[int, set[tuple[int, bytes]]] = {}
        self.producers = 0
        self.crashes = 0

    # -- temperaments -----------------------------------------------------------------------------

    def coordinators_elsewhere(self) -> None:
        """Metadata does not list the coordinators. Either a proxy or gateway returns separate
        addresses for them, or the broker's metadata cache does not contain a new coordinator
        yet."""
        self.cluster.brokers[4].is_listed = False
        self.cluster.coordinator_ids = self.nature.choice([(4,), (3, 4)])

    def null_in_errors(self) -> None:
        """If FindCoordinator finds no coordinator, it returns a null host or an empty list.

        librdkafka's mock cluster returns a null host, and gateways return an empty list.
        """
        empty = self.nature.random() < 0.3

        def change(request: Request, message: Any) -> Any:
            if request.api_key != FIND:
                return message
            if request.version < BATCHED_FROM:
                return dataclasses.replace(message, host=None) if message.error_code else message
            if empty and any(one.error_code for one in message.coordinators):
                return dataclasses.replace(message, coordinators=())
            found = [
                dataclasses.replace(one, host=None) if one.error_code else one
                for one in message.coordinators
            ]
            return dataclasses.replace(message, coordinators=found)

        self.cluster.answer_filters.append(change)

    def throttling(self) -> None:
        """Every response has a throttle time, from all brokers or from the coordinator alone,
        because the client is permanently over its quota."""
        milliseconds = self.nature.choice((5, 100, 1_000))
        broker = self.nature.choice((None, self.coordinator_id()))
        self.cluster.throttle(milliseconds, broker)

    def carried_out_and_refused(self) -> None:
        """The coordinator carries out a request and returns an error: 15 or 16 if the append to the
        log timed out or met a new leader (`TransactionStateManager.appendTransactionToLog`)."""
        for api in (ADD_PARTITIONS, END):
            self.processed_errors[api] = [15, 16]

    def unknown_codes(self) -> None:
        """The broker returns a code that this client does not know, after it carried out the
        request or not. Newer brokers and other implementations may do so."""
        for api in (ADD_PARTITIONS, END, COMMIT_OFFSETS):
            self.processed_errors.setdefault(api, []).append(9_999)

    def old_versions(self) -> None:
        """The brokers are of a version from Kafka 0.11 on. All of them support transactions."""

    def renumbering(self) -> None:
        """Brokers exchange their ids but keep their addresses (see `break_things`)."""

    # -- the application --------------------------------------------------------------------------

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
        codes = self.processed_errors.get(api)
        if codes is not None and self.nature.random() < 0.3:
            return Reaction(process=self.nature.random() < 0.8, error=self.nature.choice(codes))
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
            if "renumbering" in self.temperaments and self.nature.random() < 0.3:
                one, other = self.nature.sample(list(self.cluster.brokers), 2)
                self.cluster.renumber({one: other, other: one})
                continue
            if len(self.cluster.living()) < len(self.cluster.brokers):
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
        """Return the records of a transaction that readers can read now."""
        found = ((p, value) for p in range(3) for value in self.cluster.committed_values("t", p))
        return {(p, value) for p, value in found if value and value.startswith(b"%d-" % number)}

    async def transaction(self, producer: Producer[Any, Any], number: int) -> None:
        """Run one transaction and store the outcome that is reported to the application."""
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
        """Run a transaction during which the process may die. Return True if it survived."""
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
        """Resume the transaction, abort it, or create a new producer. Return the producer to
        continue with."""
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
            except KafkaError:
                pass
            else:
                entry = self.cluster.transactions.ids[ID]
                assert entry.phase is not Phase.ONGOING, f"{number} aborted, yet open"
                return producer
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
        await asyncio.sleep(10)  # delayed requests may fence the next producer
        await self.last_transaction()
        await asyncio.sleep(1)
        self.judge()

    async def last_transaction(self) -> None:
        """Run a transaction without faults but with the temperaments. A new instance must begin and
        commit in time, after one response without a coordinator, and under load."""
        self.processed_errors.clear()
        cluster = self.cluster
        cluster.control(FIND, refuse(Code.COORDINATOR_NOT_AVAILABLE), times=1)
        final = make_producer(cluster, transactional_id=ID, linger_ms=0, request_timeout_ms=20_000)
        number = TRANSACTIONS
        sent = self.sent[number] = set()
        load: asyncio.Task[None] | None = None
        start = now()
        try:
            await final.begin_transaction(timeout=100)
            partitions = cluster.topics["t"].partitions
            busy = next((p.index for p in partitions if p.leader == self.coordinator_id()), 0)
            other, idle = ((busy + step) % 3 for step in (1, 2))
            load = asyncio.ensure_future(self.keep_busy(final, (busy, other), sent))
            await asyncio.sleep(1)
            value = b"%d-%d" % (number, 100_000)
            await final.send("t", value, partition=idle)
            sent.add((idle, value))
            await final.send_offsets_to_transaction({("in", 0): number}, "g", timeout=100)
            load.cancel()
            await final.commit_transaction(timeout=100)
        except KafkaError as error:
            raise AssertionError(f"nothing was wrong any more: {error!r}") from error
        finally:
            if load is not None:
                load.cancel()
                await asyncio.wait({load})
            await final.close()
        self.fates[number] = COMMITTED
        took = now() - start
        assert took < LAST_S, f"a transaction without faults took {took} s"

    def coordinator_id(self) -> int | None:
        found = coordinator_of(next(iter(self.cluster.brokers.values())), ID)
        return None if found is None else found.broker_id

    async def keep_busy(
        self,
        producer: Producer[Any, Any],
        partitions: tuple[int, ...],
        sent: set[tuple[int, bytes]],
    ) -> None:
        """Submit a record every few ms. The throttle of the busy brokers then never ends before the
        next response, while the other brokers respond."""
        for part in range(100_000):
            value, partition = b"%d-%d" % (TRANSACTIONS, part), partitions[part % len(partitions)]
            await producer.submit("t", value, partition=partition)
            sent.add((partition, value))
            await asyncio.sleep(0.01)

    def judge(self) -> None:
        """Check P7: all or no records of each transaction are visible, reported outcomes are true,
        and partitions keep the order."""
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
        # Each producer begins with two metadata requests.
        check_haste(self.wire, more=2 * self.producers)


def play(seed: int) -> None:
    async def main() -> None:
        await TransactionHarness(seed).main()

    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # formatting log records would take half of the time
    try:
        run(main, limit_s=20_000.0, debug=False, collect_garbage=False)
    finally:
        logging.disable(disabled)


@pytest.mark.parametrize("block", range(6))
def test_simulation_random_faults_promises_hold(block: int) -> None:
    for seed in range(block, SEEDS, 6):
        try:
            play(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
