"""SASL SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677).

The password is not sent, and the broker must prove that it has the user's server key. User names
and passwords are encoded as UTF-8 without SASLprep, as in brokers. Source: Java `ScramSaslClient`,
`ScramFormatter`; KIP-48 for delegation tokens.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from aiokprod._net.sasl.authenticator import configured_credentials, user_and_password
from aiokprod._security.secret import Credentials
from aiokprod.errors import AuthenticationError

if TYPE_CHECKING:
    from aiokprod.cluster import Node
    from aiokprod.config import ProducerConfig

MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 1_000_000
"""Maximum number of PBKDF2 iterations that a broker may request. It limits the CPU time."""

_GS2: Final = "n,,"
_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_NONCE: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]+")
_SERVER_FIRST: Final = re.compile(r"r=([^,]+),s=([^,]*),i=([0-9]{1,9})(?:,.*)?", re.DOTALL)
_ERRORS: Final = frozenset({
    "invalid-encoding", "extensions-not-supported", "invalid-proof", "channel-bindings-dont-match",
    "server-does-support-channel-binding", "channel-binding-not-supported",
    "unsupported-channel-binding-type", "unknown-user", "invalid-username-encoding",
    "no-resources", "other-error",
})  # fmt: skip
"""The error values of RFC 5802 §7. Other texts are not shown, because they could contain the data
that the client sent."""
_MAX_MESSAGE: Final = 8192


def random_nonce() -> str:
    """Return 144 random bits in base64, which has no comma (RFC 5802 forbids commas in nonces)."""
    return base64.b64encode(secrets.token_bytes(18)).decode()


@dataclass(frozen=True, slots=True)
class _Keys:
    client: bytes = field(default=b"", repr=False)
    server: bytes = field(default=b"", repr=False)


class KeyCache:
    """Caches the last derived keys, so that reconnects and re-authentications do not derive them
    again.

    The keys are as sensitive as the password, which is in memory too.
    """

    def __init__(self) -> None:
        self._asked: tuple[str, str, bytes, int] | None = None
        self._keys = _Keys()

    async def keys(self, name: str, password: str, salt: bytes, count: int) -> tuple[bytes, bytes]:
        """Return the client key and the server key."""
        asked = (name, password, salt, count)
        keys = self._keys
        if asked != self._asked:
            loop = asyncio.get_running_loop()
            # asyncio's debug mode logs arguments and results. Therefore the secrets are passed in a
            # closure, and the keys are returned in an object whose repr omits them.
            keys = await loop.run_in_executor(None, lambda: _derive(*asked))
            self._asked, self._keys = asked, keys
        return keys.client, keys.server


def _derive(name: str, password: str, salt: bytes, count: int) -> _Keys:
    digest = _HASHES[name]
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, count)
    return _Keys(
        hmac.digest(salted, b"Client Key", digest),
        hmac.digest(salted, b"Server Key", digest),
    )


class Scram:
    """One SCRAM exchange.

    Args:
        name: "SCRAM-SHA-256" or "SCRAM-SHA-512".
        delegation_token: True if the user name is the id of a delegation token, and the password
            its HMAC.
    """

    def __init__(
        self,
        name: str,
        credentials: Credentials,
        cache: KeyCache,
        *,
        delegation_token: bool = False,
        nonce: Callable[[], str] = random_nonce,
    ) -> None:
        self.name = name
        self._digest = _HASHES[name]
        self._credentials = credentials
        self._cache = cache
        self._extension = ",tokenauth=true" if delegation_token else ""
        self._nonce = nonce()
        self._username = ""
        self._password = ""
        self._first_bare = ""
        self._server_signature: bytes | None = None

    async def first(self) -> bytes:
        self._username, self._password = await user_and_password(self._credentials)
        escaped = self._username.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={escaped},r={self._nonce}{self._extension}"
        return (_GS2 + self._first_bare).encode()

    async def next(self, challenge: bytes) -> bytes | None:
        text = self._text(challenge)
        if self._server_signature is None:
            return await self._final(text)
        self._verify(text, self._server_signature)
        return None

    def same_user(self) -> bool:
        return self._username == self._credentials.pair[0]

    def secrets(self) -> tuple[str, ...]:
        return (self._password,) if self._password else ()

    def _text(self, challenge: bytes) -> str:
        if len(challenge) > _MAX_MESSAGE:
            raise self._error("the broker's message is too long")
        try:
            text = challenge.decode()
        except UnicodeDecodeError:
            raise self._error("the broker's message is not UTF-8") from None
        if text.startswith("e="):
            shown = text[2:] if text[2:] in _ERRORS else "unknown reason"
            raise self._error(f"the broker refused: {shown}")
        if text.startswith("m="):
            raise self._error("the broker demands an unknown extension")
        return text

    async def _final(self, server_first: str) -> bytes:
        nonce, salt, count = self._parse(server_first)
        client_key, server_key = await self._cache.keys(self.name, self._password, salt, count)
        binding = base64.b64encode(_GS2.encode()).decode()
        without_proof = f"c={binding},r={nonce}"
        signed = f"{self._first_bare},{server_first},{without_proof}".encode()
        stored_key = hashlib.new(self._digest, client_key).digest()
        signature = hmac.digest(stored_key, signed, self._digest)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = hmac.digest(server_key, signed, self._digest)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def _parse(self, server_first: str) -> tuple[str, bytes, int]:
        match = _SERVER_FIRST.fullmatch(server_first)
        if match is None:
            raise self._error("the broker's first message is malformed")
        nonce, salt_text, count_text = match.groups()
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise self._error("the broker's nonce does not extend ours")
        if _NONCE.fullmatch(nonce) is None:
            raise self._error("the broker's nonce contains invalid characters")
        salt = self._base64(salt_text)
        if not salt:
            raise self._error("the broker sent an empty salt")
        count = int(count_text)
        if not MIN_ITERATIONS <= count <= MAX_ITERATIONS:
            raise self._error(
                f"the broker asks for {count} iterations; {MIN_ITERATIONS} to {MAX_ITERATIONS} "
                "are accepted"
            )
        return nonce, salt, count

    def _verify(self, server_final: str, expected: bytes) -> None:
        """Check the server signature, with which the broker authenticates itself."""
        if not server_final.startswith("v="):
            raise self._error("the broker did not prove that it knows the password")
        signature = self._base64(server_final[2:].split(",", 1)[0])
        if not hmac.compare_digest(signature, expected):
            raise self._error("the broker's proof is wrong: it does not know the password")

    def _base64(self, text: str) -> bytes:
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise self._error("the broker's message is not base64") from None

    def _error(self, text: str) -> AuthenticationError:
        return AuthenticationError(f"{self.name}: {text}")


def mechanism(config: ProducerConfig, unix_ms: Callable[[], int]) -> Callable[[Node], Scram]:
    """Return a function that creates one exchange per authentication. Called once per producer; all
    exchanges share one `KeyCache`."""
    name, delegated = config.sasl_mechanism, config.sasl_delegation_token
    assert name is not None, "checked with the configuration"
    credentials, cache = configured_credentials(config), KeyCache()
    return lambda node: Scram(name, credentials, cache, delegation_token=delegated)
