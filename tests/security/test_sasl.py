"""S4 to S8, S10 to S12, F78, F79: SASL with a correct and a hostile broker, in virtual time."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import importlib.util
import json
import logging
import os
import pickle
import random
import re
import subprocess
import sys
import tarfile
import threading
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import jwt
import pytest

from aiokprod import (
    AuthenticationError,
    ConfigError,
    Credentials,
    KafkaError,
    Outcome,
    Producer,
    Secret,
)
from aiokprod._net.authentication import AuthTask
from aiokprod._net.sasl.authenticator import SaslAuthenticator, without_secrets
from aiokprod._net.sasl.oauthbearer import OAuthBearer
from aiokprod._net.sasl.plain import Plain
from aiokprod._net.sasl.scram import KeyCache, Scram
from aiokprod._net.tls import TlsContexts
from aiokprod._security.http_exchange import HttpExchange
from aiokprod._security.jwt_bearer import JwtBearerTokens
from aiokprod._wire.messages.api_versions import ApiVersionsRequest
from aiokprod._wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)
from aiokprod._wire.messages.sasl_authenticate import SaslAuthenticateResponse
from aiokprod._wire.messages.sasl_handshake import SaslHandshakeResponse
from aiokprod.config import ProducerConfig
from aiokprod.environment import Environment
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.memory import MemoryNetwork
from tests.current import current
from tests.net.scripted_broker import METADATA, ConnectionHarness
from tests.net.wire_helpers import ALL_VERSIONS, versions_answer
from tests.security.certs import Authority, key_pem
from tests.security.sasl_broker import (
    AUTHENTICATE,
    HANDSHAKE,
    BearerServer,
    PlainServer,
    SaslBroker,
    ScramServer,
    new_producer,
)
from tests.virtual_time import in_virtual_time

USER, PASSWORD = "al,i=ce", "canary-pässword"
USERS = {USER: PASSWORD}
TOKEN = "canary.token-0"
LOGIN = {"sasl_username": USER, "sasl_password": PASSWORD}
IN_TIME = 10.0


def honest(network: MemoryNetwork, **fields: Any) -> SaslBroker:
    return SaslBroker(
        network,
        PLAIN=lambda: PlainServer(USERS),
        SCRAM_SHA_256=lambda: ScramServer(USERS, "sha256"),
        SCRAM_SHA_512=lambda: ScramServer(USERS, "sha512"),
        OAUTHBEARER=lambda: BearerServer({TOKEN}),
        **fields,
    )


async def give_token() -> str:
    return TOKEN


def settings_for(mechanism: str) -> dict[str, Any]:
    if mechanism == "OAUTHBEARER":
        return {"sasl_mechanism": mechanism, "sasl_token_provider": give_token}
    return {"sasl_mechanism": mechanism, **LOGIN}


MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]


async def connected(made: Any) -> None:
    with pytest.raises(KafkaError) as caught:
        await made.send("t", b"v", timeout=2.0)
    assert not isinstance(caught.value, AuthenticationError), caught.value


async def refused(made: Any, text: str = "") -> AuthenticationError:
    """Check that every waiting call gets an AuthenticationError within the setup timeout, and
    return the first error."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    found: list[Any] = await asyncio.gather(
        *(made.send("t", b"v", timeout=60.0) for _ in range(5)), return_exceptions=True
    )
    assert loop.time() - started <= IN_TIME + 0.1
    for error in found:
        assert isinstance(error, AuthenticationError), repr(error)
        assert error.outcome is Outcome.NOT_SENT
        assert text in str(error)
        assert "canary" not in "".join(traceback.format_exception(error))
    first: AuthenticationError = found[0]
    return first


# -- the correct broker ---------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
@in_virtual_time
async def test_mechanism_with_right_credentials_connects(mechanism: str) -> None:
    network = MemoryNetwork()
    broker = honest(network)
    made = new_producer(network, **settings_for(mechanism))
    await connected(made)
    assert broker.count(3) >= 1
    assert len(broker.exchanges) == 1
    await made.close(0)


@in_virtual_time
async def test_delegation_token_is_announced_as_scram_extension() -> None:
    network = MemoryNetwork()
    broker = honest(network)
    made = new_producer(network, sasl_delegation_token=True, **settings_for("SCRAM-SHA-512"))
    await connected(made)
    assert broker.exchanges[0].extensions == {"tokenauth": "true"}
    await made.close(0)


@in_virtual_time
async def test_s11_separators_in_scram_names_are_escaped() -> None:
    network = MemoryNetwork()
    broker = honest(network)
    made = new_producer(network, **settings_for("SCRAM-SHA-256"))
    await connected(made)
    assert broker.sent[0].startswith(b"n,,n=al=2Ci=3Dce,r=")
    await made.close(0)


@pytest.mark.parametrize("where", ["sasl_username", "sasl_password"])
@in_virtual_time
async def test_s11_nul_in_plain_credentials_is_never_sent(where: str) -> None:
    network = MemoryNetwork()
    broker = honest(network)
    values: dict[str, Any] = {"sasl_username": "u", "sasl_password": "canary-p"}
    if where == "sasl_username":
        values = {"sasl_credentials": Credentials("a\0b", "canary-p")}
    else:
        values["sasl_password"] = "canary-a\0b"
    made = new_producer(network, sasl_mechanism="PLAIN", **values)
    await refused(made, "NUL")
    assert broker.sent == []
    await made.close(0)


