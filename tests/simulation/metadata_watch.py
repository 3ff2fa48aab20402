"""A check inside the client: the promise about metadata that no log can show (F56)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from aiokprod.cluster import ClusterSnapshot
from tests.scenarios.scenario_helpers import now
from tests.simulation.fault_scripts import Misfortunes
from tests.simulation.oracle import Violation
from tests.simulation.wire_log import METADATA, Exchange, Wire

RELIABLE_FROM: Final = 9
"""First Metadata version whose leader epochs match the leaders in the same response."""
ANSWERS: Final = 5
"""Number of consecutive responses with lower epochs that show that a topic without an id was
recreated."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A leader epoch that decreased."""

    at: float
    topic: str
    partition: int
    before: int
    after: int


class EpochWatch:
    """Checks that leader epochs do not decrease unless the client had to start again."""

    def __init__(self, misfortunes: Misfortunes, wire: Wire) -> None:
        self._misfortunes = misfortunes
        self._wire = wire
        self._known: dict[tuple[str, bytes, int], int] = {}
        self._back: list[_Step] = []
        self._cluster_id: str | None = None

    def follow(self, producer: Any) -> None:
        """Check every snapshot of the producer's metadata from now on."""
        self._metadata = producer._lifecycle.runtime.metadata
        self._metadata.on_change(self._look)

    def check(self) -> None:
        """Raise Violation if an epoch decreased although fewer than `ANSWERS` responses contained
        it."""
        wrong = [step for step in self._back if not self._is_told(step)]
        if wrong:
            raise Violation(f"leader epochs went back: {wrong[:3]}")

    def _is_told(self, step: _Step) -> bool:
        told = list(itertools.islice(self._told(step), ANSWERS))
        return len(told) == ANSWERS and all(0 <= epoch < step.before for epoch in told)

    def _told(self, step: _Step) -> Iterator[int]:
        """Yield the epochs of a partition in the responses before the decrease, newest first."""
        answers = [one for one in _used(self._wire.exchanges()) if one.heard_at <= step.at]
        for answer in reversed(answers):
            for topic in answer.answer.topics:
                for partition in topic.partitions if topic.name == step.topic else ():
                    if partition.partition_index == step.partition:
                        yield partition.leader_epoch

    def _look(self, snapshot: ClusterSnapshot) -> None:
        if snapshot.cluster_id != self._cluster_id:
            self._cluster_id = snapshot.cluster_id
            self._known.clear()
        if self._metadata.only_bootstrap_nodes or self._misfortunes.oldest_metadata < RELIABLE_FROM:
            self._known.clear()
            return
        present = {
            (topic.name, topic.topic_id, info.partition)
            for topic in snapshot.topics.values()
            for info in topic.partitions
            if info.leader is not None or info.leader_epoch >= 0
        }
        for key in self._known.keys() - present:
            del self._known[key]  # dropped after five responses without the topic or partition
        for topic in snapshot.topics.values():
            for info in topic.partitions:
                key = topic.name, topic.topic_id, info.partition
                before, epoch = self._known.get(key, -1), info.leader_epoch
                if info.leader is not None and 0 <= epoch < before:
                    self._back.append(_Step(now(), topic.name, info.partition, before, epoch))
                # A leader without an epoch is accepted, and the cached epoch is dropped (Java
                # `Metadata.updateLatestMetadata`).
                self._known[key] = epoch


def _used(exchanges: Iterable[Exchange]) -> list[Exchange]:
    """Return the Metadata requests whose responses the client used, in the order of the responses.

    The client has one fetch at a time, which may be sent to several brokers. The first response
    ends the fetch; those of the other brokers are ignored (`MetadataUpdater`), because they may be
    older than the cached metadata.
    """
    answered = [one for one in exchanges if one.api_key == METADATA and one.answer is not None]
    used: list[Exchange] = []
    for one in sorted(answered, key=lambda each: each.heard_at):
        if not used or used[-1].heard_at <= one.sent_at:
            used.append(one)
    return used
