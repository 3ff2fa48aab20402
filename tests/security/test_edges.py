"""Rejections and fallbacks of the security settings that do not occur in an exchange with a
broker."""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
import stat
import sys
import tempfile
from pathlib import Path
from ssl import SSLEOFError, VerifyMode
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from aiokprod import AuthenticationError, ConfigError, Secret
from aiokprod._net.sasl.aws_msk_iam import AwsMskIam
from aiokprod._net.sasl.oauthbearer import OAuthBearer
from aiokprod._net.tls import TlsContexts, tls_failure
from aiokprod._security.msk_iam import AwsCredentials, MskIamTokens, botocore_credentials
from aiokprod.config import ProducerConfig
from tests.security.certs import Authority

AUTHORITY = Authority("edges CA", 70)
CLIENT = AUTHORITY.issue("client", number=71, client=True)
PEM = AUTHORITY.pem


def config(**settings: Any) -> ProducerConfig:
    return ProducerConfig(bootstrap_servers="b:1", security_protocol="SSL", **settings)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"ssl_truststore_location": 5}, "ssl_truststore_location=5: use the path of a PEM file"),
        ({"ssl_truststore_location": b"ca.pem"}, "use the path of a PEM file"),
        ({"ssl_truststore_location": ""}, "use the path of a PEM file"),
        ({"ssl_truststore_location": "a\0b"}, "use the path of a PEM file"),
        ({"ssl_truststore_location": PEM}, "takes the path of a file, not PEM text"),
        ({"ssl_truststore_certificates": 5}, "use PEM text with BEGIN CERTIFICATE"),
        ({"ssl_truststore_certificates": "canary"}, "use PEM text with BEGIN CERTIFICATE"),
        ({"ssl_truststore_certificates": CLIENT.chain + CLIENT.key()}, "contains a private key"),
        ({"ssl_context": "text"}, "ssl_context: use an object of SSLContext"),
        ({"ssl_endpoint_identification_algorithm": "http"}, 'use "https", or ""'),
        (
            {
                "ssl_context": ssl.create_default_context(),
                "ssl_endpoint_identification_algorithm": "",
            },
            "ssl_context excludes ssl_endpoint_identification_algorithm",
        ),
        (
            {"ssl_context": ssl.create_default_context(), "ssl_truststore_location": "ca.pem"},
            "ssl_context excludes ssl_truststore_location",
        ),
        ({"ssl_context": ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)}, "is for servers"),
        (
            {"ssl_truststore_location": "ca.pem", "ssl_truststore_certificates": PEM},
            "exclude each other",
        ),
        ({"ssl_key_location": "key.pem"}, "needs the client certificate"),
        ({"ssl_keystore_certificate_chain": CLIENT.chain}, "needs ssl_keystore_key"),
        ({"ssl_key_password": "canary-p"}, "has no key to decrypt"),
        ({"sasl_kerberos_service_name": "other"}, "has no effect without sasl_mechanism='GSSAPI'"),
        ({"sasl_credentials": "text"}, "use an object of Credentials"),
        ({"sasl_token_provider": 5}, "use an async callable"),
    ],
)  # fmt: skip
def test_security_setting_that_cannot_be_meant_is_refused_without_its_value(
    settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**settings)
    assert text in str(caught.value)
    assert "canary" not in str(caught.value)
    assert "PRIVATE" not in str(caught.value)


def test_security_settings_of_a_mapping_are_parsed() -> None:
    made = ProducerConfig.from_mapping({
        "bootstrap.servers": "b:1",
        "security.protocol": "SSL",
        "ssl.truststore.certificates": PEM,
        "ssl.keystore.certificate.chain": CLIENT.chain,
        "ssl.keystore.key": CLIENT.key(),
        "ssl.endpoint.identification.algorithm": " HTTPS ",
    })  # fmt: skip
    assert made.ssl_truststore_certificates == PEM
    assert made.ssl_endpoint_identification_algorithm == "https"
    for key, kind in (("ssl.context", "SSLContext"), ("sasl.credentials", "Credentials")):
        with pytest.raises(ConfigError, match=kind):
            ProducerConfig.from_mapping({"bootstrap.servers": "b:1", key: "text"})
    with pytest.raises(ConfigError, match="async callable"):
        ProducerConfig.from_mapping({"bootstrap.servers": "b:1", "sasl.token.provider": "text"})


