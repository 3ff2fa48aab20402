"""`TokenProvider`: the interface of token providers for OAUTHBEARER."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, runtime_checkable

from aiokprod._security.secret import Secret


@runtime_checkable
class TokenProvider(Protocol):
    """Returns the token for each authentication with OAUTHBEARER. An object of this type is the
    value of the setting `sasl_token_provider`.

    A function `async def token() -> str | Secret` without arguments may be used instead of an
    object. An object may also have a method `extensions()` that returns SASL extensions (RFC 7628)
    as a mapping of str to str.
    """

    def token(self) -> Awaitable[str | Secret]:
        """Return the token, usually a JWT.

        The result is awaited on the event loop for every new connection and every
        re-authentication, within the connection setup timeout. A provider should therefore cache
        tokens that are still valid.

        Raises:
            AuthenticationError: there is no token. The text of this error is shown to users. Of any
                other exception only the class is shown, because the text may contain a secret.
        """
        ...
