"""TLS over real sockets on the loopback interface, with asyncio's loop and uvloop's."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import random
import socket
import ssl
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from aiokprod import KafkaError, Producer
from aiokprod._net.connection import Connection
from aiokprod._net.dialer import TcpDialer
from aiokprod._net.tls_transport import TlsTransport, _records
from aiokprod.errors import DialError
from aiokprod.testing.fake_cluster import FakeCluster, serve_tcp
from aiokprod.testing.fake_cluster.topology import TopicConfig
from tests.current import current
from tests.hang import HANG_S, until
from tests.net.test_transports import CA, LOOPS, TlsPeer, contexts

Run = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    def run_on_loop(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(HANG_S):
                await main()

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(bounded())

    return run_on_loop


class Noted(asyncio.Protocol):
    """Records the calls of the transport."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.log: list[Any] = []
        self.paused = False
        self.lost = asyncio.get_running_loop().create_future()
        self.news = asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        self.log.append("made")
        transport.set_write_buffer_limits(high=0)

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.news.set()

    def eof_received(self) -> bool:
        self.log.append("eof")
        return False

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self.news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.log.append("lost")
        self.lost.set_result(exc)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.news.clear()
            await self.news.wait()


@contextlib.asynccontextmanager
async def listener() -> AsyncIterator[tuple[socket.socket, int]]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.setblocking(False)
        yield sock, sock.getsockname()[1]


@contextlib.asynccontextmanager
async def dial(
    client: ssl.SSLContext,
) -> AsyncIterator[tuple[asyncio.Future[tuple[Any, Any]], socket.socket]]:
    """Dial "broker.test". Yield the dial, and the broker's socket, on which the handshake has not
    begun."""
    async with listener() as (sock, port):
        accepting = asyncio.ensure_future(asyncio.get_running_loop().sock_accept(sock))
        dialling = asyncio.ensure_future(
            TcpDialer().connect(Noted, "127.0.0.1", port, tls=client, server_hostname="broker.test")
        )
        accepted, _ = await accepting
        accepted.setblocking(False)
        with accepted:
            yield dialling, accepted


@contextlib.asynccontextmanager
async def session(folder: Path) -> AsyncIterator[tuple[Any, Noted, TlsPeer]]:
    """Connect a client. Yield its transport, its protocol and the broker's end."""
    client, server = contexts(folder)
    async with dial(client) as (dialling, accepted):
        peer = TlsPeer(accepted, server)
        await peer.handshake()
        transport, protocol = await dialling
        assert isinstance(protocol, Noted)
        # As after the ApiVersions exchange of a real connection, no handshake data (session
        # tickets) is unread. A socket that is closed with unread data resets the connection.
        await peer.sendall(b"!")
        await protocol.until(lambda: protocol.received == b"!")
        protocol.received.clear()
        try:
            yield transport, protocol, peer
        finally:
            transport.abort()
            await protocol.lost


def test_everything_written_arrives_in_order_and_answers_come_back(
    run: Run, tmp_path: Path
) -> None:
    rng = random.Random(1)
    chunks = [rng.randbytes(size) for size in (1, 0, 61, 16384, 100, 16383, 1, 3 << 20, 5)]

    async def main() -> None:
        async with session(tmp_path) as (transport, protocol, peer):
            transport.writelines([memoryview(chunks[0]), *chunks[1:]])
            transport.write(bytearray(b"end"))
            total = sum(map(len, chunks)) + 3
            received = bytearray()
            while len(received) < total:
                received += await peer.recv(1 << 16)
            expected = hashlib.sha256(b"".join(chunks) + b"end").digest()
            assert hashlib.sha256(received).digest() == expected
            await peer.sendall(chunks[7])
            await protocol.until(lambda: len(protocol.received) == len(chunks[7]))
            assert protocol.received == chunks[7]
            assert transport.get_extra_info("ssl_object").version() == "TLSv1.3"
            assert transport.get_extra_info("sslcontext") is not None
            assert transport.get_extra_info("peername")[0] == "127.0.0.1"
            assert "open" in repr(transport)

    run(main)


