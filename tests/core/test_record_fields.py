"""The upper bound of a record's size. test_append.py and tests/foundation test the hash of keys."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aiokprod._core.record_fields import (
    RECORD_OVERHEAD,
    record_size_bound,
)
from tests.core.core_harness import (
    idle_harness,
)
from tests.core.test_batch import ANY_TIMES, HEADERS, NULLABLE

MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1


@given(value=NULLABLE, key=NULLABLE, timestamp=ANY_TIMES, headers=HEADERS, base=ANY_TIMES)
@settings(max_examples=200, deadline=None)
def test_size_bound_is_never_too_small(
    value: bytes | None,
    key: bytes | None,
    timestamp: int,
    headers: list[tuple[str, bytes | None]],
    base: int,
) -> None:
    harness = idle_harness()
    harness.append(b"", timestamp=base)
    before = harness.core.size
    harness.append(value, key, timestamp, headers)
    assert harness.core.size - before <= record_size_bound(value, key, headers)


@given(
    value=st.sampled_from([None, 0, 63, 64, 8_191, 8_192, 1_048_575, 1_048_576, 1_100_000]),
    key=st.sampled_from([None, 0, 63, 64, 8_191, 8_192, 1_048_575, 1_048_576]),
    headers=st.sampled_from([0, 1, 63, 64, 8_191, 8_192]),
    timestamp=st.sampled_from([0, 2**33, 2**62, 2**63 - 1]),
    before=st.sampled_from([1, 63, 64, 8_200]),
)
@example(value=1_100_000, key=1_100_000, headers=70, timestamp=2**63 - 1, before=8_200)
@settings(max_examples=60, deadline=None)
def test_size_bound_holds_at_the_boundaries_of_every_length(
    value: int | None, key: int | None, headers: int, timestamp: int, before: int
) -> None:
    harness = idle_harness()
    for _ in range(before):
        harness.append(b"", timestamp=0)
    size = harness.core.size
    record = (
        None if value is None else bytes(value),
        None if key is None else bytes(key),
        [("", None)] * headers,
    )
    harness.append(*record[:2], timestamp, record[2])
    assert harness.core.size - size <= record_size_bound(*record)


def test_size_bound_refuses_wrong_headers() -> None:
    assert record_size_bound(None, None, None) == RECORD_OVERHEAD
    for headers in ({"h": b"x"}, [("h", "x")], [("\ud800", None)]):
        with pytest.raises(ValueError, match="headers"):
            record_size_bound(None, None, headers)  # type: ignore[arg-type]
