"""`TokenProvider`: the interface of token providers for OAUTHBEARER."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, runtime_checkable

from aiokprod._security.secret import Secret


@runtime_checkable
class TokenProvider(Protocol):
    """Returns the token for each authentication with OAUTHBEARER; the setting
    `sasl_token_provider`.

    A function `async def token() -> str | Secret` without arguments may be used instead of an
    object. An object may also have a method `extensions()` that returns SASL extensions (RFC 7628)
    as a mapping of str to str.
    """

    def token(self) -> Awaitable[str | Secret]:
        """The token, usually a JWT.

        It is awaited on the event loop for every new connection and every re-authentication, within
        the connection setup timeout, so a provider should cache tokens that are still valid.

        Raises:
            AuthenticationError: there is no token; its text is shown to users. For any other
                exception only the class is shown, because its text may contain a secret.
        """
        ...
