"""Resolves host names and connects sockets. Only this module opens sockets.

Source: Java `Selector.connect`, `ClientUtils.resolve`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final

from aiokprod._net.tls_transport import TlsTransport
from aiokprod.environment import Dialer
from aiokprod.errors import DialError

__all__ = ["Dialer", "TcpDialer"]

OS_DEFAULT: Final = -1


class HandshakeEnded(DialError):
    """The server ended the connection during the TLS handshake without an alert."""


class TcpDialer:
    """Opens TCP and TLS connections in the running event loop.

    Sockets use SO_KEEPALIVE and TCP_NODELAY. Buffer sizes (bytes, -1 = system default) are set
    before connecting, because the receive buffer size determines the TCP window scale.
    """

    def __init__(
        self, *, send_buffer_bytes: int = OS_DEFAULT, receive_buffer_bytes: int = OS_DEFAULT
    ) -> None:
        self._send_buffer_bytes = send_buffer_bytes
        self._receive_buffer_bytes = receive_buffer_bytes

    async def resolve(self, host: str, port: int) -> list[tuple[str, int]]:
        """Return all addresses of a name in the resolver's order, without duplicates; never empty.

        After cancellation, the look-up still finishes in its thread. The result is discarded.

        Raises:
            DialError: the name has no address or is not a valid host name.
        """
        loop = asyncio.get_running_loop()
        try:
            infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise DialError(f"cannot resolve {host}:{port}: {error}") from error
        addresses = [(str(info[4][0]), int(info[4][1])) for info in infos]
        if not addresses:
            raise DialError(f"cannot resolve {host}:{port}: the name has no address")
        return list(dict.fromkeys(addresses))

    async def connect(
        self,
        protocol_factory: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Connect to one numeric address. Cancellation closes the socket.

        Raises:
            DialError: the connection was refused or ended during the TLS handshake, or the address
                is unreachable.
            ssl.SSLError: the TLS handshake failed.
        """
        loop = asyncio.get_running_loop()
        sock: socket.socket | None = None
        connected = False
        try:
            sock = self._socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
            await loop.sock_connect(sock, (host, port))
            connected = True
            if tls is None:
                transport, protocol = await loop.create_connection(protocol_factory, sock=sock)
                sock = None
                return transport, protocol
            # Remove a trailing dot: DNS accepts it, but certificates never contain one.
            name = (server_hostname or "").rstrip(".")
            secured = TlsTransport(tls, name, protocol_factory)
            try:
                await loop.create_connection(lambda: secured, sock=sock)
            except BaseException:
                secured.drop_plain()
                raise
            sock = None
            return secured, await secured.handshake()
        except ssl.SSLError:
            raise
        except OSError as error:
            if tls is not None and isinstance(error, ConnectionError) and connected:
                raise HandshakeEnded(
                    f"{host}:{port} ended the connection during the TLS handshake"
                ) from error
            raise DialError(f"cannot connect to {host}:{port}: {error}") from error
        finally:
            if sock is not None:
                sock.close()

    def _socket(self, family: int) -> socket.socket:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._send_buffer_bytes != OS_DEFAULT:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_buffer_bytes)
            if self._receive_buffer_bytes != OS_DEFAULT:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer_bytes)
        except BaseException:
            sock.close()
            raise
        return sock