def test_large_chunk_is_encrypted_and_handed_on_in_slices(run: Run, tmp_path: Path) -> None:
    class Sizes:
        """A wrapper of the plain transport that records the size of each write."""

        def __init__(self, plain: Any) -> None:
            self.plain = plain
            self.sizes: list[int] = []

        def __getattr__(self, name: str) -> Any:
            return getattr(self.plain, name)

        def write(self, data: bytes) -> None:
            self.sizes.append(len(data))
            self.plain.write(data)

    async def main() -> None:
        async with session(tmp_path) as (transport, _, _):
            transport._plain = plain = Sizes(transport._plain)
            transport.write(bytes(4 << 20))
            assert sum(plain.sizes) > 4 << 20
            assert max(plain.sizes) < 300_000

    run(main)


def test_paused_means_that_ciphertext_waits_in_the_process(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with session(tmp_path) as (transport, protocol, peer):
            transport.write(b"small")
            assert not protocol.paused
            assert transport.get_write_buffer_size() == 0
            transport.write(bytes(16 << 20))
            await asyncio.sleep(0.05)
            assert current(protocol.paused)
            assert transport.get_write_buffer_size() > 0
            missing = 5 + (16 << 20)
            while missing:
                missing -= len(await peer.recv(1 << 16))
            await protocol.until(lambda: not protocol.paused)
            assert transport.get_write_buffer_size() == 0

    run(main)


def test_close_delivers_what_was_written_and_then_close_notify(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with session(tmp_path) as (transport, protocol, peer):
            transport.write(bytes(16 << 20))
            transport.close()
            transport.close()
            transport.write(b"too late")
            assert transport.is_closing()
            await asyncio.sleep(0.2)
            assert not protocol.lost.done()  # the peer has not read
            received = 0
            while chunk := await peer.recv(1 << 16):
                received += len(chunk)
            assert received == 16 << 20
            assert await protocol.lost is None

    run(main)


@pytest.mark.parametrize("ragged", [False, True])
def test_end_of_the_stream_is_told_after_the_data_before_it(
    run: Run, tmp_path: Path, ragged: bool
) -> None:
    async def main() -> None:
        async with session(tmp_path) as (_, protocol, peer):
            await peer.sendall(b"last words")
            if not ragged:
                with contextlib.suppress(ssl.SSLWantReadError):
                    peer.tls.unwrap()
                await asyncio.get_running_loop().sock_sendall(peer.sock, peer.outgoing.read())
            peer.sock.shutdown(socket.SHUT_WR)
            assert await protocol.lost is None
            assert protocol.received == b"last words"
            assert protocol.log == ["made", "eof", "lost"]

    run(main)


def test_broken_record_ends_the_connection_with_the_reason(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with session(tmp_path) as (_, protocol, peer):
            await asyncio.get_running_loop().sock_sendall(
                peer.sock, b"\x17\x03\x03\x00\x20" + bytes(32)
            )
            assert isinstance(await protocol.lost, ssl.SSLError)
            assert "eof" not in protocol.log

    run(main)


def test_renegotiation_is_refused_by_an_error_of_the_write(run: Run, tmp_path: Path) -> None:
    class Renegotiating:
        def write(self, data: Any) -> int:
            raise ssl.SSLWantReadError

    async def main() -> None:
        async with session(tmp_path) as (transport, _, _):
            tls, transport._tls = transport._tls, Renegotiating()
            with pytest.raises(ConnectionError, match="renegotiation"):
                transport.write(b"data")
            transport._tls = tls

    run(main)


def test_dialer_asks_for_the_name_without_the_root_dot(run: Run, tmp_path: Path) -> None:
    names = []

    async def main() -> None:
        client, server = contexts(tmp_path)
        server.sni_callback = lambda tls, name, context: names.append(name)
        loop = asyncio.get_running_loop()
        serving = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0, ssl=server)
        port = serving.sockets[0].getsockname()[1]
        transport, protocol = await TcpDialer().connect(
            Noted, "127.0.0.1", port, tls=client, server_hostname="broker.test."
        )
        transport.close()
        await protocol.lost  # type: ignore[attr-defined]
        serving.close()
        await serving.wait_closed()
        assert names == ["broker.test"]

    run(main)


@pytest.mark.parametrize("how", ["reset", "eof"])
def test_f65_connection_ended_in_the_tls_handshake_says_so(
    run: Run, tmp_path: Path, how: str
) -> None:
    async def main() -> None:
        client, _ = contexts(tmp_path)
        loop = asyncio.get_running_loop()
        async with dial(client) as (dialling, accepted):
            if how == "eof":
                await loop.sock_recv(accepted, 1 << 16)
            accepted.close()
            with pytest.raises(DialError, match=r"during the TLS handshake$"):
                await dialling

    run(main)


def test_refused_certificate_is_left_to_the_caller_and_alerted_to_the_broker(
    run: Run, tmp_path: Path
) -> None:
    async def main() -> None:
        _, server = contexts(tmp_path)
        client = ssl.create_default_context()  # does not trust the test CA
        async with dial(client) as (dialling, accepted):
            with pytest.raises(ssl.SSLError, match=r"(?i)unknown.ca"):
                await TlsPeer(accepted, server).handshake()
            with pytest.raises(ssl.SSLCertVerificationError):
                await dialling

    run(main)


def test_alert_that_refuses_our_certificate_is_read_although_the_broker_resets(
    run: Run, tmp_path: Path
) -> None:
    """In TLS 1.3, the client's side of the handshake is complete before the broker has seen the
    certificate. A fast broker resets the connection before the first request is written."""
    connections: list[tuple[socket.socket, TlsPeer]] = []

    def refuse() -> None:
        accepted, peer = connections[0]
        if accepted.fileno() < 0:
            return
        with contextlib.suppress(BlockingIOError):
            peer.incoming.write(accepted.recv(1 << 16))
            with pytest.raises(ssl.SSLError, match=r"(?i)certificate"):
                peer.tls.do_handshake()
            accepted.send(peer.outgoing.read())
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            accepted.close()

    class Requesting(Noted):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            refuse()
            transport.write(b"request")
            refuse()

    async def main() -> None:
        client, server = contexts(tmp_path)
        server.verify_mode = ssl.CERT_REQUIRED
        server.load_verify_locations(cadata=CA.pem)
        loop = asyncio.get_running_loop()
        async with listener() as (sock, port):
            dialling = asyncio.ensure_future(
                TcpDialer().connect(
                    Requesting, "127.0.0.1", port, tls=client, server_hostname="broker.test"
                )
            )
            accepted, _ = await loop.sock_accept(sock)
            accepted.setblocking(False)
            peer = TlsPeer(accepted, server)
            connections.append((accepted, peer))
            peer.incoming.write(await loop.sock_recv(accepted, 1 << 16))
            with pytest.raises(ssl.SSLWantReadError):
                peer.tls.do_handshake()
            await loop.sock_sendall(accepted, peer.outgoing.read())
            _, protocol = await dialling
            assert isinstance(protocol, Requesting)
            while not protocol.lost.done():
                refuse()  # uvloop writes at the end of the iteration
                await asyncio.sleep(0)
            error = await protocol.lost
            assert isinstance(error, ssl.SSLError), repr(error)
            assert "CERTIFICATE_REQUIRED" in str(error)

    run(main)


def test_cancelled_handshake_closes_the_socket(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        client, _ = contexts(tmp_path)
        loop = asyncio.get_running_loop()
        async with dial(client) as (dialling, accepted):
            assert await loop.sock_recv(accepted, 1 << 16)
            dialling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await dialling
            with contextlib.suppress(ConnectionError):
                assert await loop.sock_recv(accepted, 1 << 16) == b""

    run(main)


def test_dial_ends_with_the_connection_if_connection_made_raises(run: Run, tmp_path: Path) -> None:
    class Raising(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            raise RuntimeError("as a signal handler may")

    async def main() -> None:
        client, server = contexts(tmp_path)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: None)
        serving = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0, ssl=server)
        port = serving.sockets[0].getsockname()[1]
        with pytest.raises((DialError, RuntimeError)):
            async with asyncio.timeout(HANG_S):
                await TcpDialer().connect(
                    Raising, "127.0.0.1", port, tls=client, server_hostname="broker.test"
                )
        serving.close()
        await serving.wait_closed()

    run(main)


def test_small_neighbours_share_a_record_and_large_chunks_are_not_copied() -> None:
    large = bytes(20000)
    assert list(_records([])) == []
    assert list(_records([b"a", b"", b"b"])) == [b"ab"]
    found = list(_records([b"header", large, b"t" * 16000, b"u" * 500, b"v"]))
    assert found == [b"header", large, b"t" * 16000, b"u" * 500 + b"v"]
    assert found[1] is large


# -- a request counts as written once its bytes were handed to the kernel -------------------------


RECORD = b"z" * 2_000_000
"""A value larger than the socket buffers of both sides plus the read-ahead of a paused TLS
server."""


@contextlib.asynccontextmanager
async def acks0(
    folder: Path, *, tls: bool
) -> AsyncIterator[tuple[FakeCluster, Any, Callable[[], None]]]:
    """Start a producer with acks=0, and a broker that reads nothing until the yielded function
    resumes it."""
    settings: dict[str, Any] = {}
    server = None
    if tls:
        server = contexts(folder)[1]
        settings = {"security_protocol": "SSL", "ssl_truststore_certificates": CA.pem}
    cluster = FakeCluster(1)
    cluster.create_topic("t", 1, config=TopicConfig(max_message_bytes=8_000_000))
    async with serve_tcp(cluster, tls=server) as bootstrap:
        producer: Any = Producer(
            bootstrap_servers=bootstrap,
            acks=0,
            max_request_size=8_000_000,
            send_buffer_bytes=262144,
            ssl_endpoint_identification_algorithm="" if tls else "https",
            **settings,
        )
        await producer.send("t", b"warm")
        transports = [
            connection._transport
            for broker in cluster.brokers.values()
            for connection in broker.connections
        ]
        for transport in transports:
            # Without a fixed size, the kernel would let the buffer grow to megabytes.
            transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_RCVBUF, 65536
            )
            transport.pause_reading()

        def resume() -> None:
            for transport in transports:
                transport.resume_reading()

        try:
            yield cluster, producer, resume
        finally:
            await producer.close(0)


async def stored(cluster: FakeCluster, count: int) -> None:
    await until(lambda: len(cluster.values("t", 0)) == count)


@pytest.mark.parametrize("tls", [False, True])
def test_acks0_futures_resolve_when_the_bytes_have_left_the_process(
    run: Run, tmp_path: Path, tls: bool
) -> None:
    async def main() -> None:
        async with acks0(tmp_path, tls=tls) as (cluster, producer, resume):
            sends = [asyncio.ensure_future(producer.send("t", RECORD)) for _ in range(3)]
            await asyncio.sleep(0.6)
            assert not any(send.done() for send in sends)
            resume()
            await asyncio.gather(*sends)
            assert (await producer.close(HANG_S)).complete
            await stored(cluster, 4)

    run(main)


@pytest.mark.parametrize("tls", [False, True])
def test_close_waits_until_the_bytes_have_left_the_process(
    run: Run, tmp_path: Path, tls: bool
) -> None:
    async def main() -> None:
        async with acks0(tmp_path, tls=tls) as (cluster, producer, resume):
            for _ in range(3):
                await producer.submit("t", RECORD)
            closing = asyncio.ensure_future(producer.close(HANG_S))
            await asyncio.sleep(1.0)
            assert not closing.done()
            resume()
            assert (await closing).complete
            await stored(cluster, 4)

    run(main)


@pytest.mark.parametrize("tls", [False, True])
def test_close_reports_bytes_that_did_not_leave_within_its_timeout(
    run: Run, tmp_path: Path, tls: bool
) -> None:
    async def main() -> None:
        async with acks0(tmp_path, tls=tls) as (_, producer, _):
            sends = [asyncio.ensure_future(producer.send("t", RECORD)) for _ in range(3)]
            await asyncio.sleep(0.2)
            report = await producer.close(0.5)
            assert not report.complete
            ends = await asyncio.gather(*sends, return_exceptions=True)
            assert any(isinstance(end, KafkaError) for end in ends)

    run(main)


@contextlib.asynccontextmanager
async def no_garbage_of(*kinds: type) -> AsyncIterator[None]:
    """Check that objects of these types from the block are freed without the garbage collector,
    after pending closes have completed."""

    def alive() -> list[int]:
        found = Counter(type(thing) for thing in gc.get_objects())
        return [found[kind] for kind in kinds]

    gc.collect()
    before = alive()
    gc.disable()
    try:
        yield
        await until(lambda: all(now <= then for now, then in zip(alive(), before, strict=True)))
    finally:
        gc.enable()


REFUSALS = {
    "closes": b"",
    "is no TLS listener": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "alert": b"\x15\x03\x03\x00\x02\x02\x28",
}


@contextlib.asynccontextmanager
async def refusing(answer: bytes) -> AsyncIterator[tuple[int, list[None]]]:
    """Listen on a port and end every handshake. Yield the port and a list that gets an entry per
    handshake."""
    ended: list[None] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4096)
        writer.write(answer)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()
        ended.append(None)

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], ended


