"""One engine, two brokers and all faults between them, step by step.

`test_engine_machine.py` drives `Simulation`, from Hypothesis or from a seed. Brokers are logs with
the sequence rules of real brokers. After a connection has broken, a broker may still append the
requests that it received on it (zombies). Every check compares the outcomes with the logs.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeVar

from aiokprod._client.record_hooks import RecordHooks
from aiokprod._client.record_serializers import RecordSerializers
from aiokprod._client.slow_path import SlowPath
from aiokprod._core.batch import Delivery
from aiokprod._engine.buffer.batch_states import QUEUED
from aiokprod._engine.buffer.producer_batch import ProducerBatch
from aiokprod._wire.messages.init_producer_id import InitProducerIdResponse
from aiokprod._wire.messages.produce import PartitionProduceResponse
from aiokprod.errors import BufferTimeout, Code, Outcome
from aiokprod.observer import Observer
from aiokprod.records import ProducerRecord, TopicPartition
from aiokprod.testing.virtual import VirtualLoop
from tests.engine.engine_harness import PRODUCER_ID, EngineHarness, Recorder, Sent, quiet, refusal

PARTITIONS = 2
BROKERS = 2
DELIVERY_TIMEOUT = 120.0
HEALED_WITHIN = 20.0
MEMORY = 6000

STORED_YET = 1000
"""Added to a code: the broker appends the batch and then returns the code."""

CODES = [
    *(Code.NOT_ENOUGH_REPLICAS, Code.CORRUPT_MESSAGE, Code.KAFKA_STORAGE_ERROR),
    *(Code.REQUEST_TIMED_OUT, Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND, Code.NOT_LEADER_OR_FOLLOWER),
    *(Code.REQUEST_TIMED_OUT + STORED_YET, Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND + STORED_YET),
    *(Code.INVALID_RECORD, Code.INVALID_TIMESTAMP, Code.TOPIC_AUTHORIZATION_FAILED),
    *(0, 0, 0, 0, 0),
]

T = TypeVar("T")


class Watched:
    """A record and its reported outcomes."""

    def __init__(self, value: bytes, partition: int, delivery: Delivery, callback: bool) -> None:
        self.value = value
        self.tp = TopicPartition("t", partition)
        self.delivery = delivery
        self.calls = 0
        self.callback = callback
        if callback:
            delivery.add_done_callback(self._called)

    def _called(self, delivery: Delivery) -> None:
        assert delivery is self.delivery
        self.calls += 1


class Sightings(Recorder):
    """Records every batch that was in flight, for the memory check."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[ProducerBatch] = set()

    def on_batches_sent(self, node_id: int, batches: Any) -> None:
        super().on_batches_sent(node_id, batches)
        self.seen.update(batches)


def pick(sequence: Sequence[T], number: int) -> T:
    return sequence[number % len(sequence)]


