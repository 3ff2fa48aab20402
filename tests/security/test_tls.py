"""S1 to S3, S7, F62, F65, F66, F79 with real TLS on the loopback interface."""

from __future__ import annotations

import asyncio
import os
import pickle
import re
import ssl
from itertools import pairwise
from pathlib import Path
from ssl import TLSVersion
from typing import Any

import pytest

from aiokprod import AuthenticationError, ConfigError, KafkaError, Outcome, ProducerConfig, Secret
from aiokprod._wire.messages.metadata import MetadataResponse, MetadataResponseBroker
from tests.hang import HANG_S, until
from tests.security.certs import DAY, NOW, Authority, Issued, key_pem
from tests.security.tls_broker import (
    LocalDialer,
    TlsBroker,
    alerting_server,
    producer,
    server_context,
    tls_broker,
)

pytestmark = pytest.mark.asyncio

CA = Authority()
OTHER_CA = Authority("other CA", 1)
MIDDLE = Authority("intermediate", 2, CA)
HOST = "broker.test"
TRUST = {"ssl_truststore_certificates": CA.pem}


def chain(error: BaseException | None) -> str:
    texts = []
    while error is not None:
        texts.append(str(error))
        error = error.__cause__
    return " / ".join(texts)


async def connected(made: Any, broker: TlsBroker) -> None:
    """Wait until the broker receives a metadata request. The broker has no topic, so the send stays
    pending and is cancelled."""
    before = broker.count(3)
    sending = asyncio.ensure_future(made.send("t", b"v", timeout=HANG_S))
    await until(lambda: broker.count(3) > before or sending.done())
    assert not sending.done(), chain(sending.exception())
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending


async def refused(made: Any) -> AuthenticationError:
    """Check that all waiting calls get an AuthenticationError before their timeout, and return the
    first error."""
    found: list[Any] = await asyncio.gather(
        *(made.send("t", b"v", timeout=HANG_S) for _ in range(20)), return_exceptions=True
    )
    for error in found:
        assert isinstance(error, AuthenticationError), repr(error)
        assert error.outcome is Outcome.NOT_SENT
    first: AuthenticationError = found[0]
    return first


async def fails_for(made: Any, reason: str) -> None:
    """Send until the error of a send names the reason. The first sends may time out before an
    attempt ends."""
    async with asyncio.timeout(HANG_S):
        while True:
            with pytest.raises(KafkaError) as caught:
                await made.send("t", b"v", timeout=1.0)
            if reason in chain(caught.value):
                return


async def paced(dialer: LocalDialer) -> None:
    """Check that the time between two attempts is at least the backoff of 100 ms, less its
    jitter."""
    await until(lambda: len(dialer.dials) >= 4)
    times = [at for at, _ in dialer.dials]
    assert min(later - earlier for earlier, later in pairwise(times)) >= 0.07, times


async def test_s1_certificate_for_the_name_is_accepted_and_the_name_sent(tmp_path: Path) -> None:
    context = server_context(tmp_path, CA.issue(HOST))
    async with tls_broker(context) as broker, producer(broker.port, **TRUST) as (made, _):
        await connected(made, broker)
        assert broker.names == [HOST]
        assert broker.count(3) >= 1


@pytest.mark.parametrize(
    ("host", "names", "accepted"),
    [
        ("a.broker.test", ("*.broker.test",), True),
        ("b.a.broker.test", ("*.broker.test",), False),
        ("a.b.test", ("*.test",), False),
        (HOST, ("b*.test",), False),
        (HOST, ("other.test",), False),
        (HOST, ("other.test", HOST), True),
        ("127.0.0.1", ("127.0.0.1",), True),
        ("127.0.0.1", ("127.0.0.2",), False),
        ("127.0.0.1", (HOST,), False),
        (HOST, ("127.0.0.1",), False),
    ],
)
async def test_s1_names_are_compared_as_rfc_6125(
    tmp_path: Path, host: str, names: tuple[str, ...], accepted: bool
) -> None:
    context = server_context(tmp_path, CA.issue(*names))
    async with tls_broker(context) as broker, producer(broker.port, host, **TRUST) as (made, _):
        if accepted:
            await connected(made, broker)
        else:
            error = await refused(made)
            assert "match" in str(error)
            assert host in str(error)


