"""The built-in token providers: MSK IAM with golden vectors, OIDC with a local https server."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import functools
import gc
import importlib.util
import json
import os
import pickle
import socket
import ssl
import struct
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import UTC, datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from aiokprod import AuthenticationError, ConfigError, Secret
from aiokprod._security.http_exchange import HttpExchange
from aiokprod._security.jwt_bearer import GRANT, JwtBearerTokens
from aiokprod._security.msk_iam import AwsCredentials, MskIamTokens
from aiokprod._security.oidc import OidcTokens
from aiokprod._security.token_endpoint import _Cached
from tests.hang import HANG_S, until
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
def test_msk_iam_signature_is_that_of_botocore(session: str | None, signature: str) -> None:
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


@pytest.mark.parametrize("region", ["eu-west-1", "us-gov-east-1", "ap-southeast-10"])
@pytest.mark.parametrize("session", [None, "sess/ion+token=="])
def test_msk_iam_token_is_that_of_the_signer_of_aws_byte_for_byte(
    monkeypatch: pytest.MonkeyPatch, region: str, session: str | None
) -> None:
    import botocore.auth
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
    from botocore.credentials import CredentialProvider, Credentials

    class Given(CredentialProvider):  # type: ignore[misc]
        def load(self) -> Any:
            return Credentials("AKIDEXAMPLE", KEY, session)

    frozen = datetime.fromtimestamp(AT / 1000, UTC)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: frozen)
    theirs, _ = MSKAuthTokenProvider.generate_auth_token_from_credentials_provider(region, Given())
    token = None if session is None else Secret(session)
    credentials = AwsCredentials("AKIDEXAMPLE", Secret(KEY), token)
    ours = asyncio.run(MskIamTokens(region, credentials, clock=lambda: AT).token()).reveal()
    assert (
        decoded(ours).removesuffix("&User-Agent=aiokprod")
        == decoded(theirs).rpartition("&User-Agent=")[0]
    )


def decoded(token: str) -> str:
    return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()


def test_msk_iam_credentials_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_msk_iam_region_cannot_lead_elsewhere(region: str) -> None:
    with pytest.raises(ConfigError, match="region"):
        MskIamTokens(region, AwsCredentials("a", Secret("b")))


class Endpoint:
    def __init__(self) -> None:
        self.status = 200
        self.headers: dict[str, str] = {}
        self.answer: Any = {"access_token": "tok-1", "token_type": "Bearer", "expires_in": 3600}
        self.seen: list[tuple[str, Any, dict[str, list[str]]]] = []  # path, login or None, form
        self.check: Callable[[dict[str, list[str]]], None] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}/token?tenant=1"


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    state = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            state.seen.append((self.path, self.headers["Authorization"], parse_qs(body)))
            if state.check is not None:
                state.check(parse_qs(body))
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
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


def later(seconds: float) -> None:
    """Advance the clock of the running event loop."""
    loop: Any = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds


def provider(endpoint: Endpoint, **settings: Any) -> OidcTokens:
    tls = ssl.create_default_context(cadata=CA.pem)
    return OidcTokens(endpoint.url, "me:x", "canary secret", tls=tls, timeout_s=HANG_S, **settings)


def test_oidc_asks_as_rfc_6749_and_keeps_the_token(endpoint: Endpoint) -> None:
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


def test_oidc_fetches_ahead_of_expiry_and_survives_a_failure_of_it(endpoint: Endpoint) -> None:
    async def main() -> list[str]:
        endpoint.answer = endpoint.answer | {"expires_in": 1000}
        tokens = provider(endpoint)
        found = [(await tokens.token()).reveal()]
        endpoint.status = 500
        later(850)
        found.append((await tokens.token()).reveal())
        later(300)
        with pytest.raises(AuthenticationError, match="status 500"):
            await tokens.token()
        endpoint.status, endpoint.answer = 200, endpoint.answer | {"access_token": "tok-2"}
        return [*found, (await tokens.token()).reveal()]

    assert asyncio.run(main()) == ["tok-1", "tok-1", "tok-2"]


@pytest.mark.parametrize(
    ("expires_in", "claim", "kept"),
    [
        (3600, None, True),
        (None, 3600, True),  # only the claim in the token
        (None, None, False),
        (3600, 300, False),
        (300, 3600, False),
        ("nonsense", 3600, True),
        (10**400, 3600, True),
        (float("inf"), None, False),
        (float("nan"), 3600, True),
        (float("nan"), None, False),
        (3600, float("nan"), True),
        (-5, 3600, False),
    ],
)
def test_oidc_keeps_a_token_for_as_long_as_answer_and_claim_allow(
    endpoint: Endpoint, expires_in: float | str | None, claim: float | None, kept: bool
) -> None:
    """The claim `exp` of the token counts too, because the broker ends the session at that time."""
    token = "opaque"
    if claim is not None:
        body = json.dumps({"exp": time.time() + claim}).encode()
        token = f"e30.{base64.urlsafe_b64encode(body).decode().rstrip('=')}.c2ln"
    endpoint.answer = {"access_token": token}
    if expires_in is not None:
        endpoint.answer["expires_in"] = expires_in

    async def main() -> None:
        tokens = provider(endpoint)
        await tokens.token()
        later(250)
        await tokens.token()

    asyncio.run(main())
    assert (len(endpoint.seen) == 1) is kept


@pytest.mark.parametrize(
    ("status", "answer", "text"),
    [
        (401, {"error": "canary"}, "status 401"),
        (302, {}, "status 302"),
        (200, b"canary no json", "not JSON"),
        (200, [1], "not JSON"),
        (200, b"[" * 100_000, "not JSON"),
        (200, b" " * (1 << 20) + b"{}", "not JSON, or is too large"),
        (200, {}, "no bearer token"),
        (200, {"access_token": 5}, "no bearer token"),
        (200, {"access_token": "x", "token_type": "mac"}, "no bearer token"),
    ],
)
def test_s12_oidc_bad_answer_is_an_authentication_error_without_its_text(
    endpoint: Endpoint, status: int, answer: Any, text: str
) -> None:
    endpoint.status, endpoint.answer = status, answer
    endpoint.headers = {"Location": "https://127.0.0.1:1/"} if status == 302 else {}
    with pytest.raises(AuthenticationError, match=text) as caught:
        asyncio.run(provider(endpoint).token())
    assert "canary" not in str(caught.value)
    assert len(endpoint.seen) == 1


def test_oidc_foreign_certificate_and_dead_endpoint_are_named(endpoint: Endpoint) -> None:
    with pytest.raises(AuthenticationError, match="certificate was refused"):
        asyncio.run(OidcTokens(endpoint.url, "me", "s").token())
    with pytest.raises(AuthenticationError, match="the request failed"):
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
def test_s11_oidc_endpoint_must_be_a_plain_https_url(url: str) -> None:
    with pytest.raises(ConfigError, match="token_endpoint"):
        OidcTokens(url, "me", "s")


# -- the JWT-bearer grant ------------------------------------------------------------------------


@functools.cache
def signing_key(algorithm: str) -> Any:
    if algorithm == "RS256":
        return rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return ec.generate_private_key(ec.SECP256R1())


def pem(key: Any, password: str | None = None) -> str:
    how: Any = serialization.NoEncryption()
    if password is not None:
        how = serialization.BestAvailableEncryption(password.encode())
    form = serialization.PrivateFormat.PKCS8
    text: bytes = key.private_bytes(serialization.Encoding.PEM, form, how)
    return text.decode()


WHO: dict[str, Any] = {"issuer": "me", "subject": "my-app", "audience": "https://idp.example"}


def bearer(endpoint: Endpoint, **settings: Any) -> JwtBearerTokens:
    tls = ssl.create_default_context(cadata=CA.pem)
    return JwtBearerTokens(endpoint.url, tls=tls, timeout_s=HANG_S, **settings)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_jwt_bearer_assertion_is_signed_and_says_who_asks(
    endpoint: Endpoint, algorithm: str
) -> None:
    """As RFC 7523 §3 requires, the provider's side checks the signature, issuer, audience and
    times."""
    key = signing_key(algorithm)
    now = int(time.time())
    claims: list[dict[str, Any]] = []

    def check(form: dict[str, list[str]]) -> None:
        [assertion] = form["assertion"]
        assert jwt.get_unverified_header(assertion) == {
            "alg": algorithm,
            "kid": "key-1",
            "typ": "JWT",
        }
        claims.append(
            jwt.decode(
                assertion,
                key.public_key(),
                algorithms=[algorithm],
                audience=WHO["audience"],
                issuer=WHO["issuer"],
                options={"require": ["exp", "iat", "nbf", "jti", "sub"]},
            )
        )

    endpoint.check = check

    async def main() -> None:
        tokens = bearer(
            endpoint,
            key=pem(key, "canary-passphrase"),
            key_password="canary-passphrase",
            algorithm=algorithm,
            key_id="key-1",
            claims={"tenant": "t-1"},
            scope="kafka",
            clock=lambda: now * 1000,
            **WHO,
        )
        found = await asyncio.gather(*(tokens.token() for _ in range(5)))
        assert {secret.reveal() for secret in found} == {"tok-1"}
        assert "canary" not in repr(tokens) + repr(vars(tokens))
        assert "PRIVATE KEY" not in repr(tokens) + repr(vars(tokens))

    asyncio.run(main())
    [found] = claims
    assert {name: found[name] for name in ("iss", "sub", "aud", "tenant", "iat", "nbf", "exp")} == {
        "iss": "me",
        "sub": "my-app",
        "aud": "https://idp.example",
        "tenant": "t-1",
        "iat": now,
        "nbf": now - 60,
        "exp": now + 300,
    }
    [(path, login, form)] = endpoint.seen
    assert (path, login) == ("/token?tenant=1", None)
    assert set(form) == {"grant_type", "scope", "assertion"}
    assert form["grant_type"] == [GRANT]


def test_jwt_bearer_fetches_ahead_of_expiry_with_a_fresh_assertion_and_the_rotated_key(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    first, second = signing_key("ES256"), ec.generate_private_key(ec.SECP256R1())
    path = tmp_path / "key.pem"
    path.write_text(pem(first))

    async def main() -> None:
        tokens = bearer(endpoint, key=Secret.from_file(path), algorithm="ES256", **WHO)
        endpoint.answer = endpoint.answer | {"expires_in": 500}
        await tokens.token()
        await tokens.token()
        assert len(endpoint.seen) == 1
        path.write_text(pem(second))
        later(410)  # 80 % of the token's life has passed
        await tokens.token()
        path.unlink()
        later(410)
        assert (await tokens.token()).reveal() == "tok-1"  # still valid
        later(200)
        with pytest.raises(AuthenticationError, match="cannot be read"):
            await tokens.token()

    asyncio.run(main())
    one, two = (form["assertion"][0] for _, _, form in endpoint.seen)
    checks = {"algorithms": ["ES256"], "audience": WHO["audience"]}
    ids = {
        jwt.decode(one, first.public_key(), **checks)["jti"],
        jwt.decode(two, second.public_key(), **checks)["jti"],
    }
    assert len(ids) == 2


def test_jwt_bearer_takes_a_ready_assertion_from_a_file(endpoint: Endpoint, tmp_path: Path) -> None:
    path = tmp_path / "assertion"
    path.write_text("eyJ.canary.sig\n")
    tokens = bearer(endpoint, assertion=Secret.from_file(path))
    assert asyncio.run(tokens.token()).reveal() == "tok-1"
    assert endpoint.seen[0][2]["assertion"] == ["eyJ.canary.sig"]


@pytest.mark.parametrize(("name", "low", "high"), [("lifetime_s", 1, 86_400), ("skew_s", 0, 3_600)])
def test_jwt_bearer_takes_seconds_up_to_both_bounds(name: str, low: int, high: int) -> None:
    key = pem(signing_key("ES256"))

    def made(seconds: Any) -> JwtBearerTokens:
        settings = {"key": key, "algorithm": "ES256", **WHO, name: seconds}
        return JwtBearerTokens("https://idp.example/token", **settings)

    made(low)
    made(high)
    for seconds in (low - 1, high + 1, True, float(low), str(low)):
        with pytest.raises(ConfigError, match=f"{name}={seconds!r}: use an int of {low} to {high}"):
            made(seconds)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "either key"),
        ({"key": "k", "assertion": "a", **WHO}, "either key"),
        ({"key": "k", "issuer": "me"}, "subject and audience must be given"),
        ({"key": "k", **WHO, "algorithm": "none"}, "algorithm='none'"),
        ({"key": "k", **WHO, "algorithm": "HS256"}, "algorithm='HS256'"),
        ({"key": "k", **WHO, "lifetime_s": 0}, "lifetime_s=0"),
        ({"key": "k", **WHO, "lifetime_s": 10**9}, "lifetime_s="),
        ({"key": "k", **WHO, "skew_s": -1}, "skew_s=-1"),
        ({"key": "k", **WHO, "skew_s": 1.5}, "skew_s=1.5"),
        ({"key": "k", **WHO, "claims": {"exp": 2**40}}, "must not hold exp"),
        ({"assertion": "a", "issuer": "me"}, "leave them out"),
        ({"assertion": "a", "key_password": "p"}, "no key to decrypt"),
    ],
)
def test_s11_jwt_bearer_refuses_what_contradicts_itself(
    settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        JwtBearerTokens("https://idp.example/token", **settings)
    with pytest.raises(ConfigError, match="https"):
        JwtBearerTokens("http://idp.example/token", assertion="a")


@pytest.mark.parametrize(
    "settings",
    [
        {"key": "canary no PEM"},
        {"key": "-----BEGIN PRIVATE KEY-----\ncanary\n-----END PRIVATE KEY-----"},
        {"key": "encrypted", "key_password": "canary wrong"},
        {"key": "encrypted"},
        {"key": "other kind"},
    ],
)
def test_s12_jwt_bearer_key_that_cannot_be_used_is_named_without_its_text(
    endpoint: Endpoint, settings: dict[str, str]
) -> None:
    made = {
        "encrypted": lambda: pem(signing_key("RS256"), "canary right"),
        "other kind": lambda: pem(signing_key("ES256")),
    }
    settings = settings | {"key": made.get(settings["key"], lambda: settings["key"])()}
    with pytest.raises(AuthenticationError, match="private key cannot be used") as caught:
        asyncio.run(bearer(endpoint, **settings, **WHO).token())
    assert "canary" not in "".join(traceback.format_exception(caught.value))
    assert endpoint.seen == []


def test_jwt_bearer_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"aiokprod\[oidc\]"):
        JwtBearerTokens("https://idp.example/token", key="k", **WHO)


# -- endpoints that do not respond in time ---------------------------------------------------------


class Dripping:
    """A server that sends its response byte by byte and never completes it.

    Args:
        phase: the part that is never completed: "handshake" (the server sends nothing), "head" or
            "body".
    """

    def __init__(self, phase: str, folder: Any) -> None:
        self._phase = phase
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(CA.issue("127.0.0.1", number=80).write(folder, "drip"))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._accept, name="drip-accept")]
        self.accepted = 0
        self.ended = threading.Semaphore(0)
        self._threads[0].start()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._listener.getsockname()[1]}/token"

    def _accept(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(plain,), name="drip-serve")
            self._threads.append(thread)
            thread.start()

    def _serve(self, plain: socket.socket) -> None:
        self.accepted += 1
        try:
            plain.settimeout(HANG_S)
            self._drip(plain)
        except OSError:
            pass  # the client closed the connection
        finally:
            plain.close()
            self.ended.release()

    def _drip(self, plain: socket.socket) -> None:
        if self._phase == "handshake":
            while plain.recv(4096):
                pass
            return
        with self._context.wrap_socket(plain, server_side=True) as tls:
            tls.recv(65536)
            tls.sendall(b"HTTP/1.1 200 OK\r\n")
            tls.sendall(b"X-Long: " if self._phase == "head" else b"Content-Length: 100000\r\n\r\n")
            while not self._stopping.wait(0.05):
                tls.sendall(b" ")

    def accepted_at_least(self, number: int) -> bool:
        return self.accepted >= number

    def close(self) -> None:
        self._stopping.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(HANG_S)


@pytest.fixture(params=["handshake", "head", "body"])
def dripping(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Dripping]:
    server = Dripping(request.param, tmp_path)
    yield server
    server.close()


def token_threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith("aiokprod-token")]


def all_end(threads: list[threading.Thread]) -> bool:
    for thread in threads:
        thread.join(HANG_S)
    return not any(thread.is_alive() for thread in threads)


def test_token_endpoint_that_drips_is_given_up_after_the_timeout(dripping: Dripping) -> None:
    """The timeout applies to the whole request, not to each byte."""

    async def main() -> None:
        tls = ssl.create_default_context(cadata=CA.pem)
        tokens = OidcTokens(dripping.url, "me", "canary-client-secret", tls=tls, timeout_s=0.5)
        async with asyncio.timeout(HANG_S):
            with pytest.raises(AuthenticationError, match=r"no response within 0\.5 s"):
                await tokens.token()

    asyncio.run(main())
    assert dripping.ended.acquire(timeout=HANG_S)  # the connection is closed
    assert all_end(token_threads())


def test_connect_that_the_system_gives_up_is_told_as_no_answer() -> None:
    """The kernel reports ETIMEDOUT long before the timeout of the request."""

    class Unreachable(ssl.SSLSocket):
        def connect(self, address: Any) -> None:
            raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")

    tls = ssl.create_default_context(cadata=CA.pem)
    tls.sslsocket_class = Unreachable
    tokens = OidcTokens(
        "https://127.0.0.1:1/token", "me", "canary-secret", tls=tls, timeout_s=HANG_S
    )
    with pytest.raises(AuthenticationError, match="no response within 60 s"):
        asyncio.run(tokens.token())
    assert all_end(token_threads())


def test_cancelled_token_requests_leave_no_thread_and_no_connection(dripping: Dripping) -> None:
    """Requests run one at a time in a separate thread, so the default executor stays free."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        tls = ssl.create_default_context(cadata=CA.pem)
        tokens = OidcTokens(dripping.url, "me", "canary-client-secret", tls=tls, timeout_s=HANG_S)
        for number in range(1, 11):
            asking = asyncio.create_task(tokens.token())
            await until(partial(dripping.accepted_at_least, number))
            # The thread of the previous request has closed its connection but may still run.
            await until(lambda: len(token_threads()) <= 1)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert await asyncio.wait_for(loop.run_in_executor(None, lambda: 7), HANG_S) == 7

    asyncio.run(main())
    for _ in range(10):
        assert dripping.ended.acquire(timeout=HANG_S)
    assert all_end(token_threads())


