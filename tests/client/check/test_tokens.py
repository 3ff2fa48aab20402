from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from aiokprod import ProducerConfig
from aiokprod._client.check.tokens import check_token

NOW_MS = 1_700_000_000_000
HUGE = base64.urlsafe_b64encode(b'{"iat": 1%s}' % (b"0" * 400)).decode().rstrip("=")


def config(provider: Any) -> ProducerConfig:
    return ProducerConfig(
        bootstrap_servers="b:1",
        security_protocol="SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        sasl_token_provider=provider,
    )


@pytest.mark.parametrize(
    "token",
    ["opaque", "a.b.c", "a.bnVsbA.c", "a.eyJpYXQiOiBudWxsfQ.c", f"a.{HUGE}.c"],
    ids=["no JWT", "no base64", "null", "iat null", "no float has it"],
)
def test_token_without_times_has_no_finding(token: str) -> None:
    async def provider() -> str:
        return token

    assert asyncio.run(check_token(config(provider), lambda: NOW_MS, refused=True)) == []


def test_failing_provider_has_no_finding_here() -> None:
    async def provider() -> str:
        raise OSError("canary")

    assert asyncio.run(check_token(config(provider), lambda: NOW_MS, refused=True)) == []


def test_other_mechanisms_have_no_token() -> None:
    plain = ProducerConfig(bootstrap_servers="b:1")
    assert asyncio.run(check_token(plain, lambda: NOW_MS, refused=False)) == []
