"""Headers and UUIDs of compatible producers. test_aiokafka.py tests `FutureResults` with a
producer."""

from __future__ import annotations

import asyncio
import uuid
from collections import ChainMap, OrderedDict
from collections.abc import Mapping
from typing import Any

import pytest

from aiokprod._compat.aiokafka_errors import as_theirs
from aiokprod._compat.per_record import (
    FutureResults,
    encoded_headers,
    random_uuid,
    size_of_bytes,
)
from aiokprod.compat.aiokafka import RecordMetadata as TheirMetadata
from aiokprod.compat.aiokafka import TopicPartition
from aiokprod.records import RecordMetadata


def test_uuids_are_random_and_of_version_4() -> None:
    found = [random_uuid() for _ in range(2000)]
    parsed = [uuid.UUID(text) for text in found]
    assert [str(one) for one in parsed] == found
    assert {(one.version, one.variant) for one in parsed} == {(4, uuid.RFC_4122)}
    assert len(set(found)) == len(found)
    # Each of the 122 random bits occurs with both values.
    ones = zeros = 0
    for one in parsed:
        ones |= one.int
        zeros |= ~one.int
    fixed = 0xF000 << 64 | 0xC000 << 48
    assert ones & zeros & ~fixed == (1 << 128) - 1 & ~fixed


@pytest.mark.parametrize(
    ("content_type", "headers", "expected"),
    [
        (None, {}, [("content-type", b"")]),
        ("text/plain", {"a": "ü"}, [("content-type", b"text/plain"), ("a", "ü".encode())]),
        ("x", {"a": None, "b": ""}, [("content-type", b"x"), ("a", b""), ("b", b"")]),
        (None, {"a": "1", "content-type": "own"}, [("content-type", b"own"), ("a", b"1")]),
        (None, OrderedDict(a="1"), [("content-type", b""), ("a", b"1")]),
        (None, ChainMap({"a": "1"}), [("content-type", b""), ("a", b"1")]),
    ],
)
def test_headers_are_encoded(
    content_type: str | None, headers: Mapping[str, str | None], expected: list[tuple[str, bytes]]
) -> None:
    assert encoded_headers(content_type, headers) == expected


def test_a_header_that_is_not_text_is_refused() -> None:
    with pytest.raises(AttributeError, match="encode"):
        encoded_headers(None, {"a": 7})


def test_size_of_bodies_that_are_all_bytes() -> None:
    class Own(bytes):
        pass

    assert size_of_bytes([b"abc", b"", b"de"]) == 5
    assert size_of_bytes([]) == 0
    for other in (bytearray(b"x"), "x", None, Own(b"x")):
        assert size_of_bytes([b"abc", other]) == -1


def test_a_result_has_the_hash_of_an_equal_tuple() -> None:
    """In Python 3.14 a tuple stores its hash."""
    future: asyncio.Future[Any] = asyncio.Future(loop=asyncio.new_event_loop())
    results = FutureResults(TheirMetadata, TopicPartition, as_theirs, False)
    results.settle(future, RecordMetadata("t", 1, 2, 3), None)
    found = future.result()
    assert found == ("t", 1, TopicPartition("t", 1), 2, 3, 0, None)
    assert hash(found) == hash(tuple(found))
    future.get_loop().close()
