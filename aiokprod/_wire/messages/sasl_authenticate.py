"""SaslAuthenticate (API key 36): exchange messages of a SASL mechanism."""

from __future__ import annotations

from dataclasses import dataclass

from aiokprod._wire.message import Message
from aiokprod._wire.message_schema import byte_string, int16, int64, nullable_string


@dataclass(frozen=True, slots=True)
class SaslAuthenticateRequest(Message):
    """A message of the SASL mechanism from the client."""

    api_key = 36
    min_version = 0
    max_version = 2
    flexible_version = 2

    auth_bytes: bytes = byte_string()

    def __repr__(self) -> str:
        # The message may contain a password or a token.
        return f"SaslAuthenticateRequest(<{len(self.auth_bytes)} bytes>)"


@dataclass(frozen=True, slots=True)
class SaslAuthenticateResponse(Message):
    """The result, and a message of the SASL mechanism from the broker."""

    api_key = 36
    min_version = 0
    max_version = 2
    flexible_version = 2

    error_code: int = int16()  # 0 = none
    error_message: str | None = nullable_string()
    auth_bytes: bytes = byte_string()
    # ms until re-authentication, 0 = unlimited (KIP-368)
    session_lifetime_ms: int = int64("1+", ignorable=True)

    def __repr__(self) -> str:
        # A broker may return the client's message, which contains secrets.
        return (
            f"SaslAuthenticateResponse(error_code={self.error_code}, "
            f"session_lifetime_ms={self.session_lifetime_ms})"
        )
