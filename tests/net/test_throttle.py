from __future__ import annotations

import pytest

from aiokprod._net.throttle import client_waits, throttle_ms
from aiokprod._wire.messages.metadata import MetadataResponse
from aiokprod._wire.messages.sasl_handshake import SaslHandshakeResponse


@pytest.mark.parametrize(
    ("api_key", "since"),
    [
        (0, 6), (1, 8), (2, 3), (3, 6), (9, 4), (10, 2), (18, 2), (22, 1),
        (24, 1), (25, 1), (26, 1), (28, 1),
    ],
)  # fmt: skip
def test_client_waits_since_the_version_of_kip_219(api_key: int, since: int) -> None:
    assert client_waits(api_key, since)
    assert client_waits(api_key, since + 1)
    assert not client_waits(api_key, since - 1)


def test_client_waits_in_all_versions_of_younger_apis() -> None:
    assert client_waits(60, 0)


def test_throttle_ms_of_answers() -> None:
    assert throttle_ms(MetadataResponse(throttle_time_ms=17)) == 17
    assert throttle_ms(MetadataResponse(throttle_time_ms=-5)) == 0
    assert throttle_ms(SaslHandshakeResponse()) == 0
    assert throttle_ms(None) == 0
