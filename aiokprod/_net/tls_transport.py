"""TLS with memory BIOs over a plain transport, which has the only write buffer.

The TLS transports of asyncio and uvloop do not show when a request has left the process: their
`get_write_buffer_size` and `pause_writing` cover only plaintext that is not encrypted yet.
Ciphertext accumulates in the underlying transport, without a limit and, in uvloop, without access
to its size. This module encrypts data at once and writes it to the plain transport, whose flow
control applies unchanged.

Source: Java `SslTransportLayer` (a send is complete once `hasPendingWrites` is false).
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

from aiokprod._wire.primitives import BytesLike

_RECORD: Final = 1 << 14
"""Maximum plaintext of one TLS record in bytes. OpenSSL returns at most one record per read."""

_SLICE: Final = 1 << 18
"""Maximum plaintext in bytes per call of OpenSSL, and amount of ciphertext above which it is
written. Bounds the memory BIO."""


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """A client's TLS session between a plain transport and an application protocol.

    The application protocol is created and connected when the handshake is complete. `write` and
    `writelines` pass ciphertext to the plain transport at once. Renegotiation (TLS 1.2 and older)
    is not supported, as in Java's client. `close` sends close_notify without waiting for the
    broker's: the plain transport already has all earlier bytes and delivers them.

    Args:
        server_hostname: for SNI and for the check of the certificate.

    Raises:
        ValueError: the context checks host names, but `server_hostname` is missing.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        server_hostname: str | None,
        protocol_factory: Callable[[], asyncio.Protocol],
    ) -> None:
        super().__init__()
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_hostname=server_hostname or None
        )
        self._factory = protocol_factory
        self._protocol: asyncio.Protocol | None = None
        self._plain: asyncio.Transport | None = None
        self._closing = False
        self._lost = False
        self._error: Exception | None = None
        loop = asyncio.get_running_loop()
        self._connected: asyncio.Future[asyncio.Protocol] | None = loop.create_future()

    def __repr__(self) -> str:
        state = "closing" if self._closing else "open" if self._protocol else "handshaking"
        return f"<TlsTransport {state} over {self._plain!r}>"

    async def handshake(self) -> asyncio.Protocol:
        """Wait for the end of the handshake and return the application protocol, whose
        `connection_made` has been called.

        Raises:
            ssl.SSLError: the handshake failed.
            ConnectionError: the peer closed the connection during the handshake.

        Cancellation and every error abort the connection.
        """
        assert self._connected is not None, "`handshake` is called once"
        try:
            return await self._connected
        except BaseException:
            self.abort()
            raise
        finally:
            # Drop the future. The traceback of its exception references this frame, and `self`
            # references the future. Each failed handshake would leave a reference cycle that holds
            # a socket.
            self._connected = None

    # -- transport interface, called by the protocol ----------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self._tls
        if name == "sslcontext":
            return self._tls.context
        return self._below().get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._closing or self._below().is_closing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._below().set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return the number of ciphertext bytes that the plain transport has not written yet."""
        return self._below().get_write_buffer_size()

    def write(self, data: BytesLike) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[BytesLike]) -> None:
        """Encrypt the data and write the ciphertext to the plain transport.

        Raises:
            ConnectionError: the broker requested renegotiation.
            ssl.SSLError: the session is broken.
        """
        if self.is_closing():
            return
        for data in _records(list_of_data):
            view = memoryview(data)
            while view:
                try:
                    written = self._tls.write(view[:_SLICE])
                except ssl.SSLWantReadError:
                    raise ConnectionError(
                        "the broker asks for TLS renegotiation, which is not supported"
                    ) from None
                view = view[written:]
                if self._outgoing.pending >= _SLICE:
                    self._write_ciphertext()
        self._write_ciphertext()

    def close(self) -> None:
        if self.is_closing():
            return
        self._closing = True
        # `unwrap` raises because the broker's close_notify is missing. It has already written ours
        # to the outgoing buffer.
        with contextlib.suppress(ssl.SSLError):
            self._tls.unwrap()
        self._write_ciphertext()
        self._below().close()

    def abort(self) -> None:
        self._closing = True
        if not self._lost:
            self._below().abort()

    def drop_plain(self) -> None:
        """Abort and drop the plain transport after `create_connection` failed or was cancelled.

        If it was cancelled after `connection_made`, uvloop closes the socket without calling
        `connection_lost`. Its transport then still references this object, which would be a
        reference cycle.
        """
        plain, self._plain = self._plain, None
        self._closing = self._lost = True
        if plain is not None:
            plain.abort()

    # -- protocol interface, called by the plain transport ----------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Cast instead of checking the type: uvloop's transports do not derive from asyncio's.
        self._plain = cast(asyncio.Transport, transport)
        self._shake_hands()

    def data_received(self, data: bytes) -> None:
        self._incoming.write(data)
        if self._protocol is None and not self._closing:
            self._shake_hands()
        if self._protocol is not None and not self._closing:
            self._read(self._protocol)

    def eof_received(self) -> bool:
        if self._protocol is not None:
            self._protocol.eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = self._lost = True
        if self._protocol is not None:
            self._protocol.connection_lost(self._error or exc)
        # Do this even if `_protocol` is set, because its `connection_made` may have raised.
        self._fail_connecting(exc or ConnectionResetError("the peer closed the connection"))

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()

    # -- internals --------------------------------------------------------------------------------

    def _below(self) -> asyncio.Transport:
        assert self._plain is not None, "used before the plain transport is connected"
        return self._plain

    def _write_ciphertext(self) -> None:
        plain = self._below()
        if self._outgoing.pending and not plain.is_closing():
            plain.write(self._outgoing.read())

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._write_ciphertext()
        except ssl.SSLError as error:
            self._write_ciphertext()  # send the alert, which contains the reason
            self._closing = True
            self._below().close()
            self._fail_connecting(error)
        else:
            # Write the first request together with the client certificate. A broker that rejects
            # the certificate sends an alert and resets the connection. A separate write could then
            # fail, and a failed write discards received data, including the alert with the reason.
            self._protocol = protocol = self._factory()
            protocol.connection_made(self)
            self._write_ciphertext()
            if self._connected is not None and not self._connected.done():
                self._connected.set_result(protocol)

    def _fail_connecting(self, error: Exception) -> None:
        waiting = self._connected
        if waiting is not None and not waiting.done():
            # Drop the traceback: the exception may never be retrieved, and must not keep frames of
            # this object alive.
            waiting.set_exception(error.with_traceback(None))
            waiting.exception()  # mark as retrieved; a cancelled dial never retrieves it

    def _read(self, protocol: asyncio.Protocol) -> None:
        chunks = []
        ended = False
        try:
            while True:
                chunk = self._tls.read(_RECORD)
                if not chunk:
                    ended = True  # close_notify
                    break
                chunks.append(chunk)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._error = error
        self._write_ciphertext()  # alerts, and responses to key updates
        if chunks:
            protocol.data_received(chunks[0] if len(chunks) == 1 else b"".join(chunks))
        if self._error is not None:
            self.abort()
        elif ended and not self.is_closing():
            protocol.eof_received()
            self.close()


def _records(chunks: Iterable[BytesLike]) -> Iterable[BytesLike]:
    """Join small adjacent chunks up to the size of a TLS record, so that the header of a batch does
    not need a separate record."""
    small: list[BytesLike] = []
    size = 0
    for chunk in chunks:
        if size + len(chunk) > _RECORD and small:
            yield small[0] if len(small) == 1 else b"".join(small)
            small, size = [], 0
        if len(chunk) >= _RECORD:
            yield chunk
        else:
            small.append(chunk)
            size += len(chunk)
    if small:
        yield small[0] if len(small) == 1 else b"".join(small)
