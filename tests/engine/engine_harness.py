"""The engine with brokers that consist of logs only: no network, but real bytes.

`Brokers` implements the engine's port. Requests are encoded, parsed by the reader of
`testing.fake_cluster`, and answered when the test requests it. `EngineHarness` records the outcome
of every record.
"""

from __future__ import annotations

import asyncio
import functools
import math
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

from aiokprod._core.append import Appender
from aiokprod._core.batch import Delivery, RecordMetadata
from aiokprod._core.slots import TopicSlot
from aiokprod._core.yielding import YieldQueue
from aiokprod._engine.buffer.producer_batch import ProducerBatch
from aiokprod._engine.buffer.topic_settings import TopicSettingsTable
from aiokprod._engine.engine import Engine
from aiokprod._engine.identity.idempotence import IdempotentSequences, idempotent_state
from aiokprod._engine.identity.producer_state import ProducerState, non_idempotent_state
from aiokprod._engine.metadata.cache import Metadata
from aiokprod._engine.wakeup import WakeupEvent
from aiokprod._wire.compression import Codec
from aiokprod._wire.message import Message
from aiokprod._wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from aiokprod._wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from aiokprod._wire.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from aiokprod.cluster import ClusterSnapshot, Node
from aiokprod.config import ProducerConfig
from aiokprod.errors import Code, Disconnected, KafkaError, RequestTimedOut
from aiokprod.observer import Observer
from aiokprod.records import TopicPartition
from aiokprod.testing.fake_cluster.batches import Batch, BatchRefused, read_batch
from aiokprod.testing.fake_cluster.log import PartitionLog
from aiokprod.testing.virtual import VirtualLoop, run
from tests.engine.fake_connection import FakeReadyConnection, NoCoordinators
from tests.liveness_check import watch_passes

watch_passes()

BACKOFF = 0.1
"""Seconds before every retry in an `EngineHarness`."""

PRODUCER_ID = 7000


