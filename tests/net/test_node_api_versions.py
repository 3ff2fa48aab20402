"""ApiVersions responses: their decoding, and the version that is tried next."""

from __future__ import annotations

import pytest

from aiokprod._net.node_api_versions import (
    decode_versions,
    finalized_features,
    next_version,
    shared_ranges,
)
from aiokprod._wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
)
from aiokprod._wire.messages.metadata import MetadataRequest
from aiokprod.errors import Code, DecodeError

NEWEST = ApiVersionsRequest.max_version
REFUSED = int(Code.UNSUPPORTED_VERSION)


@pytest.mark.parametrize("version", range(NEWEST + 1))
def test_response_has_the_version_of_the_request(version: int) -> None:
    response = ApiVersionsResponse(api_keys=(ApiVersion(3, 0, 9),))
    assert decode_versions(response.encode(version), version) == response


@pytest.mark.parametrize("answered_in", [0, NEWEST])
def test_refusal_is_understood_in_version_0_and_in_that_of_the_request(answered_in: int) -> None:
    response = ApiVersionsResponse(REFUSED, (ApiVersion(18, 0, 2),))
    assert decode_versions(response.encode(answered_in), NEWEST) == response


def test_refusal_in_no_known_format_counts_as_one_without_a_list() -> None:
    body = REFUSED.to_bytes(2, "big") + b"\xff"
    assert decode_versions(body, NEWEST) == ApiVersionsResponse(REFUSED)


def test_other_damaged_responses_are_refused() -> None:
    with pytest.raises(DecodeError):
        decode_versions(b"\0\0\xff", NEWEST)


def test_at_most_three_versions_are_tried() -> None:
    listed = ApiVersionsResponse(REFUSED, (ApiVersion(18, 0, 2),))
    assert next_version(NEWEST, listed) == 2
    assert next_version(NEWEST, ApiVersionsResponse(REFUSED)) == 0
    assert next_version(2, listed) == 0
    assert next_version(0, listed) is None


def test_ranges_are_those_of_both_sides_and_of_known_apis() -> None:
    newest = MetadataRequest.max_version
    broker = {3: (2, newest + 5), 18: (0, 3), 9999: (0, 1), 0: (200, 300)}
    shared = shared_ranges(broker)
    assert shared[3] == (max(2, MetadataRequest.min_version), newest)
    assert shared[18] == (0, 3)
    assert set(shared) == {3, 18}


def test_features_have_the_epoch_of_the_response() -> None:
    response = ApiVersionsResponse(
        finalized_features_epoch=12,
        finalized_features=(FinalizedFeatureKey("transaction.version", 2, 0),),
    )
    found = finalized_features(response)
    assert (found.epoch, dict(found.levels)) == (12, {"transaction.version": 2})
    assert finalized_features(ApiVersionsResponse()).epoch == -1
