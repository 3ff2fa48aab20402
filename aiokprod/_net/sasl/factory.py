"""Creates the authenticators of connections for the configured mechanism."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from aiokprod._config.mechanisms import MECHANISMS
from aiokprod._config.security import SASL_PROTOCOLS
from aiokprod._net.authentication import Authenticator
from aiokprod.cluster import Node
from aiokprod.config import ProducerConfig

if TYPE_CHECKING:
    from aiokprod._net.sasl.authenticator import Mechanism


def authenticators(
    config: ProducerConfig, unix_ms: Callable[[], int]
) -> Callable[[Node], Authenticator] | None:
    """Return a function that creates the authenticator of a connection; None without SASL.

    Args:
        unix_ms: the wall clock.
    """
    if config.security_protocol not in SASL_PROTOCOLS:
        return None
    # Import only the module of the configured mechanism, because imports take time.
    from aiokprod._net.sasl.authenticator import SaslAuthenticator

    assert config.sasl_mechanism is not None, "checked with the configuration"
    module = import_module(f"aiokprod._net.sasl.{MECHANISMS[config.sasl_mechanism].module}")
    # `mechanism` is called once per producer, so it may create objects that connections share, such
    # as a cache of derived keys. The returned function creates one exchange per authentication.
    new_mechanism: Callable[[Node], Mechanism] = module.mechanism(config, unix_ms)
    return lambda node: SaslAuthenticator(f"broker {node}", lambda: new_mechanism(node))