def topic_id(topic: str, incarnation: int = 0) -> bytes:
    return topic.encode()[:14].ljust(14, b"\1") + incarnation.to_bytes(2, "big")


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs an async test in virtual time; leaks and unhandled errors fail it."""

    @functools.wraps(test)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        run(lambda: test(*args, **kwargs), collect_garbage=False)

    return wrapper


async def quiet() -> None:
    """Run everything that is ready now, without advancing the clock."""
    for _ in range(6):
        await asyncio.sleep(0)


CROWD = 60


async def crowd(
    user: Callable[[int], Coroutine[Any, Any, None]], rng: random.Random, *, every: float
) -> set[int]:
    """Start `CROWD` numbered users one after the other, each within `every` seconds; every third
    time cancel one of them. When all have ended, return the numbers of the cancelled users."""
    gone = set()
    tasks = []
    for number in range(CROWD):
        tasks.append(asyncio.ensure_future(user(number)))
        if rng.random() < 0.3:
            victim = rng.randrange(len(tasks))
            tasks[victim].cancel()
            gone.add(victim)
        await asyncio.sleep(rng.random() * every)
    await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 600)
    return gone


@dataclass
class FakeResponse:
    node_id: int
    version: int
    body: Any = None
    error: KafkaError | None = None
    maybe_written: bool = True
    latency: float = 0.001
    throttle_ms: int = 0


@dataclass
class Sent:
    """A request in flight. Exactly one of the methods that end it is called."""

    brokers: Brokers
    node_id: int
    version: int
    request: Any
    on_done: Callable[[Any], None]
    at: float
    timeout: float
    expect_response: bool
    batches: dict[TopicPartition, Batch] = field(default_factory=dict)
    raw: dict[TopicPartition, bytes] = field(default_factory=dict)
    handed_over: list[tuple[bytes, bytes]] = field(default_factory=list)  # chunks and a copy
    done: bool = False
    throttle_ms: int = 0  # in the response

    @property
    def batch(self) -> Batch:
        """The only batch."""
        (batch,) = self.batches.values()
        return batch

    @property
    def values(self) -> list[bytes | None]:
        """Values of the only batch of the request."""
        return [record.value for record in self.batch.records]

    @property
    def sequence(self) -> tuple[int, int, int]:
        """Producer id, epoch and base sequence of the only batch."""
        return self.batch.producer_id, self.batch.epoch, self.batch.base_sequence

    def _end(self, response: FakeResponse) -> None:
        assert not self.done, "a request ends once"
        self.done = True
        for chunk, copy in self.handed_over:
            assert bytes(chunk) == copy, "bytes changed after they were handed over"
        self.on_done(response)
        self.brokers.on_wakeup()

    # -- what the broker did with it ------------------------------------------------------------

    def store(self) -> dict[TopicPartition, PartitionProduceResponse]:
        """Append all batches as a broker does; return its result for each."""
        return {tp: self.brokers.append(tp, batch) for tp, batch in self.batches.items()}

    # -- ends -----------------------------------------------------------------------------------

    def ack(self, **answer: Any) -> None:
        """Let the broker append the batches (or detect a duplicate or a gap) and respond."""
        self.answer(self.store(), **answer)

    def refuse(self, code: int, **fields: Any) -> None:
        """Return an error code for every partition; append nothing."""
        self.answer({tp: refusal(tp, code, **fields) for tp in self.batches})

    def answer(
        self,
        answers: Mapping[TopicPartition, PartitionProduceResponse],
        *,
        endpoints: Sequence[NodeEndpoint] = (),
    ) -> None:
        by_topic: dict[str, list[PartitionProduceResponse]] = {}
        for tp, answer in answers.items():
            by_topic.setdefault(tp.topic, []).append(answer)
        with_ids = self.version >= 13
        self.respond(
            ProduceResponse(
                responses=[
                    TopicProduceResponse(
                        name="" if with_ids else topic,
                        topic_id=self.brokers.topic_ids[topic] if with_ids else bytes(16),
                        partition_responses=partitions,
                    )
                    for topic, partitions in by_topic.items()
                ],
                node_endpoints=endpoints,
            )
        )

    def respond(self, response: Message) -> None:
        """Send a response, encoded and decoded again."""
        body = type(response).decode(response.encode(self.version), self.version)
        throttle_ms = self.throttle_ms
        self._end(FakeResponse(self.node_id, self.version, body, throttle_ms=throttle_ms))

    def written(self) -> None:
        """Report that the bytes were written (acks=0)."""
        assert not self.expect_response
        self.store()
        self._end(FakeResponse(self.node_id, self.version))

    def lose(self, *, stored: bool = False, maybe_written: bool = True) -> None:
        """End the connection without a response."""
        if stored:
            self.store()
        self.fail(Disconnected("gone"), maybe_written=maybe_written)

    def time_out(self, *, stored: bool = False) -> None:
        """Let the request timer of the connection expire."""
        if stored:
            self.store()
        self.fail(RequestTimedOut("no answer"))

    def fail(self, error: KafkaError, *, maybe_written: bool = True) -> None:
        self._end(
            FakeResponse(self.node_id, self.version, error=error, maybe_written=maybe_written)
        )


def refusal(
    tp: TopicPartition,
    code: int,
    *,
    message: str | None = None,
    record_errors: Sequence[tuple[int, str | None]] = (),
    leader: tuple[int, int] = (-1, -1),
    log_start: int = -1,
) -> PartitionProduceResponse:
    """Return a partition's part of a response with an error code."""
    return PartitionProduceResponse(
        index=tp.partition,
        error_code=code,
        base_offset=-1,
        log_start_offset=log_start,
        record_errors=[BatchIndexAndErrorMessage(i, text) for i, text in record_errors],
        error_message=message,
        current_leader=LeaderIdAndEpoch(*leader),
    )


