"""Decoders with damaged and hostile bytes: they raise only `DecodeError`, and memory use is
bounded."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aiokprod._wire.message import Message
from aiokprod._wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from aiokprod._wire.messages.metadata import MetadataRequest, MetadataResponse
from aiokprod._wire.messages.produce import ProduceResponse
from aiokprod._wire.messages.sasl_handshake import SaslHandshakeResponse
from aiokprod.errors import DecodeError
from tests.wire.strategies import MESSAGES, VERSIONED, filled, versioned_id


@pytest.mark.matrix
@pytest.mark.parametrize(("message", "version"), VERSIONED, ids=versioned_id)
def test_decode_refuses_every_truncation(message: type[Message], version: int) -> None:
    encoded = filled(message, version).encode(version)
    for size in range(len(encoded)):
        with pytest.raises(DecodeError):
            message.decode(encoded[:size], version)


@pytest.mark.parametrize(("message", "version"), VERSIONED, ids=versioned_id)
def test_decode_refuses_a_trailing_byte(message: type[Message], version: int) -> None:
    encoded = filled(message, version).encode(version)
    with pytest.raises(DecodeError, match="1 bytes left over"):
        message.decode(encoded + b"\1", version)


def test_second_tag_section_of_librdkafkas_mock_brokers_is_tolerated() -> None:
    for version in range(9, 14):
        response = filled(MetadataResponse, version)
        encoded = response.encode(version)
        assert MetadataResponse.decode(encoded + b"\0", version) == response
        for tail in (b"\1", b"\0\0"):
            with pytest.raises(DecodeError, match="left over"):
                MetadataResponse.decode(encoded + tail, version)
    with pytest.raises(DecodeError, match="1 bytes left over"):
        MetadataResponse.decode(MetadataResponse().encode(8) + b"\0", 8)


@pytest.mark.matrix
@pytest.mark.parametrize(("message", "version"), VERSIONED, ids=versioned_id)
def test_decode_survives_every_single_byte_change(message: type[Message], version: int) -> None:
    encoded = filled(message, version).encode(version)
    for index in range(len(encoded)):
        for byte in (0x00, 0x01, 0x7F, 0x80, 0xFF, encoded[index] ^ 0x40):
            damaged = bytearray(encoded)
            damaged[index] = byte
            try:
                value = message.decode(damaged, version)
            except DecodeError:
                continue
            assert type(value) is message


@pytest.mark.parametrize("message", MESSAGES, ids=versioned_id)
@given(data=st.binary(max_size=80))
@settings(max_examples=25, deadline=None)
def test_decode_of_random_bytes_raises_only_decode_error(
    message: type[Message], data: bytes
) -> None:
    for version in range(message.min_version, message.max_version + 1):
        try:
            value = message.decode(data, version)
        except DecodeError:
            continue
        # An accepted message can be encoded again.
        assert message.decode(value.encode(version), version) == value


@pytest.mark.parametrize(
    ("message", "version", "prefix"),
    [
        (MetadataResponse, 8, b"\0\0\0\0"),
        (MetadataResponse, 12, b"\0\0\0\0"),
        (ProduceResponse, 8, b""),
        (ProduceResponse, 12, b""),
        (SaslHandshakeResponse, 1, b"\0\0"),
    ],
)
def test_decode_allocates_nothing_for_counts_that_cannot_be_there(
    message: type[Message], version: int, prefix: bytes
) -> None:
    count = b"\x7f\xff\xff\xff" if not message.is_flexible(version) else b"\xff\xff\xff\xff\x0f"
    data = prefix + count + bytes(100)

    def attempt() -> None:
        with pytest.raises(DecodeError, match="elements announced"):
            message.decode(data, version)

    attempt()  # compiles plans and patterns before the measurement
    tracemalloc.start()
    try:
        attempt()
        assert tracemalloc.get_traced_memory()[1] < 20_000
    finally:
        tracemalloc.stop()


def test_decode_of_a_large_damaged_frame_is_quick() -> None:
    data = b"\0\0\0\0" + b"\x80\x80\x40" + bytes(1_000_000)
    started = time.process_time()
    with pytest.raises(DecodeError):
        MetadataResponse.decode(data, 12)
    assert time.process_time() - started < 30  # with quadratic time a megabyte would take hours


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xfe", b"\x80\0\0\0"])
def test_decode_refuses_negative_counts_other_than_null(length: bytes) -> None:
    with pytest.raises(DecodeError, match="length -"):
        SaslHandshakeResponse.decode(b"\0\0" + length, 0)


def test_decode_refuses_null_text_where_the_protocol_has_none() -> None:
    with pytest.raises(DecodeError, match="null"):
        SaslHandshakeResponse.decode(b"\0\0\0\0\0\1\xff\xff", 0)
    with pytest.raises(DecodeError, match="null"):
        # The first tagged field is one supported feature with a null compact name.
        ApiVersionsResponse.decode(_api_versions(b"\1" + b"\0\7\2" + b"\0\0\0\0\0\0"), 3)


def test_null_array_where_the_protocol_has_none_is_read_as_empty() -> None:
    refused = SaslHandshakeResponse.decode(b"\0\x21\xff\xff\xff\xff", 0)
    assert (refused.error_code, refused.mechanisms) == (33, ())
    compact = ApiVersionsResponse.decode(b"\0\x23" + b"\0" + b"\0\0\0\7" + b"\0", 3)
    assert (compact.error_code, compact.api_keys, compact.throttle_time_ms) == (35, (), 7)


def test_null_array_is_none_where_the_protocol_allows_it() -> None:
    request = MetadataRequest.decode(b"\xff\xff\xff\xff", 1)
    assert request.topics is None


def test_decode_refuses_text_that_is_not_utf8() -> None:
    with pytest.raises(DecodeError, match="not UTF-8"):
        SaslHandshakeResponse.decode(b"\0\0\0\0\0\1" + b"\0\2\xc3\x28", 0)


def _api_versions(tagged: bytes) -> bytes:
    """Encode an ApiVersionsResponse of version 3 with one API and the given tagged section."""
    return b"\0\0" + b"\2" + b"\0\3\0\0\0\x0c\0" + b"\0\0\0\0" + tagged


def test_tagged_fields_are_read() -> None:
    epoch = b"\1\x08" + (7).to_bytes(8, "big")
    decoded = ApiVersionsResponse.decode(_api_versions(b"\1" + epoch), 3)
    assert decoded == ApiVersionsResponse(
        api_keys=(ApiVersion(3, 0, 12),), finalized_features_epoch=7
    )


@given(
    tag=st.integers(4, 2**32 - 1),
    body=st.binary(max_size=300),
)
@example(tag=4, body=b"")
def test_unknown_tagged_fields_are_skipped(tag: int, body: bytes) -> None:
    def uvarint(value: int) -> bytes:
        out = bytearray()
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        return bytes([*out, value])

    epoch = b"\1\x08" + (7).to_bytes(8, "big")
    unknown = uvarint(tag) + uvarint(len(body)) + body
    decoded = ApiVersionsResponse.decode(_api_versions(b"\2" + epoch + unknown), 3)
    assert decoded.finalized_features_epoch == 7


def test_unknown_tagged_field_in_a_nested_struct_is_skipped() -> None:
    data = b"\0\0" + b"\2" + b"\0\3\0\0\0\x0c" + b"\1\x05\2ab" + b"\0\0\0\0" + b"\0"
    assert ApiVersionsResponse.decode(data, 3).api_keys == (ApiVersion(3, 0, 12),)


@pytest.mark.parametrize(
    ("tagged", "reason"),
    [
        (b"\2" + (b"\1\x08" + bytes(8)) * 2, "tagged field 1 after 1"),
        (b"\2" + b"\3\1\1" + b"\1\x08" + bytes(8), "tagged field 1 after 3"),
        (b"\2" + b"\x09\0" * 2, "tagged field 9 after 9"),
        (b"\1" + b"\1\x09" + bytes(9), "left over"),
        (b"\1" + b"\1\x07" + bytes(7), "8 bytes expected"),
        (b"\1" + b"\1\x07" + bytes(8), "8 bytes expected"),
        (b"\1" + b"\1\x20" + bytes(8), "32 bytes expected"),
        (b"\1" + b"\x09\x20" + bytes(8), "32 bytes expected"),
        (b"\xff\xff\xff\xff\x0f" + bytes(20), "elements announced"),
        (b"\1" + b"\xff\xff\xff\xff\x1f\0", "exceeds"),
        (b"\x80\x80\x80\x80\x80\0", "more than 5 bytes"),
        (b"\1", "elements announced"),
    ],
)
def test_damaged_tagged_fields_are_refused(tagged: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        ApiVersionsResponse.decode(_api_versions(tagged), 3)


def test_tagged_field_cannot_read_beyond_its_size() -> None:
    # finalized_features (tag 2) announces an element, but the size of the field ends before the
    # element.
    tagged = b"\2" + b"\2\1\2" + b"\3\1\1"
    with pytest.raises(DecodeError):
        ApiVersionsResponse.decode(_api_versions(tagged), 3)
