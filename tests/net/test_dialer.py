from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from aiokprod._net.dialer import TcpDialer
from aiokprod.errors import DialError, Outcome


class FakeSocket:
    def __init__(self, family: int, kind: int) -> None:
        assert kind == socket.SOCK_STREAM
        self.family = family
        self.calls: list[Any] = []
        self.options: dict[tuple[int, int], int] = {}
        self.is_closed = False

    def setblocking(self, flag: bool) -> None:
        assert flag is False

    def setsockopt(self, level: int, option: int, value: int) -> None:
        assert "connect" not in self.calls
        if FAIL_OPTIONS:
            raise FAIL_OPTIONS[0]
        self.options[level, option] = value

    def close(self) -> None:
        self.is_closed = True


FAIL_OPTIONS: list[OSError] = []


class DialerHarness:
    """Replaces the running event loop and the socket module."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sockets: list[FakeSocket] = []
        self.infos: list[Any] = []
        self.connect_error: BaseException | None = None
        self.create_error: BaseException | None = None
        self.resolve_error: Exception | None = None
        self.connected_to: Any = None
        FAIL_OPTIONS.clear()
        monkeypatch.setattr(socket, "socket", self.socket)
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: self)

    def socket(self, family: int, kind: int) -> FakeSocket:
        self.sockets.append(FakeSocket(family, kind))
        return self.sockets[-1]

    async def getaddrinfo(self, host: str, port: int, *, type: int) -> list[Any]:
        if self.resolve_error is not None:
            raise self.resolve_error
        return self.infos

    async def sock_connect(self, sock: FakeSocket, address: Any) -> None:
        sock.calls.append("connect")
        self.connected_to = address
        if self.connect_error is not None:
            raise self.connect_error

    async def create_connection(self, factory: Any, *, sock: FakeSocket) -> tuple[Any, Any]:
        if self.create_error is not None:
            raise self.create_error
        return "transport", factory()


def protocol() -> Any:
    """Return a placeholder for a protocol. Its function replaces the protocol's class."""
    return "protocol"


def play(coro: Any) -> Any:
    """Run a coroutine that must not wait, and return its result."""
    try:
        coro.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("the coroutine waits")


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> DialerHarness:
    return DialerHarness(monkeypatch)


def info(family: int, *address: Any) -> Any:
    return (family, socket.SOCK_STREAM, 6, "", address)


def test_resolve_gives_all_addresses_in_order_without_duplicates(harness: DialerHarness) -> None:
    harness.infos = [
        info(socket.AF_INET6, "::1", 9092, 0, 0),
        info(socket.AF_INET, "127.0.0.1", 9092),
        info(socket.AF_INET, "127.0.0.1", 9092),
    ]
    assert play(TcpDialer().resolve("localhost", 9092)) == [("::1", 9092), ("127.0.0.1", 9092)]


@pytest.mark.parametrize(
    "error", [socket.gaierror(-2, "unknown"), UnicodeError("label too long"), None]
)
def test_f13_resolve_without_a_result_is_a_dial_error_with_host_and_port(
    harness: DialerHarness, error: Exception | None
) -> None:
    harness.resolve_error = error
    with pytest.raises(DialError, match="nowhere:9092") as caught:
        play(TcpDialer().resolve("nowhere", 9092))
    assert caught.value.outcome is Outcome.NOT_SENT
    assert caught.value.retriable


def test_connect_sets_options_before_connecting(harness: DialerHarness) -> None:
    dialer = TcpDialer(send_buffer_bytes=1000, receive_buffer_bytes=2000)
    made = play(dialer.connect(protocol, "10.0.0.1", 9092))
    assert made == ("transport", "protocol")
    [sock] = harness.sockets
    assert sock.family == socket.AF_INET
    assert sock.options == {
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
        (socket.IPPROTO_TCP, socket.TCP_NODELAY): 1,
        (socket.SOL_SOCKET, socket.SO_SNDBUF): 1000,
        (socket.SOL_SOCKET, socket.SO_RCVBUF): 2000,
    }
    assert harness.connected_to == ("10.0.0.1", 9092)
    assert not sock.is_closed


def test_connect_leaves_buffer_sizes_to_the_system(harness: DialerHarness) -> None:
    play(TcpDialer().connect(protocol, "::1", 9092))
    [sock] = harness.sockets
    assert sock.family == socket.AF_INET6
    assert (socket.SOL_SOCKET, socket.SO_SNDBUF) not in sock.options
    assert (socket.SOL_SOCKET, socket.SO_RCVBUF) not in sock.options


@pytest.mark.parametrize("where", ["connect_error", "create_error"])
def test_f7_failed_connect_is_a_dial_error_and_closes_the_socket(
    harness: DialerHarness, where: str
) -> None:
    setattr(harness, where, ConnectionRefusedError(111, "refused"))
    with pytest.raises(DialError, match=r"10\.0\.0\.1:9092.*refused") as caught:
        play(TcpDialer().connect(protocol, "10.0.0.1", 9092))
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)
    assert harness.sockets[0].is_closed


def test_cancelled_connect_closes_the_socket(harness: DialerHarness) -> None:
    harness.connect_error = asyncio.CancelledError()
    with pytest.raises(asyncio.CancelledError):
        play(TcpDialer().connect(protocol, "10.0.0.1", 9092))
    assert harness.sockets[0].is_closed


def test_socket_option_that_fails_closes_the_socket(harness: DialerHarness) -> None:
    FAIL_OPTIONS.append(OSError("not permitted"))
    with pytest.raises(DialError, match="not permitted"):
        play(TcpDialer().connect(protocol, "10.0.0.1", 9092))
    assert harness.sockets[0].is_closed


CONTEXT: Any = "context"


def test_refused_connect_with_tls_blames_no_handshake(harness: DialerHarness) -> None:
    harness.connect_error = ConnectionRefusedError(111, "refused")
    with pytest.raises(DialError, match="cannot connect"):
        play(TcpDialer().connect(protocol, "10.0.0.1", 9092, tls=CONTEXT, server_hostname="b"))