class Brokers(NoCoordinators):
    """The engine's `BrokerClient`. Tests set which nodes are up, down or busy."""

    def __init__(self, *, version: int = 13, max_in_flight: int = 5, strict: bool = False) -> None:
        self.version = version
        self.max_in_flight = max_in_flight
        self.nodes: dict[int, Node] = {}
        self.down: dict[int, float] = {}  # node id -> time before which it cannot be connected
        self.busy: set[int] = set()
        self.sent: list[Sent] = []
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.topic_ids: dict[str, bytes] = {}
        self.ready_calls: list[int] = []
        self.strict = strict
        self.restarted_at: dict[TopicPartition, int] = {}
        self.append_time_ms: int | None = None  # set by brokers with LogAppendTime
        self.on_wakeup: Callable[[], None] = lambda: None

    # -- the port -------------------------------------------------------------------------------

    def set_nodes(self, nodes: Iterable[Node]) -> None:
        self.nodes = {node.id: node for node in nodes}

    def can_send(self, node_id: int, now: float) -> bool:
        return (
            node_id in self.nodes
            and node_id not in self.down
            and node_id not in self.busy
            and self.in_flight_count(node_id) < self.max_in_flight
        )

    def ready(self, node_id: int, now: float) -> FakeReadyConnection | None:
        self.ready_calls.append(node_id)
        if self.down.get(node_id, math.inf) <= now:
            self.down[node_id] = math.inf  # dialling
            asyncio.get_running_loop().call_soon(self.connected, node_id)
        return FakeReadyConnection(self, node_id) if self.can_send(node_id, now) else None

    def connected(self, node_id: int) -> None:
        """Report an open connection: the tasks that wait for it are woken."""
        if self.down.pop(node_id, None) is not None:
            self.on_wakeup()

    def retry_at(self, node_id: int, now: float) -> float:
        return self.down.get(node_id, math.inf) if node_id in self.nodes else math.inf

    def in_flight_count(self, node_id: int) -> int:
        return sum(sent.node_id == node_id for sent in self.open)

    def total_in_flight(self) -> int:
        return len(self.open)

    def least_loaded(self, now: float) -> int | None:
        usable = [node for node in self.nodes if self.can_send(node, now)] or list(self.nodes)
        return min(usable, key=lambda node: (self.in_flight_count(node), node), default=None)

    def version_range(self, node_id: int, api_key: int) -> tuple[int, int] | None:
        return (3, self.version) if node_id not in self.down else None

    def send(
        self,
        node_id: int,
        request: Any,
        on_done: Callable[[Any], None],
        now: float,
        *,
        timeout: float,
        max_version: int | None = None,
        expect_response: bool = True,
    ) -> None:
        assert self.can_send(node_id, now), "sent to a node that cannot take it"
        version = self.version
        if request.api_key == InitProducerIdRequest.api_key:
            version = 4
        if max_version is not None:
            version = min(version, max_version)
        message = request if isinstance(request, Message) else request(version)
        decoded = type(message).decode(message.encode(version), version)
        sent = Sent(self, node_id, version, decoded, on_done, now, timeout, expect_response)
        if isinstance(message, ProduceRequest):
            self._read(sent, message)
        self.sent.append(sent)

    def give_up(self, node_id: int, error: KafkaError) -> None:
        for sent in [sent for sent in self.open if sent.node_id == node_id]:
            sent.fail(error, maybe_written=True)

    def reset_backoff(self) -> None:
        self.down.clear()

    # -- brokers --------------------------------------------------------------------------------

    def _read(self, sent: Sent, message: ProduceRequest) -> None:
        names = {topic_id: name for name, topic_id in self.topic_ids.items()}
        for topic in sent.request.topic_data:
            name = names[bytes(topic.topic_id)] if sent.version >= 13 else topic.name
            for partition in topic.partition_data:
                tp = TopicPartition(name, partition.index)
                assert tp not in sent.batches, "two batches of one partition in a request"
                data = bytes(partition.records)
                sent.raw[tp] = data
                sent.batches[tp] = read_batch(data, produce_version=sent.version)
                assert not sent.batches[tp].oddities
        handed_over: list[Any] = [
            (chunk, bytes(chunk))
            for topic in message.topic_data
            for partition in topic.partition_data
            for chunk in partition.records or ()
        ]
        sent.handed_over = handed_over

    def log(self, tp: TopicPartition) -> PartitionLog:
        if tp not in self.logs:
            self.logs[tp] = PartitionLog(strict_ledger=self.strict)
        return self.logs[tp]

    def append(self, tp: TopicPartition, batch: Batch) -> PartitionProduceResponse:
        log = self.log(tp)
        known = None
        if batch.producer_id >= 0:
            known = log.ledger.duplicate_of(batch, self.restarted_at.get(tp, 0))
        if known is not None:
            offset, stamp = known.base_offset, known.timestamp_ms
            return PartitionProduceResponse(tp.partition, 0, offset, stamp, log.start_offset)
        try:
            if batch.producer_id >= 0:
                log.ledger.check(batch)
        except BatchRefused as refused:
            return refusal(tp, refused.code, message=str(refused), log_start=log.start_offset)
        appended_ms = self.append_time_ms
        offset = log.append(batch, appended_ms)
        stamp = -1 if appended_ms is None else appended_ms
        return PartitionProduceResponse(tp.partition, 0, offset, stamp, log.start_offset)

    def restart(self, tp: TopicPartition) -> None:
        """Restart the leader after a controlled shutdown: its producer snapshot contains only the
        newest batch of each producer."""
        self.restarted_at[tp] = self.log(tp).end_offset

    def stored(self, tp: TopicPartition) -> list[bytes | None]:
        """Values in the log of a partition."""
        return [record.value for record in self.log(tp).records()]

    # -- what was sent --------------------------------------------------------------------------

    @property
    def open(self) -> list[Sent]:
        """Requests that have not ended."""
        return [sent for sent in self.sent if not sent.done]

    @property
    def produce(self) -> list[Sent]:
        """All Produce requests."""
        return [sent for sent in self.sent if isinstance(sent.request, ProduceRequest)]

    @property
    def waiting(self) -> list[Sent]:
        """Produce requests that have not ended."""
        return [sent for sent in self.open if isinstance(sent.request, ProduceRequest)]

    @property
    def last(self) -> Sent:
        """The newest Produce request."""
        return self.produce[-1]

    @property
    def init_requests(self) -> list[Sent]:
        """All InitProducerId requests."""
        return [sent for sent in self.sent if isinstance(sent.request, InitProducerIdRequest)]


