"""SASL GSSAPI (RFC 4752) with Kerberos tickets: no password and no key is sent.

Needs the extra `aiokprod[gssapi]`, a wrapper of the system's Kerberos library. All of its calls may
block (on the KDC, name resolution and files), so they run one after the other in a separate
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
"""Bit in the broker's offer. Integrity and privacy of the connection are left to TLS."""

_MAX_MESSAGE: Final = 64 * 1024
_UNSPECIFIED: Final = 13 << 16
"""The major status GSS_S_FAILURE, which gives no reason. The minor status gives it."""


def _library() -> Any:
    """The package of the extra, which may not be installed."""
    return importlib.import_module("gssapi")


class KerberosLogin:
    """The tickets of one producer, shared by its connections.

    Without a keytab they come from the default credential cache (KRB5CCNAME), where `kinit` puts
    them. With a keytab the Kerberos library fetches and renews them, in memory. Both are read for
    every authentication, so that renewed tickets and rotated keytabs take effect.

    Args:
        service: first part of the brokers' principals.
        principal: the client's principal; None stands for the default principal of the cache, or
            the first one of the keytab.
        keytab: path of the keytab; None for the credential cache.
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
        """Call a blocking function in the thread.

        Raises:
            AuthenticationError: the Kerberos library reports an error.
        """
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._executor, function, *args)
        except _library().exceptions.GSSError as error:
            raise AuthenticationError(f"GSSAPI: {_reason(error)}") from None

    def context(self, host: str) -> Any:
        """A security context with the broker at `host`. Blocks."""
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
        """True if the broker is authenticated too."""
        return _library().RequirementFlag.mutual_authentication in context.actual_flags


class Gssapi:
    """One exchange: mutual authentication, then the broker's offer of security layers; none of them
    is chosen."""

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
        # This is assumed, because the principal of the next tickets is not known in advance.
        # Brokers compare principals.
        return True

    def secrets(self) -> tuple[str, ...]:
        return ()

    def _begin(self) -> bytes:
        self._context = self._login.context(self._host)
        return self._step(None)

    def _step(self, challenge: bytes | None) -> bytes:
        token: bytes | None = self._context.step(challenge)
        if self._context.complete and not self._login.is_mutual(self._context):
            raise AuthenticationError("GSSAPI: the broker did not prove itself")
        return token or b""

    def _choose_layer(self, challenge: bytes) -> bytes:
        offer: bytes = self._context.unwrap(challenge).message
        if len(offer) != 4:
            raise AuthenticationError("GSSAPI: the broker's offer of security layers is malformed")
        if not offer[0] & _NO_LAYER:
            raise AuthenticationError(
                "GSSAPI: the broker insists on a security layer, which Kafka does not have"
            )
        # The bytes are the chosen layer (none) and the maximum message size, which is 0 without a
        # layer. The authorization id is empty, which stands for the principal.
        answer: bytes = self._context.wrap(bytes((_NO_LAYER, 0, 0, 0)), False).message
        return answer


def _reason(error: Any) -> str:
    """The text of the Kerberos library: it names principals, hosts and files, never keys."""
    minor = error.get_all_statuses(error.min_code, False) if error.min_code else []
    major = error.get_all_statuses(error.maj_code, True)
    if minor and error.maj_code == _UNSPECIFIED:
        major = []
    return harmless(": ".join([*major, *minor]))


def mechanism(config: ProducerConfig, unix_ms: Callable[[], int]) -> Callable[[Node], Gssapi]:
    """Return a function that creates the exchange of one authentication. Called once per producer;
    all exchanges share one `KerberosLogin`."""
    login = KerberosLogin(
        config.sasl_kerberos_service_name,
        config.sasl_kerberos_principal,
        config.sasl_kerberos_keytab,
    )
    return lambda node: Gssapi(login, node.host)
