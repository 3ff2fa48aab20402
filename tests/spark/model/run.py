"""One seed: the query, its operator, and the final judgement."""

from __future__ import annotations

import asyncio
import logging
import zlib
from dataclasses import dataclass
from typing import Any, Final

import pytest

from aiokprod.testing.virtual import run
from tests.spark.model import process as processes
from tests.spark.model.judge import MISSING, REPLAY, RETRY, ROLLED_BACK, Violation
from tests.spark.model.plan import (
    DAY,
    RETENTION_S,
    Plan,
    Settings,
    other_session,
    plan_of,
    repartitioned,
)
from tests.spark.model.spark import Checkpoint, Driver, QueryFailed
from tests.spark.model.world import World

MOST_RUNS: Final = 12
"""Maximum number of runs of the query until the faults end, regardless of its progress."""
KILLED, STOPPED = "killed", "stopped"


@dataclass(frozen=True)
class Report:
    """The results of a seed.

    Attributes:
        trace: checksum over every delivered byte and its time.
        drawn: how often each fault and action happened.
        refusals: how often batches failed, by reason.
    """

    seed: int
    trace: int
    rows: int
    batches: int
    virtual_s: float
    drawn: dict[str, int]
    refusals: dict[str, int]


class _Collector(logging.Handler):
    def __init__(self, world: World) -> None:
        super().__init__(logging.WARNING)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        self._world.judge.on_log(record)


def run_seed(seed: int) -> Report:
    """Run one seed in virtual time.

    Raises:
        Violation, Hang: a promise was broken; a note of the error names the seed.
    """
    plan = plan_of(seed)
    logger, parent = logging.getLogger("aiokprod.spark"), logging.getLogger("aiokprod")
    known = logger.propagate, logger.level, parent.level
    logger.propagate = False
    logger.setLevel(logging.WARNING)
    parent.setLevel(logging.CRITICAL)  # killed processes lose many connections
    try:
        with pytest.MonkeyPatch.context() as patch:
            processes.install(patch)
            return run(
                lambda: _main(plan, logger), seed=seed, limit_s=400 * DAY, debug=False,
                collect_garbage=False,
            )  # fmt: skip
    except BaseException as error:
        error.add_note(f"seed {seed}: {plan}")
        raise
    finally:
        logger.propagate = known[0]
        logger.setLevel(known[1])
        parent.setLevel(known[2])


async def _main(plan: Plan, logger: logging.Logger) -> Report:
    world = World(plan)
    collector = _Collector(world)
    logger.addHandler(collector)
    started = asyncio.get_running_loop().time()
    operator = Operator(world)
    try:
        rows = await (operator.stream() if plan.streaming else operator.jobs())
    finally:
        logger.removeHandler(collector)
        await world.end_processes()
    if world.cluster.violations:
        raise Violation(f"protocol: {world.cluster.violations[:3]}")
    return Report(
        seed=plan.seed,
        trace=world.cluster.network.trace,
        rows=rows,
        batches=operator.batches,
        virtual_s=asyncio.get_running_loop().time() - started,
        drawn=dict(world.drawn),
        refusals=dict(world.judge.refusals),
    )


