"""One seed from start to end: load and faults, recovery, checks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import random
import warnings
import zlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

from aiokprod.errors import (
    BufferTimeout,
    DeliveryTimeout,
    KafkaError,
    MetadataTimeout,
    ProducerClosed,
    ProducerFailed,
)
from aiokprod.producer import Producer
from aiokprod.testing.fake_cluster import FakeCluster, TopicConfig
from aiokprod.testing.memory import MemoryNetwork
from aiokprod.testing.virtual import LivelockError, VirtualLoop, WorldHandle, run
from tests.scenarios.scenario_helpers import RECOVERY, TICK, clock, make_producer, now
from tests.simulation.broker_behaviours import Temperaments
from tests.simulation.fault_scripts import Misfortunes
from tests.simulation.last_faults import LastFault
from tests.simulation.metadata_watch import EpochWatch
from tests.simulation.oracle import (
    Judge,
    Violation,
    check_counts,
    check_haste,
    check_idle,
    longest,
)
from tests.simulation.progress import Progress
from tests.simulation.rare_faults import RareFaults
from tests.simulation.seeds import PARTITIONS, STEPS, TOPICS, Plan, plan_of
from tests.simulation.sessions import MOST_THROTTLED_S, Sessions
from tests.simulation.sessions import OPTIONS as SASL_OPTIONS
from tests.simulation.user_objects import LATER_S, HookInterrupt, UserObjects
from tests.simulation.wire_log import Wire
from tests.simulation.workload import Attempt, Habit, Load

LONGEST_S = 3_600.0
"""Virtual seconds after which a seed counts as hanging; healthy seeds take a few hundred at
most."""
MOST_PASSES = 200_000
"""Iterations of the event loop after which a seed counts as hanging; healthy seeds need a few
thousand."""
STUCK_S = 6.0
"""Maximum seconds without an outcome, after all faults have ended, for a partition with waiting
records: three backoffs of 1 s each with jitter, and the time that the cluster needs."""


@dataclass(frozen=True)
class Report:
    """The result of a seed.

    Attributes:
        trace: checksum over every delivered byte with its time, and over every outcome.
        exemptions: how often each exemption was needed, by name (`exemptions.EXEMPTIONS`).
    """

    seed: int
    trace: int
    records: int
    acknowledged: int
    failed: int
    virtual_s: float
    faults: tuple[str, ...]
    exemptions: dict[str, int]


def run_seed(seed: int) -> Report:
    """Run one seed in virtual time.

    Raises:
        Violation: a promise was broken; a note names the seed.
    """
    plan = plan_of(seed)
    loggers = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            if "interrupt" in plan.menu:  # between a coroutine and its await
                warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            return _run(plan, seed)
    except BaseException as error:
        error.add_note(f"seed {seed}: {plan}")
        raise
    finally:
        logging.disable(loggers)


def _run(plan: Plan, seed: int) -> Report:
    return run(
        lambda: Simulation(plan).main(),
        seed=seed,
        limit_s=LONGEST_S,
        late_timers_s=plan.late_timers_s,
        debug=False,
        collect_garbage=False,
    )


def bound_passes(loop: VirtualLoop) -> None:
    """Let the loop raise LivelockError after `MOST_PASSES` iterations. A loop whose clock advances
    in tiny steps would reach neither its limit of idle passes nor its limit of virtual time."""
    advance = loop._advance

    def bounded(timeout: float | None) -> list[WorldHandle]:
        if loop.passes >= MOST_PASSES:
            del loop._advance  # the cleanup after the run needs more iterations
            raise LivelockError(
                f"{MOST_PASSES} loop passes until virtual time {loop.time():.3f}\n"
                + loop.describe_tasks()
            )
        return advance(timeout)

    setattr(loop, "_advance", bounded)  # noqa: B010  (mypy takes an assignment for a mistake)


class Simulation:
    """The cluster, the producer and the application of one seed."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rng = random.Random(plan.seed * 7919 + 1)
        self.wire = Wire()
        network = MemoryNetwork()
        network.on_link = self.wire.follow
        self.cluster = FakeCluster(network=network, **plan.cluster)
        self.cluster.first_epoch = plan.producer_epoch
        self.cluster.max_in_flight = plan.options["max_in_flight_requests_per_connection"]
        minimum = min(2, plan.cluster["brokers"])
        self.cluster.create_topic("t", PARTITIONS)
        self.cluster.create_topic("u", PARTITIONS, config=TopicConfig(min_insync_replicas=minimum))
        habit = Habit()
        options = dict(plan.options)
        if plan.habit == "serializer":
            options["value_serializer"] = habit
        elif plan.habit == "interceptor":
            options["interceptors"] = [habit]
        self.objects = UserObjects(plan.seed, plan.objects)
        options.update(self.objects.options())
        self.sessions = Sessions(plan, self.cluster) if "sessions" in plan.rare_faults else None
        if self.sessions is not None:
            options.update(SASL_OPTIONS)
        self.producer: Producer[Any, Any] = make_producer(
            self.cluster, seed=plan.seed, unix_ms=self._wall_ms, **options
        )
        self.load = habit.load = self.objects.load = Load(plan, self.producer, self.rng)
        self.temperaments = Temperaments(plan, self.cluster)
        if self.cluster.sasl is not None:
            for broker in self.cluster.brokers.values():
                self.cluster.sasl.offer(broker)  # `capped_versions` may have removed it
        self.misfortunes = Misfortunes(plan, self.cluster, self.load, self.rng, self.temperaments)
        self.rare_faults = RareFaults(plan, self.cluster, self.load, self.misfortunes)
        self.objects.stalls = self.misfortunes.stalls
        self.started_at = 0.0
        self.ended_at = float("inf")
        self.refused_fresh: list[Attempt] = []
        self.exemptions: Counter[str] = Counter()

    def _wall_ms(self) -> int:
        return self.cluster.unix_ms() + self.misfortunes.wall_offset_ms

    async def main(self) -> Report:
        """Run the simulation; return when the producer is closed and everything is checked."""
        loop = clock()
        bound_passes(loop)
        loop.executor_delay_s = self.plan.executor_delay_s
        if self.plan.objects:
            self._allow_interrupts(loop)
        self.started_at = now()
        await self.producer.start()
        watch = EpochWatch(self.misfortunes, self.wire)
        watch.follow(self.producer)
        try:
            with self.wire.watch_unwritten():
                remove = self.cluster.control(None, self.misfortunes.unreliable)
                await self._bad_times()
                remove()
                await self._ending()
            await self._report_dropped()
            self._judge()
            watch.check()
        finally:
            await self.producer.close(10.0)
        return self._report()

    def _allow_interrupts(self, loop: VirtualLoop) -> None:
        """Collect the exceptions that are passed to the loop: hook exceptions that are not an
        `Exception`, and those of signal handlers while an outcome is reported to a hook. They must
        not stop the loop."""

        def collect(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            error = context.get("exception")
            if not isinstance(error, HookInterrupt) and not self.load.passed_on.take(error):
                loop.unhandled.append(context)  # type: ignore[attr-defined]

        loop.set_exception_handler(collect)

    # -- phases ---------------------------------------------------------------------------------

    async def _bad_times(self) -> None:
        heal_rate = self.rng.choice((0.1, 0.3, 0.5))
        most = self.rng.choice((2, 4, 8))
        for step in range(STEPS):
            for _ in range(self.rng.randrange(most)):
                self.load.hand_over()
            await asyncio.sleep(self.rng.choice((0, 0.001, 0.02, 0.2, 0.7)))
            self.misfortunes.strike()
            if self.rng.random() < heal_rate:
                self.misfortunes.heal()
            await self.rare_faults.strike(step)

    async def _ending(self) -> None:
        """End all faults, or end the producer while they last."""
        if self.plan.ending == "close":
            await self._close_early()
        elif self.plan.ending == "stranger":
            await self._cancel_a_task()
        else:
            self.misfortunes.heal_for_good()
            self.objects.is_calm = True
            if self.sessions is not None:
                self.sessions.calm()
                await asyncio.sleep(MOST_THROTTLED_S)
            await self._settle_down()
            await self._fresh_records()
            if self.plan.last_fault:
                await LastFault(self).strike()
                await self._settle_down()
                await self.fresh(TOPICS[0], 0)
            await self.producer.flush(self.plan.delivery_s)  # records of the hooks of fresh records
            await self._all_settled(0.0)
            check_idle(self.producer.metrics())
            return
        self.misfortunes.heal_for_good()

    async def _close_early(self) -> None:
        self.ended_at = now()
        timeout = self.rng.choice((0, 0.5, 5.0))
        start = now()
        await self.producer.close(timeout)
        took = now() - start
        _demand(took <= timeout + self._slack(start), f"close took {took} s")
        await self._all_settled(0.0)
        check_idle(self.producer.metrics())

    async def _cancel_a_task(self) -> None:
        """Cancel one of the producer's tasks, as other code may do (F69)."""
        own = [t for t in asyncio.all_tasks() if t.get_name() in _BACKGROUND]
        if not own:
            await self._close_early()
            return
        self.ended_at = now()
        self.rng.choice(sorted(own, key=lambda task: task.get_name())).cancel()
        await self._all_settled(TICK)
        try:
            await self.producer.send("t", b"late", partition=0)
        except (ProducerFailed, ProducerClosed):
            return
        raise Violation("a producer without its tasks takes records")

    async def _all_settled(self, within: float) -> None:
        if "async_serializer" in self.plan.objects:
            within += 2 * LATER_S
        await asyncio.sleep(within + 5 * self.plan.late_timers_s)
        for _ in range(3):
            await asyncio.sleep(0)
        left = self.load.pending()
        _demand(not left, f"never settled: {left[:2]}")

    async def _settle_down(self) -> None:
        """After all faults have ended, check that everything ends in time and no partition is
        stuck."""
        await self._servable()
        for link in self.cluster.network.links:
            if link.is_open:
                link.reset()
        # Five batches whose records are no longer awaited may be sent first. They are retries, so
        # they are sent one at a time, each after five requests that a slow cluster processes one by
        # one.
        replication_s = self.plan.cluster["replication_s"]
        limit = STUCK_S + 12 * self.plan.late_timers_s + (1 + 5) * 5 * replication_s
        progress = Progress(limit + self._connecting_s())
        while pending := self.load.pending():
            progress.check(pending, now())
            late = [a for a in pending if now() - a.started_at > self._longest(a)]
            _demand(not late, f"never settled: {late[:2]}")
            await asyncio.sleep(0.5)
        with contextlib.suppress(KafkaError):
            await self.producer.flush(self.plan.delivery_s)
        waiting = [task for task in self.load.tasks if not task.done()]
        if waiting:
            _, still = await asyncio.wait(waiting, timeout=self.plan.delivery_s)
            _demand(not still, f"a call hangs: {list(still)[:2]}")

    def _longest(self, attempt: Attempt) -> float:
        """Return the maximum seconds of an attempt. Until more is known about a bulk call, each of
        its records may have waited."""
        return longest(self.plan, attempt, max(1, len(attempt.group))) + self._slack(
            attempt.started_at
        )

    async def _servable(self) -> None:
        """Wait until elections have ended, so that the cluster can process all requests."""
        await asyncio.sleep(self.cluster.failover_s + self.cluster.controller_s + 0.5)

    async def _fresh_records(self) -> None:
        """Check that every partition accepts a record within two seconds after recovery (P11)."""
        for link in self.cluster.network.links:
            if link.is_open:
                link.reset()
        # Unknown partitions require metadata, which may take up to max_block_ms.
        time_to_learn = self.plan.block_s >= self.recovery_s()
        for topic in TOPICS:
            count = len(self.cluster.topics[topic].partitions) if time_to_learn else PARTITIONS
            for partition in range(count):
                await self.fresh(topic, partition)
        if self.plan.options["acks"] == 0:
            await asyncio.sleep(1.0)

    async def _lone(self, topic: str, partition: int) -> Attempt:
        attempt = self.load._new(topic, partition)
        await self.load._send(attempt)
        return attempt

    async def fresh(self, topic: str, partition: int) -> None:
        """Send one more record, which must be acknowledged in time."""
        began = now()
        attempt = await self._lone(topic, partition)
        while isinstance(attempt.result, BaseException) and now() - began <= self.recovery_s():
            if self.recovery_s() <= self._patience_s(attempt):
                self.refused_fresh.append(attempt)  # must have used up its retries
            if attempt.settled_at == attempt.started_at:
                await asyncio.sleep(TICK)  # refused at once: let time pass, or this loop never ends
            attempt = await self._lone(topic, partition)
        took = attempt.settled_at - began
        good = not isinstance(attempt.result, BaseException)
        _demand(good and took <= self.recovery_s(), f"a fresh record took {took} s: {attempt}")

    def _patience_s(self, attempt: Attempt) -> float:
        """Return the timeout that failed the record (it may be shorter than recovery), or
        infinity."""
        if isinstance(attempt.result, DeliveryTimeout):
            return self.plan.delivery_s_of(attempt.topic)
        if isinstance(attempt.result, BufferTimeout | MetadataTimeout):
            return self.plan.block_s
        return math.inf

    def _connecting_s(self) -> float:
        """Return the time that slow handshakes add: one that times out, a pause and one that
        succeeds, and the same again for the leader in the metadata."""
        return 4 * self.temperaments.handshake_s

    def recovery_s(self) -> float:
        """Return the seconds within which a record must be acknowledged after all faults have ended
        (P11)."""
        slow_s: float = self.plan.cluster["replication_s"]
        throttle_s = self.temperaments.throttle_ms / 1000
        late_s = 10 * self.plan.late_timers_s
        return RECOVERY + late_s + 3 * slow_s + 20 * throttle_s + self._connecting_s()

    # -- judgment -------------------------------------------------------------------------------

    def _slack(self, since: float) -> float:
        """Return the additional time that a call may take because of late timers and of stalls
        since its start."""
        return TICK + 5 * self.plan.late_timers_s + self.misfortunes.stalled_s(since, now())

    async def _report_dropped(self) -> None:
        """Check that records whose calls never completed are reported when they are deleted."""
        self.objects.is_calm = True
        if self.plan.objects:
            gc.collect()
            for _ in range(3):
                await asyncio.sleep(0)

    def _judge(self) -> None:
        lost = self.load.passed_on.lost
        _demand(not lost, f"exceptions of signal handlers were lost: {lost}")
        check_counts(self.cluster, self.plan, now() - self.started_at)
        check_haste(self.wire)
        judge = Judge(
            self.plan, self.cluster, self.load, self.misfortunes, self.wire, self.ended_at,
            self.objects,
        )  # fmt: skip
        judge.check()
        for attempt in self.refused_fresh:
            judge.check_used_up(attempt)
        self.exemptions = judge.used
        if self.sessions and self.sessions.check(self.wire, self.misfortunes.stalled_s):
            self.misfortunes.done.append("sessions")

    def _report(self) -> Report:
        attempts = self.load.attempts
        trace = self.cluster.network.trace
        for attempt in attempts:
            told = f"{attempt.number} {attempt.settled_at:.6f} {_told(attempt.result)}"
            trace = zlib.crc32(told.encode(), trace)
        acknowledged = sum(not isinstance(a.result, BaseException) for a in attempts)
        return Report(
            seed=self.plan.seed,
            trace=trace,
            records=len(attempts),
            acknowledged=acknowledged,
            failed=len(attempts) - acknowledged,
            virtual_s=now() - self.started_at,
            faults=tuple(self.misfortunes.done),
            exemptions=dict(self.exemptions),
        )


_BACKGROUND = ("aiokprod-sender", "aiokprod-metadata")


def _told(result: Any) -> str:
    if isinstance(result, BaseException):
        return f"{type(result).__name__} {getattr(result, 'outcome', None)}"
    return f"{result.topic} {result.partition} {result.offset}"


def _demand(condition: bool, text: str) -> None:
    if not condition:
        raise Violation(text)
