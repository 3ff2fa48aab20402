"""Tokens from an OpenID Connect provider with the JWT-bearer grant (RFC 7523, KIP-1139).

Instead of a client secret, the provider receives an assertion signed with a private key:

    Producer(..., security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER",
             sasl_token_provider=JwtBearerTokens(
                 "https://idp.example.com/token", key=Secret.from_file("/run/secrets/key.pem"),
                 issuer="my-client", subject="my-client", audience="https://idp.example.com"))

Signing needs the extra `aiokprod[oidc]` (PyJWT with cryptography). Source: RFC 7523 §2.1, §3;
Java `JwtBearerJwtRetriever`, `DefaultAssertionCreator`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import secrets
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final

from aiokprod._redaction import redacted
from aiokprod._security.secret import Secret, as_secret, revealed
from aiokprod._security.token_endpoint import TokenEndpoint, TokenRequest
from aiokprod.environment import unix_ms
from aiokprod.errors import AuthenticationError, ConfigError

GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ALGORITHMS: Final = ("RS256", "ES256")
_OURS: Final = frozenset({"iss", "sub", "aud", "iat", "nbf", "exp", "jti"})


class JwtBearerTokens:
    """A token provider for OAUTHBEARER that caches a token until 80 % of its lifetime has passed.

    If a later request fails, the old token is used while it is valid.

    Args:
        token_endpoint: an https URL.
        key: private key as PEM text. The file of `Secret.from_file` is read for every assertion, so
            that a rotated key takes effect.
        key_password: the password of an encrypted key.
        algorithm: "RS256" or "ES256".
        key_id: the header field `kid`.
        issuer, subject, audience: the claims `iss`, `sub`, `aud`.
        claims: further claims.
        lifetime_s: seconds from now to `exp`, 1 to 86400.
        skew_s: seconds by which `nbf` is in the past, to tolerate differing clocks; 0 to 3600.
        assertion: a complete assertion instead of a key and claims, such as the token of a
            Kubernetes service account: `Secret.from_file("/var/run/secrets/tokens/kafka")`.
        scope: the scopes, separated by spaces.
        parameters: further form fields.
        tls: context for the endpoint; default: the system's CAs.
        timeout_s: seconds for the whole exchange with the endpoint.
        clock: wall clock in ms.

    Raises:
        ConfigError: the URL is not an https URL, an argument is missing, out of range or excluded
            by another argument, or the extra is not installed.
    """

    @redacted(ConfigError)
    def __init__(
        self,
        token_endpoint: str,
        *,
        key: str | Secret | None = None,
        key_password: str | Secret | None = None,
        algorithm: str = "RS256",
        key_id: str | None = None,
        issuer: str | None = None,
        subject: str | None = None,
        audience: str | None = None,
        claims: Mapping[str, Any] | None = None,
        lifetime_s: int = 300,
        skew_s: int = 60,
        assertion: str | Secret | None = None,
        scope: str | None = None,
        parameters: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 10.0,
        clock: Callable[[], int] = unix_ms,
    ) -> None:
        self._endpoint = TokenEndpoint(token_endpoint, tls, timeout_s, clock)
        if (key is None) == (assertion is None):
            raise ConfigError("give either key, or a ready assertion")
        self._assertion = None if assertion is None else as_secret(assertion)
        self._key = None if key is None else as_secret(key)
        self._key_password = None if key_password is None else as_secret(key_password)
        named = {"iss": issuer, "sub": subject, "aud": audience}
        self._claims = {name: value for name, value in named.items() if value is not None}
        _check_claims(claims or {}, self._claims, signing=key is not None)
        if key is None and key_password is not None:
            raise ConfigError("key_password has no key to decrypt: leave it out")
        if key is not None:
            _check_signing(algorithm, lifetime_s, skew_s)
        self._claims |= claims or {}
        self._algorithm = algorithm
        self._headers = None if key_id is None else {"kid": key_id}
        self._lifetime, self._skew = lifetime_s, skew_s
        self._clock = clock
        self._form = {"grant_type": GRANT, **(parameters or {})}
        if scope is not None:
            self._form["scope"] = scope

    def __repr__(self) -> str:
        return f"JwtBearerTokens({self._endpoint!r})"

    @redacted(AuthenticationError)
    async def token(self) -> Secret:
        """Return the token. Concurrent callers share one request.

        Raises:
            AuthenticationError: the key cannot be used; the endpoint cannot be reached, rejects the
                request, or returns no token.
        """
        return await self._endpoint.token(self._request)

    async def _request(self) -> TokenRequest:
        if self._assertion is not None:
            assertion = await revealed(self._assertion)
        else:
            # Use a thread, because signing with RSA takes milliseconds, and reading a file may take
            # longer.
            loop = asyncio.get_running_loop()
            assertion = (await loop.run_in_executor(None, self._signed)).reveal()
        return TokenRequest({**self._form, "assertion": assertion.strip()})

    def _signed(self) -> Secret:
        """Return a new assertion. Blocks."""
        import jwt
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        now = self._clock() // 1000
        claims = self._claims | {
            "iat": now,
            "nbf": now - self._skew,
            "exp": now + self._lifetime,
            "jti": secrets.token_urlsafe(16),
        }
        assert self._key is not None
        try:
            password = None if self._key_password is None else self._key_password.reveal().encode()
            private: Any = load_pem_private_key(self._key.reveal().encode(), password)
            return Secret(jwt.encode(claims, private, self._algorithm, headers=self._headers))
        except ConfigError as error:
            raise AuthenticationError(f"JWT-bearer grant: {error.message}") from None
        except Exception as error:
            # Do not show the text of the exception, because it may contain the key.
            raise AuthenticationError(
                f"JWT-bearer grant: the private key cannot be used with {self._algorithm} "
                f"({type(error).__name__}): check that it is a PEM key for this algorithm and that "
                "key_password is correct"
            ) from None


def _check_claims(more: Mapping[str, Any], named: Mapping[str, str], *, signing: bool) -> None:
    if not signing:
        if more or named:
            raise ConfigError("a ready assertion contains its claims: leave them out")
        return
    missing = [
        word
        for word, name in (("issuer", "iss"), ("subject", "sub"), ("audience", "aud"))
        if name not in named
    ]
    if missing:
        raise ConfigError(f"{' and '.join(missing)} must be given (RFC 7523 §3)")
    clash = sorted(_OURS & set(more))
    if clash:
        raise ConfigError(
            f"claims must not hold {', '.join(clash)}: they have arguments or are set"
        )


def _check_signing(algorithm: str, lifetime_s: int, skew_s: int) -> None:
    if algorithm not in ALGORITHMS:
        raise ConfigError(f"algorithm={algorithm!r}: use one of {', '.join(ALGORITHMS)}")
    bounded: list[tuple[str, object, int, int]] = [
        ("lifetime_s", lifetime_s, 1, 86_400),
        ("skew_s", skew_s, 0, 3_600),
    ]
    for name, value, low, high in bounded:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ConfigError(f"{name}={value!r}: use an int of {low} to {high}")
    for package in ("jwt", "cryptography"):
        if importlib.util.find_spec(package) is None:
            raise ConfigError("signing needs PyJWT: pip install 'aiokprod[oidc]'")
