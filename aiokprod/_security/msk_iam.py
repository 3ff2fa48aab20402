"""Tokens for Amazon MSK with IAM access control, signed without an AWS SDK.

The token is a pre-signed URL (Signature Version 4), sent with OAUTHBEARER. The mechanism
AWS_MSK_IAM sends the same fields as JSON. An example with OAUTHBEARER:

    Producer(..., security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER",
             sasl_token_provider=MskIamTokens("eu-west-1", credentials))

Source: AWS "Signature Version 4 signing process"; aws-msk-iam-sasl-signer.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Self
from urllib.parse import quote

from aiokprod._redaction import redacted, redacted_init
from aiokprod._security.secret import Secret, as_secret, revealed
from aiokprod.environment import unix_ms
from aiokprod.errors import AuthenticationError, ConfigError

LIFETIME_S: Final = 900
_SERVICE: Final = "kafka-cluster"
_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_REGION: Final = re.compile(r"[a-z]{2,4}(-[a-z]+)+-[0-9]{1,2}")


@redacted_init
@dataclass(frozen=True, slots=True)
class AwsCredentials:
    """An AWS access key. Temporary credentials also have a session token."""

    access_key_id: str
    secret_access_key: Secret
    session_token: Secret | None = field(default=None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "secret_access_key", as_secret(self.secret_access_key))
        if self.session_token is not None:
            object.__setattr__(self, "session_token", as_secret(self.session_token))

    @classmethod
    @redacted(ConfigError)
    def from_env(cls) -> Self:
        """Read AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN.

        Raises:
            ConfigError: one of the first two is missing.
        """
        key, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
        if not key or not secret:
            raise ConfigError("AWS_ACCESS_KEY_ID or AWS_SECRET_ACCESS_KEY is not set")
        token = os.environ.get("AWS_SESSION_TOKEN")
        return cls(key, Secret(secret), Secret(token) if token else None)


@redacted(ConfigError)
def botocore_credentials() -> AwsCredentials:
    """Return the credentials that the AWS SDK finds in profiles, containers or instance roles.
    Blocks, and needs botocore.

    Raises:
        ConfigError: botocore is not installed or finds no credentials.
    """
    try:
        from botocore.session import get_session
    except ImportError:
        raise ConfigError("botocore is not installed") from None
    found = get_session().get_credentials()
    if found is None:
        raise ConfigError("botocore finds no AWS credentials")
    frozen = found.get_frozen_credentials()
    token = Secret(frozen.token) if frozen.token else None
    return AwsCredentials(frozen.access_key, Secret(frozen.secret_key), token)


class MskIamTokens:
    """A token provider for OAUTHBEARER and AWS_MSK_IAM. Each token is new and valid for 15 minutes.

    Args:
        region: region of the cluster, e.g. "eu-west-1".
        credentials: the credentials, or a function that returns them. The function is run in a
            thread for every token, so that rotated credentials take effect.
        clock: wall clock in ms; AWS accepts a difference of five minutes.

    Raises:
        ConfigError: the region is not the name of an AWS region.
    """

    def __init__(
        self,
        region: str,
        credentials: AwsCredentials | Callable[[], AwsCredentials] = botocore_credentials,
        *,
        clock: Callable[[], int] = unix_ms,
    ) -> None:
        if _REGION.fullmatch(region) is None:
            raise ConfigError(f"region={region!r}: use the name of an AWS region")
        self._region = region
        self._credentials = credentials
        self._clock = clock

    def __repr__(self) -> str:
        return f"MskIamTokens({self._region!r})"

    @redacted(AuthenticationError)
    async def token(self) -> Secret:
        """Return a signed token.

        Raises:
            AuthenticationError: there are no credentials.
        """
        url = _url(_public_host(self._region), await self._sign(_public_host(self._region)))
        url += "&User-Agent=aiokprod"
        return Secret(base64.urlsafe_b64encode(url.encode()).decode().rstrip("="))

    @redacted(AuthenticationError)
    async def payload(self, host: str) -> dict[str, str]:
        """Return the fields that AWS_MSK_IAM sends to the broker with this host name.

        Raises:
            AuthenticationError: there are no credentials.
        """
        fields = await self._sign(host)
        lower = {name.lower(): value for name, value in fields.items()}
        return {"host": host, "user-agent": "aiokprod", **lower}

    async def _sign(self, host: str) -> dict[str, str]:
        given = self._credentials
        if not isinstance(given, AwsCredentials):
            try:
                given = await asyncio.get_running_loop().run_in_executor(None, given)
            except ConfigError as error:
                raise AuthenticationError(f"MSK IAM: {error.message}") from None
        secret = await revealed(given.secret_access_key)
        session = None if given.session_token is None else await revealed(given.session_token)
        at = datetime.fromtimestamp(self._clock() / 1000, UTC)
        return signed_fields(host, self._region, given.access_key_id, secret, session, at)


def _public_host(region: str) -> str:
    return f"kafka.{region}.amazonaws.com"


def _query(fields: dict[str, str]) -> str:
    return "&".join(f"{name}={quote(value, safe='-_.~')}" for name, value in fields.items())


def _url(host: str, fields: dict[str, str]) -> str:
    return f"https://{host}/?{_query(fields)}"


def signed_fields(
    host: str,
    region: str,
    access_key_id: str,
    secret: str,
    session_token: str | None,
    at: datetime,
) -> dict[str, str]:
    """Return the query fields of a pre-signed GET request for the action kafka-cluster:Connect,
    valid for `LIFETIME_S`. The last field is the signature."""
    stamp, day = at.strftime("%Y%m%dT%H%M%SZ"), at.strftime("%Y%m%d")
    scope = f"{day}/{region}/{_SERVICE}/aws4_request"
    fields = {
        "Action": "kafka-cluster:Connect",
        "X-Amz-Algorithm": _ALGORITHM,
        "X-Amz-Credential": f"{access_key_id}/{scope}",
        "X-Amz-Date": stamp,
        "X-Amz-Expires": str(LIFETIME_S),
        "X-Amz-SignedHeaders": "host",
    }
    if session_token is not None:
        fields["X-Amz-Security-Token"] = session_token
    query = _query(dict(sorted(fields.items())))
    empty = hashlib.sha256(b"").hexdigest()
    request = f"GET\n/\n{query}\nhost:{host}\n\nhost\n{empty}"
    hashed = hashlib.sha256(request.encode()).hexdigest()
    key = f"AWS4{secret}".encode()
    for part in (day, region, _SERVICE, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    text = f"{_ALGORITHM}\n{stamp}\n{scope}\n{hashed}"
    return fields | {"X-Amz-Signature": hmac.digest(key, text.encode(), "sha256").hex()}
