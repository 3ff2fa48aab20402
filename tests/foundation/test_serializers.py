from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokprod.errors import ConfigError, Outcome, SerializationError
from aiokprod.serializers import (
    BoundSerializer,
    BytesSerializer,
    IntSerializer,
    JsonSerializer,
    Serializer,
    StringSerializer,
    adapt,
    bytes_serializer,
)
from aiokprod.testing.virtual import run


def serialize(serializer: Any, data: object) -> object:
    return adapt(serializer, "value")("t", (), data)


@pytest.mark.parametrize("serializer", [None, BytesSerializer()])
@pytest.mark.parametrize("data", [b"abc", bytearray(b"abc"), memoryview(b"abc"), b""])
def test_bytes_pass_through_as_bytes(serializer: object, data: object) -> None:
    result = serialize(serializer, data)
    assert type(result) is bytes
    assert result == data


def test_bytes_are_not_copied() -> None:
    data = b"x" * 100
    assert serialize(bytes_serializer, data) is data
    assert adapt(None, "key").passthrough
    assert adapt(bytes_serializer, "key").passthrough
    assert not adapt(BytesSerializer(), "key").passthrough


def test_memoryview_result_does_not_change_with_its_buffer() -> None:
    buffer = bytearray(b"abc")
    result = serialize(None, memoryview(buffer))
    buffer[:] = b"xyz"
    assert result == b"abc"


@pytest.mark.parametrize("serializer", [None, StringSerializer(), JsonSerializer(), str.encode])
def test_none_never_reaches_a_serializer(serializer: object) -> None:
    assert serialize(serializer, None) is None


@given(st.text())
def test_string_serializer_is_utf_8(text: str) -> None:
    try:
        expected = text.encode()
    except UnicodeEncodeError:
        with pytest.raises(SerializationError):
            serialize(StringSerializer(), text)
    else:
        assert serialize(StringSerializer(), text) == expected


def test_string_serializer_refuses_other_types() -> None:
    with pytest.raises(SerializationError, match="expected str, not bytes; convert it to str"):
        serialize(StringSerializer(), b"x")


def test_string_serializer_takes_other_encodings() -> None:
    assert serialize(StringSerializer("utf-16-be"), "a") == b"\0a"


@pytest.mark.parametrize(
    ("size", "number", "encoded"),
    [
        (8, 1, "0000000000000001"),
        (8, -1, "ffffffffffffffff"),
        (8, 2**63 - 1, "7fffffffffffffff"),
        (4, -(2**31), "80000000"),
        (4, 258, "00000102"),
    ],
)
def test_int_serializer_is_big_endian(size: int, number: int, encoded: str) -> None:
    assert serialize(IntSerializer(size), number) == bytes.fromhex(encoded)


@pytest.mark.parametrize(
    ("size", "number"), [(4, 2**31), (8, 2**63), (8, -(2**63) - 1), (8, True), (8, "1"), (8, 1.0)]
)
def test_int_serializer_refuses_what_does_not_fit(size: int, number: object) -> None:
    with pytest.raises(SerializationError, match="IntSerializer"):
        serialize(IntSerializer(size), number)


def test_int_serializer_of_another_size_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="size=2"):
        IntSerializer(2)


def test_json_serializer_is_compact_utf_8() -> None:
    document = {"ä": [1, None, "x"]}
    assert serialize(JsonSerializer(), document) == '{"ä":[1,null,"x"]}'.encode()
    assert serialize(JsonSerializer(sort_keys=True), {"b": 1, "a": 2}) == b'{"a":2,"b":1}'
    assert serialize(JsonSerializer(default=str), {"x": 1 + 2j}) == b'{"x":"(1+2j)"}'


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8")),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner)
        ),
        max_leaves=8,
    )
)
def test_json_serializer_round_trips(document: object) -> None:
    encoded = serialize(JsonSerializer(), document)
    if document is None:
        assert encoded is None
    else:
        assert isinstance(encoded, bytes)
        assert json.loads(encoded) == document