@pytest.mark.parametrize("how", REFUSALS)
def test_handshake_that_fails_leaves_nothing_to_the_garbage_collector(
    run: Run, tmp_path: Path, how: str
) -> None:
    """A client may retry a broker with a wrong certificate for hours, so a failed attempt must
    leave no reference cycles."""
    client, _ = contexts(tmp_path)

    async def main() -> None:
        async with refusing(REFUSALS[how]) as (port, _), no_garbage_of(TlsTransport, Noted):
            for _ in range(3):
                with pytest.raises((ssl.SSLError, DialError)):
                    await TcpDialer().connect(
                        Noted, "127.0.0.1", port, tls=client, server_hostname="broker.test"
                    )

    run(main)


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("when", ["during connection_made", "after connection_made"])
def test_dial_cancelled_before_create_connection_returns_leaves_nothing_to_the_garbage_collector(
    run: Run, tmp_path: Path, when: str, complete: bool
) -> None:
    """`close` and the setup timeout can cancel a dial at any await. At this await the plain
    transport and the TLS transport already refer to each other, and uvloop does not call
    `connection_lost`."""
    client, _ = contexts(tmp_path)

    class Cancelling(ssl.SSLObject):
        def do_handshake(self) -> None:
            if when == "during connection_made":
                dials[0].cancel()
            else:
                asyncio.get_running_loop().call_soon(dials[0].cancel)
            # If `complete`, the handshake completes in this call, as if the broker had already
            # responded.
            if not complete:
                super().do_handshake()

    class Keeping(asyncio.Protocol):
        """Keeps its transport until the dial has failed, as `Connection` does."""

        def connection_made(self, transport: Any) -> None:
            kept.append(transport)

    client.sslobject_class = Cancelling
    dials: list[asyncio.Future[Any]] = []
    kept: list[Any] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with listener() as (sock, port), no_garbage_of(TlsTransport, Cancelling, Keeping):
            dials.append(
                asyncio.ensure_future(
                    TcpDialer().connect(
                        Keeping, "127.0.0.1", port, tls=client, server_hostname="broker.test"
                    )
                )
            )
            accepted, _ = await loop.sock_accept(sock)
            with accepted:
                accepted.setblocking(False)
                with pytest.raises(asyncio.CancelledError):
                    await dials[0]
                with contextlib.suppress(ConnectionError):
                    while await loop.sock_recv(accepted, 1 << 16):
                        pass  # the client may have sent a ClientHello
            assert len(kept) == complete
            while kept:
                kept[0].write(b"too late")
                kept[0].close()
                kept[0].abort()
                assert kept.pop().is_closing()
            dials.clear()

    run(main)


@pytest.mark.parametrize("how", REFUSALS)
def test_producer_whose_handshakes_fail_leaves_nothing_to_the_garbage_collector(
    run: Run, how: str
) -> None:
    async def main() -> None:
        async with (
            refusing(REFUSALS[how]) as (port, ended),
            Producer(
                bootstrap_servers=f"127.0.0.1:{port}",
                security_protocol="SSL",
                ssl_truststore_certificates=CA.pem,
                reconnect_backoff_ms=1,
                reconnect_backoff_max_ms=1,
            ) as producer,
        ):

            async def keep_sending() -> None:
                """Send records one after another. The record after a failed record dials again."""
                while True:
                    with contextlib.suppress(KafkaError):
                        await producer.send("t", b"v")
                    await asyncio.sleep(0.01)

            sending = asyncio.ensure_future(keep_sending())
            await until(lambda: len(ended) > 1)
            async with no_garbage_of(TlsTransport, Connection):
                seen = len(ended)
                await until(lambda: len(ended) > seen + 2)
                sending.cancel()
                await asyncio.wait([sending])
                await producer.close(0)

    run(main)
