"""SASL GSSAPI (RFC 4752) with Kerberos tickets. No password or key is sent.

Requires the extra `aiokprod[gssapi]`, a wrapper of the system's Kerberos library. All calls of the
library may block (on the KDC, name resolution and files), so they run one at a time in a separate
thread. Source: RFC 4752 §3.1; Java `GssKrb5Client`, `SaslClientAuthenticator`; krb5 cred stores.
"""

from __future__ import annotations

import asyncio
import importlib
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aiokprod._net.sasl.authenticator import harmless
from aiokprod.errors import AuthenticationError

if TYPE_CHECKING:
    from aiokprod.cluster import Node
    from aiokprod.config import ProducerConfig

R = TypeVar("R")

_NO_LAYER: Final = 1
"""Bit for "no security layer" in the broker's offer. Integrity and privacy are left to TLS."""

_MAX_MESSAGE: Final = 64 * 1024
_UNSPECIFIED: Final = 13 << 16
"""The major status GSS_S_FAILURE, which has no specific text. The minor status has the reason."""


def _library() -> Any:
    """Import the package of the extra. It may not be installed."""
    return importlib.import_module("gssapi")


class KerberosLogin:
    """The Kerberos tickets of one producer, shared by its connections.

    Without a keytab, tickets come from the default credential cache (KRB5CCNAME), which `kinit`
    fills. With a keytab, the Kerberos library obtains and renews them, and stores them in memory.
    The cache or keytab is read for every authentication, so that renewed tickets and rotated
    keytabs take effect.

    Args:
        service: first part of the brokers' principals.
        principal: the client's principal; None uses the default principal of the cache, or the
            first principal in the keytab.
        keytab: path of the keytab; None uses the credential cache.
    """

    def __init__(self, service: str, principal: str | None, keytab: str | None) -> None:
        self._service = service
        self._principal = principal
        self._store: dict[str, str] | None = None
        if keytab is not None:
            cache = f"MEMORY:aiokprod-{secrets.token_hex(8)}"
            self._store = {"client_keytab": keytab, "ccache": cache}
        self._executor = ThreadPoolExecutor(1, "aiokprod-gssapi")

    async def run(self, function: Callable[..., R], *args: Any) -> R:
        """Call a blocking function in the Kerberos thread.

        Raises:
            AuthenticationError: the Kerberos library reported an error.
        """
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._executor, function, *args)
        except _library().exceptions.GSSError as error:
            raise AuthenticationError(f"GSSAPI: {_reason(error)}") from None

    def context(self, host: str) -> Any:
        """Create a security context for the broker at `host`. Blocks."""
        gssapi = _library()
        kerberos = gssapi.MechType.kerberos
        name = None
        if self._principal is not None:
            name = gssapi.Name(self._principal, gssapi.NameType.kerberos_principal)
        own = gssapi.Credentials(name=name, mechs=[kerberos], usage="initiate", store=self._store)
        flag = gssapi.RequirementFlag
        return gssapi.SecurityContext(
            name=gssapi.Name(f"{self._service}@{host}", gssapi.NameType.hostbased_service),
            creds=own,
            mech=kerberos,
            flags=flag.mutual_authentication | flag.integrity,
            usage="initiate",
        )

    @staticmethod
    def is_mutual(context: Any) -> bool:
        """Return True if the broker is authenticated too."""
        return _library().RequirementFlag.mutual_authentication in context.actual_flags


class Gssapi:
    """One GSSAPI exchange: mutual authentication, then the broker's offer of security layers. The
    client chooses no security layer."""

    name = "GSSAPI"

    def __init__(self, login: KerberosLogin, host: str) -> None:
        self._login = login
        self._host = host
        self._context: Any = None
        self._answered = False

    async def first(self) -> bytes:
        return await self._login.run(self._begin)

    async def next(self, challenge: bytes) -> bytes | None:
        if self._answered:
            return None
        if len(challenge) > _MAX_MESSAGE:
            raise AuthenticationError("GSSAPI: the broker's message is too long")
        if not self._context.complete:
            return await self._login.run(self._step, challenge)
        answer = await self._login.run(self._choose_layer, challenge)
        self._answered = True
        return answer

    def same_user(self) -> bool:
        # The principal of the next ticket is not known in advance, so assume the same user. The
        # broker compares the principals.
        return True

    def secrets(self) -> tuple[str, ...]:
        return ()

    def _begin(self) -> bytes:
        self._context = self._login.context(self._host)
        return self._step(None)

    def _step(self, challenge: bytes | None) -> bytes:
        token: bytes | None = self._context.step(challenge)
        if self._context.complete and not self._login.is_mutual(self._context):
            raise AuthenticationError("GSSAPI: the broker did not authenticate itself")
        return token or b""

    def _choose_layer(self, challenge: bytes) -> bytes:
        offer: bytes = self._context.unwrap(challenge).message
        if len(offer) != 4:
            raise AuthenticationError("GSSAPI: the broker's offer of security layers is malformed")
        if not offer[0] & _NO_LAYER:
            raise AuthenticationError(
                "GSSAPI: the broker requires a security layer, which Kafka does not support"
            )
        # The bytes are the chosen layer (none) and the maximum message size, which is 0 without a
        # layer. The authorization id is left empty, so the principal applies.
        answer: bytes = self._context.wrap(bytes((_NO_LAYER, 0, 0, 0)), False).message
        return answer


def _reason(error: Any) -> str:
    """Return the Kerberos library's text. It may name principals, hosts and files, but no keys."""
    minor = error.get_all_statuses(error.min_code, False) if error.min_code else []
    major = error.get_all_statuses(error.maj_code, True)
    if minor and error.maj_code == _UNSPECIFIED:
        major = []
    return harmless(": ".join([*major, *minor]))


def mechanism(config: ProducerConfig, unix_ms: Callable[[], int]) -> Callable[[Node], Gssapi]:
    """Return a function that creates one exchange per authentication. Called once per producer; all
    exchanges share one `KerberosLogin`."""
    login = KerberosLogin(
        config.sasl_kerberos_service_name,
        config.sasl_kerberos_principal,
        config.sasl_kerberos_keytab,
    )
    return lambda node: Gssapi(login, node.host)
