"""Compares the times in a SASL OAUTHBEARER token with the clock of this host."""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Final

from aiokprod._net.sasl.oauthbearer import OAuthBearer
from aiokprod.errors import AuthenticationError
from aiokprod.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aiokprod.config import ProducerConfig

_TOLERANCE_S: Final = 30.0
"""Maximum difference between two clocks, in seconds, that brokers accept. This is the default of
sasl.oauthbearer.clock.skew.seconds."""

_LATEST_S: Final = 1e12
"""Latest valid time, in seconds since 1970."""

_REMEDY: Final = (
    "synchronise the clocks of this host, of the token issuer and of the brokers (NTP); brokers "
    "tolerate sasl.oauthbearer.clock.skew.seconds"
)


async def check_token(
    config: ProducerConfig, unix_ms: Callable[[], int], *, refused: bool
) -> list[Finding]:
    """Compare the times of a new token with the clock. A failure of the token provider yields no
    finding, because the connection attempt reports it.

    Args:
        refused: True if the brokers reject the token. A difference is then an error, otherwise a
            warning.
    """
    if config.sasl_mechanism != "OAUTHBEARER":
        return []
    try:
        # With the clock at 0, `fetch` never raises because of an expired token. This function
        # reports expired tokens itself.
        token = await OAuthBearer(config.sasl_token_provider, lambda: 0).fetch()
    except AuthenticationError:
        return []
    now = unix_ms() / 1000
    times = _times(token)
    issued, begins, expires = (times.get(claim) for claim in ("iat", "nbf", "exp"))
    text = ""
    if issued is not None and issued > now + _TOLERANCE_S:
        text = f"the token was issued {issued - now:.0f} s in the future by the clock of this host"
    elif begins is not None and begins > now + _TOLERANCE_S:
        text = f"the token is not valid for another {begins - now:.0f} s by the clock of this host"
    elif expires is not None and expires <= now:
        text = f"a new token expired {now - expires:.0f} s ago by the clock of this host"
    if not text:
        return []
    severity = Severity.ERROR if refused else Severity.WARNING
    return [Finding("token_clock_skew", severity, "sasl_token_provider", text, _REMEDY)]


def _times(token: str) -> Mapping[str, float]:
    """Return the time claims (iat, nbf, exp) of a JWT in seconds since 1970. Empty for other
    tokens."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return {}
    if not isinstance(claims, dict):
        return {}
    return {
        name: value
        for name, value in claims.items()
        if name in ("iat", "nbf", "exp")
        and isinstance(value, (int, float))
        and abs(value) <= _LATEST_S
    }