@pytest.mark.parametrize(
    ("verify", "text"),
    [
        (ssl.CERT_NONE, "does not verify certificates: anyone can be the broker"),
        (ssl.CERT_REQUIRED, "does not check host names"),
    ],
)
def test_context_that_is_weaker_than_the_default_is_warned_of(
    verify: VerifyMode, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = verify
    TlsContexts(config(ssl_context=context))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert text in caplog.text


def test_key_password_that_cannot_be_had_is_named_and_the_file_is_told(tmp_path: Path) -> None:
    contexts = TlsContexts(
        config(
            ssl_keystore_certificate_chain=CLIENT.chain,
            ssl_keystore_key=CLIENT.key("canary-password"),
            ssl_key_password=Secret.from_file(tmp_path / "missing"),
        )
    )
    with pytest.raises(AuthenticationError, match=r"TLS: Secret.from_file\(.*cannot be read"):
        asyncio.run(contexts.get())


def test_revocation_list_that_vanishes_between_look_and_use_is_a_refusal(tmp_path: Path) -> None:
    path = tmp_path / "crl.pem"
    path.write_text(AUTHORITY.revocation_list())
    contexts = TlsContexts(config(ssl_crl_location=path))
    contexts._sign = lambda: ()  # type: ignore[method-assign]
    path.unlink()
    with pytest.raises(
        AuthenticationError,
        match=r"cannot use the revocation lists \(ssl_crl_location\): No such file",
    ):
        asyncio.run(contexts.get())


def test_client_key_where_memory_files_do_not_exist_is_readable_by_its_user_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The file with the key is deleted immediately after the context has loaded it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delattr(os, "memfd_create")
    modes: list[int] = []
    load = ssl.SSLContext.load_cert_chain

    def look_and_load(context: Any, chain: str, key: str, password: Any) -> None:
        modes.extend(stat.S_IMODE(os.stat(file).st_mode) for file in (chain, key))
        load(context, chain, key, password)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", look_and_load)
    contexts = TlsContexts(
        config(ssl_keystore_certificate_chain=CLIENT.chain, ssl_keystore_key=CLIENT.key())
    )
    assert isinstance(asyncio.run(contexts.get()), ssl.SSLContext)
    assert modes == [0o600, 0o600]
    assert list(tmp_path.iterdir()) == []


def test_without_a_truststore_the_authorities_of_the_system_are_trusted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    system = tmp_path / "system.pem"
    system.write_text(PEM)
    monkeypatch.setenv("SSL_CERT_FILE", str(system))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "nothing"))
    (authority,) = asyncio.run(TlsContexts(config()).get()).get_ca_certs()
    subject = authority["subject"]
    assert subject == ((("commonName", "edges CA"),),)


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("WRONG_VERSION_NUMBER", "TLS with 'b': the port does not use TLS"),
        ("TLSV1_ALERT_DECODE_ERROR", "TLS with 'b' failed: tlsv1 alert decode error"),
        (None, "TLS with 'b' failed: sslerror"),
    ],
)
def test_reason_of_a_failed_handshake_is_told_in_words(reason: str | None, text: str) -> None:
    error: Any = ssl.SSLError(1, "text of OpenSSL")
    error.reason = reason
    failure = tls_failure(error, "b")
    assert failure is not None
    assert text.lower() in str(failure).lower()


@pytest.mark.parametrize("error", [OSError(errno.ECONNRESET, "x"), ssl.SSLEOFError(8, "EOF")])
def test_connection_that_ends_in_the_handshake_is_no_refusal(
    error: ConnectionResetError | SSLEOFError,
) -> None:
    assert tls_failure(error, "b") is None