class Recorder(Observer):
    """Counts the calls of the observer."""

    def __init__(self) -> None:
        self.acknowledged: Counter[ProducerBatch] = Counter()
        self.failed: Counter[ProducerBatch] = Counter()
        self.retries: list[str] = []
        self.splits = 0
        self.unretrieved: list[tuple[TopicPartition, int]] = []
        self.requests = 0

    def on_batches_sent(self, node_id: int, batches: Sequence[Any]) -> None:
        self.requests += 1

    def on_batch_acknowledged(self, batch: Any, now: float) -> None:
        self.acknowledged[batch] += 1

    def on_batch_failed(self, batch: Any, error: KafkaError) -> None:
        self.failed[batch] += 1

    def on_batch_retry(self, batch: Any, code: Any) -> None:
        self.retries.append(code.name)

    def on_batch_split(self, batch: Any) -> None:
        self.splits += 1

    def on_unretrieved_failure(
        self, topic_partition: TopicPartition, records: int, error: KafkaError
    ) -> None:
        self.unretrieved.append((topic_partition, records))


class EngineHarness:
    """An `Engine`, and brokers 1 … `brokers` that lead the partitions in turn."""

    def __init__(
        self,
        *,
        idempotent: bool = True,
        partitions: int = 1,
        topics: Sequence[str] = ("t",),
        brokers: int = 1,
        version: int = 13,
        codec: Codec | None = None,
        executor: Executor | None = None,
        ids: bool = True,
        strict: bool = False,
        loop: asyncio.AbstractEventLoop | None = None,
        known_producer: bool = True,
        first_epoch: int = 0,
        **settings: Any,
    ) -> None:
        self.loop = loop or asyncio.get_running_loop()
        settings.setdefault("linger_ms", 0)
        settings.setdefault("enable_idempotence", idempotent)
        self.config = ProducerConfig(bootstrap_servers="boot:9092", **settings)
        self.brokers = Brokers(
            version=version,
            max_in_flight=self.config.max_in_flight_requests_per_connection,
            strict=strict,
        )
        self.epoch = 0
        self.published: dict[TopicPartition, tuple[int | None, int]] = {}  # leader, its epoch
        self.with_ids = ids
        self.leaderless_code = int(Code.LEADER_NOT_AVAILABLE)
        """The error code of a partition without a leader in the metadata. Gateways may return 0
        instead."""
        self.incarnations = dict.fromkeys(topics, 0)
        self.leaders: dict[TopicPartition, int | None] = {
            TopicPartition(topic, partition): 1 + partition % brokers
            for topic in topics
            for partition in range(partitions)
        }
        self.node_ids = list(range(1, brokers + 1))
        self.observer = Recorder()
        self.wakeups = 0
        self._build(codec, executor)
        for topic in topics:
            self.metadata.mark_used(topic, self.now)
        self.publish()
        for topic in topics:
            self.add_slot(topic)
        if known_producer and isinstance(self.state.sequences, IdempotentSequences):
            self.state.sequences.tracker.set_producer_id(PRODUCER_ID, first_epoch)

    def _build(self, codec: Codec | None, executor: Executor | None) -> None:
        config = self.config
        self.metadata = Metadata(config, random.Random(1))
        self.state: ProducerState
        if config.idempotent:
            self.state = idempotent_state(lambda attempts: BACKOFF, self._wakeup)
        else:
            in_flight = config.max_in_flight_requests_per_connection
            self.state = non_idempotent_state(guarantee_order=in_flight == 1)
        engine = Engine(
            config,
            loop=self.loop,
            client=self.brokers,
            metadata=self.metadata,
            state=self.state,
            settings=TopicSettingsTable(config, codec),
            wakeup=WakeupEvent(self.loop, keep_timer=True),
            wake=self._wakeup,
            executor=executor,
            choose_partition=self.choose,
            backoff=lambda attempts: BACKOFF,
            observer=self.observer,
        )
        self.memory = engine.memory
        self.flushes = engine.flushes
        self.quota = engine.quota
        self.accumulator = engine.accumulator
        self.sender = engine.sender
        self.appender = Appender(
            memory=self.memory,
            open_new_batch=self.accumulator.open_new_batch,
            slow_submit=self._no_slow_path,
            unix_ms=lambda: 1_700_000_000_000 + int(self.now * 1000),
            yield_queue=YieldQueue(self.loop, self.loop.time, self.memory),
            max_request_size=config.max_request_size,
            ignore_keys=config.partitioner_ignore_keys,
        )
        self.appender.enabled = True
        self.brokers.on_wakeup = self.sender.wakeup
        self.metadata.on_change(self._on_snapshot)
        self.next_sticky = 0

    @property
    def now(self) -> float:
        return self.loop.time()

    # -- what Runtime does ----------------------------------------------------------------------

    def _wakeup(self) -> None:
        self.wakeups += 1
        self.sender.wakeup()

    def _on_snapshot(self, snapshot: ClusterSnapshot) -> None:
        self.brokers.set_nodes(node for node in snapshot.nodes.values() if node.id >= 0)
        self.accumulator.on_snapshot(snapshot, self.now)
        self.sender.on_snapshot()

    def choose(self, slot: TopicSlot) -> int:
        """Return `next_sticky`, as the test's sticky partitioner."""
        return self.next_sticky

    def add_slot(self, topic: str) -> None:
        slot = self.appender.topics[topic] = TopicSlot(
            topic, self.accumulator.settings.of(topic).sticky_limit
        )
        count = self.metadata.snapshot.partition_count(topic)
        assert count is not None
        slot.slots.extend(self.accumulator.queue(topic, partition) for partition in range(count))
        self.accumulator.on_snapshot(self.metadata.snapshot, self.now)

    @property
    def topic_slots(self) -> EngineHarness:
        """`Runtime.topic_slots`, for `SlowPath`."""
        return self

    def slot_of(self, topic: str, snapshot: ClusterSnapshot) -> TopicSlot:
        """See `TopicSlots.slot_of`."""
        return self.appender.topics[topic]

    async def _no_slow_path(self, *arguments: Any) -> Any:
        raise AssertionError("the tests take the fast path only")

    # -- the cluster's view ---------------------------------------------------------------------

    def publish(self) -> None:
        """Update the cache with the current leaders; changed leaders have a newer epoch."""
        self.epoch += 1
        topics: dict[str, list[MetadataResponsePartition]] = {}
        for tp, leader in self.leaders.items():
            code = 0 if leader is not None else self.leaderless_code
            before, epoch = self.published.get(tp, (None, self.epoch))
            epoch = epoch if before == leader else self.epoch
            self.published[tp] = leader, epoch
            topics.setdefault(tp.topic, []).append(
                MetadataResponsePartition(
                    code, tp.partition, -1 if leader is None else leader, epoch, [], [], []
                )
            )
        for topic in topics:
            self.brokers.topic_ids[topic] = (
                topic_id(topic, self.incarnations[topic]) if self.with_ids else bytes(16)
            )
        response = MetadataResponse(
            brokers=[MetadataResponseBroker(n, f"host-{n}", 9092, None) for n in self.node_ids],
            cluster_id="cluster",
            controller_id=1,
            topics=[
                MetadataResponseTopic(0, topic, self.brokers.topic_ids[topic], False, partitions)
                for topic, partitions in topics.items()
            ],
        )
        plan = self.metadata.plan(self.now)
        self.metadata.update(
            plan.request_generation,
            MetadataResponse.decode(response.encode(12), 12),
            plan.partial,
            self.now,
        )

    def refresh(self) -> None:
        """Act as the metadata updater: fetch metadata if an update is due."""
        if self.metadata.update_due(self.now):
            self.publish()

    async def run_for(self, seconds: float, every: float = 0.01) -> None:
        """Let time pass with a running sender task, and fetch metadata when it is requested."""
        end = self.now + seconds
        while self.now < end:
            await quiet()
            self.refresh()
            await quiet()
            await asyncio.sleep(min(every, end - self.now))
        await quiet()

    def move(self, partition: int, leader: int | None, topic: str = "t") -> None:
        """Change the leader and update the metadata at once."""
        self.leaders[TopicPartition(topic, partition)] = leader
        self.publish()

    # -- records --------------------------------------------------------------------------------

    def append(
        self,
        value: bytes | None,
        partition: int | None = 0,
        *,
        key: bytes | None = None,
        topic: str = "t",
        timestamp_ms: int | None = None,
        headers: Any = None,
    ) -> Delivery:
        delivery = self.appender.append(
            self.appender.topics[topic], partition, value, key, timestamp_ms, headers
        ).delivery
        assert delivery is not None, "no memory"
        return delivery

    def drain(
        self,
        node_id: int = 1,
        max_size: int = 1 << 20,
        may_drain: Callable[[Any, ProducerBatch], bool] = lambda queue, batch: True,
    ) -> list[ProducerBatch]:
        """Return the batches that the sender would send to a broker now."""
        self.accumulator.advance(self.now)
        return self.accumulator.drain(node_id, max_size, may_drain)

    def append_all(self, *values: bytes, partition: int = 0) -> list[Delivery]:
        """Append the records, each to a separate batch."""
        deliveries = []
        for value in values:
            deliveries.append(self.append(value, partition))
            self.close_open(partition)
        return deliveries

    def close_open(self, partition: int = 0, topic: str = "t") -> None:
        """Seal the open batch of a partition, so that the next record opens a new one."""
        queue = self.accumulator.queue(topic, partition)
        if queue.core is not None:
            self.accumulator._seal(queue.core.owner)

    # -- time and passes ------------------------------------------------------------------------

    def step(self) -> float:
        """Run the sender once, and again while it requests a run without a delay (expiry takes two
        runs)."""
        for _ in range(3):
            at = self.sender.run_once(self.now)
            if at > self.now:
                return at
        raise AssertionError("the sender would spin")

    def pass_time(self, seconds: float) -> None:
        """Advance the clock without running the loop."""
        assert isinstance(self.loop, VirtualLoop)
        self.loop.stall(seconds)

    def later(self, seconds: float = BACKOFF) -> float:
        """Advance the clock, then run the sender."""
        self.pass_time(seconds)
        return self.step()

    def init_producer(self, producer_id: int = PRODUCER_ID, epoch: int = 0, code: int = 0) -> None:
        """Answer the newest InitProducerId."""
        self.brokers.init_requests[-1].respond(InitProducerIdResponse(0, code, producer_id, epoch))

    # -- checks ---------------------------------------------------------------------------------

    def queued(self, partition: int = 0, topic: str = "t") -> list[ProducerBatch]:
        return list(self.accumulator.queue(topic, partition).batches)

    def check_idle(self) -> None:
        """Check that no state remains anywhere."""
        accumulator = self.accumulator
        assert not accumulator.incomplete
        assert self.memory.used == 0, f"{self.memory.used} bytes left"
        assert self.memory.waiting == 0
        assert self.quota.waiting == 0
        assert not any(self.quota.reserved_bytes(node) for node in self.quota._held)
        assert not self.quota._granted
        assert not self.flushes.active
        assert accumulator.next_expiry() == math.inf
        for queue in accumulator._queues.values():
            assert not queue.batches
            assert not queue.in_flight
            assert queue.core is None
        for node in accumulator._nodes.values():
            assert not node.ready
            assert not node.lingering
            assert not node.held
        assert not self.brokers.waiting
        if isinstance(self.state.sequences, IdempotentSequences):
            for entry in self.state.sequences.tracker.partitions.values():
                assert not entry.open


def outcome_of(delivery: Delivery) -> RecordMetadata | KafkaError | None:
    """Return the metadata or the error, or None while pending."""
    if not delivery.done():
        return None
    return delivery.exception() or delivery.result()


def offset_of(delivery: Delivery) -> int | None:
    assert delivery.done(), "pending"
    return delivery.result().offset


def error_of(delivery: Delivery) -> KafkaError:
    assert delivery.done(), "pending"
    error = delivery.exception()
    assert error is not None, "acknowledged"
    return error
