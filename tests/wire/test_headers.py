from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokprod._wire.headers import (
    RequestHeader,
    decode_request_header,
    decode_response_header,
    encode_request,
    encode_response,
    request_header_version,
    response_header_version,
)
from aiokprod._wire.message import Message
from aiokprod._wire.messages import RESPONSES
from aiokprod._wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from aiokprod._wire.messages.metadata import MetadataRequest
from aiokprod._wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from aiokprod._wire.messages.sasl_handshake import SaslHandshakeRequest
from aiokprod._wire.primitives import BytesLike
from aiokprod.errors import DecodeError, UnsupportedVersion
from tests.wire.strategies import VERSIONED, filled, versioned_id


def body_of(chunks: Sequence[BytesLike]) -> bytes:
    frame = b"".join(chunks)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return frame[4:]


@pytest.mark.parametrize(("message", "version"), VERSIONED, ids=versioned_id)
def test_frame_round_trips(message: type[Message], version: int) -> None:
    value = filled(message, version)
    if RESPONSES[message.api_key] is message:
        frame = body_of(encode_response(value, version, 77))
        correlation_id, body = decode_response_header(frame, message.api_key, version)
        assert correlation_id == 77
    else:
        frame = body_of(encode_request(value, version, 77, "client"))
        header, body = decode_request_header(frame)
        assert header == RequestHeader(message.api_key, version, 77, "client")
    assert message.decode(body, version) == value


@given(correlation_id=st.integers(-(2**31), 2**31 - 1), client_id=st.none() | st.text(max_size=9))
def test_request_header_carries_any_correlation_and_client_id(
    correlation_id: int, client_id: str | None
) -> None:
    for version in (0, 3):
        frame = body_of(encode_request(ApiVersionsRequest(), version, correlation_id, client_id))
        header, body = decode_request_header(frame)
        assert (header.correlation_id, header.client_id) == (correlation_id, client_id)
        assert ApiVersionsRequest.decode(body, version) == ApiVersionsRequest()


def test_header_versions_follow_the_flexible_version() -> None:
    assert [request_header_version(3, version) for version in (0, 8, 9, 13)] == [1, 1, 2, 2]
    assert [response_header_version(3, version) for version in (0, 8, 9, 13)] == [0, 0, 1, 1]
    assert request_header_version(17, 1) == 1


def test_api_versions_response_keeps_header_version_0() -> None:
    assert [request_header_version(18, version) for version in (2, 3, 4)] == [1, 2, 2]
    assert [response_header_version(18, version) for version in (2, 3, 4)] == [0, 0, 0]
    frame = body_of(encode_response(ApiVersionsResponse(35), 0, 1))
    assert frame == bytes.fromhex("00000001 0023 00000000")


@pytest.mark.parametrize("function", [request_header_version, response_header_version])
def test_header_version_of_an_unknown_api_is_refused(function: object) -> None:
    with pytest.raises(UnsupportedVersion, match="9999"):
        function(9999, 0)  # type: ignore[operator]


def test_golden_request_with_header_version_1() -> None:
    frame = b"".join(encode_request(SaslHandshakeRequest("PLAIN"), 1, 1, "me"))
    assert frame == bytes.fromhex("00000013 0011 0001 00000001 0002 6d65 0005 504c41494e")


def test_golden_request_with_header_version_2() -> None:
    # The client id keeps its two-byte length. The empty tagged section follows it.
    frame = b"".join(encode_request(ApiVersionsRequest("a", "1"), 3, 5, None))
    assert frame == bytes.fromhex("00000010 0012 0003 00000005 ffff 00 0261 0231 00")


def test_encode_request_merges_header_and_leading_fields_only() -> None:
    header, payload = b"h" * 61, b"p" * 100_000
    partition = PartitionProduceData(0, (header, payload))
    request = ProduceRequest(topic_data=(TopicProduceData("t", partition_data=(partition,)),))
    chunks = encode_request(request, 12, 1, "c")
    assert len(chunks) == 4
    assert chunks[1] is header
    assert chunks[2] is payload
    decoded, body = decode_request_header(body_of(chunks))
    assert ProduceRequest.decode(body, decoded.request_api_version) != request  # chunks, not bytes
    assert b"".join(request.encode_chunks(12)) == body


class _HugeView:
    """A stand-in for a record batch of 2 GiB."""

    def __len__(self) -> int:
        return 2**31 - 1


def test_encode_request_refuses_a_frame_beyond_int32() -> None:
    partition = PartitionProduceData(0, [_HugeView()])  # type: ignore[list-item]
    request = ProduceRequest(topic_data=(TopicProduceData("t", partition_data=(partition,)),))
    with pytest.raises(ValueError, match="exceeds"):
        encode_request(request, 12, 1, None)


def test_request_header_of_an_unknown_api_yields_what_every_version_has() -> None:
    frame = bytes.fromhex("270f 0003 0000002a") + b"whatever"
    header, body = decode_request_header(frame)
    assert (header.request_api_key, header.request_api_version) == (9999, 3)
    assert header.correlation_id == 42
    assert bytes(body) == b""


def test_request_header_of_a_future_version_is_read() -> None:
    frame = bytes.fromhex("0012 0063 00000007 0001 78 00") + b"body"
    header, body = decode_request_header(frame)
    assert header == RequestHeader(18, 99, 7, "x")
    assert bytes(body) == b"body"


def test_unknown_tagged_fields_in_headers_are_skipped() -> None:
    frame = bytes.fromhex("0003 000c 00000007 ffff 01 05 02 aabb") + MetadataRequest().encode(12)
    header, body = decode_request_header(frame)
    assert header.correlation_id == 7
    assert MetadataRequest.decode(body, 12) == MetadataRequest()
    correlation_id, rest = decode_response_header(bytes.fromhex("00000009 01 00 01 ff 55"), 3, 12)
    assert (correlation_id, bytes(rest)) == (9, b"\x55")


@pytest.mark.parametrize("size", range(11))
def test_truncated_request_header_is_refused(size: int) -> None:
    frame = bytes.fromhex("0003 000c 00000007 0000 00")
    with pytest.raises(DecodeError):
        decode_request_header(frame[:size])


@pytest.mark.parametrize("size", range(5))
def test_truncated_response_header_is_refused(size: int) -> None:
    with pytest.raises(DecodeError):
        decode_response_header(bytes.fromhex("00000007 00")[:size], 3, 12)


@given(data=st.binary(max_size=40))
def test_headers_of_random_bytes_raise_only_decode_error(data: bytes) -> None:
    for decode in (decode_request_header, lambda frame: decode_response_header(frame, 0, 9)):
        try:
            decode(data)
        except DecodeError:
            continue
