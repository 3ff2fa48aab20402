"""A small broker that returns scripted responses over in-memory transports."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from aiokprod._net.client import NetworkClient
from aiokprod._net.connection import Connection
from aiokprod._net.in_flight import Response
from aiokprod._wire.frames import FrameReader
from aiokprod._wire.headers import RequestHeader, decode_request_header, encode_response
from aiokprod._wire.message import Message
from aiokprod._wire.messages import REQUESTS
from aiokprod._wire.messages.metadata import MetadataRequest, MetadataResponse
from aiokprod.cluster import Node
from aiokprod.config import ProducerConfig
from aiokprod.environment import Environment
from aiokprod.errors import KafkaError
from aiokprod.testing.memory import Link, MemoryNetwork
from tests.net.wire_helpers import ALL_VERSIONS, versions_answer

METADATA = MetadataRequest(topics=None)

OFFERED = {key: ALL_VERSIONS[key] for key in ALL_VERSIONS.keys() - {71, 72}}
"""API versions without the APIs of KIP-714. Without these APIs, the first request of a connection
is the request of the test."""

Answer = Callable[[RequestHeader, Message], Message | None]


class ScriptedBroker:
    """A broker that listens at one address. `answers` maps an API key to a function that returns
    the response, or None for no response."""

    def __init__(self, network: MemoryNetwork, host: str, port: int) -> None:
        self.network = network
        self.host, self.port = host, port
        self.answers: dict[int, Answer] = {
            18: lambda header, message: versions_answer(OFFERED),
            3: lambda header, message: MetadataResponse(cluster_id=f"{host}:{port}"),
        }
        self.greeting: bytes | None = None
        self.seen: list[tuple[RequestHeader, Message]] = []
        self.sessions: list[Session] = []
        self.start()

    def start(self) -> None:
        self.network.listen(self.host, self.port, lambda link: Session(self, link))

    def stop(self) -> None:
        """Refuse new connections and reset the open ones."""
        self.network.unlisten(self.host, self.port)
        for link in self.network.links_to(self.host, self.port):
            link.reset()

    def silence(self, api_key: int) -> None:
        self.answers[api_key] = lambda header, message: None

    def count(self, api_key: int) -> int:
        return sum(header.request_api_key == api_key for header, _ in self.seen)


class Session(asyncio.Protocol):
    def __init__(self, broker: ScriptedBroker, link: Link) -> None:
        self.broker = broker
        self.link = link
        self.reader = FrameReader(1 << 30)
        self.open: list[RequestHeader] = []
        self.is_lost = False
        broker.sessions.append(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        if self.broker.greeting is not None:
            self.transport.write(self.broker.greeting)
            self.transport.close()
            return
        for frame in self.reader.feed(data):
            header, body = decode_request_header(frame)
            request = REQUESTS[header.request_api_key]
            message = request.decode(body, header.request_api_version)
            self.broker.seen.append((header, message))
            reply = self.broker.answers[header.request_api_key](header, message)
            if reply is None:
                self.open.append(header)
            else:
                self.reply(header, reply)

    def reply(self, header: RequestHeader, message: Message) -> None:
        self.transport.writelines(
            encode_response(message, header.request_api_version, header.correlation_id)
        )

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


class ConnectionHarness:
    """A client in a memory network, and the events that it reported."""

    def __init__(self, servers: str = "b:1", **settings: Any) -> None:
        self.loop = asyncio.get_running_loop()
        self.network = MemoryNetwork()
        for name in "abc":
            self.network.set_name(name, [name])
        self.wakeup = asyncio.Event()
        self.wakeups = 0
        self.disconnects: list[tuple[int, KafkaError]] = []
        self.throttles: list[tuple[int, float]] = []
        self.callback_errors: list[BaseException] = []
        self.opened: list[int] = []
        self.closed: list[tuple[int, KafkaError | None]] = []
        options = {
            key: settings.pop(key)
            for key in ("authenticator", "client_id", "software_version")
            if key in settings
        }
        self.client = NetworkClient(
            ProducerConfig(bootstrap_servers=servers, **settings),
            Environment(self.network, rng=random.Random(5)),
            self.loop,
            on_wakeup=self._on_wakeup,
            on_disconnect=lambda node_id, error: self.disconnects.append((node_id, error)),
            on_throttle=lambda node_id, seconds: self.throttles.append((node_id, seconds)),
            on_connection_opened=self.opened.append,
            on_connection_closed=lambda node_id, error: self.closed.append((node_id, error)),
            on_callback_error=self.callback_errors.append,
            **options,
        )

    def _on_wakeup(self) -> None:
        self.wakeups += 1
        self.wakeup.set()

    def broker(self, host: str = "b", port: int = 1) -> ScriptedBroker:
        return ScriptedBroker(self.network, host, port)

    @property
    def now(self) -> float:
        return self.loop.time()

    async def until(self, condition: Callable[[], object], seconds: float = 300.0) -> None:
        """Wait until the condition holds. Check it after each wake-up."""
        async with asyncio.timeout(seconds):
            while not condition():
                self.wakeup.clear()
                await self.wakeup.wait()

    async def connect(self, node_id: int = -1) -> None:
        """Dial as often as the backoff allows, until the node accepts requests."""
        async with asyncio.timeout(600.0):
            while not self.client.ready(node_id, self.now):
                self.wakeup.clear()
                retry_at = self.client.retry_at(node_id, self.now)
                if retry_at == float("inf"):
                    await self.wakeup.wait()
                else:
                    await asyncio.sleep(max(0.0, retry_at - self.now))

    def send(
        self, node_id: int = -1, request: Any = METADATA, **options: Any
    ) -> asyncio.Future[Response]:
        done: asyncio.Future[Response] = self.loop.create_future()
        self.slot(node_id).send(request, done.set_result, self.now, **({"timeout": 30.0} | options))
        return done

    def slot(self, node_id: int = -1) -> Connection:
        """Return the connection of a node that accepts a request now."""
        connection = self.client.ready(node_id, self.now)
        assert connection is not None, f"node {node_id} takes no request"
        return connection

    async def close(self) -> None:
        await self.client.close(self.now + 5.0)

    def set_nodes(self, *nodes: tuple[int, str, int]) -> None:
        self.client.set_nodes([Node(*node) for node in nodes])
