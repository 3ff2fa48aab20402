"""AWS_MSK_IAM with a broker that verifies the signature itself, correct or hostile."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotocoreCredentials

from aiokprod import Secret
from aiokprod._security.msk_iam import AwsCredentials, MskIamTokens
from aiokprod._wire.messages.sasl_authenticate import SaslAuthenticateResponse
from aiokprod.errors import ConfigError
from aiokprod.testing.memory import MemoryNetwork
from tests.security.sasl_broker import AUTHENTICATE, Refused, SaslBroker, new_producer
from tests.security.test_sasl import connected, refused
from tests.virtual_time import in_virtual_time

KEY, KEY_ID, SESSION = "canary-secret-access-key", "AKIDEXAMPLE", "canary/session+token=="
HOST = "b-1.demo.kafka.eu-west-1.amazonaws.com"
AT_MS = int(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp() * 1000)


class MskServer:
    """Verifies a request as MSK does. The signer of the AWS SDK computes the expected signature."""

    def __init__(self, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.key, self.monkeypatch = key, monkeypatch
        self.got: dict[str, str] = {}

    def answer(self, data: bytes) -> tuple[bytes, bool]:
        self.got = got = json.loads(data)
        assert set(got) - {"x-amz-security-token"} == {
            "version", "host", "user-agent", "action", "x-amz-algorithm", "x-amz-credential",
            "x-amz-date", "x-amz-signedheaders", "x-amz-expires", "x-amz-signature",
        }  # fmt: skip
        assert got["version"] == "2020_10_22"
        if got["host"] != HOST or got["x-amz-signature"] != self.signature(got):
            raise Refused(f"Access denied to {got.get('x-amz-security-token')}")
        return b'{"version":"2020_10_22","request-id":"r-1"}', True

    def signature(self, got: dict[str, str]) -> str:
        import botocore.auth

        at = datetime.strptime(got["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        self.monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: at)
        who = BotocoreCredentials(KEY_ID, self.key, got.get("x-amz-security-token"))
        request: Any = AWSRequest(
            method="GET", url=f"https://{HOST}/", params={"Action": "kafka-cluster:Connect"}
        )
        signer = SigV4QueryAuth(who, "kafka-cluster", "eu-west-1", int(got["x-amz-expires"]))
        signer.add_auth(request)
        return str(request.prepare().url.rpartition("X-Amz-Signature=")[2])


def harness(monkeypatch: pytest.MonkeyPatch, key: str = KEY) -> tuple[SaslBroker, MemoryNetwork]:
    network = MemoryNetwork()
    network.set_name(HOST, [HOST])
    broker = SaslBroker(network, HOST, 9098, AWS_MSK_IAM=lambda: MskServer(key, monkeypatch))
    broker.mechanisms = {"AWS_MSK_IAM": broker.mechanisms["AWS-MSK-IAM"]}
    return broker, network


def settings(session: str | None = SESSION) -> dict[str, Any]:
    token = None if session is None else Secret(session)
    credentials = AwsCredentials(KEY_ID, Secret(KEY), token)
    return {
        "bootstrap_servers": f"{HOST}:9098",
        "sasl_mechanism": "AWS_MSK_IAM",
        "sasl_token_provider": MskIamTokens("eu-west-1", credentials, clock=lambda: AT_MS),
    }


@pytest.mark.parametrize("session", [None, SESSION])
@in_virtual_time
async def test_aws_msk_iam_signs_for_the_broker_that_was_dialled(
    monkeypatch: pytest.MonkeyPatch, session: str | None
) -> None:
    broker, network = harness(monkeypatch)
    made = new_producer(network, **settings(session))
    await connected(made)
    got = json.loads(broker.sent[0])
    assert got["host"] == HOST
    assert got["x-amz-credential"] == f"{KEY_ID}/20260102/eu-west-1/kafka-cluster/aws4_request"
    assert got.get("x-amz-security-token") == session
    assert KEY.encode() not in broker.sent[0]
    await made.close(0)


@in_virtual_time
async def test_s4_aws_msk_iam_wrong_key_reaches_all_waiters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, network = harness(monkeypatch, key="other")
    made = new_producer(network, reconnect_backoff_ms=1_000, **settings())
    error = await refused(made, "refused AWS_MSK_IAM: Access denied to ***")
    assert "canary" not in str(error)
    assert broker.count(3) == 0
    await made.close(0)


@pytest.mark.parametrize(
    "answer",
    [b"", b"{}", b'{"version":"2019_01_01"}', b"canary", b"[1]", b"[" * 5_000, b"{" * 10_000],
)
@in_virtual_time
async def test_s5_aws_msk_iam_broker_that_does_not_answer_as_told_is_refused(
    monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    broker, network = harness(monkeypatch)
    broker.answers[AUTHENTICATE] = lambda header, message: SaslAuthenticateResponse(
        auth_bytes=answer
    )
    made = new_producer(network, **settings())
    await refused(made, "not of version 2020_10_22")
    assert broker.count(3) == 0
    await made.close(0)


@pytest.mark.parametrize("fault", [ValueError("canary"), ConfigError("no credentials")])
@in_virtual_time
async def test_s12_aws_msk_iam_credentials_that_cannot_be_had(
    monkeypatch: pytest.MonkeyPatch, fault: ConfigError | ValueError
) -> None:
    class Provider:
        async def payload(self, host: str) -> dict[str, str]:
            raise fault

        async def token(self) -> str:
            raise fault

    broker, network = harness(monkeypatch)
    made = new_producer(network, **settings() | {"sasl_token_provider": Provider()})
    await refused(made, f"the provider failed with {type(fault).__name__}")
    assert broker.sent == []
    await made.close(0)
