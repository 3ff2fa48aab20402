"""A TCP proxy that breaks connections on purpose, in a separate process.

    with FaultyNetwork({"node-1": (31001, 20001)}) as network:
        network.set("node-1", delay_s=0.1)
        ...
        network.heal()

It is for machines whose kernel cannot disturb traffic between network namespaces. Every *link*
listens on a port of the loopback interface and forwards to another port; its `Weather` says how it
treats the bytes. Bytes of a silenced link are kept and delivered late, as TCP would after a
retransmission.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

HOST = "127.0.0.1"
START_TIMEOUT = 30.0
HIGH_WATER = 256 * 1024
RETRANSMISSION_S = (0.2, 0.4, 0.8)
"""Seconds that a lost segment delays the following bytes: first, second and third timeout of
TCP."""


@dataclass(frozen=True, slots=True)
class Weather:
    """The behaviour of a link.

    Attributes:
        delay_s: delay of every byte in seconds, each way.
        rate: bytes per second and direction, over all connections of the link; 0 = no limit.
        loss: probability that a chunk is lost and delayed by a retransmission.
        silent_to_broker, silent_to_client: no data passes in this direction, and neither side is
            notified.
        cut_after: a connection is reset after a random number of bytes up to this; 0 = never.
        refuse: new connections are reset.
    """

    delay_s: float = 0.0
    rate: float = 0.0
    loss: float = 0.0
    silent_to_broker: bool = False
    silent_to_client: bool = False
    cut_after: int = 0
    refuse: bool = False


class FaultyNetwork:
    """Controls the proxy process. `links`: name -> (port to listen on, target port).

    The calls block; each writes a line to the process, which takes microseconds.
    """

    def __init__(self, links: Mapping[str, tuple[int, int]], seed: int = 1) -> None:
        self.links = dict(links)
        self._seed = seed
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> FaultyNetwork:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.proxy", str(self._seed), json.dumps(self.links)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._process = process
        assert process.stdout is not None
        if process.stdout.readline().strip() != "listening":
            raise RuntimeError(f"the proxy did not start: it ended with {process.wait(5)}")
        return self

    def __exit__(self, *exc: object) -> None:
        process, self._process = self._process, None
        if process is not None:
            try:
                process.communicate(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()

    def set(self, *names: str, **weather: Any) -> None:
        """Set exactly this weather for these links (none: all), for old and new connections."""
        self._say({"do": "set", "links": list(names or self.links), "weather": weather})

    def reset(self, *names: str) -> None:
        """Reset (RST) every connection of these links (none: all)."""
        self._say({"do": "reset", "links": list(names or self.links)})

    def heal(self, *names: str) -> None:
        """End all faults; the delayed bytes are delivered."""
        self.set(*names)

    def _say(self, command: dict[str, Any]) -> None:
        assert self._process is not None, "the proxy is not running"
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()


class _Link:
    def __init__(self, target: int, rng: random.Random) -> None:
        self.target = target
        self.rng = rng
        self.weather = Weather()
        self.connections: set[_Connection] = set()
        self.free_at = {True: 0.0, False: 0.0}  # by direction, True: to the broker

    def change(self, weather: Weather) -> None:
        self.weather = weather
        for connection in list(self.connections):
            connection.weather_changed()

    def accept(self) -> asyncio.Protocol:
        return _Side(_Connection(self), to_broker=True)


class _Connection:
    """Two sockets, and the bytes that were read from one and not yet written to the other."""

    def __init__(self, link: _Link) -> None:
        self.link = link
        self.pipes = {True: _Pipe(self, True), False: _Pipe(self, False)}
        self.sides: dict[bool, asyncio.Transport] = {}  # by direction (True: reads from the client)
        self.budget = 0
        self.ended = False
        self.task: asyncio.Task[None] | None = None
        link.connections.add(self)
        self.weather_changed()

    def weather_changed(self) -> None:
        limit = self.link.weather.cut_after
        self.budget = self.link.rng.randint(1, limit) if limit else 0
        for pipe in self.pipes.values():
            pipe.push()

    async def dial(self) -> None:
        try:
            loop = asyncio.get_running_loop()
            await loop.create_connection(
                lambda: _Side(self, to_broker=False), HOST, self.link.target
            )
        except OSError:
            self.reset()

    def opened(self, to_broker: bool, transport: asyncio.Transport) -> None:
        self.sides[to_broker] = transport
        if self.ended:
            transport.abort()
        elif to_broker and self.link.weather.refuse:
            self.reset()
        elif to_broker:
            self.task = asyncio.get_running_loop().create_task(self.dial())
        else:
            for pipe in self.pipes.values():
                pipe.push()

    def spend(self, size: int) -> int:
        """Return how many of `size` bytes may pass before the connection is cut."""
        if not self.budget:
            return size
        passed = min(size, self.budget - 1)
        self.budget -= passed
        return passed

    def reset(self) -> None:
        self.ended = True
        self.link.connections.discard(self)
        for transport in self.sides.values():
            with contextlib.suppress(OSError):
                linger = struct.pack("ii", 1, 0)
                transport.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, linger
                )
            transport.abort()

    def finished(self, to_broker: bool) -> None:
        """One side has closed its socket: close the other one too, after the bytes in transit."""
        if not self.ended:
            self.pipes[to_broker].finish()


class _Pipe:
    """One direction of a connection: chunks, each with its delivery time."""

    def __init__(self, connection: _Connection, to_broker: bool) -> None:
        self.connection = connection
        self.to_broker = to_broker
        self.waiting: deque[tuple[float, bytes]] = deque()
        self.size = 0
        self.blocked = False
        self.done = False
        self.timer: asyncio.TimerHandle | None = None

    @property
    def silent(self) -> bool:
        weather = self.connection.link.weather
        return weather.silent_to_broker if self.to_broker else weather.silent_to_client

    def take(self, data: bytes) -> None:
        link = self.connection.link
        weather = link.weather
        now = asyncio.get_running_loop().time()
        at = now + weather.delay_s
        if weather.rate:
            at = max(at, link.free_at[self.to_broker]) + len(data) / weather.rate
            link.free_at[self.to_broker] = at
        if weather.loss and link.rng.random() < weather.loss:
            at += link.rng.choice(RETRANSMISSION_S)
        if self.waiting:
            at = max(at, self.waiting[-1][0])
        self.waiting.append((at, data))
        self.size += len(data)
        self.push()

    def push(self) -> None:
        """Deliver the chunks that are due."""
        connection = self.connection
        out = connection.sides.get(not self.to_broker)
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if connection.ended or out is None or self.silent or self.blocked:
            self._throttle()
            return
        loop = asyncio.get_running_loop()
        while self.waiting and self.waiting[0][0] <= loop.time() + 0.0005:
            _, data = self.waiting.popleft()
            self.size -= len(data)
            passed = connection.spend(len(data))
            out.write(data[:passed])
            if passed < len(data):
                connection.reset()
                return
        if self.waiting:
            self.timer = loop.call_at(self.waiting[0][0], self.push)
        elif self.done:
            out.close()
        self._throttle()

    def finish(self) -> None:
        self.done = True
        self.push()

    def _throttle(self) -> None:
        """Stop reading while the line holds its maximum of bytes."""
        source = self.connection.sides.get(self.to_broker)
        if source is None or source.is_closing():
            return
        if self.size > HIGH_WATER or self.blocked:
            source.pause_reading()
        else:
            source.resume_reading()


class _Side(asyncio.Protocol):
    """One of the two sockets. `to_broker`: it reads the bytes from the client to the broker."""

    def __init__(self, connection: _Connection, *, to_broker: bool) -> None:
        self.connection = connection
        self.to_broker = to_broker

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.connection.opened(self.to_broker, transport)

    def data_received(self, data: bytes) -> None:
        self.connection.pipes[self.to_broker].take(data)

    def eof_received(self) -> bool:
        self.connection.finished(self.to_broker)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and not self.connection.ended:
            self.connection.reset()
        elif not self.connection.ended:
            self.connection.finished(self.to_broker)
            if len(self.connection.sides) == 2 and all(
                transport.is_closing() for transport in self.connection.sides.values()
            ):
                self.connection.ended = True
                self.connection.link.connections.discard(self.connection)

    def pause_writing(self) -> None:
        self._block(True)

    def resume_writing(self) -> None:
        self._block(False)

    def _block(self, blocked: bool) -> None:
        pipe = self.connection.pipes[not self.to_broker]  # what is written to this side
        pipe.blocked = blocked
        pipe.push()


def _obey(links: dict[str, _Link], command: dict[str, Any]) -> None:
    for name in command["links"]:
        if command["do"] == "set":
            links[name].change(replace(Weather(), **command["weather"]))
        else:
            for connection in list(links[name].connections):
                connection.reset()


async def serve(seed: int, addresses: Mapping[str, tuple[int, int]]) -> None:
    """Forward until standard input ends."""
    loop = asyncio.get_running_loop()
    rng = random.Random(seed)
    links = {name: _Link(target, rng) for name, (_, target) in addresses.items()}
    for name, (port, _) in addresses.items():
        await loop.create_server(links[name].accept, HOST, port)
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    print("listening", flush=True)
    while line := await lines.readline():
        _obey(links, json.loads(line))


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), json.loads(sys.argv[2])))
