"""Chooses the broker for requests to which any broker can respond.

Source: Java `NetworkClient.leastLoadedNode`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Final

from aiokprod._net.connection import Connection
from aiokprod._net.connection_states import ClusterConnectionStates
from aiokprod.cluster import Node

_SLOW_AFTER_S: Final = 1.0
"""Seconds without a response or connection after which other nodes are preferred."""


class Candidate:
    """A known node and its connection, if any. The connection may still be dialling."""

    __slots__ = ("connection", "node")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.connection: Connection | None = None


def least_loaded(
    brokers: Sequence[Candidate], states: ClusterConnectionStates, rng: random.Random, now: float
) -> int | None:
    """Return the id of the least loaded node, or None.

    The preferred node has the fewest requests in flight among the nodes that accept a request. The
    next choices are a connecting node, then the least recently tried node whose backoff has ended,
    unless many attempts have just failed. Nodes that have not responded, or have been connecting,
    for longer than a second come last: a frozen broker accepts connections and requests, but never
    responds. The search starts at a random node, so that clients do not all choose the same broker.
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
            if oldest.created + _SLOW_AFTER_S <= now:
                slow = node_id
            elif len(requests) < fewest:
                sendable, fewest = node_id, len(requests)
        elif connection.channel.preparing:
            if states.last_attempt(node_id) + _SLOW_AFTER_S > now:
                connecting = node_id if connecting is None else connecting
            else:
                stuck = node_id
    choices = (sendable, connecting, dialable, slow, stuck)
    return next((choice for choice in choices if choice is not None), None)
