from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokprod._wire.messages import REQUESTS
from aiokprod._wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from aiokprod._wire.versions import (
    CLIENT_RANGES,
    broker_ranges,
    lower_api_versions,
    negotiate,
    usable_range,
)
from aiokprod.errors import UnsupportedVersion

OLDEST, NEWEST = CLIENT_RANGES[0]


def test_client_ranges_leave_out_unstable_versions() -> None:
    assert CLIENT_RANGES[0] == (3, 13)
    assert CLIENT_RANGES[22] == (0, 5)
    for api_key, request in REQUESTS.items():
        newest = request.max_version - (request.max_version == request.unstable_version)
        assert CLIENT_RANGES[api_key] == (request.min_version, newest)


def test_client_ranges_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        CLIENT_RANGES[0] = (0, 0)  # type: ignore[index]


def test_broker_ranges_leave_out_nonsense() -> None:
    response = ApiVersionsResponse(
        api_keys=(ApiVersion(0, 0, 11), ApiVersion(1, 5, 4), ApiVersion(3, -1, 3))
    )
    assert broker_ranges(response) == {0: (0, 11)}


@pytest.mark.parametrize(
    ("broker", "expected"),
    [
        ((0, NEWEST), NEWEST),
        ((0, 99), NEWEST),
        ((3, 9), 9),
        ((0, OLDEST), OLDEST),
        ((NEWEST, 99), NEWEST),
    ],
)
def test_negotiate_takes_the_newest_common_version(broker: tuple[int, int], expected: int) -> None:
    assert negotiate(0, {0: broker}) == expected


def test_negotiate_obeys_the_cap() -> None:
    assert negotiate(0, {0: (0, NEWEST)}, max_version=11) == 11
    with pytest.raises(UnsupportedVersion, match="allowed up to 2"):
        negotiate(0, {0: (0, NEWEST)}, max_version=2)


@pytest.mark.parametrize(
    ("broker", "text"),
    [
        ({}, f"ProduceRequest: client {OLDEST} to {NEWEST}, broker does not support it"),
        ({0: (0, 2)}, f"ProduceRequest: client {OLDEST} to {NEWEST}, broker 0 to 2"),
        (
            {0: (NEWEST + 1, 99)},
            f"ProduceRequest: client {OLDEST} to {NEWEST}, broker {NEWEST + 1} to 99",
        ),
    ],
)
def test_negotiate_without_a_common_version_names_both_sides(
    broker: dict[int, tuple[int, int]], text: str
) -> None:
    assert usable_range(0, broker) is None
    with pytest.raises(UnsupportedVersion, match=text):
        negotiate(0, broker)


def test_negotiate_of_an_unknown_api_is_refused() -> None:
    with pytest.raises(UnsupportedVersion, match="API key 9999: client does not support it"):
        negotiate(9999, {9999: (0, 1)})


@given(low=st.integers(0, 20), high=st.integers(0, 20), api_key=st.sampled_from(list(REQUESTS)))
def test_negotiated_version_lies_in_both_ranges(low: int, high: int, api_key: int) -> None:
    usable = usable_range(api_key, {api_key: (low, high)})
    ours = CLIENT_RANGES[api_key]
    common = set(range(low, high + 1)) & set(range(ours[0], ours[1] + 1))
    if usable is None:
        assert not common
    else:
        assert usable == (min(common), max(common))
        assert negotiate(api_key, {api_key: (low, high)}) == max(common)


@pytest.mark.parametrize(
    ("failed", "listed", "expected"),
    [
        (4, (0, 3), 3),
        (4, (0, 2), 2),
        (4, None, 0),
        (4, (0, 9), 3),
        (4, (5, 9), 0),
        (1, (0, 0), 0),
        (1, (1, 4), 0),
        (0, (0, 3), None),
        (0, None, None),
    ],
)
def test_api_versions_is_retried_with_a_lower_version(
    failed: int, listed: tuple[int, int] | None, expected: int | None
) -> None:
    api_keys = () if listed is None else (ApiVersion(18, *listed),)
    assert lower_api_versions(failed, ApiVersionsResponse(35, api_keys)) == expected


@given(low=st.integers(-3, 9), high=st.integers(-3, 9))
def test_api_versions_retries_end_whatever_the_broker_lists(low: int, high: int) -> None:
    response = ApiVersionsResponse(35, (ApiVersion(18, low, high),))
    version: int | None = 4
    tried = []
    while version is not None:
        tried.append(version)
        version = lower_api_versions(version, response)
    assert tried == sorted(set(tried), reverse=True)
    assert tried[-1] == 0
