"""SASL AWS_MSK_IAM, a mechanism of Amazon MSK that predates its OAUTHBEARER support.

    Producer(..., security_protocol="SASL_SSL", sasl_mechanism="AWS_MSK_IAM",
             sasl_token_provider=MskIamTokens("eu-west-1", credentials))

Source: "Details" in the README of aws-msk-iam-auth; Java `IAMSaslClient`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from aiokprod.errors import AuthenticationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiokprod.cluster import Node
    from aiokprod.config import ProducerConfig

_VERSION: Final = "2020_10_22"
_MAX_MESSAGE: Final = 8192


class AwsMskIam:
    """One AWS_MSK_IAM exchange: a signed request in JSON, and a response with the same version.

    Args:
        provider: an object with an async `payload(host)`, such as `MskIamTokens`.
        host: the broker's host name. It is signed, so that the broker cannot reuse the request.
    """

    name = "AWS_MSK_IAM"

    def __init__(self, provider: Any, host: str) -> None:
        self._provider = provider
        self._host = host
        self._secrets: tuple[str, ...] = ()

    async def first(self) -> bytes:
        try:
            fields: dict[str, str] = await self._provider.payload(self._host)
        except AuthenticationError:
            raise
        except Exception as error:
            # Do not show the error text, because it may contain a secret.
            raise AuthenticationError(
                f"AWS_MSK_IAM: the provider failed with {type(error).__name__}"
            ) from None
        self._secrets = tuple(
            fields[name] for name in ("x-amz-signature", "x-amz-security-token") if name in fields
        )
        return json.dumps({"version": _VERSION, **fields}, separators=(",", ":")).encode()

    async def next(self, challenge: bytes) -> bytes | None:
        # Require a response: success without a response would mean that the broker did not check
        # the signature.
        try:
            answer = json.loads(challenge) if len(challenge) <= _MAX_MESSAGE else None
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict) or answer.get("version") != _VERSION:
            raise AuthenticationError(
                f"AWS_MSK_IAM: the broker's response is not of version {_VERSION}"
            )
        return None

    def same_user(self) -> bool:
        # The user of the provider's next credentials is not known in advance, so assume the same
        # user.
        return True

    def secrets(self) -> tuple[str, ...]:
        return self._secrets


def mechanism(config: ProducerConfig, unix_ms: Callable[[], int]) -> Callable[[Node], AwsMskIam]:
    """Return a function that creates one exchange per authentication. Called once per producer."""
    return lambda node: AwsMskIam(config.sasl_token_provider, node.host)
