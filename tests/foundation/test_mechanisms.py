"""The table of the SASL mechanisms, and the values derived from it."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any

import pytest

from aiokprod._client.check.connections import explain_failure
from aiokprod._config.mechanisms import MECHANISMS, MechanismSpec, Needs
from aiokprod.cluster import Node
from aiokprod.config import ProducerConfig
from aiokprod.environment import Environment
from aiokprod.errors import AuthenticationError, Code, ConfigError, error_code
from aiokprod.security import JwtBearerTokens, MskIamTokens, OidcTokens, TokenProvider
from aiokprod.testing.memory import MemoryNetwork

SETTINGS: dict[Needs, dict[str, Any]] = {
    Needs.PASSWORD: {"sasl_username": "user", "sasl_password": "secret"},
    Needs.TOKEN: {"sasl_token_provider": OidcTokens("https://idp.example.com/token", "me", "s")},
    Needs.SIGNATURE: {"sasl_token_provider": MskIamTokens("eu-west-1", lambda: None)},  # type: ignore[arg-type, return-value]
    Needs.TICKET: {},
}
OF_OTHERS = {"sasl_username", "sasl_token_provider", "sasl_kerberos_principal"}

ROWS = pytest.mark.parametrize("spec", MECHANISMS.values(), ids=lambda spec: spec.name)


def config(spec: MechanismSpec, **more: Any) -> ProducerConfig:
    settings = SETTINGS[spec.needs] | {"security_protocol": "SASL_SSL"} | more
    return ProducerConfig(bootstrap_servers="b:1", sasl_mechanism=spec.name, **settings)


@pytest.fixture(autouse=True)
def kerberos(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the package gssapi appear to be installed."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())


@ROWS
def test_mechanism_is_made_by_its_module(spec: MechanismSpec) -> None:
    module = import_module(f"aiokprod._net.sasl.{spec.module}")
    exchange = module.mechanism(config(spec), lambda: 0)(Node(1, "b", 9092))
    assert exchange.name == spec.name


@ROWS
def test_remedy_after_a_refusal_names_the_settings_of_the_mechanism(spec: MechanismSpec) -> None:
    error = AuthenticationError("no", code=error_code(Code.SASL_AUTHENTICATION_FAILED))
    environment = Environment(MemoryNetwork())
    found = asyncio.run(explain_failure(error, "b:1", ("b", 1), config(spec), environment))
    words = {
        Needs.PASSWORD: "sasl_password",
        Needs.TOKEN: "scope of the token",
        Needs.SIGNATURE: "sasl_token_provider",
        Needs.TICKET: "sasl_kerberos_service_name",
    }
    assert words[spec.needs] in found.remedy
    assert ("sasl_username" in found.remedy) == (spec.needs is Needs.PASSWORD)


@ROWS
def test_mechanism_without_its_settings_is_refused(spec: MechanismSpec) -> None:
    if spec.needs is Needs.TICKET:
        return  # the default credential cache is used
    for name in SETTINGS[spec.needs]:
        with pytest.raises(ConfigError, match=name):
            config(spec, **{name: None})


@ROWS
def test_mechanism_with_settings_of_another_one_is_refused(spec: MechanismSpec) -> None:
    own = {"sasl_kerberos_principal"} if spec.needs is Needs.TICKET else set(SETTINGS[spec.needs])
    for name in OF_OTHERS - own:
        with pytest.raises(ConfigError, match="has no effect"):
            config(spec, **{name: (lambda: None) if name == "sasl_token_provider" else "x"})


@ROWS
def test_mechanism_that_sends_in_clear_needs_tls_or_consent(spec: MechanismSpec) -> None:
    if spec.sends_in_clear:
        with pytest.raises(ConfigError, match="sasl_allow_cleartext"):
            config(spec, security_protocol="SASL_PLAINTEXT")
    config(spec, security_protocol="SASL_PLAINTEXT", sasl_allow_cleartext=spec.sends_in_clear)


@ROWS
def test_delegation_tokens_are_for_scram(spec: MechanismSpec) -> None:
    assert spec.delegation_tokens is spec.name.startswith("SCRAM")
    if spec.delegation_tokens:
        config(spec, sasl_delegation_token=True)
    else:
        with pytest.raises(ConfigError, match="sasl_delegation_token"):
            config(spec, sasl_delegation_token=True)


def test_ready_made_providers_are_token_providers() -> None:
    provider: TokenProvider = OidcTokens("https://idp.example.com/token", "me", "s")
    assert isinstance(provider, TokenProvider)
    for other in (JwtBearerTokens, MskIamTokens):
        assert issubclass(other, TokenProvider)
