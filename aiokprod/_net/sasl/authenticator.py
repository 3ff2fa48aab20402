"""The SASL exchange with a broker: SaslHandshake, the mechanism's messages, the session lifetime.

Each mechanism has a module with its messages and checks. Source: KIP-43, KIP-152, KIP-368; Java
`SaslClientAuthenticator`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import quote, quote_plus

from aiokprod._net.authentication import Authenticated, AuthenticationStep, AuthTask, SendToBroker
from aiokprod._redaction import redacted
from aiokprod._security.secret import MASK, Credentials, revealed
from aiokprod._wire.message import Message
from aiokprod._wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from aiokprod._wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from aiokprod._wire.versions import VersionRanges
from aiokprod.errors import AuthenticationError, Code, error_code

if TYPE_CHECKING:
    from aiokprod.config import ProducerConfig

_LONGEST_TEXT: Final = 300
_SHORTEST_FORM: Final = 4
"""Minimum length of an encoded secret to search for. Shorter strings, from secrets of one or two
characters, occur in any text."""


class Mechanism(Protocol):
    """One exchange of one SASL mechanism; every authentication creates a new object. Its coroutines
    run in tasks that are cancelled when the connection closes.

    Attributes:
        name: the mechanism name in SaslHandshake.
    """

    name: str

    async def first(self) -> bytes:
        """Return the client's first message.

        Raises:
            AuthenticationError: the credentials are not available or cannot be sent.
        """

    async def next(self, challenge: bytes) -> bytes | None:
        """Return the response to the broker's message, or None once both sides are authenticated.

        Raises:
            AuthenticationError: the broker violates the mechanism's rules or is not authenticated.
        """

    def same_user(self) -> bool:
        """Return True if the configured credentials still belong to the authenticated user."""

    def secrets(self) -> tuple[str, ...]:
        """Return the texts to mask if the broker sends them back. Empty before `first`."""


class SaslAuthenticator:
    """Authenticates one connection with the configured mechanism, without fallback to another one.

    Args:
        peer: name of the broker in error texts.
        new_mechanism: creates an exchange; called for every authentication.
    """

    def __init__(self, peer: str, new_mechanism: Callable[[], Mechanism]) -> None:
        self._peer = peer
        self._new_mechanism = new_mechanism
        self._current: Mechanism | None = None
        self._version = 0
        self._chosen = False
        self._sent: tuple[str, ...] = ()  # secrets of the previous exchange

    def start(self, versions: VersionRanges) -> AuthenticationStep:
        """Return the first step, a SaslHandshake request with the name of the mechanism."""
        for message in (SaslHandshakeRequest, SaslAuthenticateRequest):
            if message.api_key not in versions:
                raise self._error(
                    "does not offer SASL; is the port a listener without SASL, or a broker before "
                    "Kafka 1.0?"
                )
        if versions[SaslHandshakeRequest.api_key][1] < 1:
            raise self._error("offers only the SASL exchange of Kafka 0.10; 1.0 or newer is needed")
        self._version = versions[SaslAuthenticateRequest.api_key][1]
        self._sent = () if self._current is None else self._current.secrets()
        self._current = self._new_mechanism()
        self._chosen = False
        return SendToBroker(SaslHandshakeRequest(mechanism=self._mechanism.name), 1)

    @property
    def _mechanism(self) -> Mechanism:
        assert self._current is not None, "`start` comes first"
        return self._current

    def renewable(self) -> bool:
        """Return False if the credentials were replaced by those of another user."""
        return self._mechanism.same_user()

    @redacted(AuthenticationError)
    def receive(self, response: Message) -> AuthenticationStep:
        """Check a response, and return a task that computes the mechanism's next message."""
        if isinstance(response, SaslHandshakeResponse) and not self._chosen:
            self._check_handshake(response)
            self._chosen = True
            return AuthTask(self._first)
        if isinstance(response, SaslAuthenticateResponse) and self._chosen:
            self._check_answer(response)
            return AuthTask(lambda: self._next(response))
        raise self._error("sent an unexpected response")

    @redacted(AuthenticationError)
    async def _first(self) -> AuthenticationStep:
        return self._send(await self._mechanism.first())

    @redacted(AuthenticationError)
    async def _next(self, response: SaslAuthenticateResponse) -> AuthenticationStep:
        answer = await self._mechanism.next(bytes(response.auth_bytes))
        if answer is None:
            return Authenticated(max(0, response.session_lifetime_ms) / 1000)
        return self._send(answer)

    def _send(self, data: bytes) -> SendToBroker:
        return SendToBroker(SaslAuthenticateRequest(auth_bytes=data), self._version)

    def _check_handshake(self, response: SaslHandshakeResponse) -> None:
        name = self._mechanism.name
        offered = self._harmless(", ".join(response.mechanisms[:10])) or "none"
        if response.error_code == Code.UNSUPPORTED_SASL_MECHANISM or (
            response.error_code == Code.NONE
            and response.mechanisms
            and name not in response.mechanisms
        ):
            raise self._error(
                f"does not offer {name} (it offers {offered}), and no other mechanism is tried",
                Code.UNSUPPORTED_SASL_MECHANISM,
            )
        if response.error_code != Code.NONE:
            text = error_code(response.error_code).text
            if response.error_code == Code.ILLEGAL_SASL_STATE:
                text += (
                    "; is the listener without SASL? Then use security_protocol PLAINTEXT or SSL"
                )
            raise self._error(f"refused {name}: {text}", response.error_code)

    def _check_answer(self, response: SaslAuthenticateResponse) -> None:
        if response.error_code == Code.NONE:
            return
        shown = self._harmless(response.error_message or "")
        text = shown or error_code(response.error_code).text
        raise self._error(f"refused {self._mechanism.name}: {text}", response.error_code)

    def _harmless(self, text: str) -> str:
        """Return a message from the broker without the secrets that were sent to the broker."""
        return harmless(without_secrets(text, (*self._sent, *self._mechanism.secrets())))

    def _error(self, text: str, code: int | None = None) -> AuthenticationError:
        row = None if code is None else error_code(code)
        return AuthenticationError(
            f"{self._peer} {text}", code=row, outcome=AuthenticationError.default_outcome
        )


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """Mask the secrets in a text. If it contains a secret in base64, hex or percent-encoding, alone
    or as part of longer encoded data, the whole text is masked."""
    for secret in secrets:
        text = text.replace(secret, MASK)
        if any(form in text for form in _encoded(secret)):
            return MASK
    return text


