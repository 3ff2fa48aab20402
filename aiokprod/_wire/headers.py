"""Request and response headers, and complete frames built from header and body.

The module serves both sides: a client encodes requests and decodes response headers; the brokers of
tests and benchmarks do the reverse (`FakeCluster` has a separate implementation). Source: KIP-482
(header versions), KIP-511 (ApiVersions responses keep header version 0), Java `ApiMessageType`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from aiokprod._wire.message import Message
from aiokprod._wire.message_schema import int16, int32, memoised, nullable_string
from aiokprod._wire.messages import REQUESTS, RESPONSES
from aiokprod._wire.primitives import INT32, BytesLike, Reader
from aiokprod.errors import UnsupportedVersion

API_VERSIONS: Final = 18

_MAX_FRAME: Final = 2**31 - 1
_CORRELATION: Final = slice(4, 8)
"""Position of the correlation id in every request header."""


@dataclass(frozen=True, slots=True)
class RequestHeader(Message):
    """The header before every request body."""

    min_version = 1
    max_version = 2
    flexible_version = 2

    request_api_key: int = int16()
    request_api_version: int = int16()
    correlation_id: int = int32()
    # The length stays 16-bit in version 2, so that brokers can read headers of any version.
    client_id: str | None = nullable_string("1+", compact=False)


@dataclass(frozen=True, slots=True)
class ResponseHeader(Message):
    """The header before every response body."""

    min_version = 0
    max_version = 1
    flexible_version = 1

    correlation_id: int = int32()


def request_header_version(api_key: int, version: int) -> int:
    """Return the version of the request header: 2 for flexible versions of the API, else 1.

    Raises:
        UnsupportedVersion: the API is not known.
    """
    request = REQUESTS.get(api_key)
    if request is None:
        raise UnsupportedVersion(f"API key {api_key} is not known")
    return 2 if request.is_flexible(version) else 1


@memoised
def response_header_version(api_key: int, version: int) -> int:
    """Return the version of the response header: 0 for ApiVersions, else 1 for flexible versions
    and 0 for older versions.

    Raises:
        UnsupportedVersion: the API is not known.
    """
    response = RESPONSES.get(api_key)
    if response is None:
        raise UnsupportedVersion(f"API key {api_key} is not known")
    return 1 if response.is_flexible(version) and api_key != API_VERSIONS else 0


def encode_request(
    message: Message, version: int, correlation_id: int, client_id: str | None
) -> list[BytesLike]:
    """Return a complete request frame: length, header, body. Record batches are separate chunks.

    Raises:
        UnsupportedVersion: see `Message.encode`.
        ValueError: see `Message.encode`, or the frame exceeds 2³¹-1 bytes.
    """
    before, after = _around_correlation_id(message.api_key, version, client_id)
    header = b"".join((before, INT32.pack(correlation_id), after))
    return _frame(header, message.encode_chunks(version))


@lru_cache(256)
def _around_correlation_id(
    api_key: int, version: int, client_id: str | None
) -> tuple[bytes, bytes]:
    """Return the header bytes before and after the correlation id. They are equal in all requests
    of an API version and client id."""
    header = RequestHeader(api_key, version, 0, client_id).encode(
        request_header_version(api_key, version)
    )
    return header[: _CORRELATION.start], header[_CORRELATION.stop :]


def encode_response(message: Message, version: int, correlation_id: int) -> list[BytesLike]:
    """Return a complete response frame. For chunks and errors, see `encode_request`."""
    header_version = response_header_version(message.api_key, version)
    header = ResponseHeader(correlation_id).encode(header_version)
    return _frame(header, message.encode_chunks(version))


def _frame(header: bytes, body: list[BytesLike]) -> list[BytesLike]:
    size = len(header) + sum(map(len, body))
    if size > _MAX_FRAME:
        raise ValueError(f"a frame of {size} bytes exceeds {_MAX_FRAME}")
    if not body:
        return [INT32.pack(size) + header]
    # The first chunk contains the small fields at the start of the body, so joining it is cheap.
    return [b"".join((INT32.pack(size), header, body[0])), *body[1:]]


def decode_request_header(frame: BytesLike) -> tuple[RequestHeader, memoryview]:
    """Return the header and body of a request frame (without its length prefix).

    This package need not support the API version in the header. If the API is unknown, only key,
    version and correlation id are decoded, and the body is empty.

    Raises:
        DecodeError: bytes are missing or invalid.
    """
    reader = Reader(frame)
    api_key, version, correlation_id = reader.int16(), reader.int16(), reader.int32()
    if api_key not in REQUESTS:
        return RequestHeader(api_key, version, correlation_id, None), memoryview(b"")
    header, end = RequestHeader.decode_from(frame, request_header_version(api_key, version))
    return header, memoryview(frame)[end:]


def decode_response_header(frame: BytesLike, api_key: int, version: int) -> tuple[int, memoryview]:
    """Return the correlation id and body of a response frame (without its length prefix).

    Args:
        api_key: API of the request; responses do not contain it.
        version: version of the request.

    Raises:
        DecodeError: bytes are missing or invalid.
        UnsupportedVersion: the API is not known.
    """
    flexible = response_header_version(api_key, version)
    end = INT32.size + flexible  # an empty tag section has one byte
    if len(frame) < end or (flexible and frame[INT32.size]):
        header, end = ResponseHeader.decode_from(frame, flexible)
        return header.correlation_id, memoryview(frame)[end:]
    correlation_id: int = INT32.unpack_from(frame)[0]
    return correlation_id, memoryview(frame)[end:]