# -- S4: wrong credentials ------------------------------------------------------------------------


async def wrong_token() -> str:
    return "canary-wrong-token"


def wrong_settings(mechanism: str) -> dict[str, Any]:
    if mechanism == "OAUTHBEARER":
        return {"sasl_mechanism": mechanism, "sasl_token_provider": wrong_token}
    return {"sasl_mechanism": mechanism, "sasl_username": USER, "sasl_password": "canary-wrong"}


@pytest.mark.parametrize("mechanism", MECHANISMS)
@in_virtual_time
async def test_s4_wrong_credentials_reach_all_waiters_and_obey_the_backoff(mechanism: str) -> None:
    network = MemoryNetwork()
    honest(network)
    made = new_producer(
        network,
        reconnect_backoff_ms=1_000,
        reconnect_backoff_max_ms=8_000,
        **wrong_settings(mechanism),
    )
    await refused(made, mechanism)
    await asyncio.sleep(60.0)
    assert len(network.dials) <= 14  # 1, 2, 4, 8, 8, … s, each less 20 %
    await made.close(0)


@in_virtual_time
async def test_s4_unknown_mechanism_names_what_is_offered() -> None:
    network = MemoryNetwork()
    SaslBroker(network, GSSAPI=lambda: None)
    made = new_producer(network, **settings_for("SCRAM-SHA-512"))
    await refused(made, "does not offer SCRAM-SHA-512 (it offers GSSAPI)")
    await made.close(0)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@in_virtual_time
async def test_f79_credentials_replaced_at_run_time_heal(mechanism: str) -> None:
    network = MemoryNetwork()
    honest(network)
    credentials = Credentials(USER, "canary-old")
    made = new_producer(network, sasl_mechanism=mechanism, sasl_credentials=credentials)
    await refused(made)
    credentials.replace(USER, PASSWORD)
    await asyncio.sleep(2.0)
    await connected(made)
    await made.close(0)


