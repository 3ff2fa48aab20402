"""Measures when the cluster itself could accept records, with the simplest possible client.

For each partition, small Produce requests (acks=all) are sent one after the other to the current
leader, over direct connections, in threads: no batching, no backoff, no state that could be wrong.
The longest time without an acknowledgment is the brokers' own failover time.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from aiokprod.testing.kafka_cluster import KafkaCluster
from tests.chaos.audit import PROBE
from tests.chaos.spans import Span, common
from tests.integration.probe import ask
from tests.integration.roundtrip import produce_error, produce_frame, read_frame

EVERY = 0.1
AGAIN = 0.03
GIVE_UP = 3.0
"""Maximum seconds for a response while the leader stays the same."""
USUAL = 0.3
"""Pauses between two probes up to this number of seconds are not outages."""
LEARNT = 0.25
"""Seconds by which a leader change may be detected late."""


class Availability:
    """Instants (`time.monotonic()`) of acknowledged probes, per partition.

    `excluded` contains frozen nodes, because requests to them would only cost time.
    """

    def __init__(self, cluster: KafkaCluster, topic: str, partitions: int) -> None:
        self._cluster = cluster
        self._topic = topic
        self._partitions = partitions
        self._leaders: dict[int, tuple[int, int]] = {}  # partition -> (epoch, node)
        self._terms: dict[int, list[tuple[float, int]]] = {p: [] for p in range(partitions)}
        self._stop = threading.Event()
        self.excluded: set[int] = set()
        self.successes: dict[int, list[float]] = {p: [] for p in range(partitions)}

    @contextmanager
    def running(self) -> Iterator[Availability]:
        threads = [threading.Thread(target=self._look, daemon=True)]
        threads += [
            threading.Thread(target=self._probe, args=(partition,), daemon=True)
            for partition in range(self._partitions)
        ]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in threads:
                thread.join(10)

    def closed(self, partition: int, window: Span) -> list[Span]:
        """The times during which the brokers accepted no probe of the partition for longer than
        `USUAL`."""
        pairs = itertools.pairwise(self.successes[partition])
        return common([(a, b) for a, b in pairs if b - a > USUAL], [window])

    def shared(self, partition: int, window: Span) -> list[Span]:
        """Return the times during which the leader of the partition also led another partition that
        could not be written.

        A leader responds to a request when all its partitions are complete, and only then processes
        the next request of the connection. A client that sends several partitions at once waits for
        the slowest one. The probe does not, because it has a connection for each partition.
        """
        found: list[Span] = []
        for other in self.successes:
            if other != partition:
                for node in self._leaders_of(partition):
                    mine = self.led(partition, {node}, window)
                    found += common(
                        common(mine, self.led(other, {node}, window)), self.closed(other, window)
                    )
        return found

    def led(self, partition: int, nodes: set[int], window: Span) -> list[Span]:
        """The times during which one of the nodes led the partition, extended by `LEARNT` at both
        ends."""
        terms = self._terms[partition]
        ends = [since for since, _ in terms[1:]] + [float("inf")]
        mine = [
            (since - LEARNT, until + LEARNT)
            for (since, node), until in zip(terms, ends, strict=True)
            if node in nodes
        ]
        return common(mine, [window])

    def _leaders_of(self, partition: int) -> set[int]:
        return {node for _, node in self._terms[partition] if node >= 0}

    # -- who leads ------------------------------------------------------------------------------

    def _look(self) -> None:
        while not self._stop.wait(EVERY):
            for node in self._cluster.node_ids:
                if node not in self.excluded and self._cluster.is_running(node):
                    self._learn(node)

    def _learn(self, node: int) -> None:
        answer = ask(self._cluster.address(node), self._topic)
        if answer is None:
            return
        if answer.error_code:
            self._leaders.clear()  # the topic was deleted: a new one restarts at epoch 0
        for partition in answer.partitions:
            known = self._leaders.get(partition.partition_index, (-1, -1))
            told = (partition.leader_epoch, partition.leader_id)
            if told[0] > known[0] or (told[0] == known[0] and known[1] < 0):
                self._leaders[partition.partition_index] = told
                terms = self._terms.setdefault(partition.partition_index, [])
                if not terms or terms[-1][1] != told[1]:
                    terms.append((time.monotonic(), told[1]))

    # -- can it be written ----------------------------------------------------------------------

    def _probe(self, partition: int) -> None:
        frame = produce_frame(self._topic, partition, PROBE)
        connection: socket.socket | None = None
        place = (-1, -1)
        while not self._stop.is_set():
            now = self._leaders.get(partition, (-1, -1))
            if now != place and connection is not None:
                connection.close()
                connection = None
            place = now
            try:
                if place[1] >= 0 and connection is None:
                    connection = self._connect(place[1])
                done = connection is not None and self._once(connection, frame, partition, place)
            except (OSError, struct.error):
                done = False
            if done:
                self.successes[partition].append(time.monotonic())
            elif connection is not None:
                connection.close()
                connection = None
            self._stop.wait(EVERY if done else AGAIN)
        if connection is not None:
            connection.close()

    def _connect(self, node: int) -> socket.socket:
        host, port = self._cluster.address(node).rsplit(":", 1)
        return socket.create_connection((host, int(port)), timeout=0.5)

    def _once(
        self, connection: socket.socket, frame: bytes, partition: int, place: tuple[int, int]
    ) -> bool:
        connection.sendall(frame)
        give_up = time.monotonic() + GIVE_UP
        while not select.select([connection], [], [], 0.05)[0]:
            moved = self._leaders.get(partition, place) != place
            if moved or self._stop.is_set() or time.monotonic() > give_up:
                return False
        error = produce_error(read_frame(connection), self._topic)
        if error:
            with contextlib.suppress(KeyError):
                if self._leaders[partition] == place and error in (6, 74, 76):
                    del self._leaders[partition]
        return error == 0
