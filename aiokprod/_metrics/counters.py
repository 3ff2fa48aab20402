"""Counters by topic and by broker, for a limited number of topics and brokers."""

from __future__ import annotations

from typing import Any, Final

from aiokprod._histogram import Histogram

MAX_TOPICS: Final = 1000
"""Maximum number of topics with separate counters."""

MAX_NODES: Final = 1000
"""Maximum number of brokers with separate counters."""

OTHER_TOPICS: Final = "(other)"
"""Name for all topics beyond `MAX_TOPICS`. No topic can have this name."""

OTHER_NODES: Final = -1
"""Node id for addresses that are not brokers in the metadata (bootstrap servers, coordinators), and
for all brokers beyond `MAX_NODES`."""


class TopicCounters:
    """The counters of one topic; see `METRICS`."""

    __slots__ = (
        "bytes_sent",
        "plain_bytes_sent",
        "records_acknowledged",
        "records_failed",
        "records_refused",
        "records_retried",
    )

    def __init__(self) -> None:
        self.records_acknowledged = 0
        self.records_failed = 0
        self.records_refused = 0
        self.records_retried = 0
        self.bytes_sent = 0
        self.plain_bytes_sent = 0

    def snapshot(self) -> dict[str, int]:
        """Return the values by name."""
        return {name: getattr(self, name) for name in self.__slots__}


class NodeCounters:
    """The counters of one broker; see `METRICS`. Connections change these counters directly.

    Attributes:
        connections: a gauge of the connections that are ready for requests.
        request_latency_s, throttle_time_s: histograms.
    """

    __slots__ = (
        "authentication_failures",
        "authentications",
        "connection_failures",
        "connections",
        "connections_closed",
        "connections_opened",
        "network_bytes_in",
        "network_bytes_out",
        "produce_requests",
        "reauthentications",
        "request_latency_s",
        "requests_sent",
        "responses_received",
        "throttle_time_s",
        "throttles",
    )

    def __init__(self) -> None:
        self.connections = 0
        self.connections_opened = 0
        self.connections_closed = 0
        self.connection_failures = 0
        self.authentications = 0
        self.authentication_failures = 0
        self.reauthentications = 0
        self.requests_sent = 0
        self.responses_received = 0
        self.network_bytes_out = 0
        self.network_bytes_in = 0
        self.produce_requests = 0
        self.throttles = 0
        self.request_latency_s = Histogram()
        self.throttle_time_s = Histogram()

    def snapshot(self) -> dict[str, Any]:
        """Return the values by name; for histograms, see `Histogram.snapshot`."""
        values: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        for name in NODE_HISTOGRAMS:
            values[name] = values[name].snapshot()
        return values


NODE_HISTOGRAMS: Final = ("request_latency_s", "throttle_time_s")

NODE_COUNTERS: Final = tuple(name for name in NodeCounters.__slots__ if name not in NODE_HISTOGRAMS)
"""Counters of `NodeCounters`. The sum of a counter over all brokers is the producer's value."""


TOPIC_COUNTERS: Final = TopicCounters.__slots__
"""Counters of `TopicCounters`. The sum of a counter over all topics is the producer's value."""


class TopicTable:
    """The counters of all topics, in the order in which they were first counted."""

    def __init__(self) -> None:
        self.counters: dict[str, TopicCounters] = {}

    def add(self, topic: str) -> TopicCounters:
        """Add and return the counters of a topic that is not in `counters`. Beyond `MAX_TOPICS`,
        return the counters of `OTHER_TOPICS`."""
        name = topic if len(self.counters) < MAX_TOPICS and topic else OTHER_TOPICS
        return self.counters.setdefault(name, TopicCounters())

    def sums(self) -> dict[str, int]:
        """Return the sum of each counter over all topics."""
        topics = list(self.counters.values())
        return {name: sum(getattr(topic, name) for topic in topics) for name in TOPIC_COUNTERS}


class NodeTable:
    """The counters of all brokers, in the order in which they were first counted."""

    def __init__(self) -> None:
        self.counters: dict[int, NodeCounters] = {}

    def of(self, node_id: int) -> NodeCounters:
        """Return the counters of a broker, or those of `OTHER_NODES`."""
        found = self.counters.get(node_id)
        return self._add(node_id) if found is None else found

    def _add(self, node_id: int) -> NodeCounters:
        key = node_id if node_id >= 0 and len(self.counters) < MAX_NODES else OTHER_NODES
        return self.counters.setdefault(key, NodeCounters())

    def sums(self) -> dict[str, int]:
        """Return the sum of each counter over all brokers."""
        nodes = list(self.counters.values())
        return {name: sum(getattr(node, name) for node in nodes) for name in NODE_COUNTERS}
