"""Sends an HTTP request in a separate thread, with one deadline for the whole exchange.

`http.client` only limits individual socket operations, so a server that sends one byte at a time
could occupy the thread without limit. Here every operation is limited to the remaining time, and
`abort` ends the operation in progress.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import os
import socket
import ssl
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from aiokprod.environment import monotonic


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request. It is sent over https, unless `plaintext` is set.

    Attributes:
        path: the path with the query.
        body: None for a request without a body.
        tls: context for the connection; None for the system's CAs.
        timeout_s: seconds from the start of the thread to the last byte of the response.
        max_answer: maximum size of the response body in bytes. One more byte is read, to detect a
            longer body.
    """

    method: str
    host: str
    port: int
    path: str
    body: bytes | None = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    tls: ssl.SSLContext | None
    timeout_s: float
    max_answer: int
    plaintext: bool = False


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """Status and body of a response. The body may contain a token."""

    status: int
    body: bytes = field(repr=False)


class HttpExchange:
    """Starts the request in a new thread.

    The thread ends at the deadline, except during name resolution, which cannot be interrupted.

    Attributes:
        answer: future of the response, done when the thread has ended. Fails with OSError
            (including TimeoutError), ssl.SSLError, http.client.HTTPException or ValueError.
    """

    def __init__(self, request: HttpRequest, thread_name: str) -> None:
        self._request = request
        self._deadline = monotonic() + request.timeout_s
        self._lock = threading.Lock()
        self._aborted = False
        self._socket: socket.socket | None = None
        self._process = os.getpid()
        executor = ThreadPoolExecutor(1, thread_name)
        self.answer: Future[HttpAnswer] = executor.submit(self._run)
        executor.shutdown(wait=False)

    @property
    def running(self) -> bool:
        """True until the thread has ended; False in a forked child, which has no such thread."""
        return self._process == os.getpid() and not self.answer.done()

    async def ended(self, deadline: float) -> bool:
        """Wait until the thread has ended, at most until `deadline` (loop time). Return False if
        the thread is still running."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def wake(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # raised if the loop has been closed
                loop.call_soon_threadsafe(ended.set)

        self.answer.add_done_callback(wake)
        timer = loop.call_at(deadline, ended.set)
        try:
            await ended.wait()
        finally:
            timer.cancel()
        return not self.running

    def abort(self) -> None:
        """End the thread by shutting its connection down."""
        with self._lock:
            self._aborted = True
            if self._socket is not None:
                _shut_down(self._socket)

    def remaining(self) -> float:
        """Return the seconds left, always positive.

        Raises:
            TimeoutError: no time is left, or the exchange was aborted.
        """
        left = self._deadline - monotonic()
        if left <= 0 or self._aborted:
            raise TimeoutError
        return left

    def _run(self) -> HttpAnswer:
        request = self._request
        context: ssl.SSLContext | None = None
        if request.plaintext:
            connection = http.client.HTTPConnection(request.host, request.port)
        else:
            context = request.tls or ssl.create_default_context()
            connection = http.client.HTTPSConnection(request.host, request.port, context=context)
        try:
            # http.client does not connect if `sock` is already set.
            connection.sock = _BoundedSocket(self._connect(context), self)
            connection.request(request.method, request.path, request.body, dict(request.headers))
            with connection.getresponse() as response:
                return HttpAnswer(response.status, response.read(request.max_answer + 1))
        finally:
            connection.close()
            with self._lock:
                if self._socket is not None:
                    self._socket.close()

    def _connect(self, context: ssl.SSLContext | None) -> socket.socket:
        request = self._request
        failure = OSError("the name has no address")
        found = socket.getaddrinfo(request.host, request.port, type=socket.SOCK_STREAM)
        for number, (family, kind, protocol, _, address) in enumerate(found):
            one = socket.socket(family, kind, protocol)
            if context is not None:
                # Wrap the socket before connecting. If the peer resets the connection while
                # `wrap_socket` runs on a connected socket, it raises and leaves a socket that
                # cannot be closed.
                one = context.wrap_socket(
                    one, server_hostname=request.host, do_handshake_on_connect=False
                )
            self._own(one)
            try:
                # Divide the remaining time among the addresses, so that an address that does not
                # respond leaves time for the others.
                one.settimeout(self.remaining() / (len(found) - number))
                one.connect(address)
            except OSError as error:
                one.close()
                failure = error
                continue
            one.settimeout(self.remaining())
            if isinstance(one, ssl.SSLSocket):
                one.do_handshake()
            return one
        raise failure

    def _own(self, one: socket.socket) -> None:
        """Store the socket for `abort`. Shut it down now if `abort` was already called."""
        with self._lock:
            self._socket = one
            if self._aborted:
                _shut_down(one)


def _shut_down(one: socket.socket) -> None:
    # Do not use `SSLSocket.shutdown`: the socket would then send plain text, and the other thread
    # may be about to send credentials.
    with contextlib.suppress(OSError):  # raised if the socket is not connected
        socket.socket.shutdown(one, socket.SHUT_RDWR)


class _BoundedSocket:
    """A socket for `http.client` whose operations are limited by the deadline of the exchange. The
    exchange closes the socket."""

    def __init__(self, connected: socket.socket, exchange: HttpExchange) -> None:
        self._socket = connected
        self._exchange = exchange

    def sendall(self, data: bytes) -> None:
        """Send all data, in parts."""
        view = memoryview(data)
        while view:
            self._socket.settimeout(self._exchange.remaining())
            view = view[self._socket.send(view) :]

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return a reader of the response."""
        return io.BufferedReader(_BoundedReader(self._socket, self._exchange))

    def close(self) -> None:
        """Do nothing, because http.client closes the socket before the response is read."""


class _BoundedReader(io.RawIOBase):
    def __init__(self, connected: socket.socket, exchange: HttpExchange) -> None:
        self._socket = connected
        self._exchange = exchange

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        self._socket.settimeout(self._exchange.remaining())
        return self._socket.recv_into(buffer)  # type: ignore[arg-type]
