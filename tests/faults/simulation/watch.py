"""A look inside: the one promise of the metadata that no log can show (F56)."""

from __future__ import annotations

from typing import Any

from aiokprod.cluster import ClusterSnapshot
from tests.faults.simulation.judge import Violation
from tests.faults.simulation.misfortunes import Misfortunes

MEANINGLESS = {"epochs_missing", "epochs_zero", "no_topic_ids"}
"""Temperaments under which the epochs of a topic do not only grow."""

RELIABLE_FROM = 9
"""First Metadata version whose leader epochs belong to the leaders beside them."""


class EpochWatch:
    """Leader epochs only grow, as long as the client did not have to begin anew."""

    def __init__(self, misfortunes: Misfortunes) -> None:
        self._misfortunes = misfortunes
        self._known: dict[tuple[str, bytes, int], int] = {}
        self._found: list[str] = []

    def follow(self, producer: Any) -> None:
        """Look at every view of the producer's metadata from now on."""
        self._metadata = producer._runtime.metadata
        self._metadata.on_change(self._look)

    def check(self) -> None:
        """Raise Violation if an epoch went back, unless brokers told epochs that mean nothing."""
        if self._found and not MEANINGLESS & set(self._misfortunes.plan.temperaments):
            raise Violation(f"leader epochs went back: {self._found[:3]}")

    def _look(self, snapshot: ClusterSnapshot) -> None:
        if self._metadata.bootstrapped or self._misfortunes.oldest_metadata < RELIABLE_FROM:
            self._known.clear()
            return
        present = {
            (topic.name, topic.topic_id, info.partition)
            for topic in snapshot.topics.values()
            for info in topic.partitions
            if info.leader is not None or info.leader_epoch >= 0
        }
        for key in self._known.keys() - present:
            del self._known[key]  # forgotten, after five answers without the topic or the partition
        for topic in snapshot.topics.values():
            for info in topic.partitions:
                key = topic.name, topic.topic_id, info.partition
                before = self._known.get(key, -1)
                if info.leader is not None and info.leader_epoch < before:
                    where = f"{topic.name}-{info.partition}"
                    self._found.append(f"{where}: {before} to {info.leader_epoch}")
                self._known[key] = max(before, info.leader_epoch)
