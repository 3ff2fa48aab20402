"""A client for the token endpoint of an OpenID Connect provider. It sends one request at a time and
caches tokens.

Requests are sent over https to the configured endpoint only, and redirects are not followed. Error
texts contain no part of a response (CVE-2025-27817). Source: RFC 6749 §5.1; Java
`HttpJwtRetriever`.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import http.client
import json
import logging
import math
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from aiokprod._log_fields import log_fields
from aiokprod._security.http_exchange import HttpAnswer, HttpExchange, HttpRequest
from aiokprod._security.secret import Secret
from aiokprod.environment import unix_ms
from aiokprod.errors import AuthenticationError, ConfigError

log = logging.getLogger(__name__)

_MAX_ANSWER: Final = 1 << 20
_REFRESH_AT: Final = 0.8
"""Fraction of a token's lifetime after which a new one is fetched, as in Java."""


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """The form fields of a request, and headers such as the client's credentials."""

    form: Mapping[str, str] = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class _Cached:
    token: Secret
    refresh_at: float
    expires_at: float


class TokenEndpoint:
    """Fetches tokens and caches each until 80 % of its lifetime has passed.

    If a later request fails, the old token is used while it is valid.

    Args:
        url: an https URL.
        tls: context for the endpoint; default: the system's CAs.
        timeout_s: seconds for the whole exchange, from name resolution to the last byte.
        clock: wall clock in ms.

    Raises:
        ConfigError: the URL is not an https URL, or contains a user name.
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
        self._exchange: HttpExchange | None = None
        self._warned = False

    def __repr__(self) -> str:
        return f"'https://{self._host}:{self._port}'"

    async def token(self, make: Callable[[], Awaitable[TokenRequest]]) -> Secret:
        """Return the token. Concurrent callers share one request.

        Args:
            make: creates the request if one is needed.

        Raises:
            AuthenticationError: the endpoint cannot be reached, rejects the request, or returns no
                token.
        """
        async with self._lock:
            loop = asyncio.get_running_loop()
            asked_at, cached = loop.time(), self._cached
            if cached is not None and asked_at < cached.refresh_at:
                return cached.token
            try:
                fetched = self._parse(await self._ask(await make()))
            except AuthenticationError:
                if cached is not None and asked_at < cached.expires_at:
                    return cached.token
                raise
            token, lifetime = fetched
            # The lifetime starts at the time before the request, because the token may have been
            # issued then.
            self._cached = _Cached(token, asked_at + lifetime * _REFRESH_AT, asked_at + lifetime)
            return token

    async def _ask(self, request: TokenRequest) -> HttpAnswer:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        await self._previous_ended(deadline)
        exchange = self._exchange = HttpExchange(
            HttpRequest(
                "POST",
                self._host,
                self._port,
                self._path,
                urlencode(request.form).encode(),
                {
                    **request.headers,
                    "Content-Type": "application/x-www-form-urlencoded",
                    "Accept": "application/json",
                    "Connection": "close",
                },
                self._tls,
                max(0.0, deadline - loop.time()),
                _MAX_ANSWER,
            ),
            "aiokprod-token",
        )
        try:
            if not await exchange.ended(deadline):
                raise self._error(f"the request failed (no response within {self._timeout:g} s)")
        finally:
            exchange.abort()
        self._exchange = None
        try:
            return exchange.answer.result()
        except ssl.SSLCertVerificationError as error:
            raise self._error(f"its certificate was refused: {error.verify_message}") from None
        except TimeoutError:
            text = f"the request failed (no response within {self._timeout:g} s)"
            raise self._error(text) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self._error(f"the request failed ({type(error).__name__})") from None

    async def _previous_ended(self, deadline: float) -> None:
        """Wait until the previous request has ended. Its thread may still be resolving the name if
        the caller was cancelled."""
        previous = self._exchange
        if previous is not None and previous.running and not await previous.ended(deadline):
            raise self._error(
                f"the request cannot be sent (the previous request has not ended within "
                f"{self._timeout:g} s: is name resolution stuck?)"
            )
        self._exchange = None

    def _parse(self, answer: HttpAnswer) -> tuple[Secret, float]:
        """Return the token and its lifetime in seconds."""
        if answer.status != http.client.OK:
            raise self._error(f"the endpoint responded with status {answer.status}")
        return self._token_in(answer.body)

    def _token_in(self, body: bytes) -> tuple[Secret, float]:
        try:
            answer: Any = json.loads(body) if len(body) <= _MAX_ANSWER else None
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise self._error("its response is not JSON, or is too large")
        token, kind = answer.get("access_token"), answer.get("token_type", "Bearer")
        if not isinstance(token, str) or not token or str(kind).lower() != "bearer":
            raise self._error("its response has no bearer token")
        # The broker ends the session according to the claim `exp`, which is in whole seconds.
        lifetime = (expiry_ms(token) - self._clock()) / 1000
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            given = float(answer.get("expires_in", lifetime))
            lifetime = lifetime if math.isnan(given) else min(lifetime, given)
        if lifetime == math.inf and not self._warned:
            self._warned = True
            log.warning(
                "OIDC token endpoint https://%s:%d returns no lifetime of its tokens (expires_in, "
                "exp): every connection will fetch one",
                self._host,
                self._port,
                extra=log_fields("token_without_lifetime", host=self._host, port=self._port),
            )
        return Secret(token), lifetime if 0 < lifetime < math.inf else 0.0

    def __getstate__(self) -> tuple[Any, ...]:
        # Leave out the lock, which belongs to a loop, the request, which belongs to a process, and
        # the token, which must not be pickled.
        return self._host, self._port, self._path, self._tls, self._timeout, self._clock

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._host, self._port, self._path, self._tls, self._timeout, self._clock = state
        self._cached = self._exchange = None
        self._lock = asyncio.Lock()
        self._warned = False

    def _error(self, text: str) -> AuthenticationError:
        return AuthenticationError(f"OIDC token endpoint https://{self._host}:{self._port}: {text}")


def _split(url: str) -> tuple[str, int, str]:
    try:
        parts = urlsplit(url)
        port = parts.port or 443
    except ValueError:
        raise ConfigError("token_endpoint is not a URL") from None
    if parts.scheme != "https" or not parts.hostname:
        raise ConfigError("token_endpoint must be an https URL")
    if "@" in parts.netloc or parts.fragment or any(ord(c) <= 32 for c in url):
        raise ConfigError("token_endpoint must have no user name, fragment or space")
    path = parts.path or "/"
    return parts.hostname, port, f"{path}?{parts.query}" if parts.query else path


def expiry_ms(token: str) -> float:
    """Return the expiry of a JWT in Unix ms, or inf for a token without an expiry.

    The token is not verified, because the broker verifies it.
    """
    parts = token.split(".")
    if len(parts) != 3:
        return math.inf
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        expiry = float(claims["exp"]) * 1000
        return math.inf if math.isnan(expiry) else expiry
    except (binascii.Error, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return math.inf