async def test_s1_name_only_in_the_common_name_is_refused(tmp_path: Path) -> None:
    context = server_context(tmp_path, CA.issue(common=HOST))
    async with tls_broker(context) as broker, producer(broker.port, **TRUST) as (made, _):
        assert "match" in str(await refused(made))


async def test_s1_name_check_goes_only_when_told_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    context = server_context(tmp_path, CA.issue("other.test"))
    settings = TRUST | {"ssl_endpoint_identification_algorithm": ""}
    async with tls_broker(context) as broker, producer(broker.port, **settings) as (made, _):
        await connected(made, broker)
    assert "any name is accepted" in caplog.text


async def test_s7_name_from_metadata_is_verified_too(tmp_path: Path) -> None:
    """A broker from the metadata must present a certificate for its host name."""
    genuine = server_context(tmp_path, CA.issue(HOST))
    async with (
        tls_broker(genuine) as broker,
        tls_broker(server_context(tmp_path, CA.issue("own.test"))) as stranger,
        producer(broker.port, **TRUST) as (made, dialer),
    ):
        broker.answers[3] = lambda header, message: MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=7, host="victim.test", port=stranger.port)],
            cluster_id="c",
        )
        await refused(made)
        assert "victim.test" in [name for _, name in dialer.dials]
        assert stranger.seen == []


@pytest.mark.parametrize(
    ("issued", "reason"),
    [
        (CA.issue(HOST, start=NOW - 3 * DAY, end=NOW - DAY), "expired"),
        (CA.issue(HOST, start=NOW + DAY, end=NOW + 3 * DAY), "not yet valid"),
        (OTHER_CA.issue(HOST), "unable to get local issuer"),
        (MIDDLE.issue(HOST), "unable to get local issuer"),
        (CA.issue(HOST, client=True), "unsuitable certificate purpose|unsupported certificate"),
    ],
    ids=["expired", "not-yet", "wrong-ca", "no-intermediate", "wrong-purpose"],
)
async def test_s2_bad_certificate_names_the_reason_without_a_storm(
    tmp_path: Path, issued: Issued, reason: str
) -> None:
    context = server_context(tmp_path, issued)
    async with tls_broker(context) as broker, producer(broker.port, **TRUST) as (made, dialer):
        error = await refused(made)
        assert re.search(reason, str(error)), str(error)
        await paced(dialer)


async def test_s2_intermediate_sent_by_the_broker_is_accepted(tmp_path: Path) -> None:
    context = server_context(tmp_path, MIDDLE.issue(HOST, chain=[MIDDLE]))
    async with tls_broker(context) as broker, producer(broker.port, **TRUST) as (made, _):
        await connected(made, broker)


async def test_s2_revoked_certificate_is_refused_and_a_renewed_list_counts(tmp_path: Path) -> None:
    issued = CA.issue(HOST)
    lists = tmp_path / "crl.pem"
    settings: dict[str, Any] = {**TRUST, "ssl_crl_location": lists}
    async with tls_broker(server_context(tmp_path, issued)) as broker:
        for text, reason in (
            (CA.revocation_list(issued), "certificate revoked"),
            (OTHER_CA.revocation_list(), "unable to get certificate CRL"),
            ("no list", "ssl_crl_location"),
            (None, "cannot read"),
        ):
            if text is None:
                lists.unlink()
            else:
                lists.write_text(text)
            async with producer(broker.port, **settings) as (made, _):
                assert reason in str(await refused(made))
        lists.write_text(CA.revocation_list(CA.issue(HOST)))
        async with producer(broker.port, **settings) as (made, _):
            await connected(made, broker)


async def test_s2_old_tls_is_refused(tmp_path: Path) -> None:
    context = server_context(tmp_path, CA.issue(HOST), old=True)
    with alerting_server(context) as port:
        async with producer(port, **TRUST) as (made, _):
            assert "TLS 1.2" in str(await refused(made))


