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
"""A correlation id; every frame of requests and responses has at least that much."""

_TLS_CONTENT_TYPES: Final = range(20, 25)
_HTTP_STARTS: Final = frozenset((b"HTTP", b"GET ", b"HEAD", b"POST", b"PUT ", b"<htm", b"<!DO"))


class FrameReader:
    """Collects bytes as they arrive and hands out complete frames.

    Memory grows with the bytes received, never with the length a peer announces. After an error
    the reader is of no further use; the connection has to be closed.

    Attributes:
        max_bytes: longest frame accepted, without its length; may be changed between feeds.
    """

    __slots__ = ("_awaited", "_buffer", "_kafka", "max_bytes")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._buffer = bytearray()
        self._awaited = _PREFIX  # no frame can be complete before the buffer has so many bytes
        self._kafka = False  # a plausible frame was seen, so the peer speaks the protocol

    @property
    def pending(self) -> int:
        """Bytes received of a frame that is not complete."""
        return len(self._buffer)

    def feed(self, data: BytesLike) -> Iterator[memoryview]:
        """The frames that `data` completes, in order, without their length. Iterate to the end.

        Frames are views of memory that is never reused: they stay valid. Those in front of a
        damaged one are handed out before the error is raised, so that the outcome of a request does
        not depend on how the stream is cut into reads (Java `Selector.attemptRead` completes one
        receive at a time).

        Raises:
            FrameTooLarge: a frame is announced with more than `max_bytes`.
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
                self._judge(view[start:body], length)
            if end - body < length:
                self._awaited = _PREFIX + length
                break
            start = body + length
            yield view[body:start]
        if start < end:
            self._buffer += view[start:]

    def _judge(self, prefix: memoryview, length: int) -> None:
        """Refuse a length that is out of bounds, and whoever does not speak Kafka's protocol."""
        if not self._kafka:
            _refuse_other_protocols(bytes(prefix))
        if length < _MIN_FRAME:
            raise DecodeError(f"frame length {length}, at least {_MIN_FRAME} expected")
        if length > self.max_bytes:
            raise FrameTooLarge(f"frame of {length} bytes announced, the limit is {self.max_bytes}")
        self._kafka = True


def _refuse_other_protocols(start: bytes) -> None:
    """Recognise the first bytes of a TLS record or of HTTP, which read as absurd lengths."""
    if start[0] in _TLS_CONTENT_TYPES and start[1] == 3:
        raise DecodeError(
            "the peer sent a TLS record: this port expects TLS, "
            "set security_protocol to SSL or SASL_SSL or use the plaintext port"
        )
    if start in _HTTP_STARTS:
        raise DecodeError(f"the peer sent {start!r}: it speaks HTTP, it is not a Kafka broker")
