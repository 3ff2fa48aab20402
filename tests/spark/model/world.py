"""The world of a seed: brokers, processes, and the faults that occur while the query runs."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aiokprod.errors import Code
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.fake_cluster.control import Reaction, answer_late, delay
from aiokprod.testing.fake_cluster.transactions import Phase
from aiokprod.testing.pipes import world_at
from tests.spark.model.judge import History, Judge
from tests.spark.model.process import Process

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiokprod.testing.fake_cluster.framing import Request
    from aiokprod.testing.transports import Link
    from tests.spark.model.plan import Plan
    from tests.spark.model.spark import Attempt, Driver

PRODUCE, OFFSET_FETCH = 0, 9
_COORDINATED: Final = frozenset({9, 22, 24, 25, 26, 28, 65})
_CONCURRENT: Final = frozenset({22, 24, 25, 26, 28})
_COORDINATOR_CODES: Final = (
    Code.COORDINATOR_LOAD_IN_PROGRESS, Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE
)  # fmt: skip
_DRIVERS: Final = (None, (26,), (22, 25, 28), (65, 66, 9))
"""API groups of a driver. An event happens before one of their requests."""
_PRODUCE_CODES: Final = (Code.NOT_LEADER_OR_FOLLOWER, Code.NOT_ENOUGH_REPLICAS)


@dataclass
class Trigger:
    """An event at the n-th request of the processes of one role of a driver.

    Attributes:
        apis: only requests of these APIs count; None counts all.
        left: remaining requests, including the one that triggers the event.
        carried_out: True if the broker carries that request out; the request never gets a response.
    """

    driver: Driver
    role: str
    apis: tuple[int, ...] | None
    left: int
    carried_out: bool
    act: Callable[[Process], None]


class World:
    """Brokers, processes and faults.

    Attributes:
        drawn: how often each fault and action has happened.
        is_calm: True if no more faults occur.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rng = random.Random(plan.seed * 104_729 + 3)
        self.cluster = FakeCluster(
            plan.brokers, version_profile=plan.profile, marker_s=plan.marker_s
        )
        for topic in plan.topics:
            self.cluster.create_topic(topic, self.rng.randrange(1, 4))
        self.drawn: Counter[str] = Counter()
        self.is_calm = False
        self.history = History()
        self.judge = Judge(self)
        self.runs: dict[Driver, asyncio.Task[Any]] = {}
        self._owners: dict[Link, Process] = {}
        self._processes: list[Process] = []
        self._triggers: list[Trigger] = []
        self._timers: list[asyncio.TimerHandle] = []
        self.cluster.control(None, self._react)

    def strikes(self, name: str, factor: float = 1.0) -> bool:
        """Decide at random whether this fault or action happens now."""
        if self.is_calm or name not in self.plan.menu:
            return False
        if self.rng.random() >= self.plan.rate * factor:
            return False
        self.drawn[name] += 1
        return True

    # -- processes ------------------------------------------------------------------------------

    def process(self, name: str, role: str, driver: Driver) -> Process:
        """Create a new process."""
        found = Process(
            self.cluster, self._owners, name=name, role=role, driver=driver,
            seed=self.plan.seed * 1000 + len(self._processes),
        )  # fmt: skip
        self._processes.append(found)
        return found

    def zombie(self, attempt: Attempt) -> None:
        """Choose at random what happens to an attempt whose driver no longer waits for it. It runs
        to its end, its iterator ends early, it is cancelled, or its process is killed."""
        what: Callable[[], object] = self.rng.choice(
            (lambda: None, attempt.feed.close, attempt.task.cancel, attempt.process.kill)
        )
        self._later(self.rng.choice((0.0, 0.003, 0.02, 0.5)), what)

    async def end_processes(self) -> None:
        """Kill all remaining processes, including zombies, and wait until their coroutines have
        ended."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._triggers.clear()
        for process in self._processes:
            process.kill()
        for process in self._processes:
            await process.ended()
        self._processes.clear()
        self._owners.clear()
        self.runs.clear()

    def kill_driver(self, driver: Driver) -> None:
        """Kill a driver as by SIGKILL. Its executors end a little later."""
        if driver.is_dead:
            return
        driver.die()
        self.runs[driver].cancel()

    def _later(self, seconds: float, what: Callable[[], object]) -> None:
        """Schedule an action on a process, which is cancelled if all processes end before."""
        self._timers.append(asyncio.get_running_loop().call_later(seconds, what))

    def _start_later(self, seconds: float, number: int) -> None:
        loop = asyncio.get_running_loop()
        world_at(loop, loop.time() + seconds, self._start, number)

    # -- faults ---------------------------------------------------------------------------------

    def arm(self, driver: Driver) -> None:
        """Choose the events of one run of the query at random."""
        rng = self.rng
        for name, role, act in (
            ("kill_driver", "committer", lambda process: self.kill_driver(driver)),
            ("kill_driver", "worker", lambda process: self.kill_driver(driver)),
            ("kill_committer", "committer", lambda process: process.kill()),
            ("kill_worker", "worker", lambda process: process.kill()),
            ("outage", "committer", lambda process: self._outage()),
            ("broker_kill", "committer", lambda process: self._kill_broker()),
        ):
            if not self.strikes(name, 0.7):
                continue
            apis = rng.choice(_DRIVERS) if role == "committer" else None
            most = 30 if apis is None else 6
            self._triggers.append(
                Trigger(driver, role, apis, rng.randrange(1, most), rng.random() < 0.5, act)
            )
        if self.strikes("kill_driver", 0.5):
            self._later(rng.uniform(0.0, 0.3), lambda: self.kill_driver(driver))
        if self.strikes("stop_query"):
            self._later(rng.uniform(0.0, 0.3), driver.stopping.set)
        if self.strikes("broker_kill"):
            self._later(rng.uniform(0.0, 0.3), self._kill_broker)
        if self.strikes("outage", 0.5):
            self._later(rng.uniform(0.0, 0.3), self._outage)

    def commit_started(self, process: Process) -> None:
        """Perhaps schedule a kill of the process that begins a commit."""
        if self.strikes("kill_committer", 0.3):
            self._later(self.rng.uniform(0.0, 0.05), process.kill)

    def _kill_broker(self) -> None:
        if self.is_calm:
            return
        broker = self.rng.choice(list(self.cluster.brokers.values()))
        if broker.is_up:
            self.cluster.kill(broker.broker_id)
            self._start_later(self.rng.choice((0.2, 2.0, 8.0)), broker.broker_id)

    def _outage(self) -> None:
        if self.is_calm:
            return
        seconds = self.rng.choice((0.5, 5.0, 20.0))
        for broker in self.cluster.brokers.values():
            if broker.is_up:
                self.cluster.kill(broker.broker_id)
                self._start_later(seconds, broker.broker_id)

    def _start(self, number: int) -> None:
        if not self.cluster.brokers[number].is_up:
            self.cluster.start(number)

    async def heal(self) -> None:
        """Start all brokers and stop all faults."""
        self.is_calm = True
        self._triggers.clear()
        await self.start_brokers()

    async def start_brokers(self) -> None:
        """Start all brokers that are down."""
        for number in self.cluster.brokers:
            self._start(number)
        await asyncio.sleep(1.0)  # time for leader elections

    def _react(self, request: Request) -> Reaction | None:
        process = self._owners.get(request.connection.link) if request.connection.link else None
        if process is None or self.is_calm:
            return None
        for trigger in self._triggers:
            counts = trigger.apis is None or request.api_key in trigger.apis
            if not counts or (trigger.driver, trigger.role) != (process.driver, process.role):
                continue
            trigger.left -= 1
            if trigger.left == 0:
                self._triggers.remove(trigger)
                # The action runs after the broker has carried out the request.
                asyncio.get_running_loop().call_soon(trigger.act, process)
                return Reaction(process=trigger.carried_out, silent=True, close=True)
        return self._fault(request)

    def _fault(self, request: Request) -> Reaction | None:
        rng, key = self.rng, request.api_key
        if self.strikes("delays", 0.2):
            seconds = rng.choice((0.01, 0.05, 0.05, 1.0))
            return delay(seconds) if rng.random() < 0.5 else answer_late(seconds)
        if self.strikes("lost_answers", 0.08):
            carried_out, is_closed = rng.random() < 0.7, rng.random() < 0.8
            return Reaction(process=carried_out, silent=True, close=is_closed)
        if not self.strikes("error_codes", 0.1):
            return None
        if key in _CONCURRENT and rng.random() < 0.3:
            return Reaction(process=False, error=int(Code.CONCURRENT_TRANSACTIONS))
        if key in _COORDINATED:
            return Reaction(process=False, error=int(rng.choice(_COORDINATOR_CODES)))
        if key == PRODUCE:
            return Reaction(process=False, error=int(rng.choice(_PRODUCE_CODES)))
        return None

    # -- state of the brokers -------------------------------------------------------------------

    def open_ids(self) -> set[str]:
        """Return the transactional ids with an open transaction."""
        ids = self.cluster.transactions.ids
        return {name for name, entry in ids.items() if entry.phase is Phase.ONGOING}

    @property
    def describes(self) -> bool:
        """True if the brokers support DescribeTransactions and ListTransactions."""
        return all(65 in broker.profile.ranges for broker in self.cluster.brokers.values())
