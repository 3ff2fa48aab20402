"""Headers in all accepted forms, and rejected headers."""

from __future__ import annotations

from typing import Any

import pytest

from aiokprod.errors import ConfigError, Outcome
from aiokprod.records import checked_headers


class Name(str):
    """A subclass of str."""

    __slots__ = ()


class Raw(bytes):
    """A subclass of bytes."""


@pytest.mark.parametrize(
    ("given", "checked"),
    [
        (None, []),
        ([], []),
        ({}, []),
        ({"a": b"1", "b": None}, [("a", b"1"), ("b", None)]),
        ((("a", b"1"), ["a", None]), [("a", b"1"), ("a", None)]),
        ([("a", bytearray(b"1")), ("b", memoryview(b"2"))], [("a", b"1"), ("b", b"2")]),
        ([(Name("a"), Raw(b"1"))], [("a", b"1")]),
        (iter([("a", b"1")]), [("a", b"1")]),
    ],
)
def test_headers_become_pairs_of_plain_str_and_bytes(given: Any, checked: list[Any]) -> None:
    found = list(checked_headers(given))
    assert found == checked
    assert {type(name) for name, _ in found} <= {str}
    assert {type(value) for _, value in found} <= {bytes, type(None)}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("ab", "headers must be a list of .* not str"),
        (b"ab", "headers must be a list of .* not bytes"),
        (7, "headers must be a list of .* not int"),
        ([7], "headers must be a list of .* not list"),
        ([("a", b"1"), ()], r"headers\[1\] must be a pair"),
        ([("a",)], r"headers\[0\] must be a pair"),
        ([("a", b"1", b"2")], r"headers\[0\] must be a pair"),
        ([(b"a", b"1")], r"headers\[0\] must be a pair"),
        ([(7, b"1")], r"headers\[0\] must be a pair"),
        ([(None, b"1")], r"headers\[0\] must be a pair"),
        ({b"a": b"1"}, r"headers\[0\] must be a pair"),
        ([("a", "canary")], r"headers\[0\] \('a'\) has a value of type str; encode it"),
        ([("a", b""), ("b", 7)], r"headers\[1\] \('b'\) has a value of type int; encode it"),
        ([("a\ud800", b"")], r"headers\[0\]: the name cannot be encoded .* surrogate at 1"),
    ],
)
def test_headers_of_another_shape_are_refused_by_number_and_without_values(
    given: Any, text: str
) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        checked_headers(given)
    assert caught.value.outcome is Outcome.NOT_SENT
    assert "canary" not in str(caught.value)
