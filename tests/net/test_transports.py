"""The design's assumptions about real transports, tested on a socket pair with asyncio and uvloop,
plain and with TLS.

With a write buffer limit of 0, "paused" must mean "the last request has not left completely".
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from aiokprod._net.channel import KafkaChannel
from aiokprod._net.connection import Connection
from aiokprod._net.in_flight import Response
from aiokprod._net.tls_transport import TlsTransport
from aiokprod._wire.messages.metadata import MetadataResponse
from aiokprod._wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from aiokprod.errors import Outcome
from tests.hang import HANG_S
from tests.net.fakes import Recorder
from tests.net.wire_helpers import answer, requests_in, versions_answer
from tests.security.certs import Authority

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
if sys.platform != "win32":
    import uvloop

    LOOPS["uvloop"] = uvloop.new_event_loop


class Owner(Recorder):
    """An owner that resolves a future per kind of awaited event."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    def connection_ready(self, connection: Any) -> None:
        super().connection_ready(connection)
        self.changed.set()

    def connection_progress(self, connection: Any) -> None:
        super().connection_progress(connection)
        self.changed.set()

    def transport_closed(self, connection: Any) -> None:
        super().transport_closed(connection)
        self.changed.set()


CA = Authority("transports CA")


def contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the TLS contexts of a client, and of the broker that the client trusts."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(CA.issue("broker.test").write(folder, "server"))
    return ssl.create_default_context(cadata=CA.pem), server


class TlsPeer:
    """The broker's end of a TLS session. It reads its socket only when the test requests it."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self.sock = sock
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side=True)

    async def step(self, action: Callable[[], Any]) -> Any:
        loop = asyncio.get_running_loop()
        while True:
            try:
                result = action()
            except ssl.SSLWantReadError:
                result = None
            if self.outgoing.pending:
                await loop.sock_sendall(self.sock, self.outgoing.read())
            if result is not None:
                return result
            received = await loop.sock_recv(self.sock, 1 << 16)
            if received:
                self.incoming.write(received)
            else:
                self.incoming.write_eof()

    async def handshake(self) -> None:
        def shake() -> bool:
            self.tls.do_handshake()
            return True

        await self.step(shake)

    async def recv(self, size: int) -> bytes:
        return bytes(await self.step(lambda: self.tls.read(size)))

    async def sendall(self, data: bytes) -> None:
        await self.step(lambda: self.tls.write(data))


class Pair:
    """A connection over one end of a socket pair. The test acts as the broker at the other end.

    Args:
        tls: the TLS contexts of both sides; None for plaintext.
    """

    def __init__(self, tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None) -> None:
        self.tls = tls
        self.peer: TlsPeer | None = None
        self.loop = asyncio.get_running_loop()
        ours, self.broker = socket.socketpair()
        self.broker.setblocking(False)
        ours.setblocking(False)
        self.sock = ours
        self.owner = Owner()
        self.channel = KafkaChannel(
            peer="broker",
            client_id="me",
            max_in_flight=5,
            receive_max_bytes=1 << 20,
            software_version="1",
        )
        self.connection = Connection(1, self.channel, self.loop, self.owner)

    async def __aenter__(self) -> Pair:
        if self.tls is None:
            await self.loop.create_connection(lambda: self.connection, sock=self.sock)
        else:
            ours, brokers = self.tls
            transport = TlsTransport(ours, "broker.test", lambda: self.connection)
            await self.loop.create_connection(lambda: transport, sock=self.sock)
            self.peer = TlsPeer(self.broker, brokers)
            await asyncio.gather(transport.handshake(), self.peer.handshake())
        await self.read_request()
        await self.write(answer(versions_answer(), 4, 0))
        await self.owner.until(lambda: self.owner.log != [])
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.connection.abort_transport()
        await self.owner.until(lambda: self.connection.gone)
        self.broker.close()

    async def read_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            missing = size - len(data)
            if self.peer is None:
                data += await self.loop.sock_recv(self.broker, missing)
            else:
                data += await self.peer.recv(missing)
        return bytes(data)

    async def write(self, data: bytes) -> None:
        """Send bytes from the broker's end."""
        if self.peer is None:
            await self.loop.sock_sendall(self.broker, data)
        else:
            await self.peer.sendall(data)

    async def read_request(self) -> Any:
        length = await self.read_exactly(4)
        body = await self.read_exactly(int.from_bytes(length, "big"))
        return requests_in([length, body])[0]

    def can_send(self) -> bool:
        return self.connection.can_send(self.loop.time())

    def send(self, size: int, *, acks: int = -1) -> asyncio.Future[Response]:
        records: Any = [bytes(size)]
        message = ProduceRequest(
            acks=acks,
            timeout_ms=1,
            topic_data=[TopicProduceData("t", partition_data=[PartitionProduceData(0, records)])],
        )
        done: asyncio.Future[Response] = self.loop.create_future()
        now = self.loop.time()
        self.connection.send(
            message,
            done.set_result,
            now,
            timeout=60.0,
            max_version=9,
            expect_response=acks != 0,
        )
        return done


