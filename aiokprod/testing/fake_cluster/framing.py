"""Decodes request frames and encodes response frames, like a broker.

The code is independent of `aiokprod._wire.headers`, so that the two cannot share the same
misunderstanding. Source: Kafka protocol guide, "Request Header", "Response Header".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aiokprod._wire.encode_plan import encode_plan
from aiokprod._wire.message import Message
from aiokprod._wire.messages import REQUESTS

if TYPE_CHECKING:
    from aiokprod.testing.fake_cluster.connection import ServerConnection

API_VERSIONS: Final = 18
FRAME_MAX: Final = 100 * 1024 * 1024
"""The broker's socket.request.max.bytes."""

_FIXED: Final = struct.Struct(">hhih")


class MalformedRequest(Exception):
    """The request is malformed, so the broker closes the connection."""


@dataclass(slots=True)
class Request:
    """A request, as passed to handlers and control functions. `body` is the decoded message."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: Any
    size: int
    time: float
    broker_id: int
    connection: ServerConnection


class UnsupportedRequestVersion(Exception):
    """The broker does not offer the API version. The error contains the correlation id for the
    response."""

    def __init__(self, api_key: int, version: int, correlation_id: int) -> None:
        super().__init__(f"API {api_key} version {version}")
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id


def split_frames(buffer: bytearray) -> list[bytes]:
    """Remove the complete frames from `buffer`. Return them without their length prefixes."""
    frames: list[bytes] = []
    while len(buffer) >= 4:
        size = int.from_bytes(buffer[:4], "big", signed=True)
        if not 10 <= size <= FRAME_MAX:
            raise MalformedRequest(f"frame of {size} bytes")
        if len(buffer) < 4 + size:
            break
        frames.append(bytes(buffer[4 : 4 + size]))
        del buffer[: 4 + size]
    return frames


def read_request(
    frame: bytes,
    offered: dict[int, tuple[int, int]],
    *,
    time: float,
    broker_id: int,
    connection: ServerConnection,
) -> Request:
    """Decode a request frame.

    Raises:
        UnsupportedRequestVersion: the broker does not offer the API or version.
        MalformedRequest: the bytes do not match the schema of the request.
    """
    api_key, version, correlation_id, client_id_size = _FIXED.unpack_from(frame)
    low, high = offered.get(api_key, (0, -1))
    message_class = REQUESTS.get(api_key)
    if message_class is None or not low <= version <= high:
        raise UnsupportedRequestVersion(api_key, version, correlation_id)
    at = _FIXED.size
    client_id = None
    if client_id_size >= 0:
        client_id = frame[at : at + client_id_size].decode("utf-8")
        at += client_id_size
    if message_class.is_flexible(version):
        if at >= len(frame) or frame[at] != 0:
            raise MalformedRequest(f"API {api_key} version {version}: tagged fields in the header")
        at += 1
    try:
        body = message_class.decode(memoryview(frame)[at:], version)
    except Exception as error:
        raise MalformedRequest(f"API {api_key} version {version}: {error}") from error
    return Request(
        api_key=api_key,
        version=version,
        correlation_id=correlation_id,
        client_id=client_id,
        body=body,
        size=len(frame) + 4,
        time=time,
        broker_id=broker_id,
        connection=connection,
    )


def _encoded(message: Message, version: int) -> bytes:
    """Encode a body. None is encoded as null in every field, because tests make brokers send nulls
    that the schema does not allow."""
    plan = encode_plan(type(message), version, message.is_flexible(version), True)
    return b"".join(plan.encode(message))


def write_answer(message: Message, api_key: int, version: int, correlation_id: int) -> bytes:
    """Encode a response frame. ApiVersions always has response header version 0 (KIP-511)."""
    head = struct.pack(">i", correlation_id)
    if message.is_flexible(version) and api_key != API_VERSIONS:
        head += b"\x00"
    body = head + _encoded(message, version)
    return struct.pack(">i", len(body)) + body
