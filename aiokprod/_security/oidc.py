"""Tokens from an OpenID Connect provider with the client-credentials grant (KIP-768).

    Producer(..., security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER",
             sasl_token_provider=OidcTokens("https://idp.example.com/token", "me", secret))

Source: RFC 6749 §4.4, §2.3.1. The grant with a signed assertion is in `jwt_bearer`.
"""

from __future__ import annotations

import base64
import ssl
from urllib.parse import quote_plus

from aiokprod._redaction import redacted
from aiokprod._security.secret import Secret, as_secret, revealed
from aiokprod._security.token_endpoint import TokenEndpoint, TokenRequest
from aiokprod.errors import AuthenticationError, ConfigError


class OidcTokens:
    """A token provider for OAUTHBEARER that caches a token until 80 % of its lifetime has passed.

    If a later request fails, the old token is used while it is valid.

    Args:
        token_endpoint: an https URL.
        client_id, client_secret: sent with HTTP Basic authentication, which RFC 6749 requires
            providers to support.
        scope: the scopes, separated by spaces.
        parameters: further form fields, such as "audience".
        tls: context for the endpoint; default: the system's CAs.
        timeout_s: seconds for the whole exchange with the endpoint.

    Raises:
        ConfigError: the URL is not an https URL, or contains a user name.
    """

    @redacted(ConfigError)
    def __init__(
        self,
        token_endpoint: str,
        client_id: str,
        client_secret: str | Secret,
        *,
        scope: str | None = None,
        parameters: dict[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        self._endpoint = TokenEndpoint(token_endpoint, tls, timeout_s)
        self._client_id = client_id
        self._secret = as_secret(client_secret)
        self._form = {"grant_type": "client_credentials", **(parameters or {})}
        if scope is not None:
            self._form["scope"] = scope

    def __repr__(self) -> str:
        return f"OidcTokens({self._endpoint!r}, {self._client_id!r})"

    @redacted(AuthenticationError)
    async def token(self) -> Secret:
        """Return the token. Concurrent callers share one request.

        Raises:
            AuthenticationError: the endpoint cannot be reached, rejects the request, or returns no
                token.
        """
        return await self._endpoint.token(self._request)

    async def _request(self) -> TokenRequest:
        secret = await revealed(self._secret)
        login = f"{quote_plus(self._client_id)}:{quote_plus(secret)}".encode()
        basic = "Basic " + base64.b64encode(login).decode()
        return TokenRequest(self._form, {"Authorization": basic})