BIG = 8 << 20
"""More bytes than any socket buffer accepts at once."""


@pytest.fixture(params=["plain", "tls"])
def tls(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Return the TLS contexts of both sides, or None for plaintext."""
    return contexts(tmp_path) if request.param == "tls" else None


Run: TypeAlias = Callable[[Callable[[Pair], Coroutine[Any, Any, None]]], None]


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest, tls: Any) -> Run:
    def run_on_loop(main: Callable[[Pair], Coroutine[Any, Any, None]]) -> None:
        async def session() -> None:
            async with asyncio.timeout(HANG_S), Pair(tls) as pair:
                await main(pair)

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(session())

    return run_on_loop


def test_small_request_leaves_at_once_and_the_next_may_follow(run: Run) -> None:
    async def main(pair: Pair) -> None:
        first = pair.send(100)
        assert pair.can_send()
        pair.send(100)
        for _ in range(2):
            await pair.read_request()
        await pair.write(answer(ProduceResponse(), 9, 1))
        assert (await first).body == ProduceResponse()

    run(main)


def test_big_request_blocks_the_next_until_it_has_left(run: Run) -> None:
    async def main(pair: Pair) -> None:
        pair.send(BIG)
        assert not pair.can_send()
        _, message = await pair.read_request()
        assert len(message.topic_data[0].partition_data[0].records) == BIG
        await pair.owner.until(pair.can_send)
        assert len(pair.channel.in_flight) == 1

    run(main)


def test_big_request_without_answer_ends_when_it_has_left(run: Run) -> None:
    async def main(pair: Pair) -> None:
        older = pair.send(100)
        done = pair.send(BIG, acks=0)
        await asyncio.sleep(0)
        assert not done.done()
        for _ in range(2):
            await pair.read_request()
        assert (await done).error is None
        assert not older.done()

    run(main)


def test_small_request_without_answer_ends_at_once(run: Run) -> None:
    async def main(pair: Pair) -> None:
        done = pair.send(100, acks=0)
        assert not done.done()
        assert (await done).error is None
        assert pair.can_send()

    run(main)


def test_end_of_stream_delivers_what_arrived_before_it(run: Run) -> None:
    async def main(pair: Pair) -> None:
        first, second = pair.send(100), pair.send(100)
        await pair.write(answer(ProduceResponse(), 9, 1) + answer(MetadataResponse(), 9, 2)[:5])
        pair.broker.shutdown(socket.SHUT_WR)
        assert (await first).error is None
        assert (await second).error is not None
        await pair.owner.until(lambda: pair.connection.gone)

    run(main)


def test_broker_that_vanishes_fails_requests(run: Run) -> None:
    async def main(pair: Pair) -> None:
        done = pair.send(BIG)
        pair.broker.close()
        assert (await done).error is not None
        await pair.owner.until(lambda: pair.connection.gone)

    run(main)


def test_request_without_answer_whose_write_fails_does_not_count_as_written(run: Run) -> None:
    async def main(pair: Pair) -> None:
        pair.sock.shutdown(socket.SHUT_WR)  # every later write fails with EPIPE
        error = (await pair.send(100, acks=0)).error
        assert error is not None
        assert error.outcome is Outcome.UNKNOWN
        await pair.owner.until(lambda: pair.connection.gone)

    run(main)
