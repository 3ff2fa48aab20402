"""Splits a byte stream into length-prefixed frames.

Source: Kafka protocol guide, "Common Request and Response Structure"; Java `NetworkReceive`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aiokprod._wire.primitives import INT32, BytesLike
from aiokprod.errors import DecodeError, FrameTooLarge

_PREFIX: Final = INT32.size
_MIN_FRAME: Final = 4
"""Size of a correlation id, which every request and response contains."""

_TLS_CONTENT_TYPES: Final = range(20, 25)
_HTTP_STARTS: Final = frozenset((b"HTTP", b"GET ", b"HEAD", b"POST", b"PUT ", b"<htm", b"<!DO"))


class FrameReader:
    """Collects received bytes and returns complete frames.

    Memory grows with the bytes received, not with the length that a peer announces. After an error
    the reader must not be used again; close the connection.

    Attributes:
        max_bytes: size of the largest frame accepted, without its length prefix; may be changed
            between calls of `feed`.
    """

    __slots__ = ("_awaited", "_buffer", "_kafka", "max_bytes")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._buffer = bytearray()
        self._awaited = _PREFIX  # no frame is complete until the buffer holds this many bytes
        self._kafka = False  # set by a valid frame length: the peer speaks Kafka's protocol

    @property
    def pending(self) -> int:
        """Bytes received of the incomplete frame, including its length prefix."""
        return len(self._buffer)

    def feed(self, data: BytesLike) -> Iterator[memoryview]:
        """Yield the frames that `data` completes, in order, without their length prefix. The caller
        must exhaust the iterator, because the rest of `data` is stored only at the end.

        Frames are views of memory that is never reused, so they stay valid. Frames before a damaged
        frame are yielded before the error is raised, so that the outcome of a request does not
        depend on how the stream is divided into reads (Java `Selector.attemptRead` completes one
        receive at a time).

        Raises:
            FrameTooLarge: a length prefix exceeds `max_bytes`.
            DecodeError: a length is below 4, or the peer speaks TLS or HTTP.
        """
        if self._buffer or not isinstance(data, bytes):
            self._buffer += data
            if len(self._buffer) < self._awaited:
                return
            view = memoryview(self._buffer)
            self._buffer = bytearray()
        else:
            view = memoryview(data)
        start, end = 0, len(view)
        self._awaited = _PREFIX
        while end - start >= _PREFIX:
            body = start + _PREFIX
            length: int = INT32.unpack_from(view, start)[0]
            if not (self._kafka and _MIN_FRAME <= length <= self.max_bytes):
                self._check_length(view[start:body], length)
            if end - body < length:
                self._awaited = _PREFIX + length
                break
            start = body + length
            yield view[body:start]
        if start < end:
            self._buffer += view[start:]

    def _check_length(self, prefix: memoryview, length: int) -> None:
        """Raise if the length is out of range or the peer does not speak Kafka's protocol."""
        if not self._kafka:
            _refuse_other_protocols(bytes(prefix))
        if length < _MIN_FRAME:
            raise DecodeError(f"frame length {length}, at least {_MIN_FRAME} expected")
        if length > self.max_bytes:
            raise FrameTooLarge(f"frame of {length} bytes announced, the limit is {self.max_bytes}")
        self._kafka = True


def _refuse_other_protocols(start: bytes) -> None:
    """Raise if the first bytes belong to a TLS record or to HTTP and so are not a frame length."""
    if start[0] in _TLS_CONTENT_TYPES and start[1] == 3:
        raise DecodeError(
            "the peer sent a TLS record: this port expects TLS; "
            "set security_protocol to SSL or SASL_SSL or use the plaintext port"
        )
    if start in _HTTP_STARTS:
        raise DecodeError(f"the peer sent {start!r}: it is an HTTP server, not a Kafka broker")
