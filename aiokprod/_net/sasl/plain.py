"""SASL PLAIN (RFC 4616): user name and password as they are; only TLS hides them."""

from __future__ import annotations

from aiokprod._net.sasl.authenticator import user_and_password
from aiokprod._security.secret import Credentials
from aiokprod.errors import AuthenticationError


class Plain:
    """One exchange: one message, one answer without content."""

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
        # No authorization id: we act as ourselves.
        return b"\0".join((b"", username.encode(), password.encode()))

    async def next(self, challenge: bytes) -> bytes | None:
        return None

    def same_user(self) -> bool:
        return self._username == self._credentials.pair[0]

    def secrets(self) -> tuple[str, ...]:
        return self._secrets
