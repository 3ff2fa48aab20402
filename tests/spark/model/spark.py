"""Spark as the sink sees it: a checkpoint, and a driver that runs tasks and commits their batches.

The rules are those of Spark's Python data sources:

- A micro-batch is planned (`offsets/N`), its tasks run, the driver calls `commit`, and then the
  batch is logged (`commits/N`). If a step before the log entry fails, the same batch runs again
  after a restart.
- A failed task is retried in another process. Its iterator can end early without an error.
- Two attempts can run at the same time, and an attempt can outlive its driver. Only one message per
  task counts.
- After a failed job or commit, `abort` is called with the existing messages. After the death of the
  driver nothing is called.
- `commit` runs in a process that is reused until it raises, but not always in the same process.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from aiokprod.spark.context import Task
from aiokprod.spark.driver_commit import TransactionEnder
from aiokprod.spark.options import SinkOptions
from aiokprod.spark.transactional_task import run_transactional
from tests.spark.model.process import Hang, Process, outcome

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from aiokprod.spark.commit_messages import Prepared
    from tests.spark.model.plan import Settings
    from tests.spark.model.world import World

TASK_LIMIT_S: Final = 300.0
"""Time limit of an attempt in addition to the waits of its iterator. The limits of start, marker,
delivery and close are 20, 60, 20 and 10 s, and some of them apply twice."""
COMMIT_LIMIT_S: Final = 240.0
"""Time limit of a commit: a commit has 120 s, and a decision within it adds at most its own
limits."""
MOST_LAUNCHES: Final = 8


class ConcurrentUpdate(Exception):
    """Another driver has written this entry of the checkpoint."""


class JobFailed(Exception):
    """A task failed in all attempts, or the job was cancelled."""


class QueryFailed(Exception):
    """The query ended because of `cause`."""

    def __init__(self, batch: int, cause: BaseException) -> None:
        super().__init__(f"batch {batch}: {type(cause).__name__}: {cause}")
        self.batch = batch
        self.cause = cause


@dataclass
class Checkpoint:
    """The log of a query: planned batches, and committed batches."""

    offsets: dict[int, range] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)

    def copy(self) -> Checkpoint:
        """Return a copy, which an operator may keep and restore."""
        return Checkpoint(dict(self.offsets), set(self.commits))

    @property
    def next_batch(self) -> int:
        """The batch to run after a start. It is the last planned batch, unless that one was logged
        as committed."""
        last = max(self.offsets, default=-1)
        return last if last >= 0 and last not in self.commits else last + 1

    @property
    def planned(self) -> int:
        """Number of rows of the source that belong to a planned batch."""
        return max((rows.stop for rows in self.offsets.values()), default=0)

    @property
    def committed(self) -> int:
        """Number of rows of the source that belong to a committed batch."""
        return max((self.offsets[one].stop for one in self.commits), default=0)


class Feed:
    """The iterator of a task. It returns the task's tables after a pause, and it can end early."""

    def __init__(self, tables: list[Any], pause_s: float) -> None:
        self._tables = tables
        self._pause_s = pause_s
        self.is_cut = False

    @property
    def lasts_s(self) -> float:
        """Seconds that it takes to read all tables."""
        return self._pause_s * (len(self._tables) + 1)

    async def get(self) -> Any:
        """Return the next table, or None at the end."""
        if self._pause_s and not self.is_cut:
            await asyncio.sleep(self._pause_s)
        return None if self.is_cut or not self._tables else self._tables.pop(0)

    def close(self) -> None:
        """End the iterator early."""
        self.is_cut = True


class Attempt:
    """One attempt at a task, in its process."""

    def __init__(self, process: Process, feed: Feed, work: Coroutine[Any, Any, Any]) -> None:
        self.process = process
        self.feed = feed
        self.limit_s = TASK_LIMIT_S + feed.lasts_s
        self.task = process.start(work)

    async def message(self) -> Prepared:
        """Return the message of the attempt to the driver."""
        found: Prepared = await outcome(self.process, self.task, self.limit_s)
        return found

    @property
    def is_running(self) -> bool:
        return not self.task.done() and not self.process.is_dead


