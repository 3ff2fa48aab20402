"""Finds the causes of failed connections to a broker: TLS, SASL, versions or addresses."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Final, NamedTuple

from aiokprod._client.check.servers import REACH
from aiokprod._config.mechanisms import MECHANISMS, Needs
from aiokprod._config.profiles import profiles_of
from aiokprod._config.security import SASL_PROTOCOLS, TLS_PROTOCOLS
from aiokprod.errors import (
    AuthenticationError,
    Code,
    DialError,
    Disconnected,
    KafkaError,
    KafkaTimeout,
    ProtocolError,
    RequestTimedOut,
    UnsupportedVersion,
)
from aiokprod.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiokprod._client.cluster_client import ClusterClient
    from aiokprod.config import ProducerConfig
    from aiokprod.environment import Environment

_PROBE_S: Final = 2.0

# OpenSSL error numbers (X509_V_ERR_…) in `SSLCertVerificationError.verify_code`.
_DATES: Final = frozenset({9, 10, 11, 12, 13, 14})
_NAMES: Final = frozenset({62, 63, 64})
_TRUST: Final = frozenset({2, 18, 19, 20, 21, 22, 24})

_REMEDIES: Final = {
    Needs.PASSWORD: "check sasl_username and sasl_password, and that the brokers know this user "
    "for {mechanism}",
    Needs.TOKEN: "check issuer, audience and scope of the token, and the clocks of issuer and "
    "brokers",
    Needs.SIGNATURE: "check credentials and region of sasl_token_provider, the policies of this "
    "identity, and the clock of this host",
    Needs.TICKET: "check the ticket of this principal and sasl_kerberos_service_name",
}
"""Remedies if a broker rejects the credentials."""


class _Need(NamedTuple):
    """An API that a setting requires: the oldest usable version, and the Kafka release that added
    this version."""

    api_key: int
    name: str
    version: int
    release: str
    what: str


def needs(config: ProducerConfig) -> list[_Need]:
    """Return the API versions that brokers must offer for this configuration."""
    found = [_Need(0, "Produce", 3, "0.11", "record batches")]
    if config.idempotent:
        found.append(_Need(22, "InitProducerId", 0, "0.11", "enable_idempotence"))
    if config.transactional_id is not None:
        found.append(_Need(26, "EndTxn", 0, "0.11", "transactional_id"))
    profiles = (profile for _, profile in profiles_of(config))
    if "zstd" in (config.compression_type, *(profile.compression_type for profile in profiles)):
        found.append(_Need(0, "Produce", 7, "2.1", "compression_type='zstd'"))
    return found


def check_versions(client: ClusterClient, node_id: int, subject: str) -> list[Finding]:
    """Compare the API versions of a connected broker with the versions that the configuration
    needs."""
    found = []
    for need in needs(client.config):
        offered = client.client.version_range(node_id, need.api_key)
        if offered is None or offered[1] < need.version:
            has = "none that this client knows" if offered is None else f"up to v{offered[1]}"
            found.append(
                Finding(
                    "version_too_old", Severity.ERROR, subject,
                    f"{need.what} needs {need.name} v{need.version} or newer (Kafka "
                    f"{need.release}); the broker offers {has}",
                    f"upgrade the broker to Kafka {need.release} or newer, or do without "
                    f"{need.what}",
                )
            )  # fmt: skip
    return found[:1] if len({finding.text for finding in found}) == 1 else found


async def explain_failure(
    error: KafkaError, subject: str, address: tuple[str, int], config: ProducerConfig,
    environment: Environment,
) -> Finding:  # fmt: skip
    """Return the finding for a failed connection.

    Args:
        error: the error of the connection attempt, or of the first request on the connection.
        address: host and port.
    """
    with_tls = config.security_protocol in TLS_PROTOCOLS
    found = _tls_finding(error, subject)
    if found is not None:
        return found
    if isinstance(error, AuthenticationError):
        return _refused(error, subject, config)
    if isinstance(error, DialError):
        if with_tls and "TLS handshake" in error.message:
            return _not_tls(subject)
        return Finding("unreachable", Severity.ERROR, subject, error.message, REACH)
    if isinstance(error, UnsupportedVersion):
        return Finding(
            "version_too_old", Severity.ERROR, subject, error.message,
            "upgrade the broker to Kafka 0.11 or newer",
        )  # fmt: skip
    strange = isinstance(error, (Disconnected, RequestTimedOut, KafkaTimeout, ProtocolError))
    if strange and not with_tls and await _speaks_tls(address, environment):
        secured = "SASL_SSL" if config.security_protocol in SASL_PROTOCOLS else "SSL"
        return Finding(
            "tls_required", Severity.ERROR, subject,
            "the port is a TLS listener, but the client does not use TLS",
            f'set security_protocol="{secured}", or use the port of a listener without TLS',
        )  # fmt: skip
    if isinstance(error, ProtocolError):
        return Finding(
            "not_kafka", Severity.ERROR, subject, error.message,
            "check the port: it does not respond as a Kafka broker does",
        )  # fmt: skip
    return Finding(
        "no_answer", Severity.ERROR, subject, error.message,
        "check that the port is a Kafka listener, and that the broker is not frozen or overloaded",
    )  # fmt: skip


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def _tls_finding(error: KafkaError, subject: str) -> Finding | None:
    """Return the finding if OpenSSL reported the error, otherwise None."""
    cause = next((link for link in _chain(error) if isinstance(link, ssl.SSLError)), None)
    if cause is None or isinstance(cause, ssl.SSLEOFError):
        return None
    code, remedy = "tls_failed", "compare the TLS settings of client and listener"
    if isinstance(cause, ssl.SSLCertVerificationError):
        number = cause.verify_code
        if number in _DATES:
            code = "tls_certificate_expired"
            remedy = (
                "renew the certificate that is outside its dates, that of the broker or of a CA in "
                "ssl_truststore_..., and check the clock of this host"
            )
        elif number in _NAMES:
            code = "tls_name_mismatch"
            remedy = (
                "connect by a name that the certificate has, or issue a certificate with this name "
                "as subject alternative name"
            )
        elif number in _TRUST:
            code = "tls_not_trusted"
            remedy = "put the CA of the broker's certificate into ssl_truststore_..."
    else:
        reason = cause.reason or ""
        if "WRONG_VERSION_NUMBER" in reason or "HTTP_REQUEST" in reason:
            return _not_tls(subject)
        if "CERTIFICATE" in reason or "UNKNOWN_CA" in reason:
            code = "tls_client_certificate"
            remedy = "set ssl_keystore_... to a certificate of a CA that the brokers trust"
    return Finding(code, Severity.ERROR, subject, error.message, remedy)


def _not_tls(subject: str) -> Finding:
    return Finding(
        "tls_not_spoken", Severity.ERROR, subject, "the client uses TLS, but the port does not",
        'use the port of a TLS listener, or set security_protocol="PLAINTEXT" or '
        '"SASL_PLAINTEXT"',
    )  # fmt: skip


def _refused(error: AuthenticationError, subject: str, config: ProducerConfig) -> Finding:
    number = None if error.code is None else error.code.number
    code = "authentication_failed"
    remedy = "compare the security settings of client and listener"
    if number == Code.ILLEGAL_SASL_STATE:
        code = "sasl_not_expected"
        plain = "SSL" if config.security_protocol in TLS_PROTOCOLS else "PLAINTEXT"
        remedy = f'use the port of a listener with SASL, or set security_protocol="{plain}"'
    elif number == Code.UNSUPPORTED_SASL_MECHANISM:
        code = "sasl_mechanism_not_enabled"
        remedy = "set sasl_mechanism to one of those that the listener enables"
    elif config.sasl_mechanism is not None:
        spec = MECHANISMS[config.sasl_mechanism]
        remedy = _REMEDIES[spec.needs].format(mechanism=spec.name)
    return Finding(code, Severity.ERROR, subject, error.message, remedy)


async def _speaks_tls(address: tuple[str, int], environment: Environment) -> bool:
    """Return True if the peer responds to a TLS handshake, successfully or with an alert."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # safe, because no data is sent on this connection
    dialer = environment.dialer
    try:
        async with asyncio.timeout(_PROBE_S):
            (target, *_) = await dialer.resolve(*address)
            transport, _protocol = await dialer.connect(
                asyncio.Protocol, *target, tls=context, server_hostname=address[0]
            )
    except ssl.SSLError as error:
        return "WRONG_VERSION_NUMBER" not in (error.reason or "")
    except (DialError, TimeoutError):
        return False
    transport.abort()
    return True
