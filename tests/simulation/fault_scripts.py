"""The faults: each method causes one, drawn from the seed's random generator."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

from aiokprod._wire.messages.metadata import MetadataResponseBroker
from aiokprod.testing import fake_cluster as faults
from aiokprod.testing.fake_cluster import FakeCluster, Request
from aiokprod.testing.fake_cluster.log import PartitionLog
from aiokprod.testing.memory import Link
from tests.scenarios.scenario_helpers import clock, now
from tests.simulation.broker_behaviours import Temperaments
from tests.simulation.byzantine import strange_answer
from tests.simulation.call_interrupts import Interrupt, TimeUp
from tests.simulation.reinstallation import Incarnation
from tests.simulation.seeds import PARTITIONS, PROFILES, TOPICS, UNKNOWN_CODES, Plan
from tests.simulation.workload import Load

RETRIABLE = (2, 3, 5, 6, 7, 8, 9, 13, 19, 20, 56, 74, 75, 100, 103)
FENCED = 47
"""An idempotent producer gets this code if brokers have a higher epoch. An epoch bump fixes it."""
DEFINITE = (32, 44, 87)
UNCLEAR = (-1, *UNKNOWN_CODES)
MAYBE_APPENDED = (-1, 6, 7, 13, 20, *UNKNOWN_CODES)
"""Codes that a broker may return although it appended the batch."""

MAX_SEQUENCE = 2**31 - 1
FULL_WINDOW = 256 * 1024
TRICKLE_S = 0.05
"""Seconds for which bytes trickle; each byte costs an iteration of the event loop."""

Where = tuple[str, int]


class Misfortunes:
    """The faults of one seed, and the facts about them that the oracle needs.

    Attributes:
        wall_offset_ms, offsets_ms: current error of the client's wall clock, and all errors so far.
        stalls: begin and end of each period in which the loop was blocked.
        amnesia: by log, the times at which its brokers deleted their state of the producer, by
            retention or because it had expired.
        incarnations: the clusters that were installed at the addresses of the first one.
        reborn: by log of a recreated topic, the time of its creation. A producer that uses topic
            ids cannot confuse it with the old topic.
        stopped: a broker had a controlled shutdown, after which it has only the newest batch of
            each producer.
        wrapped: sequences of some partition were moved to just before the wrap.
        duplicated: partitions whose broker has once returned DUPLICATE_SEQUENCE_NUMBER.
        oldest_metadata: the minimum, over the brokers, of the highest supported Metadata version.
        done: names of the faults, in order.
    """

    def __init__(
        self,
        plan: Plan,
        cluster: FakeCluster,
        load: Load,
        rng: random.Random,
        temperaments: Temperaments,
    ) -> None:
        self.plan = plan
        self.temperaments = temperaments
        self.cluster = cluster
        self.load = load
        self.rng = rng
        self.wall_offset_ms = 0
        self.offsets_ms = {0}
        self.stalls: list[tuple[float, float]] = []
        self.amnesia: dict[tuple[bytes, int], list[float]] = {}
        self.reborn: dict[tuple[bytes, int], float] = {}
        self.incarnations: list[Incarnation] = []
        self.stopped = False
        self.wrapped = False
        self.duplicated: set[Where] = set()
        self.oldest_metadata = 999
        self._note_versions()
        self.done: list[str] = []
        self._vanished: list[Callable[[], None]] = []
        self._menu: list[Callable[[], None]] = [getattr(self, name) for name in plan.menu]
        self._rate = rng.choice((0.0, 0.01, 0.03))

    def stalled_s(self, begin: float = 0.0, end: float = float("inf")) -> float:
        """Return the seconds of this span during which the loop was blocked."""
        return sum(
            min(until, end) - max(since, begin)
            for since, until in self.stalls
            if until > begin and since < end
        )

    def _note_versions(self) -> None:
        versions = [broker.profile.ranges[3][1] for broker in self.cluster.brokers.values()]
        self.oldest_metadata = min(self.oldest_metadata, *versions)

    def strike(self) -> None:
        """Cause a random fault of the seed's menu."""
        chosen = self.rng.choice(self._menu)
        self.done.append(chosen.__name__)
        chosen()

    def unreliable(self, request: Request) -> faults.Reaction | None:
        """Draw a fault that may happen to any request at any time."""
        if self._rate == 0.0 or self.rng.random() > self._rate:
            return None
        rng = self.rng
        return rng.choice((
            faults.close(process=rng.random() < 0.5),
            faults.cut(rng.randrange(60), process=rng.random() < 0.7),
            faults.delay(rng.uniform(0, 1.0)),
            faults.answer_late(rng.uniform(0, 1.0)),
            faults.lose_answer(),
            faults.lose_request(),
        ))  # fmt: skip

    # -- brokers --------------------------------------------------------------------------------

    def _well(self) -> list[int]:
        brokers = self.cluster.brokers.values()
        return [b.broker_id for b in brokers if b.is_up and not b.is_paused]

    def _victim(self) -> int | None:
        well = self._well()
        down = len(self.cluster.brokers) - len(well)
        return self.rng.choice(well) if well and down < self.plan.depth else None

    def kill(self) -> None:
        if (victim := self._victim()) is not None:
            self.cluster.kill(victim, silent=self.rng.random() < 0.3)

    def stop(self) -> None:
        if (victim := self._victim()) is not None:
            self.stopped = True
            self.cluster.stop(victim)

    def pause(self) -> None:
        if (victim := self._victim()) is not None:
            self.cluster.pause(victim, failover_s=self.rng.choice((None, 0.5)))

    def upgrade(self) -> None:
        """Restart a broker with another version, as in a rolling upgrade or downgrade."""
        if (victim := self._victim()) is not None:
            self.stopped = True
            self.cluster.stop(victim)
            profile = self.rng.choice(PROFILES)
            if "old_versions" in self.plan.temperaments and self.rng.random() < 0.5:
                profile = self.plan.cluster["version_profile"]
            self.cluster.start(victim, version_profile=profile)
            self.temperaments.shape(self.cluster.brokers[victim])
            self._note_versions()

    def controller(self) -> None:
        self.cluster.move_controller()

    def renumber(self) -> None:
        """Change broker ids but keep the addresses: two brokers exchange their ids, or one gets a
        new id. A gateway does this when it numbers its members again, or an operator who replaces a
        broker."""
        brokers = list(self.cluster.brokers)
        one = self.rng.choice(brokers)
        other = self.rng.choice([*brokers, max(brokers) + 1])
        if other in brokers:
            self.cluster.renumber({one: other, other: one})
        else:
            self.cluster.renumber({one: other})

    def heal(self) -> None:
        """Start all brokers and end all faults."""
        cluster = self.cluster
        for broker in cluster.brokers.values():
            if broker.is_paused:
                cluster.resume(broker.broker_id)
            if not broker.is_up:
                cluster.start(broker.broker_id)
            cluster.network.heal(broker.host, broker.port)
        for link in cluster.network.links:
            if link.is_open:
                link.heal()

    def heal_for_good(self) -> None:
        """End all faults permanently; connections may still be in a bad state."""
        cluster = self.cluster
        self.end_vanishing()
        self.temperaments.calm()
        cluster.produce_script.clear()
        cluster.throttle(self.temperaments.throttle_ms)
        cluster.refresh_views()
        for topic in cluster.topics.values():
            topic.config.max_message_bytes = 1_048_588
        self.heal()

    # -- topics ---------------------------------------------------------------------------------

    def _somewhere(self) -> Where:
        return self.rng.choice(TOPICS), self.rng.randrange(PARTITIONS)

    def move(self) -> None:
        where = self._somewhere()
        partition = self.cluster.topics[where[0]].partitions[where[1]]
        others = [node for node in partition.isr if node in self._well()]
        if others:
            self.cluster.move_leader(*where, self.rng.choice(others))

    def _enough_brokers(self) -> bool:
        """Return True if new partitions would get as many replicas as min.insync.replicas needs."""
        return len(self.cluster.registered()) >= min(2, len(self.cluster.brokers))

    def expand(self) -> None:
        if not self._enough_brokers():
            return
        topic = self.rng.choice(TOPICS)
        total = len(self.cluster.topics[topic].partitions)
        self.cluster.expand_topic(topic, min(total + 1, 8))

    def recreate(self) -> None:
        if self.rng.random() <= 0.3 and self._enough_brokers():
            self.recreate_topic(self.rng.choice(TOPICS))

    def recreate_topic(self, topic: str) -> None:
        """Delete this topic and create it again."""
        made = self.cluster.recreate_topic(topic)
        for index in range(8):
            log = made.topic_id, index
            self.reborn[log] = now()
        # A producer that names topics, or resolves a batch in doubt by its sequence, continues with
        # old sequences in the new log.
        self.cluster.forgotten.update((topic, index) for index in range(8))

    def retain(self) -> None:
        topic, partition = self._somewhere()
        log = self.cluster.topics[topic].topic_id, partition
        self.amnesia.setdefault(log, []).append(now())
        self.cluster.retain(topic, partition)

    def shrink_limit(self) -> None:
        config = self.cluster.topics[self.rng.choice(TOPICS)].config
        config.max_message_bytes = self.rng.choice((1_048_588, 2_500, 8_000))

    def vanish(self) -> None:
        """Omit a topic from the metadata for a while (0105 topic_disappears_for_awhile)."""
        topic = self.rng.choice(TOPICS)

        def without(message: Any) -> Any:
            kept = [each for each in message.topics if each.name != topic]
            gone = type(message.topics[0])(error_code=3, name=topic) if message.topics else None
            return type(message)(
                brokers=message.brokers,
                cluster_id=message.cluster_id,
                controller_id=message.controller_id,
                topics=[*kept, gone] if gone is not None else kept,
            )

        times = self.rng.choice((1, 2, 4, 8, 12))
        self._vanished.append(self.cluster.control(3, faults.edit(without), times=times))

    def end_vanishing(self) -> None:
        """Include vanished topics in the metadata again."""
        for remove in self._vanished:
            remove()
        self._vanished.clear()

    def stale(self) -> None:
        """Freeze a broker's metadata while the other brokers update theirs."""
        self.cluster.freeze_view(self.rng.choice(list(self.cluster.brokers)))

    def lag(self) -> None:
        """Freeze a broker's metadata completely, including the list of brokers and partitions, for
        some responses."""
        broker = self.rng.choice(list(self.cluster.brokers.values()))
        brokers = _brokers_of(self.cluster)
        counts = {name: len(topic.partitions) for name, topic in self.cluster.topics.items()}

        def react(request: Request) -> faults.Reaction | None:
            if request.connection.broker is not broker:
                return None
            return faults.edit(old)

        def old(message: Any) -> Any:
            topics = [
                dataclasses.replace(topic, partitions=topic.partitions[: counts.get(topic.name)])
                for topic in message.topics
            ]
            return dataclasses.replace(message, topics=topics, brokers=brokers)

        times = self.rng.choice((1, 3, 8))
        self._vanished.append(self.cluster.control(3, react, times=times))

    def fail(self) -> None:
        where = self._somewhere()
        code = self.rng.choice(self.rng.choice((RETRIABLE, RETRIABLE, DEFINITE, UNCLEAR)))
        if self.plan.idempotent and self.rng.random() < 0.1:
            code = FENCED
        append = code in MAYBE_APPENDED and self.rng.random() < 0.5
        times = self.rng.choice((1, 1, 2, 3, 6))
        hint = self.rng.random() < 0.5
        self.cluster.fail_produce(where, code, times, append=append, leader_hint=hint)

    def duplicate(self) -> None:
        """Let the broker return DUPLICATE_SEQUENCE_NUMBER: it has the batch but cannot return its
        offset."""
        if self.plan.idempotent:
            where = self._somewhere()
            self.duplicated.add(where)
            self.cluster.fail_produce(where, 46, append=True)

    def fast_forward(self) -> None:
        """Move the sequences of partitions without traffic to just before the wrap, in the producer
        and in the logs, as after years of traffic. A delayed copy of a request would arrive after
        the wrap; therefore abandoned connections are closed."""
        if any(broker.held or broker.is_paused for broker in self.cluster.brokers.values()):
            return
        for link in self.cluster.network.links:
            if link.client.is_closing() and link.is_open:
                link.reset()
        runtime = self.load.producer._lifecycle.runtime
        tracker = getattr(runtime.state.sequences, "tracker", None) if runtime else None
        for key, entry in tracker.partitions.items() if tracker else ():
            quiet = not (entry.open or entry.window or entry.unresolved or entry.bump_planned)
            topic = self.cluster.topics.get(key.topic)
            if not quiet or entry.last_acked < 0 or topic is None:
                continue
            ledger = topic.partitions[key.partition].log.ledger
            known = ledger._entries.get(entry.producer_id)
            if (
                known is None
                or known.epoch != entry.epoch
                or not known.window
                or known.window[-1].last_sequence != entry.last_acked
            ):
                continue
            self.wrapped = True
            _shift(topic.partitions[key.partition].log, entry, self.rng.randrange(8))

    # -- network --------------------------------------------------------------------------------

    def _links(self, most: int = 4) -> list[Link]:
        return [link for link in self.cluster.network.links[-3 * most :] if link.is_open][-most:]

    def reset(self) -> None:
        for link in self._links():
            if self.rng.random() < 0.5:
                link.reset(self.rng.choice(("both", "both", "client", "server")))

    def blackhole(self) -> None:
        broker = self.rng.choice(list(self.cluster.brokers.values()))
        self.cluster.network.blackhole(broker.host, broker.port)

    def half_open(self) -> None:
        """Let one direction of a connection drop all bytes; the other direction works."""
        for link in self._links(2):
            self.rng.choice((link.up, link.down)).stall()

    def throttle(self) -> None:
        broker = self.rng.choice(list(self.cluster.brokers))
        self.cluster.throttle(self.rng.choice((0, 50, 400)), broker)

    def slow(self) -> None:
        for link in self._links():
            link.up.bytes_per_s = self.rng.choice((None, 5_000, 100_000))
            link.down.latency_s = self.rng.choice((0.0005, 0.2))

    def trickle(self) -> None:
        """Write and read only a few bytes at a time, for a while."""
        loop = clock()
        for link in self._links(2):
            link.up.chunk = self.rng.choice((None, 1, 7, 50))
            link.down.chunk = self.rng.choice((None, 1, 7, 50))
            link.up.window = self.rng.choice((1, 40, 500, FULL_WINDOW))
            loop.world_at(loop.time() + TRICKLE_S, _flow_again, link)

    def cut(self) -> None:
        for link in self._links():
            pipe = self.rng.choice((link.up, link.down))
            pipe.cut_at = pipe.taken + self.rng.randrange(400)
            pipe.cut_with = self.rng.choice(("reset", "eof"))

    def strange(self) -> None:
        """Return responses that no healthy broker sends, and invalid bytes."""
        api_key = self.rng.choice((0, 0, 3, 3, 22))
        reaction = strange_answer(api_key, self.rng)
        self._vanished.append(self.cluster.control(api_key, reaction, times=1))

    # -- the process ----------------------------------------------------------------------------

    def stall(self) -> None:
        seconds = self.rng.choice((0.01, 0.6, 4.0, 4.0, 40.0))
        self.stalls.append((now(), now() + seconds))
        clock().stall(seconds)

    def clock(self) -> None:
        """Set the wall clock; no behaviour may depend on it."""
        self.wall_offset_ms = self.rng.choice((0, 3_600_000, -3_600_000, 86_400_000))
        self.offsets_ms.add(self.wall_offset_ms)

    def cancel(self) -> None:
        for _ in range(self.rng.choice((1, 1, 5))):
            self.load.cancel_one()

    def interrupt(self) -> None:
        """Let a signal handler raise somewhere inside the next calls of the application."""
        step = self._step()
        self.load.interrupt(step, self.rng.choice((Interrupt, TimeUp)))

    def reenter(self) -> None:
        """Let a signal handler or a finalizer submit records inside the next calls."""
        self.load.reenter(self._step())

    def _step(self) -> int:
        """Return the number of a bytecode of a call. Most calls have few bytecodes; a call that
        opens a batch has hundreds."""
        return int(self.rng.choice((60, 400, 1_500)) * self.rng.random()) + 1

    def wait(self) -> None:
        """Cause no fault in this step."""