class Operator:
    """Starts the query, and acts on it as operators do between a crash and a restart."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.plan = world.plan
        self.rng = world.rng
        self.settings = self.plan.settings
        self.missing_markers = self.plan.missing_markers
        self.checkpoint = Checkpoint()
        self.others: list[Checkpoint] = []  # copied, or replaced by an older checkpoint
        self.abandoned: list[Checkpoint] = []
        self.backups = [Checkpoint()]
        self.batches = 0
        self._started = 0

    # -- a stream -------------------------------------------------------------------------------

    async def stream(self) -> int:
        """Run a complete seed of a stream, and return the number of judged rows."""
        for _ in range(MOST_RUNS):
            if len(self.checkpoint.commits) >= self.plan.goal:
                break
            await self._act()
            await self._run_once()
        await self.world.heal()
        await self.world.end_processes()
        await self._recover()
        await self._check_orphans()
        self.batches = len(self.checkpoint.commits)
        return self.world.judge.check_stream([self.checkpoint, *self.others, *self.abandoned])

    def _driver(self, checkpoint: Checkpoint, settings: Settings) -> Driver:
        self._started += 1
        self._forgive(checkpoint)
        return Driver(
            self.world, checkpoint, settings, self.missing_markers, f"driver {self._started}"
        )

    async def _run(self, driver: Driver, batches: int) -> str | QueryFailed:
        """Run the query until it ends, and return why it ended."""
        task = asyncio.ensure_future(driver.run(batches))
        self.world.runs[driver] = task
        await asyncio.wait({task})
        if task.cancelled():
            return KILLED
        driver.die()
        error = task.exception()
        if isinstance(error, QueryFailed):
            return error
        if error is not None:
            raise error
        return STOPPED

    async def _run_once(self) -> None:
        """Run the query with its faults, perhaps with two drivers."""
        drivers = [self._driver(self.checkpoint, self.settings)]
        if self.world.strikes("shared_checkpoint", 0.7):
            drivers.append(self._driver(self.checkpoint, self.settings))
        elif self.world.strikes("second_driver", 0.7):
            settings = self.settings
            if self.rng.random() < 0.5:
                settings = repartitioned(settings, self.rng)
            self.others.append(self.checkpoint.copy())
            drivers.append(self._driver(self.others[-1], settings))
        for driver in drivers:
            self.world.arm(driver)
        endings = await asyncio.gather(
            *(self._run(driver, self.rng.randrange(1, 4)) for driver in drivers)
        )
        for driver, ending in zip(drivers, endings, strict=True):
            if isinstance(ending, QueryFailed):
                self._on_failure(driver, ending)
        if len(drivers) == 2 and drivers[1].checkpoint is not self.checkpoint:
            self._choose(drivers[1].checkpoint)
        if self.rng.random() < 0.6:
            self.backups.append(self.checkpoint.copy())

    def _choose(self, other: Checkpoint) -> None:
        """Of two checkpoints of the same query, keep the one with more commits, as an operator
        does."""
        if len(other.commits) > len(self.checkpoint.commits):
            self._put_back(other)

    def _put_back(self, other: Checkpoint) -> None:
        self.others = [one for one in self.others if one is not other] + [self.checkpoint]
        self.checkpoint = other

    def _refused(self, driver: Driver, ending: QueryFailed) -> str:
        rows = driver.checkpoint.offsets[ending.batch]
        split = self.plan.tasks(rows, driver.settings)
        return self.world.judge.refusal(ending.batch, ending.cause, split)

    def _on_failure(self, driver: Driver, ending: QueryFailed) -> None:
        """React to the failure in some cases, as an operator would."""
        why = self._refused(driver, ending)
        if driver.checkpoint is not self.checkpoint or self.rng.random() < 0.3:
            return
        if why == MISSING:
            self.missing_markers = "warn"
        elif why in (REPLAY, ROLLED_BACK):
            further = max(self.others, key=lambda one: len(one.commits), default=self.checkpoint)
            if len(further.commits) > len(self.checkpoint.commits):
                self._put_back(further)
            elif why == REPLAY:
                self.settings = self.rng.choice(self._used(ending.batch))

    def _used(self, batch: int) -> list[Settings]:
        """Return the settings with which this batch was tried, newest first."""
        return list(dict.fromkeys(reversed(self._tried.get(batch, [self.settings]))))

    @property
    def _tried(self) -> dict[int, list[Settings]]:
        return self.world.history.settings

    # -- actions between runs -------------------------------------------------------------------

    async def _act(self) -> None:
        world, rng = self.world, self.rng
        often = 1.6 if self._partly_committed() else 0.7
        if world.strikes("repartition", often):
            self.settings = repartitioned(self.settings, rng)
        if world.strikes("session"):
            self.settings = other_session(self.settings, rng)
        if world.strikes("roll_back", 0.7):
            self._roll_back()
        if world.strikes("delete_topic", often):
            await self._delete([rng.choice(self.plan.topics)])
        if world.strikes("delete_all", 0.3):
            await self._delete(list(self.plan.topics))
        if world.strikes("time_out"):
            await asyncio.sleep(self.plan.timeout_s * rng.uniform(0.5, 1.5))
        if world.strikes("stand_still", often / 2):
            await self._stand_still()

    def _roll_back(self) -> None:
        """Put back an older copy of the checkpoint, or drop its last entries."""
        older = self.rng.choice(self.backups).copy()
        if self.rng.random() < 0.3 and self.checkpoint.commits:
            older = self.checkpoint.copy()
            last = max(older.commits)
            older.commits.discard(last)
            older.offsets = {number: rows for number, rows in older.offsets.items()
                             if number <= last}  # fmt: skip
            if self.rng.random() < 0.3:
                del older.offsets[last]
        self.others.append(self.checkpoint)
        self.checkpoint = older

    async def _delete(self, topics: list[str]) -> None:
        """Delete topics while the query is stopped. They are created again here, or later by the
        brokers."""
        await self.world.end_processes()
        await self.world.start_brokers()
        planned = max(one.planned for one in (self.checkpoint, *self.others))
        for topic in topics:
            if topic not in self.world.cluster.topics:
                continue
            self.world.judge.info_lost = True
            self.world.judge.deleted[topic] = planned
            if self.rng.random() < 0.7:
                self.world.cluster.recreate_topic(topic)
            else:
                self.world.cluster.delete_topic(topic)
        if not any(self.world.cluster.transactions.committed_offsets.values()):
            # From now on only one checkpoint and its copies are used, because Kafka has no marker
            # with which the sink could reject a checkpoint of another history.
            self.abandoned += self.others
            self.others.clear()
            self.backups = [self.checkpoint.copy()]

    async def _stand_still(self) -> None:
        """Stop the query for longer than the brokers keep offsets."""
        await self.world.end_processes()
        await asyncio.sleep(self._standstill_s())
        if self.world.cluster.transactions.expire_offsets(RETENTION_S):
            self.world.judge.info_lost = True
            self.world.judge.unprotected = max(
                one.planned for one in (self.checkpoint, *self.others)
            )

    def _standstill_s(self) -> float:
        """Return the seconds until all offsets have expired, or only those up to a certain one."""
        stored = self.world.cluster.transactions.committed_offsets.values()
        written = [offset.committed_at for offsets in stored for offset in offsets.values()]
        if not written or self.rng.random() < 0.6:
            return RETENTION_S + 3600.0
        now = asyncio.get_running_loop().time()
        return max(0.0, self.rng.choice(written) + RETENTION_S + 1e-6 - now)

    def _partly_committed(self) -> bool:
        """Return True if a batch that will run again has committed tasks."""
        number = self.checkpoint.next_batch
        stored = self.world.cluster.transactions.committed_offsets
        return number in self.checkpoint.offsets and any(
            offset == number + 1
            for group, offsets in stored.items()
            if not group.endswith(".driver")
            for offset in offsets.values()
        )

    def _forgive(self, checkpoint: Checkpoint) -> None:
        """Mark the rows that this run may write again, because their markers have expired."""
        rows = checkpoint.offsets.get(checkpoint.next_batch)
        first = checkpoint.planned if rows is None else rows.start
        again = range(first, self.world.judge.unprotected)
        self.world.judge.forgiven |= set(again)
        if again and checkpoint.next_batch == 0:
            self.world.judge.began_again = True

    # -- the end of a seed ----------------------------------------------------------------------

    async def _recover(self) -> None:
        """Continue the query with the settings and the checkpoint that the rejections require."""
        failures: list[str] = []
        further = sorted(self.others, key=lambda one: -len(one.commits))
        for checkpoint in (self.checkpoint, *further):
            for settings in self._candidates(checkpoint):
                for _ in range(2):  # the second time with missingMarkers=warn
                    driver = self._driver(checkpoint, settings)
                    ending = await self._run(driver, 2)
                    if not isinstance(ending, QueryFailed):
                        self._put_back(checkpoint)
                        self.settings = settings
                        return
                    failures.append(f"{settings}: {ending}")
                    why = self._refused(driver, ending)
                    if why == RETRY:
                        raise Violation(f"fails although all is well: {ending}") from ending
                    if why != MISSING:
                        break
                    self.missing_markers = "warn"
        if not self.world.judge.info_lost:
            raise Violation("no settings continue the query: " + "\n".join(failures))

    def _candidates(self, checkpoint: Checkpoint) -> list[Settings]:
        return list(dict.fromkeys([self.settings, *self._used(checkpoint.next_batch)]))

    async def _check_orphans(self) -> None:
        """Check that a batch has ended the transactions that tasks left open, and that all others
        end at their timeout."""
        left = [name for name in sorted(self.world.open_ids()) if name.startswith("p.q.")]
        if left and self.world.describes:
            raise Violation(f"transactions {left} are open after a batch was committed")
        await asyncio.sleep(max(self.plan.timeout_s, 60.0) + 2 * self.plan.marker_s + 1.0)
        if self.world.open_ids():
            raise Violation(f"transactions {self.world.open_ids()} are open after their timeout")

    # -- batch jobs -----------------------------------------------------------------------------

    async def jobs(self) -> int:
        """Run a complete seed of batch jobs, and return the number of judged rows."""
        first = 0
        succeeded: list[range] = []
        for number in range(self.plan.goal):
            rows = range(first, first + self.rng.randrange(1, 9))
            first = rows.stop
            driver = Driver(self.world, Checkpoint(), self.settings, "warn", f"job {number}")
            self.world.arm(driver)
            if await self._job(driver, rows, number):
                succeeded.append(rows)
            await self._act()
        await self.world.heal()
        await self.world.end_processes()
        rows = range(first, first + 5)
        last = Driver(self.world, Checkpoint(), self.settings, "warn", "last job")
        if not await self._job(last, rows, self.plan.goal):
            raise Violation("a job fails although all is well")
        succeeded.append(rows)
        self.batches = len(succeeded)
        await self.world.end_processes()
        await asyncio.sleep(max(self.plan.timeout_s, 60.0) + 2 * self.plan.marker_s + 1.0)
        if self.world.open_ids():
            raise Violation(f"transactions {self.world.open_ids()} are open after their timeout")
        return self.world.judge.check_jobs(succeeded)

    async def _job(self, driver: Driver, rows: range, number: int) -> bool:
        """Run a batch job, and return True if it succeeded."""
        task: asyncio.Task[Any] = asyncio.ensure_future(
            driver.batch(None, rows, job=f"{zlib.crc32(str(number).encode()):012x}")
        )
        self.world.runs[driver] = task
        await asyncio.wait({task})
        if task.cancelled():
            return False
        driver.die()
        error = task.exception()
        if error is None:
            self.world.judge.on_report(None, task.result())
            return True
        if isinstance(error, Violation | processes.Hang):
            raise error
        if not any(self.world.drawn.values()):
            raise Violation(f"a job fails although all is well: {error!r}") from error
        return False
