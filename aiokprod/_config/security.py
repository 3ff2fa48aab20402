"""Checks of the TLS and SASL settings, individually and in combination.

No error message shows the value of a setting that may contain a secret.
"""

from __future__ import annotations

import importlib.util
import os
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from aiokprod._config.fields import invalid_setting
from aiokprod._config.mechanisms import MECHANISMS, MechanismSpec, Needs
from aiokprod._security.secret import Credentials, Secret, as_secret
from aiokprod.errors import ConfigError

TLS_PROTOCOLS: Final = frozenset({"SSL", "SASL_SSL"})
SASL_PROTOCOLS: Final = frozenset({"SASL_PLAINTEXT", "SASL_SSL"})
SERVICE_NAME: Final = "kafka"


@dataclass(frozen=True, slots=True)
class SecretText:
    """A `Secret`, or a str that is converted to a `Secret`."""

    def validate(self, name: str, value: object) -> Secret | None:
        if value is None:
            return None
        if not isinstance(value, (str, Secret)) or value == "":
            raise ConfigError(f"{name}: use a str that is not empty, or a Secret")
        return as_secret(value)

    def parse(self, name: str, text: str) -> object:
        return text


@dataclass(frozen=True, slots=True)
class PathText:
    """The path of a file. The file is not read before it is used."""

    kind: str = "PEM file"

    def validate(self, name: str, value: object) -> str | None:
        if value is None:
            return None
        if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
            raise invalid_setting(name, value, f"use the path of a {self.kind}")
        path: str = os.fspath(value)
        if not path or "\0" in path:
            raise invalid_setting(name, value, f"use the path of a {self.kind}")
        if "-----BEGIN" in path:
            raise ConfigError(f"{name} takes the path of a file, not PEM text")
        return path

    def parse(self, name: str, text: str) -> str:
        return text.strip()


@dataclass(frozen=True, slots=True)
class Pem:
    """PEM text of certificates."""

    def validate(self, name: str, value: object) -> str | None:
        if value is None:
            return None
        if not isinstance(value, str) or "-----BEGIN CERTIFICATE-----" not in value:
            raise ConfigError(f"{name}: use PEM text with BEGIN CERTIFICATE")
        if "PRIVATE KEY-----" in value:
            raise ConfigError(f"{name}: contains a private key; put it into ssl_keystore_key")
        return value

    def parse(self, name: str, text: str) -> str:
        return text


@dataclass(frozen=True, slots=True)
class Instance:
    """An object of one class."""

    kind: type[object]

    def validate(self, name: str, value: object) -> object:
        if value is None or isinstance(value, self.kind):
            return value
        raise ConfigError(f"{name}: use an object of {self.kind.__name__}")

    def parse(self, name: str, text: str) -> object:
        return text


@dataclass(frozen=True, slots=True)
class ProviderCheck:
    """A `TokenProvider` or an async callable."""

    def validate(self, name: str, value: object) -> object:
        if value is None or callable(value) or callable(getattr(value, "token", None)):
            return value
        raise ConfigError(f"{name}: use an async callable, or an object with an async token()")

    def parse(self, name: str, text: str) -> object:
        return text


@dataclass(frozen=True, slots=True)
class HostCheck:
    """ "https", or the empty string for no check of the host name."""

    def validate(self, name: str, value: object) -> str:
        if value in ("https", ""):
            return str(value)
        raise invalid_setting(name, value, 'use "https", or "" to accept a certificate of any name')

    def parse(self, name: str, text: str) -> str:
        return text.strip().lower()


def check_security(settings: Any) -> None:
    """Reject settings that contradict each other, have no effect, or look safer than they are.

    Args:
        settings: a `ProducerConfig` whose individual settings have been checked.

    Raises:
        ConfigError: a setting is rejected. The message names the settings and the fix.
    """
    _check_used(settings)
    _check_stores(settings)
    if settings.security_protocol in SASL_PROTOCOLS:
        _check_sasl(settings)


def _given(settings: Any, names: Iterable[str]) -> list[str]:
    return [name for name in names if getattr(settings, name) not in (None, False)]


_SSL_MATERIAL: Final = (
    "ssl_truststore_location",
    "ssl_truststore_certificates",
    "ssl_crl_location",
    "ssl_keystore_location",
    "ssl_keystore_certificate_chain",
    "ssl_keystore_key",
    "ssl_key_location",
    "ssl_key_password",
)
_PASSWORD: Final = ("sasl_username", "sasl_password", "sasl_credentials")
_KERBEROS: Final = ("sasl_kerberos_principal", "sasl_kerberos_keytab")
_SASL: Final = (
    "sasl_mechanism",
    *_PASSWORD,
    "sasl_token_provider",
    *_KERBEROS,
)