@in_virtual_time
async def test_f79_rotated_password_file_counts_at_the_next_connection(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("canary-old\n")
    network = MemoryNetwork()
    honest(network)
    made = new_producer(
        network,
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username=USER,
        sasl_password=Secret.from_file(path),
    )
    await refused(made)
    path.write_text(PASSWORD + "\n")
    await asyncio.sleep(2.0)
    await connected(made)
    path.unlink()
    network.links[-1].reset()
    await refused(made, "cannot be read")
    await made.close(0)


# -- S5: a hostile SCRAM server -------------------------------------------------------------------


def forged(text: str) -> str:
    return "v=" + base64.b64encode(bytes(64 if len(text) > 80 else 32)).decode()


SPOILT_FIRST: dict[str, tuple[Callable[[str], str], str]] = {
    "nonce-not-ours": (lambda text: "r=stranger" + text[2:], "nonce"),
    "nonce-only-ours": (lambda text: text.replace("SERVERPART", ""), "nonce"),
    "nonce-empty": (lambda text: "r=," + text.partition(",")[2], "malformed"),
    "nonce-unprintable": (lambda text: text.replace("SERVERPART", "\x01\x7f"), "characters"),
    "extension": (lambda text: "m=must," + text, "extension"),
    "few-iterations": (lambda text: text.replace("i=4096", "i=4095"), "4095 iterations"),
    "many-iterations": (lambda text: text.replace("i=4096", "i=1000001"), "1000001 iterations"),
    "absurd-iterations": (lambda text: text.replace("i=4096", "i=" + "9" * 40), "malformed"),
    "negative-iterations": (lambda text: text.replace("i=4096", "i=-1"), "malformed"),
    "no-iterations": (lambda text: text.partition(",i=")[0], "malformed"),
    "empty-salt": (lambda text: text.partition(",s=")[0] + ",s=,i=4096", "salt"),
    "salt-not-base64": (lambda text: text.partition(",s=")[0] + ",s=%%,i=4096", "base64"),
    "final-before-first": (lambda text: "v=rmF9pqV8S7suAoZWja4dJRkFsKQ=", "malformed"),
    "error": (lambda text: "e=other-error canary", "refused"),
    "empty": (lambda text: "", "malformed"),
    "too-long": (lambda text: text + ",x=" + "y" * 10_000, "too long"),
    "not-utf-8": (lambda text: "\udcff", "UTF-8"),
    "order": (lambda text: "i=4096,s=c2FsdA==," + text.partition(",")[0], "malformed"),
}
SPOILT_FINAL: dict[str, tuple[Callable[[str], str], str]] = {
    "forged-signature": (forged, "proof is wrong"),
    "short-signature": (lambda text: text[:10] + "==", "proof is wrong|base64"),
    "no-signature": (lambda text: "", "did not prove"),
    "other-attribute": (lambda text: "x" + text, "did not prove"),
    "not-base64": (lambda text: "v=%", "base64"),
    "empty-signature": (lambda text: "v=", "proof is wrong"),
    "error": (lambda text: "e=invalid-proof", "refused"),
}


@pytest.mark.parametrize("digest", ["sha256", "sha512"])
@pytest.mark.parametrize(
    ("step", "case"),
    [*(("first", case) for case in SPOILT_FIRST), *(("final", case) for case in SPOILT_FINAL)],
)
@in_virtual_time
async def test_s5_hostile_scram_server_is_refused(digest: str, step: str, case: str) -> None:
    spoil, text = (SPOILT_FIRST if step == "first" else SPOILT_FINAL)[case]
    network = MemoryNetwork()
    name = "SCRAM-SHA-" + digest[3:]
    broker = SaslBroker(network)
    broker.mechanisms[name] = lambda: ScramServer(USERS, digest, spoil={step: spoil})
    made = new_producer(network, **settings_for(name))
    error = await refused(made)
    assert any(part in str(error) for part in text.split("|")), str(error)
    assert broker.count(3) == 0
    if step == "first":
        assert len(broker.sent) == 1  # the client sent no proof
    await made.close(0)


@in_virtual_time
async def test_s5_broker_that_skips_the_proof_is_refused() -> None:
    """A success without a server signature must be rejected."""
    network = MemoryNetwork()
    broker = honest(network)
    broker.answers[AUTHENTICATE] = lambda header, message: SaslAuthenticateResponse()
    made = new_producer(network, **settings_for("SCRAM-SHA-256"))
    await refused(made, "malformed")
    await made.close(0)


# Slow functions by owner and name. None of them may be called on the event loop's thread.
HEAVY = [
    (hashlib, "pbkdf2_hmac"),  # key derivation of SCRAM
    (TlsContexts, "_build"),  # reads and parses certificates
    (TlsContexts, "_sign"),  # checks for changed files
    (Secret, "_read"),  # reads secrets from files
    (HttpExchange, "_run"),  # requests to the OpenID Connect provider
    (jwt, "encode"),  # signs assertions
]


def test_s5_what_takes_long_in_authentication_is_done_off_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test counts calls by thread. benchmarks.authentication measures how long they block the
    loop."""
    calls: dict[str, set[str]] = {}

    def watched(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            calls.setdefault(name, set()).add(threading.current_thread().name)
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, call)

    authority = Authority("loop CA", 30)
    ca, key = tmp_path / "ca.pem", tmp_path / "key.pem"
    ca.write_text(authority.pem)
    key.write_text(key_pem(31))
    (tmp_path / "password").write_text("canary-password")
    config = ProducerConfig(
        bootstrap_servers="b:1", security_protocol="SSL", ssl_truststore_location=str(ca)
    )

    async def main() -> None:
        await TlsContexts(config).get()
        credentials = Credentials("u", Secret.from_file(tmp_path / "password"))
        exchange = Scram("SCRAM-SHA-512", credentials, KeyCache(), nonce=lambda: "ours")
        await exchange.first()
        await exchange.next(b"r=ourstheirs,s=c2FsdA==,i=1000000")
        with pytest.raises(AuthenticationError, match="iterations"):
            await Scram("SCRAM-SHA-512", credentials, KeyCache(), nonce=lambda: "ours").next(
                b"r=ourstheirs,s=c2FsdA==,i=1000001"
            )
        tokens = JwtBearerTokens(
            "https://127.0.0.1:1/token",
            key=Secret.from_file(key),
            algorithm="ES256",
            issuer="i",
            subject="s",
            audience="a",
        )
        with pytest.raises(AuthenticationError, match="the request failed"):
            await tokens.token()

    for owner, name in HEAVY:
        watched(owner, name)
    asyncio.run(main())
    assert calls.keys() == {name for _, name in HEAVY}
    for name, threads in calls.items():
        assert threading.main_thread().name not in threads, name


# -- S6: never weaker than configured -------------------------------------------------------------


@pytest.mark.parametrize("answered", ["error", "none"])
@in_virtual_time
async def test_s6_broker_that_lists_only_plain_gets_no_password(answered: str) -> None:
    network = MemoryNetwork()
    broker = SaslBroker(network, PLAIN=lambda: PlainServer(USERS))
    if answered == "none":
        broker.answers[HANDSHAKE] = lambda header, message: SaslHandshakeResponse(
            mechanisms=["PLAIN"]
        )
    made = new_producer(network, **settings_for("SCRAM-SHA-512"))
    await refused(made, "does not offer SCRAM-SHA-512 (it offers PLAIN)")
    assert broker.sent == []
    await made.close(0)


@pytest.mark.parametrize(
    "ranges",
    [
        {key: both for key, both in ALL_VERSIONS.items() if key not in (17, 36)},
        {key: both for key, both in ALL_VERSIONS.items() if key != 36},
        ALL_VERSIONS | {17: (0, 0)},
    ],
    ids=["no-sasl", "no-authenticate", "handshake-0"],
)
@in_virtual_time
async def test_s6_stripped_api_versions_are_refused(ranges: dict[int, tuple[int, int]]) -> None:
    network = MemoryNetwork()
    broker = honest(network)
    broker.answers[ApiVersionsRequest.api_key] = lambda header, message: versions_answer(ranges)
    made = new_producer(network, **settings_for("PLAIN"))
    await refused(made, "SASL")
    assert broker.sent == []
    await made.close(0)


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER"])
def test_s6_cleartext_needs_an_explicit_flag(mechanism: str) -> None:
    settings = {"security_protocol": "SASL_PLAINTEXT", **settings_for(mechanism)}
    with pytest.raises(ConfigError, match="sasl_allow_cleartext=True"):
        ProducerConfig(bootstrap_servers="b:1", **settings)
    ProducerConfig(bootstrap_servers="b:1", sasl_allow_cleartext=True, **settings)
    ProducerConfig(bootstrap_servers="b:1", **settings | {"security_protocol": "SASL_SSL"})


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"security_protocol": "SASL_SSL"}, "needs sasl_mechanism"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}, "needs sasl_username and"),
        (
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_username": "u"},
            "needs sasl_password",
        ),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}, "token_provider"),
        ({"security_protocol": "SSL", **LOGIN}, "no effect"),
        ({"ssl_truststore_location": "ca.pem"}, "no effect"),
        ({"sasl_mechanism": "PLAIN"}, "no effect"),
        (
            {"security_protocol": "SASL_SSL", **settings_for("OAUTHBEARER"), **LOGIN},
            "no effect",
        ),
        (
            {
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "PLAIN",
                "sasl_credentials": Credentials("u", "canary-p"),
                **LOGIN,
            },
            "excludes",
        ),
        ({"security_protocol": "SSL", "ssl_key_location": "k"}, "needs the client certificate"),
        ({"security_protocol": "SSL", "ssl_key_password": "k"}, "no key"),
        (
            {
                "security_protocol": "SSL",
                "ssl_truststore_location": "a",
                "ssl_truststore_certificates": "-----BEGIN CERTIFICATE-----",
            },
            "exclude each other",
        ),
        ({"security_protocol": "SSL", "ssl_truststore_certificates": "x"}, "PEM text"),
        (
            {"security_protocol": "SSL", "ssl_truststore_location": "-----BEGIN CERTIFICATE"},
            "path of a file",
        ),
        ({"security_protocol": "SSL", "ssl_context": "x"}, "SSLContext"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "DIGEST-MD5"}, "use one of"),
        (
            {
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "AWS_MSK_IAM",
                "sasl_token_provider": give_token,
            },
            "MskIamTokens",
        ),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "AWS_MSK_IAM"}, "token_provider"),
        (
            {
                "security_protocol": "SASL_SSL",
                "sasl_kerberos_keytab": "/k",
                **settings_for("PLAIN"),
            },
            "no effect",
        ),
        ({"sasl_kerberos_principal": "a@B"}, "no effect"),
        ({"sasl_kerberos_service_name": "other"}, "no effect"),
        (
            {
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "GSSAPI",
                "sasl_kerberos_service_name": "kafka/host@REALM",
            },
            "before the /",
        ),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI", **LOGIN}, "no effect"),
        ({"ssl_endpoint_identification_algorithm": "none"}, '"https"'),
        (
            {
                "security_protocol": "SASL_SSL",
                "sasl_delegation_token": True,
                **settings_for("PLAIN"),
            },
            "SCRAM",
        ),
    ],
)
def test_s6_settings_that_contradict_or_lack_something_are_refused(
    settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        ProducerConfig(bootstrap_servers="b:1", **settings)
    assert text in str(caught.value)
    assert "canary" not in str(caught.value)


# -- S8: canaries ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
@in_virtual_time
async def test_s8_broker_that_tells_our_secret_back_does_not_get_it_into_texts(
    mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    network = MemoryNetwork()
    broker = honest(network)
    secret = TOKEN if mechanism == "OAUTHBEARER" else PASSWORD
    broker.answers[AUTHENTICATE] = lambda header, message: SaslAuthenticateResponse(
        error_code=58, error_message=f"bad {secret}\r\nforged line " + "x" * 10_000
    )
    made = new_producer(network, **settings_for(mechanism))
    error = await refused(made, "bad ***")
    assert "\n" not in str(error)
    assert len(str(error)) < 600
    shown = repr(made) + repr(made.explain()) + repr(made.health()) + repr(made.metrics())
    shown += "".join(repr(task) for task in asyncio.all_tasks())
    assert "canary" not in shown
    assert "canary" not in caplog.text
    await made.close(0)


ENCODINGS: dict[str, Callable[[bytes], bytes]] = {
    "base64": lambda data: base64.b64encode(data),
    "base64 of more": lambda data: base64.b64encode(b"x" + data + b"tail"),
    "base64 of PLAIN": lambda data: base64.b64encode(b"\0me\0" + data),
    "base64 for URLs": lambda data: base64.urlsafe_b64encode(data),
    "hex": lambda data: data.hex().encode(),
    "HEX": lambda data: data.hex().upper().encode(),
    "percent": lambda data: quote(data).encode(),
    "form": lambda data: quote_plus(data).encode(),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_s8_broker_that_tells_our_secret_back_encoded_does_not_get_it_into_texts(
    encoding: str,
) -> None:
    for secret in ("canary pass?>word/ü", "p%Q7", "ü" * 40):
        told = ENCODINGS[encoding](secret.encode()).decode()
        assert without_secrets(f"bad login {told}!", [secret]) == "***"
        assert without_secrets(f"bad {secret}", ["other", secret]) == "bad ***"
    assert without_secrets("invalid username or password", ["canary", "pw", "x"]) == (
        "invalid username or password"
    )


@pytest.mark.canary_is_text  # tests the mechanism alone, without its wrapper
@pytest.mark.parametrize(
    "mechanism",
    [Plain, lambda credentials: Scram("SCRAM-SHA-256", credentials, KeyCache())],
    ids=["PLAIN", "SCRAM"],
)
def test_user_of_an_exchange_is_the_one_it_named(
    mechanism: Callable[..., Any] | type[Plain],
) -> None:
    """After the credentials were replaced by those of another user, they cannot renew a session
    (KIP-368)."""
    credentials = Credentials("u", PASSWORD)
    exchange = mechanism(credentials)
    assert not exchange.same_user(), "it has named none yet"
    assert exchange.secrets() == ()
    asyncio.run(exchange.first())
    assert exchange.same_user()
    assert exchange.secrets() == (PASSWORD,)
    credentials.replace("u", "rotated")
    assert exchange.same_user()
    assert exchange.secrets() == (PASSWORD,), "what was sent is what must not be shown"
    credentials.replace("v", "rotated")
    assert not exchange.same_user()


def test_authenticator_makes_one_exchange_for_each_authentication() -> None:
    made: list[Plain] = []

    def new_mechanism() -> Plain:
        made.append(Plain(Credentials("u", PASSWORD)))
        return made[-1]

    authenticator = SaslAuthenticator("broker b", new_mechanism)
    assert made == []
    for number in (1, 2):
        authenticator.start({17: (0, 1), 36: (0, 2)})
        assert len(made) == number


def test_s8_broker_that_lists_our_secret_as_a_mechanism_does_not_get_it_into_texts() -> None:
    """At a re-authentication the broker already has the password."""
    authenticator = SaslAuthenticator("broker b", lambda: Plain(Credentials("u", PASSWORD)))
    versions = {17: (0, 1), 36: (0, 2)}

    async def exchange() -> None:
        authenticator.start(versions)
        step = authenticator.receive(SaslHandshakeResponse(0, ["PLAIN"]))
        assert isinstance(step, AuthTask)
        await step.run()

    asyncio.run(exchange())
    authenticator.start(versions)
    with pytest.raises(AuthenticationError, match=r"offers \*\*\*, SCRAM") as caught:
        authenticator.receive(SaslHandshakeResponse(0, [PASSWORD, "SCRAM-SHA-256"]))
    assert PASSWORD not in str(caught.value)


@pytest.mark.canary_is_text  # tests the mechanism alone, without its wrapper
def test_s8_scram_error_of_the_broker_is_told_if_the_standard_knows_it() -> None:
    """A password of lower-case letters matches the grammar of error names."""
    for sent, told in (("unknown-user", "unknown-user"), ("letmein-please", "unknown reason")):
        exchange = Scram("SCRAM-SHA-256", Credentials("u", "letmein-please"), KeyCache())
        with pytest.raises(AuthenticationError, match=f"the broker refused: {told}$"):
            asyncio.run(exchange.next(f"e={sent}".encode()))


def test_s8_oauthbearer_status_that_is_our_token_is_not_told() -> None:
    async def main() -> None:
        exchange = OAuthBearer(lambda: asyncio.sleep(0, "canaryToken"), lambda: 0)
        await exchange.first()
        assert await exchange.next(b'{"status":"canaryToken"}') == b"\x01"
        with pytest.raises(AuthenticationError, match=r"refused the token: \*\*\*$"):
            await exchange.next(b"")

    asyncio.run(main())


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_s8_debug_mode_of_asyncio_logs_no_secret(
    mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Debug mode logs callbacks with their arguments, and results of futures. In this test it logs
    all of them."""
    caplog.set_level(logging.DEBUG)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_debug(True)
        loop.slow_callback_duration = 0.0
        network = MemoryNetwork()
        honest(network)
        made = new_producer(network, **settings_for(mechanism))
        await connected(made)
        await made.close(0)

    in_virtual_time(main)()
    secret = TOKEN if mechanism == "OAUTHBEARER" else PASSWORD
    logged = [record.getMessage() for record in caplog.records if record.name == "asyncio"]
    assert any("aiokprod-authenticate" in text for text in logged)
    assert not [text for text in logged if secret in text]


def test_s8_secret_shows_itself_nowhere() -> None:
    secret = Secret("canary")
    for shown in (
        repr(secret), str(secret), f"{secret}", f"{secret:>20}", f"{[secret]}",
        repr(pickle.dumps(secret)), repr(Credentials("u", "canary")),
    ):  # fmt: skip
        assert "canary" not in shown
    assert not hasattr(secret, "__dict__")
    with pytest.raises(TypeError):
        json.dumps(secret)
    with pytest.raises(TypeError):
        list(secret)
    assert secret.reveal() == "canary"
    assert secret == Secret("canary") != Secret("other")
    with pytest.raises(ConfigError, match="was pickled"):
        pickle.loads(pickle.dumps(secret)).reveal()


def test_s8_secret_by_reference_survives_pickling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "secret"
    path.write_text("one\n")
    monkeypatch.setenv("AIOKPROD_TEST", "two")
    by_file = pickle.loads(pickle.dumps(Secret.from_file(path)))
    by_name = pickle.loads(pickle.dumps(Secret.from_env("AIOKPROD_TEST")))
    assert (by_file.reveal(), by_name.reveal()) == ("one", "two")
    path.write_text("")
    for empty in (by_file, Secret.from_env("AIOKPROD_NO_SUCH"), Secret.from_file("/nowhere")):
        with pytest.raises(ConfigError):
            empty.reveal()
    wrong: Any
    for wrong in ("", b"x", None):
        with pytest.raises(ConfigError):
            Secret(wrong)


# -- S10: broken frames ---------------------------------------------------------------------------


@pytest.mark.parametrize("garbage", [b"\x7f\xff\xff\xff", b"\x00\x20\x00\x00", b"HTTP/1.1 400"])
@in_virtual_time
async def test_s10_garbage_during_authentication_closes_at_once(garbage: bytes) -> None:
    network = MemoryNetwork()
    broker = honest(network)

    def spoil(header: Any, message: Any) -> None:
        broker.sessions[-1].transport.write(garbage)

    broker.answers[AUTHENTICATE] = spoil
    made = new_producer(network, **settings_for("SCRAM-SHA-256"))
    with pytest.raises(KafkaError):
        await made.send("t", b"v", timeout=3.0)
    assert broker.count(3) == 0
    assert len(network.dials) > 1
    await made.close(0)


@in_virtual_time
async def test_f61_wrong_correlation_id_during_authentication_closes() -> None:
    network = MemoryNetwork()
    broker = honest(network)

    def wrong(header: Any, message: Any) -> None:
        header = type(header)(
            header.request_api_key, header.request_api_version, header.correlation_id + 7, "c"
        )
        broker.sessions[-1].reply(header, SaslAuthenticateResponse())

    broker.answers[AUTHENTICATE] = wrong
    made = new_producer(network, **settings_for("PLAIN"))
    with pytest.raises(KafkaError) as caught:
        await made.send("t", b"v", timeout=1.0)
    assert "responded to request" in str(caught.value.__cause__) + str(caught.value)
    assert broker.count(3) == 0
    await made.close(0)


@in_virtual_time
async def test_f66_broker_silent_during_authentication_meets_the_setup_timeout() -> None:
    network = MemoryNetwork()
    broker = honest(network)
    broker.silence(AUTHENTICATE)
    made = new_producer(network, socket_connection_setup_timeout_ms=2_000, **settings_for("PLAIN"))
    with pytest.raises(KafkaError):
        await made.send("t", b"v", timeout=20.0)
    assert 2 <= len(network.dials) <= 8
    await made.close(0)


# -- S12: token providers -------------------------------------------------------------------------


def unsigned_jwt(**claims: Any) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{body}.c2ln"


async def raising() -> str:
    raise ValueError("canary-token in a message")


async def hanging() -> str:
    await asyncio.Event().wait()
    return ""


async def nothing() -> Any:
    return None


def giving(value: Any) -> Any:
    async def provider() -> Any:
        return value

    return provider


@pytest.mark.parametrize(
    ("provider", "text"),
    [
        (raising, "failed with ValueError"),
        (hanging, "token provider hang"),
        (nothing, "returned no token"),
        (giving(""), "returned no token"),
        (giving("canary tök€n"), "is not a valid token"),
        (giving("canary\x01auth=x"), "is not a valid token"),
        (giving("canary" * 20_000), "is not a valid token"),
        (giving(unsigned_jwt(exp=1_799_999_999)), "expired"),
        (giving(b"canary"), "returned no token"),
        (lambda: "canary-sync", "failed with TypeError"),
    ],
    ids=[
        "raises", "hangs", "none", "empty", "non-ascii", "separator", "huge", "expired", "bytes",
        "sync",
    ],
)  # fmt: skip
@in_virtual_time
async def test_s12_bad_token_provider_is_an_authentication_error(
    provider: Callable[..., Any], text: str
) -> None:
    network = MemoryNetwork()
    broker = honest(network)
    made = new_producer(network, sasl_mechanism="OAUTHBEARER", sasl_token_provider=provider)
    await refused(made, text)
    assert broker.sent == []
    await made.close(0)


@in_virtual_time
async def test_s12_provider_may_be_an_object_with_extensions() -> None:
    class Provider:
        async def token(self) -> Secret:
            return Secret(TOKEN)

        def extensions(self) -> dict[str, str]:
            return {"logicalCluster": "lkc-1", "identityPoolId": "pool-2"}

    network = MemoryNetwork()
    broker = honest(network)
    made = new_producer(network, sasl_mechanism="OAUTHBEARER", sasl_token_provider=Provider())
    await connected(made)
    assert broker.sent[0].endswith(b"\x01logicalCluster=lkc-1\x01identityPoolId=pool-2\x01\x01")
    await made.close(0)


@pytest.mark.parametrize("extensions", [{"auth": "x"}, {"a": "b\x01c"}, {"a b": "c"}, {"a": 1}, 5])
@in_virtual_time
async def test_s11_bad_extensions_are_refused(
    extensions: dict[str, int] | dict[str, str] | int,
) -> None:
    class Provider:
        token = staticmethod(give_token)

        def extensions(self) -> Any:
            return extensions

    network = MemoryNetwork()
    broker = honest(network)
    made = new_producer(network, sasl_mechanism="OAUTHBEARER", sasl_token_provider=Provider())
    await refused(made, "extension")
    assert broker.sent == []
    await made.close(0)


# -- F78: re-authentication -----------------------------------------------------------------------


def knowing(broker: SaslBroker) -> None:
    broker.answers[3] = lambda header, message: MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=1, host="b", port=1)],
        cluster_id="c",
        controller_id=1,
        topics=[MetadataResponseTopic(name="x")],
    )


