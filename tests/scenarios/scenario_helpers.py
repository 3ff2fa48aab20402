"""Helpers of the scenario tests: a cluster and a producer in virtual time, and the check of a
history.

They are written from the promises of the design alone, independent of the engine's code.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from aiokprod._client.runtime import Runtime
from aiokprod.environment import Environment
from aiokprod.errors import KafkaError, Outcome
from aiokprod.producer import Producer
from aiokprod.records import RecordMetadata
from aiokprod.testing.fake_cluster import FakeCluster, Reaction, edit_frame
from aiokprod.testing.memory import MemoryNetwork
from aiokprod.testing.virtual import VirtualLoop, run
from tests.liveness_check import check_passes, watch_passes

T = TypeVar("T")

watch_passes()

TICK = 0.25
"""Seconds a deadline may be overrun (promise P6)."""

RECOVERY = 2.0
"""Seconds to the first acknowledgment once the cluster can serve (promise P11)."""

DEBUG = bool(os.environ.get("AIOKPROD_TEST_DEBUG"))
"""asyncio's debug mode: twelve times slower, therefore off by default."""


def clock() -> VirtualLoop:
    """Return the running loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


def now() -> float:
    """Return the virtual time in seconds."""
    return clock().time()


def make_producer(cluster: FakeCluster, **options: Any) -> Producer[Any, Any]:
    """Create a producer for the cluster. `seed`, `unix_ms` and `rng` determine its environment."""
    options.setdefault("bootstrap_servers", cluster.bootstrap_servers)
    rng = options.pop("rng", None) or random.Random(options.pop("seed", 1))
    environment = Environment(
        dialer=options.pop("dialer", cluster.network),
        unix_ms=options.pop("unix_ms", cluster.unix_ms),
        rng=rng,
        stopwatch=lambda: asyncio.get_running_loop().time(),  # one test's is real
    )
    return Producer(environment=environment, **options)


def runtime_of(producer: Producer[Any, Any]) -> Runtime:
    """Return the `Runtime` of a started producer."""
    runtime = producer._lifecycle.runtime
    assert runtime is not None
    return runtime


@dataclass
class Attempt:
    """One submitted record, in order of submission. `result` is None until the outcome is known."""

    number: int
    topic: str
    partition: int
    value: bytes
    result: RecordMetadata | BaseException | None = None
    settled_at: float = 0.0
    started_at: float = 0.0

    @property
    def acked(self) -> bool:
        return isinstance(self.result, RecordMetadata)

    @property
    def metadata(self) -> RecordMetadata:
        assert isinstance(self.result, RecordMetadata), repr(self.result)
        return self.result

    @property
    def outcome(self) -> Outcome:
        assert isinstance(self.result, KafkaError), repr(self.result)
        return self.result.outcome


class History:
    """Sends records whose values identify them, and compares their outcomes with the logs."""

    def __init__(self, cluster: FakeCluster, producer: Producer[Any, Any], size: int = 0) -> None:
        self.cluster = cluster
        self.producer = producer
        self.size = size
        self.attempts: list[Attempt] = []
        self._waiting: list[asyncio.Task[None]] = []

    async def submit(self, topic: str = "t", partition: int = 0) -> Attempt:
        """Submit the next record; return when it is in a batch or refused."""
        attempt = self._next(topic, partition)
        try:
            delivery = await self.producer.submit(topic, attempt.value, partition=partition)
        except KafkaError as error:
            self._settle(attempt, error)
        else:
            self._waiting.append(asyncio.ensure_future(self._wait(attempt, delivery)))
        return attempt

    async def send(self, topic: str = "t", partition: int = 0, **options: Any) -> Attempt:
        """Send one record and wait for its outcome."""
        attempt = self._next(topic, partition)
        sending = self.producer.send(topic, attempt.value, partition=partition, **options)
        await self._wait(attempt, sending)
        return attempt

    def send_later(self, topic: str = "t", partition: int = 0, **options: Any) -> asyncio.Task[Any]:
        """Run `send` as a task."""
        return asyncio.ensure_future(self.send(topic, partition, **options))

    async def submit_many(
        self, count: int, *, every: float = 0.0, partitions: Sequence[int] = (0,), topic: str = "t"
    ) -> list[Attempt]:
        """Submit records round robin, one per `every` seconds (0: without a pause)."""
        found = []
        for index in range(count):
            found.append(await self.submit(topic, partitions[index % len(partitions)]))
            if every:
                await asyncio.sleep(every)
        return found

    async def settle(self) -> list[Attempt]:
        """Wait for the outcomes of all records."""
        await asyncio.gather(*self._waiting)
        self._waiting.clear()
        return self.attempts

    def _next(self, topic: str, partition: int) -> Attempt:
        number = len(self.attempts)
        value = f"canary/{topic}/{partition}/{number}/".encode()
        attempt = Attempt(number, topic, partition, value.ljust(self.size, b"."), started_at=now())
        self.attempts.append(attempt)
        return attempt

    async def _wait(self, attempt: Attempt, result: Awaitable[RecordMetadata]) -> None:
        try:
            metadata = await result
        except KafkaError as error:
            self._settle(attempt, error)
        else:
            self._settle(attempt, metadata)

    @staticmethod
    def _settle(attempt: Attempt, result: RecordMetadata | KafkaError) -> None:
        attempt.result = result
        attempt.settled_at = now()

    # -- the judge ------------------------------------------------------------------------------

    def check(
        self, *, ordered: bool = True, unique: bool = True, refusals: bool = False
    ) -> list[Attempt]:
        """Check promises P1 to P5 for all records sent so far.

        Args:
            ordered: acknowledged records of a partition must be in the order of submission (P3).
            unique: no record may be stored twice (P2).
            refusals: brokers may have refused batches because of their contents.
        """
        stored: dict[bytes, list[tuple[str, int, int]]] = {}
        for topic in self.cluster.topics.values():
            for partition in topic.partitions:
                for record in partition.log.records():
                    place = topic.name, partition.index, record.offset
                    stored.setdefault(record.value or b"", []).append(place)
        for attempt in self.attempts:
            places = stored.pop(attempt.value, [])
            _judge(attempt, places, unique=unique)
        assert not stored, f"never sent: {list(stored)[:3]}"
        if ordered:
            self._check_order()
        assert self.cluster.violations == []
        assert self.cluster.network.mutated == []
        if not refusals:
            assert self.cluster.refusals == []
        return self.attempts

    def all_acked(self, **options: Any) -> list[Attempt]:
        """Check the history and that no record failed."""
        failed = [attempt for attempt in self.attempts if not attempt.acked]
        assert not failed, failed[:3]
        return self.check(**options)

    def _check_order(self) -> None:
        last: dict[tuple[str, int], tuple[int, int]] = {}
        for attempt in self.attempts:
            result = attempt.result
            if not isinstance(result, RecordMetadata) or result.offset is None:
                continue
            where = attempt.topic, attempt.partition
            before = last.get(where, (-1, -1))
            assert result.offset > before[1], f"{attempt} after number {before[0]}"
            last[where] = attempt.number, result.offset


def _judge(attempt: Attempt, places: list[tuple[str, int, int]], *, unique: bool) -> None:
    result = attempt.result
    assert result is not None, f"never settled: {attempt}"
    if unique:
        assert len(places) <= 1, f"stored {len(places)} times: {attempt} {places}"
    for topic, partition, _ in places:
        assert (topic, partition) == (attempt.topic, attempt.partition), f"{attempt} in {places}"
    if isinstance(result, RecordMetadata):
        assert places, f"lost: {attempt}"
        assert (result.topic, result.partition) == (attempt.topic, attempt.partition)
        if result.offset is not None:
            assert result.offset in [offset for _, _, offset in places], f"{attempt} {places}"
        return
    assert isinstance(result, KafkaError), f"{attempt}"
    if result.outcome is not Outcome.UNKNOWN:
        assert not places, f"definite, yet stored: {attempt} {places}"


@contextlib.asynccontextmanager
async def harness(
    *, partitions: int = 1, cluster: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[FakeCluster, Producer[Any, Any], History]]:
    """A cluster with topic "t", a producer and a history. The producer is always closed at the
    end."""
    made = FakeCluster(network=MemoryNetwork(), **(cluster or {}))
    made.create_topic("t", partitions)
    producer = make_producer(made, **options)
    try:
        yield made, producer, History(made, producer)
    finally:
        await producer.close(5.0)


def play(main: Callable[[], Coroutine[Any, Any, T]], **options: Any) -> T:
    """`run` for matrices: no debug mode, no garbage collection after each case."""
    result = run(main, debug=DEBUG, collect_garbage=False, **options)
    check_passes()
    return result


def noted_sizes(sizes: list[int]) -> Reaction:
    """Return a reaction that appends the size of each response to `sizes`."""

    def note(frame: bytes) -> bytes:
        sizes.append(len(frame))
        return frame

    return edit_frame(note)


Scenario = Callable[..., Coroutine[Any, Any, None]]


def scenario(
    *,
    partitions: int = 3,
    topic: str | None = "t",
    limit_s: float = 3600.0,
    check_leaks: bool = True,
    brokers: int = 3,
    cluster: dict[str, Any] | None = None,
    **options: Any,
) -> Callable[[Scenario], Callable[..., None]]:
    """Run `async test(cluster, producer, history, **parameters)` in virtual time.

    The producer is closed afterwards; a leaked resource fails the test.

    Args:
        topic: created beforehand with `partitions`; None: no topic.
        cluster: options of the `FakeCluster`. The other options are the producer's.
    """

    def decorate(function: Scenario) -> Callable[..., None]:
        async def main(parameters: dict[str, Any]) -> None:
            harness = FakeCluster(brokers, network=MemoryNetwork(), **(cluster or {}))
            if topic is not None:
                harness.create_topic(topic, partitions)
            producer = make_producer(harness, **options)
            try:
                await function(harness, producer, History(harness, producer), **parameters)
            finally:
                await producer.close(timeout=60.0)
            await asyncio.sleep(1.0)
            assert harness.network.mutated == []

        @functools.wraps(function)
        def test(**parameters: Any) -> None:
            run(
                lambda: main(parameters),
                limit_s=limit_s,
                check_leaks=check_leaks,
                debug=DEBUG,
            )
            check_passes()

        # pytest reads the parameters from the signature: remove the arguments that are not
        # parameters.
        signature = inspect.signature(function)
        kept = list(signature.parameters.values())[3:]
        test.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        del test.__wrapped__
        return test

    return decorate


async def until(condition: Callable[[], bool], *, within: float = 60.0) -> float:
    """Wait for a condition; return the virtual seconds it took."""
    start = now()
    while not condition():
        assert now() - start < within, "condition did not come true"
        await asyncio.sleep(0.01)
    return now() - start


def error_of(attempt: Attempt, kind: type[KafkaError] = KafkaError) -> Any:
    """Return the error of an attempt, which must be of `kind`."""
    assert isinstance(attempt.result, kind), repr(attempt.result)
    return attempt.result
