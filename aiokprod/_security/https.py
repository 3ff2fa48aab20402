"""One https request with a deadline for all of it, in a thread of its own, which can be aborted.

`http.client` bounds single socket operations only: a server that sends one byte per operation would
keep the thread for as long as it likes. Here every operation gets what is left of the whole time,
and `abort` ends the operation under way.
"""

from __future__ import annotations

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
class HttpsRequest:
    """A POST request; `form` is its body.

    Attributes:
        path: with the query.
        tls: None for the system's CAs.
        timeout_s: seconds from the start of the thread to the last byte of the answer.
        max_answer: bytes of the body that are read; one more tells that there were more.
    """

    host: str
    port: int
    path: str
    form: bytes = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    tls: ssl.SSLContext | None
    timeout_s: float
    max_answer: int


@dataclass(frozen=True, slots=True)
class HttpsAnswer:
    """Status and body, which may hold a token."""

    status: int
    body: bytes = field(repr=False)


class HttpsExchange:
    """Starts the request in a new thread.

    The thread ends by itself when the time is over, except while it resolves the name: no system
    can interrupt that.

    Attributes:
        answer: done when the thread has ended. Fails with OSError (TimeoutError included),
            ssl.SSLError, http.client.HTTPException or ValueError.
    """

    def __init__(self, request: HttpsRequest) -> None:
        self._request = request
        self._deadline = monotonic() + request.timeout_s
        self._lock = threading.Lock()
        self._aborted = False
        self._socket: socket.socket | None = None
        self._process = os.getpid()
        executor = ThreadPoolExecutor(1, "aiokprod-token")
        self.answer: Future[HttpsAnswer] = executor.submit(self._run)
        executor.shutdown(wait=False)

    @property
    def running(self) -> bool:
        """Its thread has not ended. A forked child has no thread of its parent."""
        return self._process == os.getpid() and not self.answer.done()

    def abort(self) -> None:
        """End the connection; the thread ends soon."""
        with self._lock:
            self._aborted = True
            if self._socket is not None:
                _shut_down(self._socket)

    def remaining(self) -> float:
        """Seconds left, always positive.

        Raises:
            TimeoutError: none are left, or the exchange was aborted.
        """
        left = self._deadline - monotonic()
        if left <= 0 or self._aborted:
            raise TimeoutError
        return left

    def _run(self) -> HttpsAnswer:
        request = self._request
        context = request.tls or ssl.create_default_context()
        connection = http.client.HTTPSConnection(request.host, request.port, context=context)
        try:
            tls = self._connect(context)
            # Set beforehand, it is used as it is.
            connection.sock = _BoundedSocket(tls, self)
            connection.request("POST", request.path, request.form, dict(request.headers))
            with connection.getresponse() as response:
                return HttpsAnswer(response.status, response.read(request.max_answer + 1))
        finally:
            connection.close()
            with self._lock:
                if self._socket is not None:
                    self._socket.close()

    def _connect(self, context: ssl.SSLContext) -> ssl.SSLSocket:
        request = self._request
        failure = OSError("the name has no address")
        found = socket.getaddrinfo(request.host, request.port, type=socket.SOCK_STREAM)
        for number, (family, kind, protocol, _, address) in enumerate(found):
            # Wrapped before it is connected: `wrap_socket` of a connected socket whose peer resets
            # the connection in that moment raises and leaves a socket that cannot be closed.
            tls = context.wrap_socket(
                socket.socket(family, kind, protocol),
                server_hostname=request.host,
                do_handshake_on_connect=False,
            )
            self._own(tls)
            try:
                # An address that does not answer leaves time for the others.
                tls.settimeout(self.remaining() / (len(found) - number))
                tls.connect(address)
            except OSError as error:
                tls.close()
                failure = error
                continue
            tls.settimeout(self.remaining())
            tls.do_handshake()
            return tls
        raise failure

    def _own(self, one: socket.socket) -> None:
        """From now on this is the socket that `abort` ends."""
        with self._lock:
            self._socket = one
            if self._aborted:
                _shut_down(one)


def _shut_down(one: socket.socket) -> None:
    # Not `SSLSocket.shutdown`: that one goes on in plain text, and the other thread may just be
    # about to send credentials.
    with contextlib.suppress(OSError):  # it is not connected
        socket.socket.shutdown(one, socket.SHUT_RDWR)


class _BoundedSocket:
    """What `http.client` needs of a socket, each operation bounded by the exchange's deadline.
    The exchange closes the socket."""

    def __init__(self, tls: ssl.SSLSocket, exchange: HttpsExchange) -> None:
        self._tls = tls
        self._exchange = exchange

    def sendall(self, data: bytes) -> None:
        """Send all of it, in pieces."""
        view = memoryview(data)
        while view:
            self._tls.settimeout(self._exchange.remaining())
            view = view[self._tls.send(view) :]

    def makefile(self, mode: str) -> io.BufferedReader:
        """The answer's bytes."""
        return io.BufferedReader(_BoundedReader(self._tls, self._exchange))

    def close(self) -> None:
        """Left to the exchange: http.client closes before the answer is read."""


class _BoundedReader(io.RawIOBase):
    def __init__(self, tls: ssl.SSLSocket, exchange: HttpsExchange) -> None:
        self._tls = tls
        self._exchange = exchange

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        self._tls.settimeout(self._exchange.remaining())
        return self._tls.recv_into(buffer)  # type: ignore[arg-type]
