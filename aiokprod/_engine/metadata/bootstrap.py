"""Checks at startup that the host name of at least one bootstrap server can be resolved."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from aiokprod._log_fields import log_fields
from aiokprod.errors import ConfigError, DialError

logger = logging.getLogger(__name__)


class Resolver(Protocol):
    """The part of a `Dialer` that resolves host names."""

    async def resolve(self, host: str, port: int) -> list[tuple[str, int]]:
        """Return all addresses of a host name. Raises DialError if it has none."""


async def check_bootstrap(
    addresses: Sequence[tuple[str, int]], resolver: Resolver, *, timeout: float
) -> None:
    """Return as soon as one of the host names is resolved.

    Names that do not resolve are logged and stay in use: each attempt to connect looks them up
    again.

    Args:
        timeout: seconds for all look-ups together.

    Raises:
        ConfigError: no name resolved in time. The text contains all names; the cause is the error
            of one look-up.

    Cancellation cancels the look-ups.

    Source: Java `ClientUtils.parseAndValidateAddresses`.
    """
    lookups = {
        asyncio.ensure_future(resolver.resolve(host, port)): f"{host}:{port}"
        for host, port in addresses
    }
    waiting = set(lookups)
    cause: BaseException | None = None
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    try:
        while waiting:
            done, waiting = await asyncio.wait(
                waiting,
                timeout=max(0.0, deadline - loop.time()),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not done:
                break
            failures = {lookup: lookup.exception() for lookup in done}
            for error in failures.values():
                if error is not None and not isinstance(error, DialError):
                    raise error
            if None in failures.values():
                return
            for lookup, error in failures.items():
                logger.warning(
                    "bootstrap server %s cannot be resolved: %s", lookups[lookup], error,
                    extra=log_fields("name_not_resolved", error=error, server=lookups[lookup]),
                )  # fmt: skip
                cause = error
    finally:
        for lookup in waiting:
            lookup.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    names = ", ".join(lookups.values())
    raise ConfigError(
        f"bootstrap_servers: none of {names} could be resolved within {timeout:.3g} s; "
        "check the host names and the DNS"
    ) from cause
