"""Which broker to ask what any broker can answer. Source: Java `NetworkClient.leastLoadedNode`."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Final

from aiokprod._net.connection import Connection
from aiokprod._net.connection_states import ClusterConnectionStates
from aiokprod.cluster import Node

PATIENCE_S: Final = 1.0
"""For an answer or a connection; then another node is as good."""


class Candidate:
    """A known node with its connection, if there is one (dialling included)."""

    __slots__ = ("connection", "node")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.connection: Connection | None = None


def least_loaded(
    brokers: Sequence[Candidate], states: ClusterConnectionStates, rng: random.Random, now: float
) -> int | None:
    """The id of the least loaded node, or None.

    A sendable node without open requests, else the sendable one with fewest, else one that is
    being connected, else the one tried longest ago whose backoff is over (unless many attempts have
    just failed), else a sendable one that
    has owed an answer for longer than a second, else one that has been connecting for that long: a
    frozen broker accepts connections and requests, and says nothing. Begins at a random node, so
    that clients do not all ask the same broker.
    """
    may_search = states.may_search(now)
    start = rng.randrange(len(brokers)) if brokers else 0
    sendable = connecting = dialable = slow = stuck = None
    fewest = longest_ago = math.inf
    for broker in (*brokers[start:], *brokers[:start]):
        node_id, connection = broker.node.id, broker.connection
        if connection is None:
            tried = states.last_attempt(node_id)
            if may_search and states.can_connect(node_id, now) and tried < longest_ago:
                dialable, longest_ago = node_id, tried
        elif connection.can_send(now):
            requests = connection.channel.in_flight
            oldest = requests.oldest
            if oldest is None:
                return node_id
            if oldest.created + PATIENCE_S <= now:
                slow = node_id
            elif len(requests) < fewest:
                sendable, fewest = node_id, len(requests)
        elif connection.channel.preparing:
            if states.last_attempt(node_id) + PATIENCE_S > now:
                connecting = node_id if connecting is None else connecting
            else:
                stuck = node_id
    choices = (sendable, connecting, dialable, slow, stuck)
    return next((choice for choice in choices if choice is not None), None)