def test_connection_reset_before_its_tls_socket_exists_leaves_no_socket() -> None:
    """A request is aborted while the endpoint resets the connection. `getpeername` and `recv` of
    the socket then fail within `SSLContext.wrap_socket`."""
    listener = socket.create_server(("127.0.0.1", 0))

    def reset_the_connection() -> None:
        peer, _ = listener.accept()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()

    class Late(ssl.SSLContext):
        def wrap_socket(self, sock: socket.socket, *args: Any, **options: Any) -> ssl.SSLSocket:
            with contextlib.suppress(OSError):  # not yet connected, or no longer
                while sock.getpeername():
                    time.sleep(0.001)
            return super().wrap_socket(sock, *args, **options)

    endpoint = f"https://127.0.0.1:{listener.getsockname()[1]}/token"
    tls = Late(ssl.PROTOCOL_TLS_CLIENT)
    tokens = OidcTokens(endpoint, "me", "canary-secret", tls=tls, timeout_s=HANG_S)
    thread = threading.Thread(target=reset_the_connection)
    thread.start()
    with listener, pytest.raises(AuthenticationError, match="the request failed"):
        asyncio.run(tokens.token())
    assert all_end([thread, *token_threads()])
    gc.collect()  # an unclosed socket would cause a warning, which fails the test