@pytest.mark.parametrize("mechanism", MECHANISMS)
@in_virtual_time
async def test_f78_session_is_renewed_before_it_ends_on_the_same_connection(mechanism: str) -> None:
    network = MemoryNetwork()
    broker = honest(network)
    broker.lifetime_ms = 10_000
    made = new_producer(network, **settings_for(mechanism))
    await connected(made)
    links = len(network.links)
    await asyncio.sleep(60.0)
    assert len(network.links) == links
    assert 6 <= len(broker.exchanges) <= 8
    await made.close(0)


@in_virtual_time
async def test_f78_refused_renewal_closes_the_connection_and_heals() -> None:
    network = MemoryNetwork()
    users = dict(USERS)
    broker = SaslBroker(network, PLAIN=lambda: PlainServer(users))
    broker.lifetime_ms = 10_000
    made = new_producer(network, **settings_for("PLAIN"))
    await connected(made)
    users[USER] = "changed"
    await asyncio.sleep(12.0)
    assert not network.links[0].is_open
    await refused(made, "Invalid username or password")
    users[USER] = PASSWORD
    await asyncio.sleep(3.0)
    await connected(made)
    await made.close(0)


@in_virtual_time
async def test_f78_idle_connection_still_closes_in_spite_of_renewals() -> None:
    harness = ConnectionHarness(
        security_protocol="SASL_PLAINTEXT",
        sasl_allow_cleartext=True,
        connections_max_idle_ms=60_000,
        **settings_for("PLAIN"),
    )
    broker = honest(harness.network)
    broker.lifetime_ms = 10_000
    await harness.connect()
    await asyncio.sleep(55.0)
    assert len(broker.exchanges) >= 5
    assert harness.network.links[0].is_open
    await asyncio.sleep(20.0)
    assert not current(harness.network.links[0].is_open)
    await harness.close()