def _encoded(secret: str) -> set[str]:
    data = secret.encode("utf-8", "surrogatepass")
    percent = {quote(data), quote(data, safe=""), quote_plus(data)}
    forms = ({data.hex(), data.hex().upper()} | percent) - {secret}
    for before in range(3):
        # Leave out the first and last characters, because they depend on the neighbouring bytes.
        whole = base64.b64encode(b"\0" * before + data).decode()
        part = whole[before and before + 1 : (before + len(data)) * 8 // 6]
        forms |= {part, part.replace("+", "-").replace("/", "_")}
    return {form for form in forms if len(form) >= _SHORTEST_FORM}


def harmless(text: str) -> str:
    """Return a message from a broker without control characters and with limited length."""
    shown = "".join(char if char.isprintable() else "?" for char in text[:_LONGEST_TEXT])
    return shown + ("…" if len(text) > _LONGEST_TEXT else "")


async def user_and_password(credentials: Credentials) -> tuple[str, str]:
    """Return the current user name and password.

    Raises:
        AuthenticationError: the password cannot be read.
    """
    username, password = credentials.pair
    return username, await revealed(password)


def configured_credentials(config: ProducerConfig) -> Credentials:
    """Return the configured credentials, for a mechanism with user name and password."""
    if config.sasl_credentials is not None:
        return config.sasl_credentials
    assert config.sasl_username is not None, "checked with the configuration"
    assert config.sasl_password is not None, "checked with the configuration"
    return Credentials(config.sasl_username, config.sasl_password)