def _check_used(settings: Any) -> None:
    """Reject settings without effect, which would suggest a protection that is not active."""
    protocol = settings.security_protocol
    for protocols, names in (
        (TLS_PROTOCOLS, ("ssl_context", *_SSL_MATERIAL)),
        (SASL_PROTOCOLS, _SASL),
    ):
        given = _given(settings, names)
        if given and protocol not in protocols:
            wanted = " or ".join(sorted(protocols))
            raise ConfigError(
                f"{', '.join(given)} has no effect with security_protocol={protocol!r}: "
                f"use {wanted}, or leave it out"
            )
    service = settings.sasl_kerberos_service_name
    spec = MECHANISMS.get(settings.sasl_mechanism)
    if service != SERVICE_NAME and (spec is None or spec.needs is not Needs.TICKET):
        raise ConfigError(
            f"sasl_kerberos_service_name={service!r} has no effect without sasl_mechanism='GSSAPI'"
        )
    given = _given(settings, _SSL_MATERIAL)
    if settings.ssl_endpoint_identification_algorithm != "https":
        given.append("ssl_endpoint_identification_algorithm")
    if settings.ssl_context is not None:
        if given:
            raise ConfigError(
                f"ssl_context excludes {', '.join(given)}: configure the context instead"
            )
        if settings.ssl_context.protocol is ssl.PROTOCOL_TLS_SERVER:
            raise ConfigError("ssl_context is for servers: use ssl.create_default_context()")


def _check_stores(settings: Any) -> None:
    for one, other in (
        ("ssl_truststore_location", "ssl_truststore_certificates"),
        ("ssl_keystore_location", "ssl_keystore_certificate_chain"),
        ("ssl_keystore_key", "ssl_key_location"),
    ):
        if len(_given(settings, (one, other))) == 2:
            raise ConfigError(f"{one} and {other} exclude each other: give one of them")
    chain = _given(settings, ("ssl_keystore_location", "ssl_keystore_certificate_chain"))
    key = _given(settings, ("ssl_keystore_key", "ssl_key_location"))
    if key and not chain:
        raise ConfigError(
            f"{key[0]} needs the client certificate: give ssl_keystore_location or "
            "ssl_keystore_certificate_chain"
        )
    if chain == ["ssl_keystore_certificate_chain"] and not key:
        raise ConfigError(
            "ssl_keystore_certificate_chain needs ssl_keystore_key or ssl_key_location"
        )
    if settings.ssl_key_password is not None and not chain:
        raise ConfigError("ssl_key_password has no key to decrypt: give ssl_keystore_location")


def _check_sasl(settings: Any) -> None:
    mechanism = settings.sasl_mechanism
    if mechanism is None:
        raise ConfigError(
            f"security_protocol={settings.security_protocol!r} needs sasl_mechanism: "
            f"one of {', '.join(MECHANISMS)}"
        )
    wants = f"sasl_mechanism={mechanism!r}"
    spec = MECHANISMS[mechanism]
    if spec.needs is Needs.PASSWORD:
        _check_password(settings, wants)
    else:
        _exclude(settings, _PASSWORD, mechanism)
    if spec.needs in (Needs.TOKEN, Needs.SIGNATURE):
        _require(settings, ("sasl_token_provider",), wants)
    else:
        _exclude(settings, ("sasl_token_provider",), mechanism)
    if spec.needs is Needs.SIGNATURE and not hasattr(settings.sasl_token_provider, "payload"):
        raise ConfigError(f"sasl_token_provider: {mechanism} takes MskIamTokens(...) only")
    if spec.needs is Needs.TICKET:
        _check_kerberos(settings)
    else:
        _exclude(settings, _KERBEROS, mechanism)
    if settings.sasl_delegation_token and not spec.delegation_tokens:
        raise ConfigError("sasl_delegation_token needs sasl_mechanism SCRAM-SHA-256 or -512")
    _check_cleartext(settings, spec)


def _check_password(settings: Any, wants: str) -> None:
    if settings.sasl_credentials is None:
        _require(settings, ("sasl_username", "sasl_password"), wants)
    elif _given(settings, ("sasl_username", "sasl_password")):
        raise ConfigError("sasl_credentials excludes sasl_username and sasl_password")


def _check_kerberos(settings: Any) -> None:
    service = settings.sasl_kerberos_service_name
    if any(char in "/@" or char.isspace() for char in service):
        raise invalid_setting(
            "sasl_kerberos_service_name", service, "use the part of the principal before the /"
        )
    if importlib.util.find_spec("gssapi") is None:
        raise ConfigError(
            "sasl_mechanism='GSSAPI' needs the package gssapi: pip install 'aiokprod[gssapi]' "
            "(which needs the Kerberos headers: libkrb5-dev or krb5-devel)"
        )


def _check_cleartext(settings: Any, spec: MechanismSpec) -> None:
    exposed = settings.security_protocol == "SASL_PLAINTEXT" and spec.sends_in_clear
    if exposed and not settings.sasl_allow_cleartext:
        raise ConfigError(
            f"sasl_mechanism={spec.name!r} with SASL_PLAINTEXT sends the credentials "
            "unencrypted: use SASL_SSL, or set sasl_allow_cleartext=True"
        )


def _require(settings: Any, names: Iterable[str], wants: str) -> None:
    missing = [name for name in names if getattr(settings, name) is None]
    if missing:
        raise ConfigError(f"{wants} needs {' and '.join(missing)}")


def _exclude(settings: Any, names: Iterable[str], mechanism: str) -> None:
    given = _given(settings, names)
    if given:
        raise ConfigError(
            f"{', '.join(given)} has no effect with sasl_mechanism={mechanism!r}: leave it out"
        )


CREDENTIALS: Final = Instance(Credentials)
SSL_CONTEXT: Final = Instance(ssl.SSLContext)
