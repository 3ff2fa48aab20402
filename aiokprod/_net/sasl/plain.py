"""SASL PLAIN (RFC 4616). User name and password are sent in clear text; only TLS protects them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiokprod._net.sasl.authenticator import configured_credentials, user_and_password
from aiokprod._security.secret import Credentials
from aiokprod.errors import AuthenticationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiokprod.cluster import Node
    from aiokprod.config import ProducerConfig


class Plain:
    """One PLAIN exchange: one message and an empty response."""

    name = "PLAIN"

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._username = ""
        self._secrets: tuple[str, ...] = ()

    async def first(self) -> bytes:
        username, password = await user_and_password(self._credentials)
        if "\0" in username or "\0" in password:
            raise AuthenticationError("PLAIN: user name and password must not contain NUL")
        self._username, self._secrets = username, (password,)
        # The first element is the authorization id. It is empty, so the authenticated user applies.
        return b"\0".join((b"", username.encode(), password.encode()))

    async def next(self, challenge: bytes) -> bytes | None:
        return None

    def same_user(self) -> bool:
        return self._username == self._credentials.pair[0]

    def secrets(self) -> tuple[str, ...]:
        return self._secrets


def mechanism(config: ProducerConfig, unix_ms: Callable[[], int]) -> Callable[[Node], Plain]:
    """Return a function that creates one exchange per authentication. Called once per producer."""
    credentials = configured_credentials(config)
    return lambda node: Plain(credentials)