@in_virtual_time
async def test_f78_requests_under_way_end_before_the_renewal_and_new_ones_wait() -> None:
    harness = ConnectionHarness(
        security_protocol="SASL_PLAINTEXT", sasl_allow_cleartext=True, **settings_for("PLAIN")
    )
    broker = honest(harness.network)
    broker.lifetime_ms = 10_000
    await harness.connect()
    answer = broker.answers[3]
    broker.silence(3)
    await asyncio.sleep(8.0)
    under_way = [harness.send() for _ in range(3)]
    await asyncio.sleep(3.0)
    assert len(broker.exchanges) == 1  # waits for the responses
    assert not harness.client.can_send(-1, harness.now)
    session = broker.sessions[0]
    for header in session.open:
        message = answer(header, METADATA)
        assert message is not None
        session.reply(header, message)
    await harness.until(lambda: harness.client.can_send(-1, harness.now))
    assert len(broker.exchanges) == 2
    assert [(await done).error for done in under_way] == [None] * 3
    broker.answers[3] = answer
    assert (await harness.send()).error is None
    assert len(broker.sessions) == 1
    assert harness.opened == [-1]
    await harness.close()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
@in_virtual_time
async def test_f79_credentials_of_another_user_take_a_new_connection(mechanism: str) -> None:
    """Brokers reject another user on an authenticated connection (KIP-368)."""
    credentials = Credentials(USER, PASSWORD)
    harness = ConnectionHarness(
        security_protocol="SASL_PLAINTEXT",
        sasl_allow_cleartext=True,
        sasl_mechanism=mechanism,
        sasl_credentials=credentials,
    )
    broker = honest(harness.network)
    broker.lifetime_ms = 10_000
    await harness.connect()
    USERS["bob"] = "canary-bob"
    credentials.replace("bob", "canary-bob")
    await asyncio.sleep(12.0)
    assert not harness.network.links[0].is_open
    assert harness.disconnects == []
    await harness.connect()
    assert len(harness.network.links) == 2
    assert b"bob" in broker.sent[-1] or b"n=bob" in broker.sent[-2]
    await harness.close()