class Simulation:
    """The steps of the machine. The argument `number` selects one of the possible targets of a
    step; if there is none, the step does nothing.

    Args:
        idempotent: check that the logs have no duplicates and that acknowledged records are in
            order. If False, the order is checked only with one request in flight, and duplicates
            are allowed.
    """

    def __init__(
        self,
        *,
        idempotent: bool = True,
        in_flight: int = 5,
        linger_ms: int = 0,
        adaptive: bool = True,
        known_producer: bool = True,
    ) -> None:
        self.loop = VirtualLoop(limit_s=1e7)
        self.idempotent = idempotent
        self.ordered = idempotent or in_flight == 1
        self.records: list[Watched] = []
        self.numbers = 0
        self.answers: dict[int, dict[TopicPartition, PartitionProduceResponse]] = {}
        self.zombies: list[Sent] = []
        self.max_bytes = 10_000
        self.waiting: list[asyncio.Task[None]] = []
        self.flushes: list[asyncio.Task[None]] = []
        self.harness = EngineHarness(
            idempotent=idempotent,
            partitions=PARTITIONS,
            brokers=BROKERS,
            loop=self.loop,
            known_producer=known_producer,
            linger_ms=linger_ms,
            adaptive_linger=adaptive,
            batch_size=400,
            buffer_memory=MEMORY,
            max_in_flight_requests_per_connection=in_flight,
            request_timeout_ms=30_000,
            delivery_timeout_ms=int(DELIVERY_TIMEOUT * 1000),
            metadata_max_age_ms=10**9,
            metadata_max_idle_ms=10**9,
        )
        self.sightings = Sightings()
        self.harness.sender._observer = self.sightings
        self.harness.sender._completion._observer = self.sightings
        self.slow_path = SlowPath(
            self.harness.config,
            lambda: self.harness,  # type: ignore[arg-type,return-value]
            RecordSerializers(None, None),
            None,
            RecordHooks(None, (), Observer()),
            lambda: None,
        )
        self.true_leaders = dict(self.harness.leaders)
        self.sender = self.loop.create_task(self.harness.sender.run())
        self.spin()

    def spin(self) -> None:
        """Run everything that is due now."""
        self.loop.run_until_complete(quiet())
        assert not self.loop.unhandled, self.loop.unhandled
        if self.sender.done():
            self.sender.result()
        if self.harness.metadata.update_due(self.harness.now):
            self.metadata_arrives()

    # -- the caller -----------------------------------------------------------------------------

    def append(self, partition: int, size: int, count: int, *, watch: bool, apart: bool) -> None:
        """Append records. `watch`: with a callback; `apart`: one batch each."""
        self.loop.run_until_complete(self._append(partition, size, count, watch, apart))
        self.spin()

    async def _append(
        self, partition: int, size: int, count: int, watch: bool, apart: bool
    ) -> None:
        for _ in range(count):
            value = b"%d:" % self.numbers + b"v" * size
            self.numbers += 1
            delivery = self.harness.appender.try_append("t", value, None, partition)
            if isinstance(delivery, Delivery):
                self.records.append(Watched(value, partition, delivery, watch))
                if apart:
                    self.harness.close_open(partition)
            elif len(self.waiting) < 8:
                task = self.loop.create_task(self._append_later(value, partition, watch))
                self.waiting.append(task)

    async def _append_later(self, value: bytes, partition: int, watch: bool) -> None:
        """Append a record through the slow path."""
        record: ProducerRecord[Any, Any] = ProducerRecord("t", value, partition=partition)
        try:
            delivery = await self.slow_path.append(record, self.loop.time() + 60)
        except BufferTimeout:
            return
        self.records.append(Watched(value, partition, delivery, watch))

    def withdraw(self, number: int) -> None:
        pending = [watched for watched in self.records if not watched.delivery.done()]
        if pending:
            delivery = pick(pending, number).delivery
            assert delivery.cancel()
            assert not delivery.cancel()
            self.spin()

    def cancel_a_waiter(self, number: int) -> None:
        if self.waiting:
            pick(self.waiting, number).cancel()
            self.spin()

    def flush(self) -> None:
        batches = list(self.harness.accumulator.incomplete)
        if batches and len(self.flushes) < 3:
            self.flushes.append(self.loop.create_task(self._flush(batches)))
            self.spin()

    async def _flush(self, batches: list[ProducerBatch]) -> None:
        await self.harness.flushes.wait(batches)
        assert not any(batch in self.harness.accumulator.incomplete for batch in batches)

    # -- brokers --------------------------------------------------------------------------------

    def _requests(self, node: int) -> list[Sent]:
        return [sent for sent in self.harness.brokers.waiting if sent.node_id == node]

    def _unprocessed(self, node: int) -> list[Sent]:
        return [sent for sent in self._requests(node) if id(sent) not in self.answers]

    def _busy_node(self, number: int) -> int | None:
        nodes = sorted({sent.node_id for sent in self.harness.brokers.waiting})
        return pick(nodes, number) if nodes else None

    def _store(
        self, sent: Sent, codes: dict[TopicPartition, int]
    ) -> dict[TopicPartition, PartitionProduceResponse]:
        """Process a request as a broker does: append or not, and choose an error code or none."""
        answers = {}
        append = self.harness.brokers.append
        for tp, batch in sent.batches.items():
            code = codes.get(tp, 0)
            if self.true_leaders[tp] != sent.node_id:
                answers[tp] = refusal(tp, Code.NOT_LEADER_OR_FOLLOWER)
            elif len(sent.raw[tp]) > self.max_bytes:
                answers[tp] = refusal(tp, Code.MESSAGE_TOO_LARGE)
            elif code >= STORED_YET:
                answer = append(tp, batch)
                answers[tp] = answer if answer.error_code else refusal(tp, code - STORED_YET)
            else:
                answers[tp] = refusal(tp, code) if code else append(tp, batch)
        return answers

    def process(self, number: int, *, omit: bool = False) -> None:
        """Let a broker process its oldest request and prepare a response with a code for each
        partition."""
        node = self._busy_node(number)
        if node is None or not self._unprocessed(node):
            return
        sent = self._unprocessed(node)[0]
        codes = {tp: pick(CODES, number // (7 + tp.partition)) for tp in sent.batches}
        answers = self._store(sent, codes)
        if omit:
            answers.popitem()
        self.answers[id(sent)] = answers

    def answer(self, number: int) -> None:
        """Let a broker send the prepared responses in order."""
        node = self._busy_node(number)
        for sent in self._requests(node) if node is not None else []:
            if id(sent) not in self.answers:
                return
            sent.answer(self.answers.pop(id(sent)))
            self.spin()

    def process_and_answer(self, node: int) -> None:
        for sent in self._requests(node):
            if id(sent) not in self.answers:
                self.answers[id(sent)] = self._store(sent, {})
            sent.answer(self.answers.pop(id(sent)))
        self.spin()

    def disconnect(self, number: int, received: int, *, timed_out: bool = False) -> None:
        """Break a connection. The broker may append the received requests later."""
        node = self._busy_node(number)
        if node is None:
            return
        self.zombies += self._unprocessed(node)[:received]
        for sent in self._requests(node):
            self.answers.pop(id(sent), None)
            if timed_out:
                sent.time_out()
            else:
                sent.lose()
        self.spin()

    def zombie_is_processed(self, number: int) -> None:
        if self.zombies:
            zombie = self.zombies.pop(number % len(self.zombies))
            # The requests of a connection are processed in order.
            if not any(older.node_id == zombie.node_id for older in self.zombies):
                self._store(zombie, {})

    def node_state(self, node: int, seconds: float) -> None:
        """Make a node without requests unreachable for some seconds; 0: make it reachable again."""
        if not seconds:
            self.harness.brokers.connected(node)
        elif not self._requests(node):
            self.harness.brokers.down[node] = self.loop.time() + seconds
        self.spin()

    def leader_moves(self, partition: int, leader: int | None) -> None:
        """Change the leader without updating the metadata."""
        self.true_leaders[TopicPartition("t", partition)] = leader

    def metadata_arrives(self) -> None:
        self.harness.leaders = dict(self.true_leaders)
        self.harness.publish()
        self.loop.run_until_complete(quiet())

    def limit_changes(self) -> None:
        self.max_bytes = 10_200 - self.max_bytes

    def producer_id(self, *, refused: bool = False) -> None:
        """Answer all InitProducerId requests."""
        for sent in self.harness.brokers.init_requests:
            if not sent.done and refused:
                sent.respond(InitProducerIdResponse(0, Code.COORDINATOR_LOAD_IN_PROGRESS, -1, -1))
            elif not sent.done:
                sent.respond(InitProducerIdResponse(0, 0, PRODUCER_ID, 0))
        self.spin()

    # -- time -----------------------------------------------------------------------------------

    def time_passes(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))
        self.spin()

    def deliveries_expire(self) -> None:
        if any(not watched.delivery.done() for watched in self.records):
            self.time_passes(DELIVERY_TIMEOUT / 2)
            self.time_passes(DELIVERY_TIMEOUT / 2 + 0.01)

    # -- what must hold -------------------------------------------------------------------------

    def check(self) -> None:
        self._callbacks_run_once_and_only_then()
        self._outcomes_are_true()
        self._logs_are_in_order_and_without_duplicates()
        self._memory_is_accounted_to_the_byte()
        self._queues_hold_the_batches_in_a_queued_state()
        self._at_most_five_batches_are_open()

    def _callbacks_run_once_and_only_then(self) -> None:
        for watched in self.records:
            assert watched.calls == (watched.delivery.done() and watched.callback)

    def _outcomes_are_true(self) -> None:
        logs = {tp: self.harness.brokers.stored(tp) for tp in self.true_leaders}
        there = {tp: set(stored) for tp, stored in logs.items()}
        for watched in self.records:
            delivery, tp = watched.delivery, watched.tp
            if not delivery.done():
                continue
            if delivery.cancelled():
                assert not (delivery.withdrawn and watched.value in there[tp])
                continue
            error = delivery.exception()
            if error is None:
                offset = delivery.result().offset
                assert watched.value in there[tp], "acknowledged, yet not in the log"
                assert offset is None or logs[tp][offset] == watched.value
            elif error.outcome is not Outcome.UNKNOWN:
                assert watched.value not in there[tp], f"{error!r}, yet in the log"

    def _logs_are_in_order_and_without_duplicates(self) -> None:
        admitted = {
            watched.value: number
            for number, watched in enumerate(self.records)
            if watched.delivery.done()
            and not watched.delivery.cancelled()
            and watched.delivery.exception() is None
        }
        for tp in self.true_leaders:
            stored = self.harness.brokers.stored(tp)
            if self.idempotent:
                assert len(set(stored)) == len(stored), Counter(stored)
            if self.ordered:
                firsts = [admitted[value] for value in dict.fromkeys(stored) if value in admitted]
                assert firsts == sorted(firsts), f"{tp}: {firsts}"

    def _memory_is_accounted_to_the_byte(self) -> None:
        self.sightings.seen = {batch for batch in self.sightings.seen if batch.in_flight}
        batches = set(self.harness.accumulator.incomplete) | self.sightings.seen
        assert self.harness.memory.used == sum(batch.core.buffered_bytes for batch in batches)
        assert self.harness.memory.used <= MEMORY

    def _queues_hold_the_batches_in_a_queued_state(self) -> None:
        for batch in self.harness.accumulator.incomplete:
            assert (batch.state in QUEUED) is (batch in batch.queue.batches), batch
        for queue in self.harness.accumulator._queues.values():
            assert all(batch.state in QUEUED for batch in queue.batches), queue

    def _at_most_five_batches_are_open(self) -> None:
        if self.idempotent:
            on_wire = Counter(tp for sent in self.harness.brokers.waiting for tp in sent.batches)
            assert not on_wire or max(on_wire.values()) <= 5

    # -- the end --------------------------------------------------------------------------------

    def heal(self) -> None:
        """End all faults. Everything must settle soon, and no state may remain."""
        self.max_bytes = 10_000
        for node in range(1, BROKERS + 1):
            self.harness.brokers.connected(node)
        for tp, leader in self.true_leaders.items():
            self.true_leaders[tp] = leader or 1
        self.metadata_arrives()
        end = self.loop.time() + HEALED_WITHIN
        while self.loop.time() < end and self._unsettled():
            self.producer_id()
            for node in range(1, BROKERS + 1):
                self.process_and_answer(node)
            self.time_passes(0.05)
        assert not self._unsettled(), f"stuck: {self._describe()}"
        while self.zombies:
            self.zombie_is_processed(0)
        self.check()
        for task in self.waiting + self.flushes:
            assert task.done(), "a waiter was forgotten"
            if not task.cancelled():
                task.result()
        self.time_passes(DELIVERY_TIMEOUT + 1)
        self.harness.check_idle()
        self.harness.accumulator.advance(self.loop.time())
        assert self.harness.accumulator.next_due() == float("inf")
        assert not self.harness.accumulator._due
        assert self.harness.accumulator.expires_at == math.inf

    def _unsettled(self) -> bool:
        return bool(
            self.harness.accumulator.incomplete
            or self.harness.brokers.waiting
            or not all(task.done() for task in self.waiting)
        )

    def close(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(quiet())
        self.loop.close()

    def _describe(self) -> str:
        queues = self.harness.accumulator._queues.values()
        return "; ".join(f"{queue!r} {list(queue.batches)}" for queue in queues)