def test_certificate_error_without_a_message_is_still_a_refusal() -> None:
    error = ssl.SSLCertVerificationError(1, "x")
    error.verify_message = ""
    assert "refused: unknown reason" in str(tls_failure(error, "b"))


# -- token providers ------------------------------------------------------------------------------


def test_aws_credentials_are_those_that_botocore_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    session = ModuleType("botocore.session")
    session.get_session = lambda: SimpleNamespace(  # type: ignore[attr-defined]
        get_credentials=lambda: found[0] if found else None
    )
    monkeypatch.setitem(sys.modules, "botocore", ModuleType("botocore"))
    monkeypatch.setitem(sys.modules, "botocore.session", session)
    with pytest.raises(ConfigError, match="finds no AWS credentials"):
        botocore_credentials()
    for token in (None, "canary-session"):
        frozen = SimpleNamespace(access_key="AK", secret_key="canary-key", token=token)
        found[:] = [SimpleNamespace(get_frozen_credentials=lambda frozen=frozen: frozen)]
        expected = AwsCredentials(
            "AK", Secret("canary-key"), None if token is None else Secret(token)
        )
        assert botocore_credentials() == expected
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(ConfigError, match="botocore is not installed"):
        botocore_credentials()


def test_credentials_function_that_fails_is_told_by_its_class_only() -> None:
    def fails() -> AwsCredentials:
        raise RuntimeError("canary-key")

    with pytest.raises(AuthenticationError, match=r"MskIamTokens.token failed with RuntimeError$"):
        asyncio.run(MskIamTokens("eu-west-1", fails).token())


class Refusing:
    async def payload(self, host: str) -> dict[str, str]:
        raise AuthenticationError("no credentials today")

    token = payload


def test_refusal_of_a_token_provider_keeps_its_own_words() -> None:
    with pytest.raises(AuthenticationError, match=r"^no credentials today$"):
        asyncio.run(AwsMskIam(Refusing(), "b").first())

    async def refuses() -> str:
        raise AuthenticationError("no token today")

    with pytest.raises(AuthenticationError, match=r"^no token today$"):
        asyncio.run(OAuthBearer(refuses, lambda: 0).first())


def test_aws_msk_iam_names_every_user_the_same_and_masks_what_it_signed() -> None:
    credentials = AwsCredentials("AK", "canary-key", "canary-session")  # type: ignore[arg-type]
    exchange = AwsMskIam(MskIamTokens("eu-west-1", credentials), "b")
    assert exchange.secrets() == ()
    asyncio.run(exchange.first())
    assert exchange.same_user()
    assert len(exchange.secrets()) == 2
    assert "canary-session" in exchange.secrets()


@pytest.mark.parametrize(
    "challenge",
    [
        b"no json",
        b"[]",
        b'"text"',
        b"[" * 100_000,
        b'{"status": 5}',
        b'{"status":"\xff"}',
        b'{"status": "bad\\nline"}',
        b"{}",
    ],
)
def test_oauthbearer_refusal_without_a_plain_status_is_one_all_the_same(challenge: bytes) -> None:
    async def main() -> None:
        exchange = OAuthBearer(lambda: asyncio.sleep(0, "canary.token"), lambda: 0)
        await exchange.first()
        assert await exchange.next(challenge) == b"\x01"
        with pytest.raises(AuthenticationError, match=r"the broker refused the token$"):
            await exchange.next(b"")

    asyncio.run(main())


@pytest.mark.parametrize("claims", ["!!!", "W10", "e30", "bnVsbA", "eyJleHAiOiAidGV4dCJ9"])
def test_jwt_whose_expiry_cannot_be_read_is_sent(claims: str) -> None:
    """The broker decides whether the token is valid."""
    token = f"e30.{claims}.c2ln".replace("!!!", "A")
    exchange = OAuthBearer(lambda: asyncio.sleep(0, token), lambda: 1)
    assert token.encode() in asyncio.run(exchange.first())
