"""From the configuration to what authenticates a connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from aiokprod._config.security import SASL_PROTOCOLS
from aiokprod._net.authentication import Authenticator
from aiokprod._security.secret import Credentials
from aiokprod.cluster import Node
from aiokprod.config import ProducerConfig

if TYPE_CHECKING:
    from aiokprod._net.sasl.authenticator import Mechanism


def authenticators(
    config: ProducerConfig, unix_ms: Callable[[], int]
) -> Callable[[Node], Authenticator] | None:
    """Makes the authenticator of each connection; None for listeners without SASL."""
    if config.security_protocol not in SASL_PROTOCOLS:
        return None
    from aiokprod._net.sasl.authenticator import SaslAuthenticator  # imports take time

    new_mechanism = _mechanism(config, unix_ms)
    return lambda node: SaslAuthenticator(f"broker {node}", lambda: new_mechanism(node))


def _mechanism(config: ProducerConfig, unix_ms: Callable[[], int]) -> Callable[[Node], Mechanism]:
    name = config.sasl_mechanism or ""
    provider = config.sasl_token_provider
    # Imported here: a producer uses one mechanism at most.
    if name == "OAUTHBEARER":
        from aiokprod._net.sasl.oauthbearer import OAuthBearer

        return lambda node: OAuthBearer(provider, unix_ms)
    if name == "AWS_MSK_IAM":
        from aiokprod._net.sasl.aws_msk_iam import AwsMskIam

        return lambda node: AwsMskIam(provider, node.host)
    if name == "GSSAPI":
        from aiokprod._net.sasl.gssapi import Gssapi, KerberosLogin

        login = KerberosLogin(
            config.sasl_kerberos_service_name,
            config.sasl_kerberos_principal,
            config.sasl_kerberos_keytab,
        )
        return lambda node: Gssapi(login, node.host)
    credentials = _credentials(config)
    if name == "PLAIN":
        from aiokprod._net.sasl.plain import Plain

        return lambda node: Plain(credentials)
    from aiokprod._net.sasl.scram import KeyCache, Scram

    cache = KeyCache()
    delegated = config.sasl_delegation_token
    return lambda node: Scram(name, credentials, cache, delegation_token=delegated)


def _credentials(config: ProducerConfig) -> Credentials:
    if config.sasl_credentials is not None:
        return config.sasl_credentials
    # The configuration refuses PLAIN and SCRAM without both.
    assert config.sasl_username is not None
    assert config.sasl_password is not None
    return Credentials(config.sasl_username, config.sasl_password)
