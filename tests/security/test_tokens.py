"""The built-in token providers: MSK IAM by golden vectors, OIDC against a local https server."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from aiokprod import AuthenticationError, ConfigError, Secret
from aiokprod.net.security.msk_iam import AwsCredentials, MskIamTokens
from aiokprod.net.security.oidc import OidcTokens
from tests.security.certs import Authority

CA = Authority("token CA", 20)
AT = int(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp() * 1000)
KEY = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"


@pytest.mark.parametrize(
    ("session", "signature"),
    [
        (None, "7cc178453342e479def8e0e69cbff443ca929b5b0426af0f4b64554172c7195d"),
        ("sess/ion+token==", "7c413f22e0ee760b5571da3d52c12855eae0264cf076bd3a4729ddd027ed9949"),
    ],
)
def test_msk_iam_signature_is_that_of_botocore(session, signature):
    token = None if session is None else Secret(session)
    credentials = AwsCredentials("AKIDEXAMPLE", Secret(KEY), token)
    provider = MskIamTokens("eu-west-1", credentials, clock=lambda: AT)
    made = asyncio.run(provider.token()).reveal()
    url = base64.urlsafe_b64decode(made + "=" * (-len(made) % 4)).decode()
    fields = parse_qs(urlsplit(url).query)
    assert url.startswith("https://kafka.eu-west-1.amazonaws.com/?Action=kafka-cluster%3AConnect&")
    assert fields["X-Amz-Signature"] == [signature]
    assert fields["X-Amz-Date"] == ["20260102T030405Z"]
    assert fields["X-Amz-Expires"] == ["900"]
    assert fields["User-Agent"] == ["aiokprod"]
    assert fields.get("X-Amz-Security-Token", [None]) == [session]
    assert KEY not in url + repr(provider) + repr(credentials)


def test_msk_iam_credentials_from_the_environment(monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    with pytest.raises(ConfigError, match="not set"):
        AwsCredentials.from_env()
    provider = MskIamTokens("eu-west-1", AwsCredentials.from_env)
    with pytest.raises(AuthenticationError, match="not set"):
        asyncio.run(provider.token())
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary")
    assert "canary" not in repr(AwsCredentials.from_env())
    assert asyncio.run(provider.token()).reveal()


@pytest.mark.parametrize("region", ["", "evil.example/?", "eu-west-1.evil.example", "EU-WEST-1"])
def test_msk_iam_region_cannot_lead_elsewhere(region):
    with pytest.raises(ConfigError, match="region"):
        MskIamTokens(region, AwsCredentials("a", Secret("b")))


class Endpoint:
    def __init__(self) -> None:
        self.status, self.headers = 200, {}
        self.answer: Any = {"access_token": "tok-1", "token_type": "Bearer", "expires_in": 3600}
        self.seen: list[tuple[str, str, dict[str, list[str]]]] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}/token?tenant=1"


@pytest.fixture
def endpoint(tmp_path) -> Iterator[Endpoint]:
    state = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            state.seen.append((self.path, self.headers["Authorization"], parse_qs(body)))
            data = state.answer if isinstance(state.answer, bytes) else json.dumps(state.answer)
            data = data if isinstance(data, bytes) else data.encode()
            self.send_response(state.status)
            for name, value in state.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CA.issue("127.0.0.1", number=80).write(tmp_path, "idp"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    state.port = server.server_port
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


def provider(endpoint: Endpoint, **settings: Any) -> OidcTokens:
    tls = ssl.create_default_context(cadata=CA.pem)
    return OidcTokens(endpoint.url, "me:x", "canary secret", tls=tls, timeout_s=2.0, **settings)


def test_oidc_asks_as_rfc_6749_and_keeps_the_token(endpoint):
    async def main() -> None:
        tokens = provider(endpoint, scope="kafka", parameters={"audience": "a"})
        found = await asyncio.gather(*(tokens.token() for _ in range(5)))
        assert {secret.reveal() for secret in found} == {"tok-1"}
        assert "canary" not in repr(tokens)

    asyncio.run(main())
    [(path, login, form)] = endpoint.seen
    assert path == "/token?tenant=1"
    assert base64.b64decode(login.removeprefix("Basic ")) == b"me%3Ax:canary+secret"
    assert form == {"grant_type": ["client_credentials"], "scope": ["kafka"], "audience": ["a"]}


def test_oidc_fetches_ahead_of_expiry_and_survives_a_failure_of_it(endpoint):
    async def main() -> list[str]:
        endpoint.answer = endpoint.answer | {"expires_in": 1.0}
        tokens = provider(endpoint)
        found = [(await tokens.token()).reveal()]
        endpoint.status = 500
        await asyncio.sleep(0.85)
        found.append((await tokens.token()).reveal())
        await asyncio.sleep(0.3)
        with pytest.raises(AuthenticationError, match="status 500"):
            await tokens.token()
        endpoint.status, endpoint.answer = 200, endpoint.answer | {"access_token": "tok-2"}
        return [*found, (await tokens.token()).reveal()]

    assert asyncio.run(main()) == ["tok-1", "tok-1", "tok-2"]


@pytest.mark.parametrize(
    ("status", "answer", "text"),
    [
        (401, {"error": "canary"}, "status 401"),
        (302, {}, "status 302"),
        (200, b"canary no json", "not JSON"),
        (200, [1], "not JSON"),
        (200, b"[" * 100_000, "not JSON"),
        (200, b" " * (1 << 20) + b"{}", "not JSON of bearable size"),
        (200, {}, "no bearer token"),
        (200, {"access_token": 5}, "no bearer token"),
        (200, {"access_token": "x", "token_type": "mac"}, "no bearer token"),
    ],
)
def test_s12_oidc_bad_answer_is_an_authentication_error_without_its_text(
    endpoint, status, answer, text
):
    endpoint.status, endpoint.answer = status, answer
    endpoint.headers = {"Location": "https://127.0.0.1:1/"} if status == 302 else {}
    with pytest.raises(AuthenticationError, match=text) as caught:
        asyncio.run(provider(endpoint).token())
    assert "canary" not in str(caught.value)
    assert len(endpoint.seen) == 1


def test_oidc_foreign_certificate_and_dead_endpoint_are_named(endpoint):
    with pytest.raises(AuthenticationError, match="certificate was refused"):
        asyncio.run(OidcTokens(endpoint.url, "me", "s").token())
    with pytest.raises(AuthenticationError, match="cannot be asked"):
        asyncio.run(OidcTokens("https://127.0.0.1:1/", "me", "s").token())
    assert endpoint.seen == []


@pytest.mark.parametrize(
    "url",
    [
        "http://a/t",
        "file:///etc/passwd",
        "https://",
        "https://u:p@a/",
        "https://a/ b",
        "https://a:x/",
    ],
)
def test_s11_oidc_endpoint_must_be_a_plain_https_url(url):
    with pytest.raises(ConfigError, match="token_endpoint"):
        OidcTokens(url, "me", "s")