def _brokers_of(cluster: FakeCluster) -> list[MetadataResponseBroker]:
    return [
        MetadataResponseBroker(node_id=one.broker_id, host=one.host, port=one.port)
        for one in cluster.registered()
    ]


def _flow_again(link: Link) -> None:
    link.up.chunk = link.down.chunk = None
    link.up.window = FULL_WINDOW


def _shift(log: PartitionLog, entry: Any, left: int) -> None:
    """Move a producer's sequences so that `left` of them remain before the wrap."""
    delta: int = MAX_SEQUENCE - left - entry.last_acked

    def shifted(sequence: int) -> int:
        return (sequence + delta) % 2**31

    epoch = entry.producer_id, entry.epoch
    for number, stored in enumerate(log.batches):
        batch = stored.batch
        if (batch.producer_id, batch.epoch) == epoch and stored.marker is None:
            moved = dataclasses.replace(batch, base_sequence=shifted(batch.base_sequence))
            log.batches[number] = dataclasses.replace(stored, batch=moved)
    known = log.ledger._entries[entry.producer_id]
    for number, remembered in enumerate(known.window):
        known.window[number] = dataclasses.replace(
            remembered,
            base_sequence=shifted(remembered.base_sequence),
            last_sequence=shifted(remembered.last_sequence),
        )
    entry.last_acked, entry.next = shifted(entry.last_acked), shifted(entry.next)
    entry.floor_sequence = shifted(entry.floor_sequence)
    entry.wrapped = entry.wrapped or entry.next == 0