async def test_s2_heals_when_the_broker_is_mended(tmp_path: Path) -> None:
    wrong = server_context(tmp_path, OTHER_CA.issue(HOST))
    async with tls_broker(wrong) as broker, producer(broker.port, **TRUST) as (made, _):
        await refused(made)
        await broker.close()
        broker.context = server_context(tmp_path, CA.issue(HOST))
        await broker.listen()
        await connected(made, broker)


def mtls(tmp_path: Path, **settings: Any) -> tuple[ssl.SSLContext, dict[str, Any]]:
    return server_context(tmp_path, CA.issue(HOST), client_ca=CA.pem), TRUST | settings


CLIENT = CA.issue(number=60, common="me", client=True)


@pytest.mark.parametrize("form", ["files", "one-file", "text", "encrypted", "password-file"])
async def test_s3_client_certificate_in_every_form(tmp_path: Path, form: str) -> None:
    (tmp_path / "chain.pem").write_text(CLIENT.chain)
    (tmp_path / "key.pem").write_text(CLIENT.key())
    (tmp_path / "locked.pem").write_text(CLIENT.key("canary let me in"))
    (tmp_path / "password").write_text("canary let me in\n")
    forms: dict[str, dict[str, Any]] = {
        "files": {
            "ssl_keystore_location": tmp_path / "chain.pem",
            "ssl_key_location": tmp_path / "key.pem",
        },
        "one-file": {"ssl_keystore_location": CLIENT.write(tmp_path, "both")},
        "text": {
            "ssl_keystore_certificate_chain": CLIENT.chain,
            "ssl_keystore_key": CLIENT.key(),
        },
        "encrypted": {
            "ssl_keystore_certificate_chain": CLIENT.chain,
            "ssl_keystore_key": CLIENT.key("canary let me in"),
            "ssl_key_password": "canary let me in",
        },
        "password-file": {
            "ssl_keystore_location": tmp_path / "chain.pem",
            "ssl_key_location": tmp_path / "locked.pem",
            "ssl_key_password": Secret.from_file(tmp_path / "password"),
        },
    }
    context, settings = mtls(tmp_path, **forms[form])
    async with tls_broker(context) as broker, producer(broker.port, **settings) as (made, _):
        await connected(made, broker)
        peer = broker.sessions[0].transport.get_extra_info("peercert")
        assert ("commonName", "me") in peer["subject"][0]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_s3_missing_client_certificate_is_named(tmp_path: Path, version: TLSVersion) -> None:
    context, settings = mtls(tmp_path)
    context.minimum_version = context.maximum_version = version
    with alerting_server(context) as port:
        async with producer(port, **settings) as (made, _):
            assert "client certificate" in str(await refused(made))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_s3_client_certificate_of_an_unknown_ca_is_named(
    tmp_path: Path, version: TLSVersion
) -> None:
    wrong = OTHER_CA.issue(number=61, client=True).write(tmp_path, "wrong")
    context, settings = mtls(tmp_path, ssl_keystore_location=wrong)
    context.minimum_version = context.maximum_version = version
    with alerting_server(context) as port:
        async with producer(port, **settings) as (made, _):
            assert "CA of our client certificate" in str(await refused(made))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            {"ssl_keystore_key": CLIENT.key("canary-a"), "ssl_key_password": "canary-b"},
            "ssl_key_password",
        ),
        ({"ssl_keystore_key": CLIENT.key("canary-a")}, "set ssl_key_password"),
        ({"ssl_keystore_key": key_pem(99)}, "does not belong"),
        ({"ssl_keystore_key": "rubbish"}, "not valid PEM"),
        ({"ssl_key_location": "/nowhere/key.pem"}, "No such file"),
    ],
    ids=["wrong-password", "no-password", "wrong-key", "rubbish", "no-file"],
)
async def test_s3_unusable_key_is_named(
    tmp_path: Path, settings: dict[str, str], reason: str
) -> None:
    context, common = mtls(tmp_path, ssl_keystore_certificate_chain=CLIENT.chain)
    async with tls_broker(context) as broker, producer(broker.port, **common | settings) as (m, _):
        assert reason in str(await refused(m))
        assert broker.accepted == 0


