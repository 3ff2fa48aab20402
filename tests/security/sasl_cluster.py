"""A `FakeCluster` whose brokers require SASL, for tests of rejections with a complete producer."""

from __future__ import annotations

import dataclasses
import random
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from aiokprod import Producer
from aiokprod._wire.messages.sasl_authenticate import SaslAuthenticateResponse
from aiokprod._wire.messages.sasl_handshake import SaslHandshakeResponse
from aiokprod.environment import Environment
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.fake_cluster.control import Reaction, answer
from aiokprod.testing.fake_cluster.framing import Request
from aiokprod.testing.memory import MemoryNetwork
from tests.security.sasl_broker import AUTHENTICATE, FAILED, HANDSHAKE, Refused

USER, PASSWORD = "alice", "canary-right-password"

NewServer = Callable[[], Any]


class SaslCluster(FakeCluster):
    """Brokers that serve only authenticated clients.

    Attributes:
        servers: maps a mechanism to a function that creates the server's side of an exchange.
        servers_of: the same map for single brokers, by broker id.
        lifetime_ms: session lifetime that is sent with the last response; 0 = unlimited.
        attempts: (time, broker id) of every handshake.
    """

    def __init__(self, brokers: int, servers: dict[str, NewServer]) -> None:
        super().__init__(brokers, network=MemoryNetwork())
        self.servers = servers
        self.servers_of: dict[int, dict[str, NewServer]] = {}
        self.lifetime_ms = 0
        self.attempts: list[tuple[float, int]] = []
        self._exchanges: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._let_in: weakref.WeakSet[Any] = weakref.WeakSet()
        for broker in self.brokers.values():
            ranges = broker.profile.ranges | {HANDSHAKE: (0, 1), AUTHENTICATE: (0, 2)}
            broker.profile = dataclasses.replace(broker.profile, ranges=ranges)
        self.script.add(HANDSHAKE, self._handshake)
        self.script.add(AUTHENTICATE, self._authenticate)
        self.script.add(None, self._guard)

    def cut(self, broker_ids: Iterable[int] | None = None) -> None:
        """Close the connections of these brokers, by default of all brokers."""
        for broker_id in list(broker_ids or self.brokers):
            for connection in list(self.brokers[broker_id].connections):
                connection.reset()

    def _handshake(self, request: Request) -> Reaction:
        self.attempts.append((request.time, request.broker_id))
        name = request.body.mechanism
        servers = self.servers_of.get(request.broker_id, self.servers)
        if name not in servers:
            return answer(SaslHandshakeResponse(error_code=33, mechanisms=list(servers)))
        self._exchanges[request.connection] = servers[name]()
        return answer(SaslHandshakeResponse(mechanisms=list(servers)))

    def _authenticate(self, request: Request) -> Reaction:
        exchange = self._exchanges[request.connection]
        try:
            data, done = exchange.answer(bytes(request.body.auth_bytes))
        except Refused as error:
            text = SaslAuthenticateResponse(error_code=FAILED, error_message=str(error))
            return dataclasses.replace(answer(text), close=True)
        if done:
            self._let_in.add(request.connection)
        lifetime = self.lifetime_ms if done else 0
        return answer(SaslAuthenticateResponse(auth_bytes=data, session_lifetime_ms=lifetime))

    def _guard(self, request: Request) -> Reaction | None:
        if request.api_key != 18:
            assert request.connection in self._let_in, f"API {request.api_key} from a stranger"
        return None


def producer(cluster: SaslCluster, **settings: Any) -> Producer[Any, Any]:
    """Return a producer that uses the cluster's network and clock."""
    defaults: dict[str, Any] = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_allow_cleartext": True,
    }
    environment = Environment(cluster.network, cluster.unix_ms, random.Random(7))
    return Producer(environment=environment, **(defaults | settings))
