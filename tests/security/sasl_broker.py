"""The broker's side of SASL in a memory network, correct or with one fault."""

from __future__ import annotations

import base64
import hashlib
import hmac
import random
from collections.abc import Callable
from typing import Any

from aiokprod import Producer
from aiokprod._wire.headers import RequestHeader
from aiokprod._wire.message import Message
from aiokprod._wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from aiokprod._wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from aiokprod.environment import Environment
from aiokprod.testing.memory import MemoryNetwork
from tests.net.scripted_broker import ScriptedBroker

HANDSHAKE, AUTHENTICATE = 17, 36
UNSUPPORTED_MECHANISM, ILLEGAL_STATE, FAILED = 33, 34, 58

Users = dict[str, str]


class Refused(Exception):
    """The broker rejects the client. The text of the exception is sent to the client."""


class PlainServer:
    def __init__(self, users: Users) -> None:
        self.users = users

    def answer(self, data: bytes) -> tuple[bytes, bool]:
        authzid, user, password = data.decode().split("\0")
        assert authzid == ""
        if self.users.get(user) != password:
            raise Refused("Authentication failed: Invalid username or password")
        return b"", True


class ScramServer:
    """The server's side of RFC 5802. `spoil` maps a step name to a function that changes the
    message of the step."""

    def __init__(
        self,
        users: Users,
        digest: str,
        *,
        iterations: int = 4096,
        spoil: dict[str, Callable[[str], str]] | None = None,
    ) -> None:
        self.users, self.digest, self.iterations = users, digest, iterations
        self.spoil = spoil or {}
        self.step = 0
        self.extensions: dict[str, str] = {}

    def answer(self, data: bytes) -> tuple[bytes, bool]:
        self.step += 1
        text = data.decode()
        return (self._first(text), False) if self.step == 1 else (self._final(text), True)

    def _first(self, text: str) -> bytes:
        assert text.startswith("n,,n=")
        self.client_first = text[3:]
        fields = dict(part.split("=", 1) for part in self.client_first.split(","))
        self.user = fields.pop("n").replace("=2C", ",").replace("=3D", "=")
        self.nonce = fields.pop("r") + "SERVERPART"
        self.extensions = fields
        self.salt = b"salt of the earth"
        plain = f"r={self.nonce},s={base64.b64encode(self.salt).decode()},i={self.iterations}"
        self.server_first = self.spoil.get("first", str)(plain)
        return self.server_first.encode("utf-8", "surrogateescape")

    def _final(self, text: str) -> bytes:
        without_proof, _, proof = text.rpartition(",p=")
        assert without_proof == f"c=biws,r={self.nonce}"
        password = self.users.get(self.user, "no such user")
        salted = hashlib.pbkdf2_hmac(self.digest, password.encode(), self.salt, self.iterations)
        signed = f"{self.client_first},{self.server_first},{without_proof}".encode()
        client_key = hmac.digest(salted, b"Client Key", self.digest)
        stored = hashlib.new(self.digest, client_key).digest()
        signature = hmac.digest(stored, signed, self.digest)
        found = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
        if found != client_key and "final" not in self.spoil:
            raise Refused("Authentication failed during authentication due to invalid credentials")
        server_key = hmac.digest(salted, b"Server Key", self.digest)
        proven = base64.b64encode(hmac.digest(server_key, signed, self.digest)).decode()
        return self.spoil.get("final", str)(f"v={proven}").encode("utf-8", "surrogateescape")


class BearerServer:
    def __init__(self, tokens: set[str]) -> None:
        self.tokens = tokens
        self.failed = False

    def answer(self, data: bytes) -> tuple[bytes, bool]:
        if self.failed:
            assert data == b"\x01"
            raise Refused('{"status":"invalid_token"}')
        assert data.startswith(b"n,,\x01auth=Bearer ")
        assert data.endswith(b"\x01\x01")
        token = data.split(b"\x01")[1].removeprefix(b"auth=Bearer ").decode()
        if token not in self.tokens:
            self.failed = True
            return b'{"status":"invalid_token","token":"' + token.encode() + b'"}', False
        return b"", True


class SaslBroker(ScriptedBroker):
    """A broker that authenticates one connection at a time.

    Attributes:
        mechanisms: maps a name to a function that creates the server's side of an exchange.
        lifetime_ms: session lifetime that is sent with the last response.
    """

    def __init__(
        self, network: MemoryNetwork, host: str = "b", port: int = 1, **mechanisms: Any
    ) -> None:
        super().__init__(network, host, port)
        self.mechanisms: dict[str, Callable[[], Any]] = {
            name.replace("_", "-"): make for name, make in mechanisms.items()
        }
        self.lifetime_ms = 0
        self.exchanges: list[Any] = []
        self.sent: list[bytes] = []
        self.answers[HANDSHAKE] = self.handshake
        self.answers[AUTHENTICATE] = self.authenticate

    def handshake(self, header: RequestHeader, message: Message) -> Message:
        assert isinstance(message, SaslHandshakeRequest)
        assert header.request_api_version == 1
        if message.mechanism not in self.mechanisms:
            return SaslHandshakeResponse(
                error_code=UNSUPPORTED_MECHANISM, mechanisms=list(self.mechanisms)
            )
        self.exchanges.append(self.mechanisms[message.mechanism]())
        return SaslHandshakeResponse(mechanisms=list(self.mechanisms))

    def authenticate(self, header: RequestHeader, message: Message) -> Message:
        assert isinstance(message, SaslAuthenticateRequest)
        self.sent.append(bytes(message.auth_bytes))
        try:
            data, done = self.exchanges[-1].answer(self.sent[-1])
        except Refused as error:
            return SaslAuthenticateResponse(error_code=FAILED, error_message=str(error))
        lifetime = self.lifetime_ms if done else 0
        return SaslAuthenticateResponse(auth_bytes=data, session_lifetime_ms=lifetime)


def new_producer(network: MemoryNetwork, **settings: Any) -> Any:
    defaults: dict[str, Any] = {
        "bootstrap_servers": "b:1",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_allow_cleartext": True,
        "enable_idempotence": False,
    }
    clock = settings.pop("unix_ms", lambda: 1_800_000_000_000)
    environment = Environment(network, clock, random.Random(3))
    return Producer(environment=environment, **(defaults | settings))