def test_stuck_name_resolution_keeps_one_thread_however_often_a_token_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No system can interrupt a name resolution, so no second request may start until it ends."""
    stuck, calls = threading.Event(), []

    def getaddrinfo(host: str, *args: Any, **options: Any) -> Any:
        calls.append(host)
        stuck.wait(HANG_S)
        raise socket.gaierror("gone")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    async def main() -> None:
        tls = ssl.create_default_context(cadata=CA.pem)  # loading the system's CAs is slow
        tokens = OidcTokens("https://idp.test/token", "me", "canary-secret", tls=tls, timeout_s=0.2)
        with pytest.raises(AuthenticationError, match=r"no response within 0\.2 s"):
            await tokens.token()
        for _ in range(3):
            with pytest.raises(AuthenticationError, match="name resolution stuck"):
                await tokens.token()
        await until(lambda: calls)
        assert (calls, len(token_threads())) == (["idp.test"], 1)
        stuck.set()
        tokens._endpoint._timeout = HANG_S
        with pytest.raises(AuthenticationError, match="gaierror"):
            await tokens.token()
        assert len(calls) == 2

    asyncio.run(main())
    assert all_end(token_threads())


def test_forked_child_does_not_wait_for_a_request_of_its_parent(
    monkeypatch: pytest.MonkeyPatch, endpoint: Endpoint
) -> None:
    """The thread of the parent does not exist in the child."""

    async def main() -> None:
        tokens = provider(endpoint)
        await tokens.token()
        exchange = HttpExchange.__new__(HttpExchange)
        exchange.answer = Future()  # never done
        exchange._process = os.getpid() + 1
        tokens._endpoint._exchange, tokens._endpoint._cached = exchange, None
        assert (await tokens.token()).reveal() == "tok-1"

    asyncio.run(main())
    assert len(endpoint.seen) == 2


def test_loop_that_is_closed_before_the_request_ended_is_left_alone(
    dripping: Dripping, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        tls = ssl.create_default_context(cadata=CA.pem)
        tokens = OidcTokens(dripping.url, "me", "canary-client-secret", tls=tls, timeout_s=HANG_S)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(tokens.token(), 0.1)

    asyncio.run(main())
    assert all_end(token_threads())
    assert caplog.messages == []


def test_pickled_provider_leaves_its_token_and_its_request_behind(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLIENT_SECRET", "canary-client-secret")
    tokens = OidcTokens(endpoint.url, "me", Secret.from_env("CLIENT_SECRET"), timeout_s=HANG_S)
    tokens._endpoint._cached = _Cached(Secret("canary-token"), 1e9, 1e9)
    data = pickle.dumps(tokens)
    assert b"canary" not in data
    copy = pickle.loads(data)
    assert repr(copy) == repr(tokens)
    assert (copy._endpoint._cached, copy._endpoint._exchange) == (None, None)

    async def main() -> None:
        with pytest.raises(AuthenticationError, match="certificate was refused"):
            await copy.token()  # sends a separate request

    asyncio.run(main())


def test_long_request_is_sent_whole_and_the_next_address_is_tried(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address that refuses the connection uses only its share of the timeout."""
    found = socket.getaddrinfo

    def getaddrinfo(host: str, port: int, *args: Any, **options: Any) -> Any:
        [(family, kind, protocol, name, address)] = found(host, port, *args, **options)
        dead = (family, kind, protocol, name, ("127.0.0.1", 1))
        return [dead, (family, kind, protocol, name, address)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assertion = "canary." + "x" * 300_000
    tokens = bearer(endpoint, assertion=assertion)
    assert asyncio.run(tokens.token()).reveal() == "tok-1"
    assert endpoint.seen[0][2]["assertion"] == [assertion]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: [])
    with pytest.raises(AuthenticationError, match="the request failed"):
        asyncio.run(bearer(endpoint, assertion=assertion).token())
