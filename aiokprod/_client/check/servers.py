"""Checks the name resolution and the TCP connections of bootstrap servers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from aiokprod.errors import DialError
from aiokprod.findings import Finding, Severity

if TYPE_CHECKING:
    from aiokprod.environment import Dialer

_MAX_ADDRESSES: Final = 8
"""Maximum number of addresses per name that are checked."""
_CONNECT_S: Final = 3.0
"""Timeout of the connection to one address, in seconds."""

REACH: Final = "check host and port, that the broker runs, and that no firewall blocks them"


async def reach(dialer: Dialer, host: str, port: int, deadline: float) -> list[Finding]:
    """Resolve a server's name and connect to its addresses. Return no finding if all of them accept
    the connection."""
    server = f"{host}:{port}"
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout_at(deadline):
            addresses = await dialer.resolve(host, port)
    except (DialError, TimeoutError) as error:
        why = "no response from the resolver in time"
        if isinstance(error, DialError):
            why = error.message
        return [
            Finding("dns_failed", Severity.ERROR, server, f"the name cannot be resolved: {why}",
                    "correct the host name in bootstrap_servers, or the DNS")
        ]  # fmt: skip
    until = min(deadline, loop.time() + _CONNECT_S)
    tried = addresses[:_MAX_ADDRESSES]
    errors = await asyncio.gather(*(_connect(dialer, address, until) for address in tried))
    failed = {address[0]: error for address, error in zip(tried, errors, strict=True) if error}
    if not failed:
        return []
    causes = "; ".join(f"{address}: {error}" for address, error in failed.items())
    if len(failed) == len(tried):
        text = f"no TCP connection: {causes}"
        return [Finding("unreachable", Severity.ERROR, server, text, REACH)]
    text = f"{len(failed)} of {len(addresses)} addresses of the name cannot be reached: {causes}"
    remedy = "remove the dead addresses from the DNS, or start the brokers at these addresses"
    return [Finding("address_unreachable", Severity.WARNING, server, text, remedy)]


async def _connect(dialer: Dialer, address: tuple[str, int], deadline: float) -> str | None:
    """Connect to an address and close the connection. Return the reason of a failure, or None."""
    try:
        async with asyncio.timeout_at(deadline):
            transport, _ = await dialer.connect(asyncio.Protocol, *address)
    except TimeoutError:
        return "not connected in time"
    except DialError as error:
        return error.message
    transport.abort()
    return None