class Driver:
    """One run of the query: a driver process with its executors."""

    def __init__(
        self,
        world: World,
        checkpoint: Checkpoint,
        settings: Settings,
        missing_markers: str,
        name: str,
    ) -> None:
        self.world = world
        self.plan = world.plan
        self.rng = world.rng
        self.checkpoint = checkpoint
        self.settings = settings
        self.missing_markers = missing_markers
        self.name = name
        self.is_dead = False
        self.stopping = asyncio.Event()
        self.attempts: list[Attempt] = []
        self.query_id: str | None = "q" if self.plan.streaming else None
        self.options = SinkOptions.parse(
            self.plan.options(missing_markers, world.cluster.bootstrap_servers)
        )
        self._workers: list[Process] = []
        self._committers: list[Process] = []
        self._processes: list[Process] = []

    def __repr__(self) -> str:
        return f"<Driver {self.name} {self.settings}>"

    # -- processes ------------------------------------------------------------------------------

    def _process(self, role: str) -> Process:
        process = self.world.process(f"{self.name} {role} {len(self._processes)}", role, self)
        self._processes.append(process)
        return process

    def _worker(self) -> Process:
        """Return an idle worker, or a new one."""
        if self._workers and self.rng.random() < 0.9:
            return self._workers.pop()
        return self._process("worker")

    def _committer(self) -> Process:
        """Return the process of the last commit, or sometimes an earlier one or a new one."""
        self._committers = [one for one in self._committers if not one.is_dead]
        change = self.world.strikes("commit_process")
        if self._committers and not change:
            return self._committers[-1]
        if len(self._committers) > 1 and self.rng.random() < 0.5:
            self._committers.insert(0, self._committers.pop())
        else:
            self._committers.append(self._process("committer"))
        return self._committers[-1]

    def die(self) -> None:
        """End the driver process, after SIGKILL or because the query ended. Its executors end soon
        afterwards."""
        self.is_dead = True
        running = {attempt.process: attempt for attempt in self.attempts if attempt.is_running}
        for process in self._processes:
            if process not in running or self.rng.random() < 0.5:
                process.kill(lose=self.rng.random() < 0.3)
            else:
                self.world.zombie(running[process])

    # -- a query --------------------------------------------------------------------------------

    async def run(self, batches: int) -> None:
        """Run until this many more batches are logged, or until the query is stopped.

        Raises:
            QueryFailed: a batch failed, which ends the query.
        """
        wanted = len(self.checkpoint.commits) + batches
        while not self.stopping.is_set() and len(self.checkpoint.commits) < wanted:
            number = self.checkpoint.next_batch
            if number not in self.checkpoint.offsets:
                first = self.checkpoint.planned
                count = self.rng.choice((0, 1, 2, 3, 4, 6)) if number else self.rng.randrange(1, 6)
                self.checkpoint.offsets[number] = range(first, first + count)
            rows = self.checkpoint.offsets[number]
            try:
                messages = await self.batch(number, rows)
            except (Hang, asyncio.CancelledError):
                raise
            except ConcurrentUpdate:
                raise
            except Exception as error:
                if self.stopping.is_set():
                    return
                raise QueryFailed(number, error) from error
            if number in self.checkpoint.commits:
                raise QueryFailed(number, ConcurrentUpdate(f"commits/{number} exists"))
            self.checkpoint.commits.add(number)
            self.world.judge.on_report(number, messages)

    async def batch(
        self, number: int | None, rows: range, job: str | None = None
    ) -> list[Prepared]:
        """Run the tasks of a batch, or of a batch job, commit them, and return their messages."""
        split = self.plan.tasks(rows, self.settings)
        self.world.history.note_attempt(number, split, self.settings)
        messages: list[Prepared | None] = [None] * len(split)
        try:
            await self._run_tasks(number, split, messages, job)
        except JobFailed:
            self._cancel_attempts()
            await self._abort(messages)
            raise
        done = [one for one in messages if one is not None]
        try:
            await self._commit(number, done)
        except (Hang, asyncio.CancelledError):
            raise
        except Exception:
            await self._abort(messages)
            raise
        return done

    # -- tasks ----------------------------------------------------------------------------------

    async def _run_tasks(
        self,
        number: int | None,
        split: Sequence[tuple[int, ...]],
        messages: list[Prepared | None],
        job: str | None,
    ) -> None:
        turns = asyncio.Semaphore(self.plan.slots)

        async def one(index: int) -> None:
            async with turns:
                messages[index] = await self._task(number, index, split[index], job)

        async def stopped() -> None:
            await self.stopping.wait()
            raise JobFailed("the query was stopped")

        stop = asyncio.ensure_future(stopped())
        tasks = [asyncio.ensure_future(one(index)) for index in range(len(split))]
        try:
            waiting = set(tasks)
            while waiting:
                ended, _ = await asyncio.wait({stop, *waiting}, return_when="FIRST_COMPLETED")
                for task in (stop, *tasks):
                    if task in ended:
                        task.result()
                waiting -= ended
        finally:
            for task in (stop, *tasks):
                task.cancel()
            await asyncio.gather(stop, *tasks, return_exceptions=True)

    async def _task(
        self, number: int | None, index: int, rows: tuple[int, ...], job: str | None
    ) -> Prepared:
        """Start attempts at a task until one succeeds."""
        failures = 0
        for launch in range(MOST_LAUNCHES):
            attempt = self._launch(number, index, rows, launch, job)
            if self.world.strikes("lost_executor"):
                await asyncio.wait({attempt.task}, timeout=self.rng.choice((0.001, 0.01, 0.1)))
                if attempt.is_running:  # Spark assumes that the attempt is lost
                    self.world.zombie(attempt)
                    continue
            rivals = [attempt]
            if self.world.strikes("speculation"):
                await asyncio.wait({attempt.task}, timeout=self.rng.choice((0.001, 0.01, 0.1)))
                if attempt.is_running:
                    rivals.append(self._launch(number, index, rows, launch + 1, job))
            try:
                return await self._first_of(rivals)
            except (Hang, asyncio.CancelledError):
                raise
            except Exception as error:
                self.world.history.note_error(error)
                failures += 1
                if failures >= self.plan.max_failures:
                    raise JobFailed(f"task {index}: {type(error).__name__}: {error}") from error
        raise JobFailed(f"task {index}: its executors are lost again and again")

    async def _first_of(self, rivals: list[Attempt]) -> Prepared:
        """Return the message of the first attempt that succeeds. The other attempt continues or is
        killed."""
        if len(rivals) > 1:
            await asyncio.wait({one.task for one in rivals}, return_when="FIRST_COMPLETED")
            rivals.sort(key=lambda one: not one.task.done())
            if rivals[0].task.cancelled() or rivals[0].task.exception() is not None:
                rivals.pop(0)
            else:
                self.world.zombie(rivals.pop())
        (attempt,) = rivals
        try:
            message = await attempt.message()
        except (Hang, asyncio.CancelledError):
            raise
        except Exception:
            attempt.process.kill(lose=self.rng.random() < 0.3)
            raise
        self._workers.append(attempt.process)
        return message

    def _launch(
        self, number: int | None, index: int, rows: tuple[int, ...], launch: int, job: str | None
    ) -> Attempt:
        process = self._worker()
        task = Task(index, launch, "host", number, self.query_id, "run", speculation=False)
        numbers = rows
        if self.rng.random() < 0.3:  # a shuffle returns the same rows in another order
            numbers = tuple(self.rng.sample(rows, len(rows)))
        tables = self.plan.tables(numbers, self.settings)
        pause = self.rng.choice((0.0, 0.0, 0.002, 0.02))
        if self.world.strikes("slow_task", 0.5):
            pause = self.plan.timeout_s * self.rng.uniform(0.3, 1.6) / (len(tables) + 1)
        feed = Feed(tables, pause)
        attempt = Attempt(
            process,
            feed,
            run_transactional(process.thread, self.options, task, feed, job),  # type: ignore[arg-type]
        )
        attempt.task.add_done_callback(self.world.judge.on_attempt)
        self.attempts = [one for one in self.attempts if one.is_running]
        self.attempts.append(attempt)
        if self.world.strikes("task_error", 0.3):  # an exception in the query's own code
            delay = self.rng.choice((0.0, 0.003, 0.01, 0.03))
            asyncio.get_running_loop().call_later(delay, attempt.task.cancel)
        return attempt

    def _cancel_attempts(self) -> None:
        """Abandon all attempts after the job failed. Iterators end early, tasks are cancelled or
        killed, or they run to the end."""
        for attempt in self.attempts:
            if attempt.is_running:
                self.world.zombie(attempt)

    # -- commit and abort -----------------------------------------------------------------------

    async def _commit(self, number: int | None, messages: list[Prepared]) -> None:
        """Commit like `AiokprodWriter.commit`, in a process of the driver."""
        if self.world.strikes("time_out", 0.3):  # a slow driver
            await asyncio.sleep(self.plan.timeout_s * self.rng.uniform(0.3, 1.2))
        process = self._committer()
        check = self.world.judge.commit_begins(number, messages)

        async def commit() -> None:
            await TransactionEnder(self.options, number).commit(messages)

        task = process.start(commit())
        self.world.commit_started(process)
        try:
            await outcome(process, task, COMMIT_LIMIT_S)
        except (Hang, asyncio.CancelledError):
            raise
        except Exception as error:
            process.kill(lose=self.rng.random() < 0.3)
            check.failed(error)
            raise
        check.succeeded()

    async def _abort(self, messages: list[Prepared | None]) -> None:
        """Abort like `AiokprodWriter.abort`, which never raises."""
        prepared = [one for one in messages if one is not None and not one.skipped]
        if not prepared:
            return
        process = self._committer()

        async def abort() -> None:
            await TransactionEnder(self.options, None).abort(prepared)

        try:
            await outcome(process, process.start(abort()), COMMIT_LIMIT_S)
        except (Hang, asyncio.CancelledError):
            raise
        except Exception:
            process.kill()