@in_virtual_time
async def test_f78_broker_silent_during_the_renewal_ends_the_connection_in_time() -> None:
    harness = ConnectionHarness(
        security_protocol="SASL_PLAINTEXT", sasl_allow_cleartext=True, **settings_for("PLAIN")
    )
    broker = honest(harness.network)
    broker.lifetime_ms = 10_000
    await harness.connect()
    broker.silence(AUTHENTICATE)
    await asyncio.sleep(25.0)
    assert not harness.network.links[0].is_open
    await harness.close()


@in_virtual_time
async def test_s12_work_under_way_ends_with_the_client() -> None:
    harness = ConnectionHarness(
        security_protocol="SASL_PLAINTEXT",
        sasl_allow_cleartext=True,
        sasl_mechanism="OAUTHBEARER",
        sasl_token_provider=hanging,
    )
    honest(harness.network)
    assert not harness.client.ready(-1, harness.now)
    await asyncio.sleep(1.0)
    names = {task.get_name() for task in asyncio.all_tasks()}
    assert "aiokprod-authenticate--1" in names
    await harness.close()
    names = {task.get_name() for task in asyncio.all_tasks()}
    assert "aiokprod-authenticate--1" not in names


# -- S9, S13 ---------------------------------------------------------------------------------------


@in_virtual_time
async def test_s9_records_are_in_no_log_and_no_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    cluster = FakeCluster(1, network=MemoryNetwork())
    cluster.create_topic("t", 1)
    environment = Environment(cluster.network, cluster.unix_ms, random.Random(1))
    made: Any = Producer(bootstrap_servers=cluster.bootstrap_servers, environment=environment)
    await made.send("t", b"canary-value", key=b"canary-key", headers=[("h", b"canary-header")])
    with pytest.raises(KafkaError) as caught:
        await made.send("t", b"canary" * 1_000_000)
    shown = "".join(traceback.format_exception(caught.value)) + repr(made) + caplog.text
    shown += repr(made.explain()) + repr(made.metrics())
    assert "canary" not in shown.replace('b"canary" * 1_000_000', "")
    await made.close()


