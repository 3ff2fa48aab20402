"""The checksum is the CRC-32C of RFC 3720, regardless of how its library was loaded."""

from __future__ import annotations

import importlib.machinery

import crc32c as library
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokprod._wire import crc

# RFC 3720, appendix B.4.
KNOWN = [
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(reversed(range(32))), 0x113FDB5C),
]


@pytest.mark.parametrize(("data", "expected"), KNOWN)
def test_checksums_of_the_rfc(data: bytes, expected: int) -> None:
    assert crc.crc32c(data) == expected
    assert crc.crc32c(memoryview(data)[7:], crc.crc32c(data[:7])) == expected


@given(st.binary(max_size=300))
def test_same_as_the_package(data: bytes) -> None:
    assert crc.crc32c(data) == library.crc32c(data)


def test_package_made_in_another_way_is_imported_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.machinery.PathFinder, "find_spec", lambda *_: None)
    assert crc._load() is library