def test_callable_gets_the_data_alone() -> None:
    assert serialize(str.encode, "abc") == b"abc"
    assert serialize(lambda data: None, "abc") is None


def test_object_gets_topic_headers_and_data() -> None:
    class Mine:
        def serialize(self, topic: str, headers: object, data: object) -> bytes:
            return repr((topic, headers, data)).encode()

    bound = adapt(Mine(), "key")
    assert bound("t", [("h", b"1")], 7) == b"('t', [('h', b'1')], 7)"
    assert isinstance(Mine(), Serializer)
    assert repr(bound) == "<key serializer Mine>"


@pytest.mark.parametrize("result", [bytearray(b"x"), memoryview(b"x")])
def test_other_buffers_as_result_become_bytes(result: object) -> None:
    assert serialize(lambda data: result, 1) == b"x"


@pytest.mark.parametrize("field", ["key", "value"])
def test_failure_names_topic_field_serializer_and_type_and_is_chained(field: Any) -> None:
    cause = ZeroDivisionError("secret data")

    def broken(data: object) -> bytes:
        raise cause

    with pytest.raises(SerializationError) as caught:
        adapt(broken, field)("topic-x", (), {"a": 1})
    text = str(caught.value)
    for part in ("'topic-x'", f"{field}_serializer", "broken", "of type dict", "ZeroDivisionError"):
        assert part in text
    assert "secret" not in text
    assert caught.value.__cause__ is cause
    assert caught.value.outcome is Outcome.NOT_SENT


def test_wrong_type_of_data_says_what_to_do() -> None:
    with pytest.raises(SerializationError, match=r"of type str: expected bytes.*pass a serializer"):
        serialize(None, "text")


@pytest.mark.parametrize("result", ["text", 7, [b"x"]])
def test_result_that_is_not_bytes_is_refused(result: object) -> None:
    with pytest.raises(SerializationError, match=r"returned .* instead of bytes or None"):
        serialize(lambda data: result, 1)


@pytest.mark.parametrize("wrong", [7, "utf-8", StringSerializer])
def test_adapt_refuses_what_is_no_serializer(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="key_serializer"):
        adapt(wrong, "key")


# -- awaitable serializers ----------------------------------------------------------------------


def test_awaitable_serializer_is_awaited_and_checked() -> None:
    async def slow(data: Any) -> Any:
        await asyncio.sleep(1)
        if isinstance(data, Exception):
            raise data
        return data

    bound = adapt(slow, "value")

    async def result(data: object) -> object:
        pending = bound("t", (), data)
        assert not isinstance(pending, bytes)
        assert pending is not None
        return await bound.finish("t", data, pending, math.inf)

    async def main() -> None:
        assert await result(b"x") == b"x"
        assert await result(bytearray(b"x")) == b"x"
        assert bound("t", (), None) is None
        with pytest.raises(SerializationError) as caught:
            await result(KeyError("schema"))
        assert isinstance(caught.value.__cause__, KeyError)
        with pytest.raises(SerializationError, match="returned int"):
            await result(7)
        task = asyncio.ensure_future(result(b"x"))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main)


def test_bound_serializer_keeps_what_the_user_passed() -> None:
    mine = StringSerializer()
    bound = adapt(mine, "key")
    assert isinstance(bound, BoundSerializer)
    assert bound.serializer is mine


@pytest.mark.parametrize("base", [StringSerializer, JsonSerializer])
def test_method_of_a_derived_class_is_called_with_topic_and_headers(base: Any) -> None:
    class Derived(base):  # type: ignore[misc]
        def serialize(self, topic: str, headers: Any, data: Any) -> bytes:
            encoded: bytes = super().serialize(topic, headers, data)
            return f"{topic} {headers} ".encode() + encoded

    found = adapt(Derived(), "value")("t", [], "x")
    assert isinstance(found, bytes)
    assert found.startswith(b"t [] ")


def test_encoding_of_a_string_serializer_can_be_changed() -> None:
    mine = StringSerializer()
    bound = adapt(mine, "value")
    mine.encoding = "latin-1"
    assert bound("t", [], "\xe4") == b"\xe4"