def test_s13_import_opens_no_socket_and_starts_no_process() -> None:
    code = (
        "import socket, subprocess\n"
        "def never(*a, **k): raise AssertionError('outside world')\n"
        "socket.socket.connect = socket.getaddrinfo = subprocess.Popen.__init__ = never\n"
        "import aiokprod, importlib, pkgutil\n"
        "for module in pkgutil.walk_packages(aiokprod.__path__, 'aiokprod.'):\n"
        "    if '.spark' not in module.name:\n"
        "        importlib.import_module(module.name)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_s13_contents_of_distributions_are_checked_against_what_git_tracks(tmp_path: Path) -> None:
    """The check of `make supply` detects files that must not be in a distribution."""
    path = Path(__file__).parents[2] / ".ci" / "check_dist.py"
    spec = importlib.util.spec_from_file_location("check_dist", path)
    assert spec is not None
    assert spec.loader is not None
    check_dist = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(check_dist)
    sdist = tmp_path / "x.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        archive.add("README.md", "x-1/README.md")
        archive.add("LICENSE", "x-1/aiokprod/forgotten.pem")
        archive.add("LICENSE", "x-1/setup.py")
    files = {"README.md", "setup.py", "aiokprod/errors.py"}
    _, wrong = check_dist.check_sdist(sdist, files)
    assert wrong == [
        "sdist: aiokprod/forgotten.pem is not tracked by git",
        "sdist: setup.py differs from the work tree",
        "sdist: aiokprod/errors.py is missing",
    ]
    wheel = tmp_path / "x.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("aiokprod/errors.py", "changed")
        archive.writestr("elsewhere.py", "")
        archive.writestr("x-1.dist-info/RECORD", "aiokprod/errors.py,sha256=AAAA,7\n")
    source = {"aiokprod/errors.py": b"", "aiokprod/_core/batch.pyx": b"", "aiokprod/py.typed": b""}
    wrong = "\n".join(check_dist.check_wheel(wheel, source))
    for text in (
        "errors.py differs from the sdist",
        "elsewhere.py is not in the sdist",
        "elsewhere.py is outside the package",
        "py.typed is missing",
        "RECORD is wrong about aiokprod/errors.py",
    ):
        assert text in wrong
    assert "_core/batch" in wrong


def test_s13_build_is_done_with_sockets_disabled(tmp_path: Path) -> None:
    path = Path(__file__).parents[2] / ".ci" / "check_dist.py"
    blocker = re.search(r'NO_NETWORK = """(.*?)"""', path.read_text(), re.DOTALL)
    assert blocker is not None
    (tmp_path / "sitecustomize.py").write_text(blocker[1])
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for call in ("socket.create_connection(('127.0.0.1', 9))", "socket.getaddrinfo('a', 1)"):
        answer = subprocess.run(
            [sys.executable, "-c", f"import socket; {call}"], env=environment, capture_output=True
        )
        assert b"asked for the network" in answer.stderr


def test_s11_no_text_of_a_configuration_is_a_name_of_code_or_a_reference(tmp_path: Path) -> None:
    """A string in the configuration never loads a class, and never reads a file, variable or URL
    (CVE-2023-25194)."""
    for key in (
        "sasl.login.callback.handler.class",
        "ssl.engine.factory.class",
        "config.providers",
    ):
        with pytest.raises(ConfigError):
            ProducerConfig.from_mapping({"bootstrap.servers": "b:1", key: "os.system"})
    made = ProducerConfig.from_mapping(
        {
            "bootstrap.servers": "b:1",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "${env:HOME}",
            "sasl.password": "${file:/etc/passwd:root}",
        }
    )
    assert made.sasl_username == "${env:HOME}"
    assert made.sasl_password == Secret("${file:/etc/passwd:root}")
    with pytest.raises(ConfigError, match="async callable"):
        ProducerConfig.from_mapping(
            {"bootstrap.servers": "b:1", "sasl.token.provider": "os.system"}
        )
    for broken in ("a\r\nb", "a\0b"):
        with pytest.raises(ConfigError):
            ProducerConfig(bootstrap_servers="b:1", client_id=broken)
