"""No local variable in any frame of an error contains a secret, because error reporters print such
variables."""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
from pathlib import Path
from typing import Any

import pytest

from aiokprod import AuthenticationError, KafkaError, Producer, Secret
from aiokprod._security.jwt_bearer import JwtBearerTokens
from aiokprod._security.msk_iam import AwsCredentials, MskIamTokens
from aiokprod._security.oidc import OidcTokens
from aiokprod.testing import virtual
from aiokprod.testing.memory import MemoryNetwork
from aiokprod.testing.transports import MemoryTransport
from tests.secret_leak_check import found_in_frames
from tests.security.certs import Authority
from tests.security.sasl_broker import PlainServer, SaslBroker, ScramServer, new_producer

PASSWORD = "canary-hunter2"
AUTHORITY = Authority("frames CA", 60)
CERTIFICATE = AUTHORITY.issue("client", number=61, client=True)
DEAD = "https://127.0.0.1:1/token"


@pytest.fixture(params=[False, True], ids=["", "debug"])
def debug(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize("password", [PASSWORD, None])
def test_unusable_client_key_is_in_no_frame_of_the_error_a_send_raises(
    password: str | None,
) -> None:
    key = CERTIFICATE.key("canary another password")

    async def main() -> KafkaError:
        async with Producer(
            bootstrap_servers="127.0.0.1:1",
            security_protocol="SSL",
            max_block_ms=60_000,
            ssl_keystore_certificate_chain=CERTIFICATE.chain,
            ssl_keystore_key=key,
            ssl_key_password=password,
        ) as producer:
            with pytest.raises(AuthenticationError, match="ssl_key_password") as caught:
                await producer.send("t", b"v")
        return caught.value

    error = asyncio.run(main())
    assert error.__traceback__ is not None
    assert found_in_frames(error, PASSWORD, *key.splitlines()[1:-1]) == []


class Surrogates:
    """A string that cannot be encoded. `UnicodeEncodeError.object` would contain it."""

    text = "canary \udc80 surrogates"


def providers() -> dict[str, Any]:
    key = CERTIFICATE.key("canary right password")
    claims: dict[str, Any] = {"issuer": "i", "subject": "s", "audience": "a", "algorithm": "ES256"}
    return {
        "oidc": OidcTokens(DEAD, "me", PASSWORD, timeout_s=5),
        "oidc with surrogates": OidcTokens(DEAD, "me", Surrogates.text),
        "assertion": JwtBearerTokens(DEAD, assertion="canary." + "x" * 40),
        "key": JwtBearerTokens(DEAD, key=CERTIFICATE.key(), **claims),
        "wrong key password": JwtBearerTokens(DEAD, key=key, key_password=PASSWORD, **claims),
        "key with surrogates": JwtBearerTokens(DEAD, key=Surrogates.text, **claims),
        "AWS with surrogates": MskIamTokens("eu-west-1", AwsCredentials("AK", Surrogates.text)),  # type: ignore[arg-type]
    }


@pytest.mark.parametrize("name", providers())
def test_token_provider_that_fails_has_no_secret_in_its_frames(name: str, debug: bool) -> None:
    """The log of asyncio's debug mode contains no secret either. Every callback is logged."""
    logged: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.append(record.getMessage())

    async def main() -> None:
        asyncio.get_running_loop().slow_callback_duration = 0.0
        await providers()[name].token()

    keep = Keep()
    logging.getLogger("asyncio").addHandler(keep)
    try:
        with pytest.raises(AuthenticationError) as caught:
            asyncio.run(main(), debug=debug)
    finally:
        logging.getLogger("asyncio").removeHandler(keep)
    login = base64.b64encode(f"me:{PASSWORD}".encode()).decode()
    key = CERTIFICATE.key().splitlines()[1]
    secrets = (PASSWORD, login, Surrogates.text, "x" * 40, "canary right", key)
    assert found_in_frames(caught.value, *secrets) == []
    if debug:
        assert [text for text in logged if text.startswith("Executing <")]
        assert not [text for text in logged if any(secret in text for secret in secrets)]


def test_aws_secret_is_in_no_frame_of_a_cancellation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a thread reads the session token, the key is already in memory."""

    async def main() -> BaseException:
        credentials = AwsCredentials("AK", PASSWORD, Secret.from_file(tmp_path / "token"))  # type: ignore[arg-type]
        waiting = asyncio.Event()

        async def hang(secret: Secret) -> str:
            if secret.blocks:
                waiting.set()
                await asyncio.Event().wait()
            return secret.reveal()

        monkeypatch.setattr("aiokprod._security.msk_iam.revealed", hang)
        task = asyncio.create_task(MskIamTokens("eu-west-1", credentials).token())
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        return caught.value

    assert found_in_frames(asyncio.run(main()), PASSWORD) == []


def test_aws_credentials_take_plain_text_and_do_not_show_it() -> None:
    given = AwsCredentials("AK", "canary-key", "canary-session")  # type: ignore[arg-type]
    assert "canary" not in f"{given!r} {given}"
    assert isinstance(given.secret_access_key, Secret)
    assert isinstance(given.session_token, Secret)
    assert given == AwsCredentials("AK", Secret("canary-key"), Secret("canary-session"))
    assert asyncio.run(MskIamTokens("eu-west-1", given).token()).reveal()


def test_context_of_the_users_own_is_left_alone() -> None:
    """The connection uses the given context unchanged."""

    async def main() -> None:
        async with Producer(
            bootstrap_servers="127.0.0.1:1",
            security_protocol="SSL",
            ssl_context=ssl.create_default_context(),
            max_block_ms=200,
        ) as producer:
            with pytest.raises(KafkaError, match="metadata"):
                await producer.send("t", b"v")

    asyncio.run(main())


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_write_that_fails_during_authentication_keeps_no_frame_with_the_credentials(
    mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transport's variables contain the data that it failed to write."""
    original = MemoryTransport.writelines
    failed = []

    def fail(transport: Any, data: Any) -> None:
        original(transport, [])
        pieces = [bytes(piece) for piece in data]
        if any(PASSWORD.encode() in piece or b"n,,n=me" in piece for piece in pieces):
            failed.append(pieces)
            library(pieces)
        original(transport, pieces)

    def library(list_of_data: Any) -> None:
        names: dict[str, Any] = {}
        source = "def writelines(list_of_data):\n    raise RuntimeError('handler is closed')"
        exec(compile(source, "uvloop", "exec"), names)
        names["writelines"](list_of_data)

    monkeypatch.setattr(MemoryTransport, "writelines", fail)

    async def main() -> None:
        network = MemoryNetwork()
        SaslBroker(
            network,
            PLAIN=lambda: PlainServer({"me": PASSWORD}),
            SCRAM_SHA_256=lambda: ScramServer({"me": PASSWORD}, "sha256"),
        )
        made = new_producer(
            network, sasl_mechanism=mechanism, sasl_username="me", sasl_password=PASSWORD
        )
        with pytest.raises(KafkaError) as caught:
            await made.send("t", b"v", timeout=2.0)
        await made.close(0)
        assert failed
        sent = [piece.decode("latin-1") for pieces in failed for piece in pieces if piece]
        assert found_in_frames(caught.value, PASSWORD, *sent) == []

    virtual.run(main)
