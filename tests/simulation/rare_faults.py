"""Faults of few seeds, drawn from a separate generator so that all other seeds stay the same."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from typing import TYPE_CHECKING

from aiokprod.testing import fake_cluster as faults
from aiokprod.testing.fake_cluster.profiles import PRODUCE
from tests.scenarios.scenario_helpers import now
from tests.simulation.fault_scripts import Misfortunes
from tests.simulation.reinstallation import KINDS, Stranger, reinstall
from tests.simulation.seeds import PARTITIONS, STEPS, TOPICS, Plan

if TYPE_CHECKING:
    from aiokprod.testing.fake_cluster import FakeCluster
    from tests.simulation.workload import Load

EXPIRATION_MS = 600_000
"""producer.id.expiration.ms, the lowest value that the engine allows (`sequences.STATE_KEPT_S`)."""
PAUSE_S = (720.0, 800.0)
"""Minimum and maximum seconds of a pause after which every broker has dropped the producer's state.
They include the time that an earlier batch may take."""
REFUSALS = (6, 7, 19)
"""Codes with which a broker refuses the first batch after a pause. All are retriable, and here none
of them follows an append."""


class RareFaults:
    """The rare faults of one seed.

    The name of each fault that had an effect is appended to `Misfortunes.done`.
    """

    def __init__(
        self, plan: Plan, cluster: FakeCluster, load: Load, misfortunes: Misfortunes
    ) -> None:
        self.plan = plan
        self.cluster = cluster
        self.load = load
        self.misfortunes = misfortunes
        self.rng = random.Random(plan.seed * 109 + 59)
        self._due: dict[int, list[str]] = defaultdict(list)
        if "expiry" in plan.rare_faults:
            self._plan("pause", self.rng.choice((1, 1, 2)))
            self._plan("check_expiration", self.rng.choice((0, 1, 2)))

        if "reinstallation" in plan.rare_faults:
            self._plan("reinstall", self.rng.choice((1, 1, 2)))

    def _plan(self, name: str, times: int) -> None:
        for step in self.rng.sample(range(2, STEPS), times):
            self._due[step].append(name)

    async def strike(self, step: int) -> None:
        """Cause the faults of one step of the bad times."""
        for name in self._due[step]:
            await getattr(self, name)()

    # -- producer state that expires --------------------------------------------------------------

    async def pause(self) -> None:
        """Send nothing to most partitions until every broker has dropped the producer's state
        there. Then send several records to a partition and let the broker refuse the first batch:
        without the state it would accept any later batch as the first one."""
        if self.rng.random() < 0.7:
            self.misfortunes.heal()
        busy = {topic: self.rng.randrange(PARTITIONS) for topic in TOPICS}
        ends_at = now() + self.rng.uniform(*PAUSE_S)
        while now() < ends_at:
            await asyncio.sleep(min(self.rng.uniform(60.0, 250.0), ends_at - now()))
            for topic, partition in busy.items():  # so that the client keeps the topic
                self.load.submit_later(topic, partition, 0)
        self.check_expiration_now()
        idle = [(t, p) for t in TOPICS for p in range(PARTITIONS) if p != busy[t]]
        for topic, partition in self.rng.sample(idle, self.rng.randrange(1, len(idle) + 1)):
            await self._refuse_first(topic, partition)

    async def _refuse_first(self, topic: str, partition: int) -> None:
        code, times = self.rng.choice(REFUSALS), self.rng.choice((0, 1, 1, 1, 2))
        self.cluster.fail_produce((topic, partition), code, times, leader_hint=False)
        late = faults.answer_late(self.rng.choice((0.05, 0.5)))
        remove = self.cluster.control(PRODUCE, late, times=self.rng.choice((1, 1, 3)))
        for _ in range(self.rng.randrange(3, 13)):
            self.load.submit_later(topic, partition, self.rng.choice((0, 200, 1_500)))
            await asyncio.sleep(self.rng.choice((0, 0.001, 0.02, 0.15)))
        remove()

    async def check_expiration(self) -> None:
        """Expire producer state by the timestamps of the last batches. Producers with old
        timestamps lose their state although they send continuously."""
        self.check_expiration_now()

    def check_expiration_now(self) -> None:
        """Brokers do this every producer.id.expiration.check.interval.ms (10 minutes)."""
        expired = self.cluster.expire_producers(EXPIRATION_MS)
        for partition in expired:
            log = self.cluster.topics[partition.topic].topic_id, partition.index
            self.misfortunes.amnesia.setdefault(log, []).append(now())
        if expired:
            self.misfortunes.done.append("expiry")

    # -- a cluster installed again ----------------------------------------------------------------

    async def reinstall(self) -> None:
        """Stop all brokers and start a new cluster at their addresses."""
        old = {name: self.cluster.topics[name].topic_id for name in TOPICS}
        # With a second producer, the old disks hold its batches: its ids are allocated again, and
        # no client can detect whose batch a broker has.
        kinds = KINDS[:2] if self.misfortunes.incarnations else KINDS
        # If ids have few epochs, all ids that the producer would get again are exhausted.
        first_id = self.cluster.next_producer_id if self.plan.producer_epoch else 0
        made = reinstall(self.cluster, self.rng.choice(kinds), self.rng, first_id)
        for name, topic_id in old.items():
            topic = self.cluster.topics[name]
            for index in range(8):
                log = topic.topic_id, index
                self.misfortunes.reborn[log] = made.at
                forgotten = self.misfortunes.amnesia.get((topic_id, index))
                if forgotten and made.kind != "empty":
                    self.misfortunes.amnesia[log] = [*forgotten]
        if made.kind != "disks":  # "disks": its ids are those of the old batches
            made.stranger = Stranger(
                self.cluster, random.Random(self.rng.random()), made.cluster_id
            )
            made.stranger.start(
                self.rng.choice((0.0, 0.0, 0.0, 1.0)), self.rng.choice((0, 0, 1, 2))
            )
        self.misfortunes.incarnations.append(made)
        self.misfortunes.done.append("reinstallation")
