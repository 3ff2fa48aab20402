"""A small OpenID Connect provider: an https token endpoint with two grants, signed tokens, and its
keys as a JWKS file."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote_plus

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from aiokprod._security.jwt_bearer import GRANT
from tests.security.certs import Authority

AUDIENCE, ISSUER = "kafka", "https://idp.test"
CLIENT, SECRET = "producer", "canary-client-secret"


def new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def pem(key: rsa.RSAPrivateKey) -> str:
    form, none = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, none).decode()


class Provider:
    """The provider. Tests change `lifetime_s`, the lifetime of tokens, and `refuse`, which rejects
    every request."""

    def __init__(self, folder: Path, authority: Authority) -> None:
        self.lifetime_s = 3600
        self.refuse = False
        self.granted: list[str] = []
        self.client_key = new_key()
        self.tls = ssl.create_default_context(cadata=authority.pem)
        self._key = new_key()
        self.jwks = folder / "jwks.json"
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self._key.public_key()))
        keys = [{**public, "kid": "idp-1", "alg": "RS256", "use": "sig"}]
        self.jwks.write_text(json.dumps({"keys": keys}))
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(authority.issue("127.0.0.1", number=95).write(folder, "idp"))
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self._server.server_port}/token"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                try:
                    status, answer = 200, provider.grant(form, self.headers["Authorization"])
                except (PermissionError, jwt.InvalidTokenError) as error:
                    status, answer = 401, {"error": "invalid_grant", "why": str(error)}
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None: ...

        return Handler

    def grant(self, form: dict[str, list[str]], login: str | None) -> dict[str, Any]:
        """Return the response with a token, or raise an exception."""
        if self.refuse:
            raise PermissionError("not now")
        kind = form["grant_type"][0]
        if kind == GRANT:
            subject = self._check_assertion(form["assertion"][0])
        elif kind == "client_credentials":
            subject = self._check_login(login or "")
        else:
            raise PermissionError(f"no grant {kind}")
        self.granted.append(kind)
        now = int(time.time())
        claims = {
            "iss": ISSUER, "aud": AUDIENCE, "sub": subject, "iat": now,
            "exp": now + self.lifetime_s, "jti": uuid.uuid4().hex, "scope": "produce",
        }  # fmt: skip
        token = jwt.encode(claims, self._key, "RS256", headers={"kid": "idp-1"})
        return {"access_token": token, "token_type": "Bearer", "expires_in": self.lifetime_s}

    def _check_assertion(self, assertion: str) -> str:
        claims = jwt.decode(
            assertion, self.client_key.public_key(), algorithms=["RS256"], audience=self.url,
            issuer=CLIENT, options={"require": ["exp", "iat", "sub", "jti"]},
        )  # fmt: skip
        return str(claims["sub"])

    @staticmethod
    def _check_login(login: str) -> str:
        name, _, secret = base64.b64decode(login.removeprefix("Basic ")).decode().partition(":")
        if (unquote_plus(name), unquote_plus(secret)) != (CLIENT, SECRET):
            raise PermissionError("wrong client")
        return CLIENT


@contextmanager
def provider(folder: Path, authority: Authority) -> Iterator[Provider]:
    """Start a provider that runs until the end of the block."""
    made = Provider(folder, authority)
    try:
        yield made
    finally:
        made.close()
