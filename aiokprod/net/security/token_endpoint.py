"""The token endpoint of an OpenID Connect provider: one https request at a time, answers kept.

Only the endpoint named in code is ever asked, by https, without redirects; what it answers is in no
error text (CVE-2025-27817). Source: RFC 6749 §5.1; Java `HttpJwtRetriever`.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import math
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from aiokprod.environment import unix_ms
from aiokprod.errors import AuthenticationError, ConfigError
from aiokprod.net.security.oauthbearer import expiry_ms
from aiokprod.secret import Secret

_MAX_ANSWER: Final = 1 << 20
_REFRESH_AT: Final = 0.8
"""Share of a token's life after which a new one is fetched, as Java does."""


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A form and what proves who asks."""

    form: Mapping[str, str] = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class _Cached:
    token: Secret
    refresh_at: float
    expires_at: float


class TokenEndpoint:
    """Fetches tokens and keeps each until 80 % of its life have passed.

    If the endpoint fails then, the old token is used for as long as it is valid.

    Args:
        url: https.
        tls: context for the endpoint; default: the system's CAs.
        timeout_s: seconds for each step of the exchange.
        clock: wall clock in ms.

    Raises:
        ConfigError: the URL is not one of https, or has a user name in it.
    """

    def __init__(
        self,
        url: str,
        tls: ssl.SSLContext | None,
        timeout_s: float,
        clock: Callable[[], int] = unix_ms,
    ) -> None:
        self._host, self._port, self._path = _split(url)
        self._tls = tls
        self._timeout = timeout_s
        self._clock = clock
        self._cached: _Cached | None = None
        self._lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"'https://{self._host}:{self._port}'"

    async def token(self, make: Callable[[], Awaitable[TokenRequest]]) -> Secret:
        """The token; callers at the same time share one request.

        Args:
            make: gives the request if one is needed.

        Raises:
            AuthenticationError: the endpoint cannot be asked, refuses, or answers no token.
        """
        async with self._lock:
            loop = asyncio.get_running_loop()
            asked_at, cached = loop.time(), self._cached
            if cached is not None and asked_at < cached.refresh_at:
                return cached.token
            try:
                request = await make()
                token, lifetime = await loop.run_in_executor(None, self._ask, request)
            except AuthenticationError:
                if cached is not None and asked_at < cached.expires_at:
                    return cached.token
                raise
            # Counted from before the request: the token is at least that old.
            self._cached = _Cached(token, asked_at + lifetime * _REFRESH_AT, asked_at + lifetime)
            return token

    def _ask(self, request: TokenRequest) -> tuple[Secret, float]:
        """Token and its life in seconds. Blocks."""
        headers = {
            **request.headers,
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
        }
        context = self._tls or ssl.create_default_context()
        connection = http.client.HTTPSConnection(
            self._host, self._port, timeout=self._timeout, context=context
        )
        try:
            connection.request("POST", self._path, urlencode(request.form), headers)
            with connection.getresponse() as answer:
                body = answer.read(_MAX_ANSWER + 1)
                status = answer.status
        except ssl.SSLCertVerificationError as error:
            raise self._error(f"its certificate was refused: {error.verify_message}") from None
        except (OSError, http.client.HTTPException) as error:
            raise self._error(f"it cannot be asked ({type(error).__name__})") from None
        finally:
            connection.close()
        if status != http.client.OK:
            raise self._error(f"it answered with status {status}")
        return self._parse(body)

    def _parse(self, body: bytes) -> tuple[Secret, float]:
        try:
            answer: Any = json.loads(body) if len(body) <= _MAX_ANSWER else None
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise self._error("its answer is not JSON of bearable size")
        token, kind = answer.get("access_token"), answer.get("token_type", "Bearer")
        if not isinstance(token, str) or not token or str(kind).lower() != "bearer":
            raise self._error("its answer has no bearer token")
        # The broker ends the session by the token's own claim, which has whole seconds only.
        lifetime = (expiry_ms(token) - self._clock()) / 1000
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            lifetime = min(lifetime, float(answer.get("expires_in", lifetime)))
        return Secret(token), lifetime if 0 < lifetime < math.inf else 0.0

    def _error(self, text: str) -> AuthenticationError:
        return AuthenticationError(f"OIDC token endpoint https://{self._host}:{self._port}: {text}")


def _split(url: str) -> tuple[str, int, str]:
    try:
        parts = urlsplit(url)
        port = parts.port or 443
    except ValueError:
        raise ConfigError("token_endpoint is no URL") from None
    if parts.scheme != "https" or not parts.hostname:
        raise ConfigError("token_endpoint must be an https URL")
    if "@" in parts.netloc or parts.fragment or any(ord(c) <= 32 for c in url):
        raise ConfigError("token_endpoint must have no user name, fragment or space")
    path = parts.path or "/"
    return parts.hostname, port, f"{path}?{parts.query}" if parts.query else path
