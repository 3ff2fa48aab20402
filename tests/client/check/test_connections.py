"""Findings about connection errors: one test row for each kind of error, including errors of real
TLS listeners."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aiokprod import Environment, Producer, ProducerConfig, Severity, TopicProfile
from aiokprod._client.check.connections import explain_failure, needs
from aiokprod._net.tls import tls_failure
from aiokprod.errors import (
    AuthenticationError,
    Code,
    DialError,
    Disconnected,
    KafkaError,
    ProtocolError,
    RequestTimedOut,
    UnsupportedVersion,
    error_code,
)
from aiokprod.testing.memory import MemoryNetwork
from tests.hang import HANG_S
from tests.security.certs import DAY, NOW, Authority
from tests.security.tls_broker import LocalDialer, server_context

CA, OTHER = Authority("check CA", 21), Authority("another CA", 22)
EXPIRED = Authority("expired CA", 23, end=NOW - DAY / 2)
SASL: dict[str, Any] = {
    "security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_username": "alice",
    "sasl_password": "canary",
}  # fmt: skip


def config(**settings: Any) -> ProducerConfig:
    return ProducerConfig(bootstrap_servers="b:1", **settings)


def caused(reason: str) -> KafkaError:
    """Return the error of a TLS handshake that OpenSSL ended for this reason."""
    cause = ssl.SSLError(1, f"[SSL: {reason}] words")
    cause.reason = reason
    failure = tls_failure(cause, "b")
    assert failure is not None
    failure.__cause__ = cause
    return failure.copy()


def refused(code: int) -> AuthenticationError:
    return AuthenticationError("refused", code=error_code(code))


@pytest.mark.parametrize(
    ("error", "settings", "code", "remedy"),
    [
        (DialError("refused"), {}, "unreachable", "check host and port"),
        (Disconnected("closed"), {}, "no_answer", "not frozen or overloaded"),
        (RequestTimedOut("late"), SASL, "no_answer", "is a Kafka listener"),
        (ProtocolError("HTTP"), {}, "not_kafka", "check the port"),
        (UnsupportedVersion("old"), {}, "version_too_old", "Kafka 0.11 or newer"),
        (DialError("during the TLS handshake"), SASL, "tls_not_spoken", '"SASL_PLAINTEXT"'),
        (caused("WRONG_VERSION_NUMBER"), SASL, "tls_not_spoken", "port of a TLS listener"),
        (caused("TLSV13_ALERT_CERTIFICATE_REQUIRED"), SASL, "tls_client_certificate", "ssl_keyst"),
        (caused("TLSV1_ALERT_UNKNOWN_CA"), SASL, "tls_client_certificate", "ssl_keystore_"),
        (caused("UNSUPPORTED_PROTOCOL"), SASL, "tls_failed", "compare the TLS settings"),
        (refused(Code.SASL_AUTHENTICATION_FAILED), SASL, "authentication_failed", "for PLAIN"),
        (refused(Code.ILLEGAL_SASL_STATE), SASL, "sasl_not_expected", 'security_protocol="SSL"'),
        (refused(Code.UNSUPPORTED_SASL_MECHANISM), SASL, "sasl_mechanism_not_enabled", "one of"),
        (AuthenticationError("TLS: cannot read 'x'"), {}, "authentication_failed", "compare"),
    ],
)
def test_error_becomes_a_finding_with_a_remedy(
    error: KafkaError, settings: dict[str, Any], code: str, remedy: str
) -> None:
    environment = Environment(MemoryNetwork())
    found = asyncio.run(explain_failure(error, "b:1", ("b", 1), config(**settings), environment))
    assert (found.code, found.severity, found.subject) == (code, Severity.ERROR, "b:1")
    assert found.text
    assert remedy in found.remedy


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"acks": 0}, ["record batches"]),
        ({}, ["record batches", "enable_idempotence"]),
        ({"transactional_id": "t"}, ["record batches", "enable_idempotence", "transactional_id"]),
        ({"acks": 1, "compression_type": "zstd"}, ["record batches", "compression_type='zstd'"]),
        (
            {"acks": 1, "topic_profiles": {"a.*": TopicProfile(compression_type="zstd")}},
            ["record batches", "compression_type='zstd'"],
        ),
    ],
)
def test_settings_need_versions(settings: dict[str, Any], names: list[str]) -> None:
    assert [need.what for need in needs(config(**settings))] == names


# -- real TLS listeners ---------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def listener(context: ssl.SSLContext) -> AsyncIterator[int]:
    """Start a TLS listener that sends no responses, and yield its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await reader.read()
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


CASES: dict[str, tuple[Authority, str, dict[str, Any], str]] = {
    "plaintext on TLS": (CA, "kafka", {}, "tls_required"),
    "expired CA": (
        EXPIRED, "kafka",
        {"security_protocol": "SSL", "ssl_truststore_certificates": EXPIRED.pem},
        "tls_certificate_expired",
    ),
    "wrong name": (
        CA, "other", {"security_protocol": "SSL", "ssl_truststore_certificates": CA.pem},
        "tls_name_mismatch",
    ),
    "unknown CA": (
        CA, "kafka", {"security_protocol": "SSL", "ssl_truststore_certificates": OTHER.pem},
        "tls_not_trusted",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_fault_of_tls_is_found(tmp_path: Path, case: str) -> None:
    authority, name, settings, code = CASES[case]

    async def main() -> None:
        async with listener(server_context(tmp_path, authority.issue(name))) as port:
            producer: Producer[Any, Any] = Producer(
                bootstrap_servers=f"kafka:{port}", environment=Environment(LocalDialer()),
                **settings,
            )  # fmt: skip
            found = await asyncio.wait_for(producer.check(["orders"]), HANG_S)
            assert [(finding.code, finding.severity) for finding in found] == [
                (code, Severity.ERROR)
            ]
            assert found[0].remedy

    asyncio.run(main())
