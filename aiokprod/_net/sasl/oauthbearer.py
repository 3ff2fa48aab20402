"""SASL OAUTHBEARER (RFC 7628, KIP-255) with a token from the configured `TokenProvider`.

The provider is called for every authentication. Caching is up to the provider.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from aiokprod._net.sasl.authenticator import without_secrets
from aiokprod._security.secret import Secret, as_secret, revealed
from aiokprod._security.token_endpoint import expiry_ms
from aiokprod.errors import AuthenticationError

if TYPE_CHECKING:
    from aiokprod.cluster import Node
    from aiokprod.config import ProducerConfig

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_EXTENSION_KEY: Final = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE: Final = re.compile(r"[\x20-\x7e\t\r\n]*")
_MAX_TOKEN: Final = 64 * 1024


class OAuthBearer:
    """One OAUTHBEARER exchange. The client sends the token; the broker responds with an empty
    message, or with the reason of a rejection in JSON.

    Args:
        provider: an async callable, or an object with an async `token()` and optionally
            `extensions()`.
        unix_ms: wall clock for the rejection of expired tokens.
    """

    name = "OAUTHBEARER"

    def __init__(self, provider: Any, unix_ms: Callable[[], int]) -> None:
        self._provider = provider
        self._unix_ms = unix_ms
        self._token = ""
        self._refusal: str | None = None

    async def first(self) -> bytes:
        self._token = await self.fetch()
        fields = {"auth": f"Bearer {self._token}", **self._extensions()}
        text = "".join(f"{key}={value}\x01" for key, value in fields.items())
        return f"n,,\x01{text}\x01".encode()

    async def next(self, challenge: bytes) -> bytes | None:
        if self._refusal is not None:
            raise AuthenticationError(f"OAUTHBEARER: the broker refused the token{self._refusal}")
        if not challenge:
            return None
        # This challenge contains the reason of a rejection. The broker ends the exchange only after
        # the client has responded to it (RFC 7628).
        self._refusal = self._reason(challenge)
        return b"\x01"

    def same_user(self) -> bool:
        # The user of the next token is not known before it is fetched, so assume the same user.
        return True

    def secrets(self) -> tuple[str, ...]:
        return (self._token,) if self._token else ()

    async def fetch(self) -> str:
        """Return a token from the provider.

        Raises:
            AuthenticationError: the provider failed, or its result is not a token or is an expired
                token.
        """
        method = getattr(self._provider, "token", self._provider)
        try:
            given = await method()
        except AuthenticationError:
            raise
        except Exception as error:
            # Do not show the error text, because it may contain the token.
            raise AuthenticationError(
                f"OAUTHBEARER: the token provider failed with {type(error).__name__}"
            ) from None
        if not isinstance(given, (str, Secret)) or given == "":
            raise AuthenticationError("OAUTHBEARER: the token provider returned no token")
        token = await revealed(as_secret(given))
        if len(token) > _MAX_TOKEN or _TOKEN.fullmatch(token) is None:
            raise AuthenticationError("OAUTHBEARER: the provider's result is not a valid token")
        if expiry_ms(token) <= self._unix_ms():
            raise AuthenticationError("OAUTHBEARER: the token provider returned an expired token")
        return token

    def _extensions(self) -> dict[str, str]:
        method = getattr(self._provider, "extensions", None)
        given = method() if callable(method) else {}
        if not isinstance(given, Mapping):
            raise AuthenticationError("OAUTHBEARER: the extensions are not a mapping")
        for key, value in given.items():
            if (
                not isinstance(key, str)
                or not isinstance(value, str)
                or key.lower() == "auth"
                or _EXTENSION_KEY.fullmatch(key) is None
                or _EXTENSION_VALUE.fullmatch(value) is None
            ):
                raise AuthenticationError("OAUTHBEARER: an extension does not conform to RFC 7628")
        return dict(given)

    def _reason(self, challenge: bytes) -> str:
        """Return the status in the broker's JSON. The other fields may contain secrets."""
        try:
            status = json.loads(challenge).get("status")
        except (ValueError, AttributeError, RecursionError):
            return ""
        if isinstance(status, str) and re.fullmatch(r"[A-Za-z0-9_ -]{1,64}", status):
            return f": {without_secrets(status, self.secrets())}"
        return ""


def mechanism(config: ProducerConfig, unix_ms: Callable[[], int]) -> Callable[[Node], OAuthBearer]:
    """Return a function that creates one exchange per authentication. Called once per producer."""
    return lambda node: OAuthBearer(config.sasl_token_provider, unix_ms)