async def test_f79_rotated_files_count_from_the_next_connection_on(tmp_path: Path) -> None:
    store, trust = tmp_path / "client.pem", tmp_path / "ca.pem"
    context = server_context(tmp_path, CA.issue(HOST), client_ca=CA.pem)
    store.write_text(CLIENT.chain + CLIENT.key())
    trust.write_text(CA.pem)
    settings: dict[str, Any] = {"ssl_truststore_location": trust, "ssl_keystore_location": store}
    async with tls_broker(context) as broker, producer(broker.port, **settings) as (made, _):
        await connected(made, broker)
        fresh = CA.issue(number=62, common="renewed", client=True)
        swap = tmp_path / "new.pem"
        swap.write_text(fresh.chain + fresh.key())
        os.replace(swap, store)
        assert broker.accepted == 1
        broker.sessions[0].transport.abort()
        await connected(made, broker)
        peer = broker.sessions[-1].transport.get_extra_info("peercert")
        assert ("commonName", "renewed") in peer["subject"][0]


async def test_f79_broken_rotation_is_refused_and_heals(tmp_path: Path) -> None:
    trust = tmp_path / "ca.pem"
    trust.write_text(CA.pem)
    context = server_context(tmp_path, CA.issue(HOST))
    settings: dict[str, Any] = {"ssl_truststore_location": trust}
    async with tls_broker(context) as broker, producer(broker.port, **settings) as (made, _):
        await connected(made, broker)
        trust.write_text("half written")
        broker.sessions[0].transport.abort()
        assert "ssl_truststore" in str(await refused(made))
        trust.write_text(CA.pem)
        await connected(made, broker)


async def test_f79_ready_context_is_used_as_it_is(tmp_path: Path) -> None:
    context = server_context(tmp_path, CA.issue(HOST))
    own = ssl.create_default_context(cadata=CA.pem)
    async with tls_broker(context) as broker, producer(broker.port, ssl_context=own) as (made, _):
        await connected(made, broker)


async def test_f65_plaintext_port_is_named_and_not_stormed() -> None:
    """A broker without TLS closes the connection after the ClientHello, or responds in plain
    text."""
    async with tls_broker(None) as broker, producer(broker.port, **TRUST) as (made, dialer):
        broker.greeting = b"\x00\x00\x00\x04\x00\x00\x00\x00"

        error = await refused(made)
        assert "does not use TLS" in str(error)
        await paced(dialer)


async def test_f65_port_that_closes_in_the_handshake_is_named() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.transport.abort()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with producer(port, **TRUST) as (made, dialer):
        await fails_for(made, "TLS handshake")
        await paced(dialer)
    server.close()


async def test_f66_handshake_without_end_meets_the_setup_timeout() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings: dict[str, Any] = {**TRUST, "socket_connection_setup_timeout_ms": 500}
    async with producer(port, **settings) as (made, dialer):
        await fails_for(made, "setup timeout")
        await paced(dialer)
    server.close()


async def test_f62_absurd_frame_inside_tls_closes_at_once(tmp_path: Path) -> None:
    context = server_context(tmp_path, CA.issue(HOST))
    async with tls_broker(context) as broker, producer(broker.port, **TRUST) as (made, _):
        broker.greeting = b"\x7f\xff\xff\xff" + b"x" * 100
        await fails_for(made, "2147483647 bytes announced")


async def test_s8_key_and_password_are_in_no_repr_pickle_or_explanation() -> None:
    config = ProducerConfig(
        bootstrap_servers="b:1",
        security_protocol="SSL",
        ssl_keystore_certificate_chain=CLIENT.chain,
        ssl_keystore_key="canary-key",  # type: ignore[arg-type]
        ssl_key_password="canary-password",  # type: ignore[arg-type]
    )
    shown = repr(config) + str(config) + repr(config.effective()) + repr(pickle.dumps(config))
    assert "canary" not in shown
    assert "***" in shown
    lost = pickle.loads(pickle.dumps(config)).ssl_key_password
    with pytest.raises(ConfigError, match="was pickled"):
        lost.reveal()
