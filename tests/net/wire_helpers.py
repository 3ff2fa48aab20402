"""The broker's encoding and decoding of frames, for tests without a connection."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aiokprod._wire.frames import FrameReader
from aiokprod._wire.headers import RequestHeader, decode_request_header, encode_response
from aiokprod._wire.message import Message
from aiokprod._wire.messages import REQUESTS
from aiokprod._wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from aiokprod._wire.versions import CLIENT_RANGES

ALL_VERSIONS: dict[int, tuple[int, int]] = dict(CLIENT_RANGES)


def versions_answer(ranges: dict[int, tuple[int, int]] | None = None, **fields: Any) -> Message:
    ranges = ALL_VERSIONS if ranges is None else ranges
    return ApiVersionsResponse(
        api_keys=[ApiVersion(key, low, high) for key, (low, high) in ranges.items()], **fields
    )


def answer(message: Message, version: int, correlation_id: int) -> bytes:
    """Return a response frame, including its length."""
    return b"".join(encode_response(message, version, correlation_id))


def requests_in(chunks: Iterable[Any]) -> list[tuple[RequestHeader, Message]]:
    """Return the requests that a broker decodes from these bytes."""
    found = []
    for frame in FrameReader(1 << 30).feed(b"".join(chunks)):
        header, body = decode_request_header(frame)
        request = REQUESTS[header.request_api_key]
        found.append((header, request.decode(body, header.request_api_version)))
    return found
